// Compiled once for each instruction set (CPU_CAPABILITY). Nothing here may be an inline function of the standard
// library that another file instantiates too: the linker would keep either copy, perhaps the one that an older
// processor cannot run.
#include "csrc/cpu/multistep/compiled_rows.h"
#include "csrc/cpu/multistep/multistep.h"
#include "csrc/neuron/cells.h"

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

template <template <class, class> class Neuron> struct CellsOf {
  template <class F, class Options> using Law = Neuron<F, Options>;
  template <class F, class Surrogate, class Options>
  using Cell = SpikingCell<F, Neuron<F, Options>, Surrogate, Options>;
};

template <template <class, class> class Neuron, class T, class Stored> constexpr Loop loop_of() {
  return Multistep<CompiledRows<CellsOf<Neuron>, T, Stored>>::both_ways();
}

template <template <class, class> class Neuron> Loop loop_for(DType type) {
  switch (type) {
    case DType::f16: return loop_of<Neuron, float, c10::Half>();
    case DType::bf16: return loop_of<Neuron, float, c10::BFloat16>();
    case DType::f32: return loop_of<Neuron, float, float>();
    default: return loop_of<Neuron, double, double>();
  }
}

Loop predefined_loop(NeuronKind kind, DType type) {
  return with_kind(kind, [&]<NeuronKind each>() { return loop_for<NeuronStruct<each>::template type>(type); });
}

}  // namespace
}  // namespace CPU_CAPABILITY

Loop SPIKEFORGE_OF_SET(predefined_loop)(NeuronKind kind, DType type) { return predefined_loop(kind, type); }

}  // namespace spikeforge::cpu
