// Compiled once for each instruction set (CPU_CAPABILITY), under the rules at the top of predefined_loops.cpp.
#include "csrc/cpu/loihi/rows.h"
#include "csrc/cpu/multistep/multistep.h"

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

struct Variant {};

template <bool ternary> Loop loop_of(LoihiForm form) {
  switch (form) {
    case LoihiForm::plain: return Multistep<LoihiRows<Loihi<ternary, LoihiForm::plain, Variant>>>::forward_only();
    case LoihiForm::reset: return Multistep<LoihiRows<Loihi<ternary, LoihiForm::reset, Variant>>>::forward_only();
    case LoihiForm::refractory:
      return Multistep<LoihiRows<Loihi<ternary, LoihiForm::refractory, Variant>>>::forward_only();
  }
  return {};
}

Loop loihi_loop(bool ternary, LoihiForm form) { return ternary ? loop_of<true>(form) : loop_of<false>(form); }

}  // namespace
}  // namespace CPU_CAPABILITY

Loop SPIKEFORGE_OF_SET(loihi_loop)(bool ternary, LoihiForm form) { return loihi_loop(ternary, form); }

}  // namespace spikeforge::cpu
