// Compiled once for each instruction set (CPU_CAPABILITY), with the same care as predefined_loops.cpp.
#include "csrc/cpu/multistep/multistep.h"
#include "csrc/cpu/multistep/tape_rows.h"

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

Loop traced_loop(DType type) {
  switch (type) {
    case DType::f16: return Multistep<TapeRows<float, c10::Half>>::both_ways();
    case DType::bf16: return Multistep<TapeRows<float, c10::BFloat16>>::both_ways();
    case DType::f32: return Multistep<TapeRows<float, float>>::both_ways();
    default: return Multistep<TapeRows<double, double>>::both_ways();
  }
}

}  // namespace
}  // namespace CPU_CAPABILITY

Loop SPIKEFORGE_OF_SET(traced_loop)(DType type) { return traced_loop(type); }

}  // namespace spikeforge::cpu
