// Compiled once for each instruction set (CPU_CAPABILITY). Nothing here may be an inline function of the standard
// library that another file instantiates too: the linker would keep either copy, perhaps the one that an older
// processor cannot run.
#include <spikeforge/cpu/kernels.h>
#include <spikeforge/cpu/multistep.h>

#include <spikeforge/neuron/eif.h>
#include <spikeforge/neuron/if.h>
#include <spikeforge/neuron/izhikevich.h>
#include <spikeforge/neuron/lif.h>
#include <spikeforge/neuron/plif.h>
#include <spikeforge/neuron/qif.h>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

template <template <class, class> class Neuron, class T>
struct CellsOf {
  template <class Surrogate, class Options>
  using Cell = SpikingCell<Vec<T>, Neuron<Vec<T>, Options>, Surrogate, Options>;
};

template <template <class, class> class Neuron, class T, class Stored>
constexpr Kernels kernels_of() {
  using Loop = Multistep<CellsOf<Neuron, T>, T, Stored>;
  return {Loop::forward_scratch, Loop::forward, Loop::backward_scratch, Loop::backward};
}

template <template <class, class> class Neuron>
Kernels kernels_for(DType type) {
  switch (type) {
    case DType::f16:
      return kernels_of<Neuron, float, c10::Half>();
    case DType::bf16:
      return kernels_of<Neuron, float, c10::BFloat16>();
    case DType::f32:
      return kernels_of<Neuron, float, float>();
    default:
      return kernels_of<Neuron, double, double>();
  }
}

Kernels kernels_for(const MultistepLaunch& launch) {
  switch (launch.neuron) {
#define SPIKEFORGE_NEURON(name, Struct, header) \
  case NeuronKind::name:                        \
    return kernels_for<Struct>(launch.type);
#include <spikeforge/neuron/neurons.def>
#undef SPIKEFORGE_NEURON
  }
  return {};
}

constexpr Kernels table = {
    [](const ForwardLaunch& launch, std::int64_t neurons) {
      return kernels_for(launch).forward_scratch(launch, neurons);
    },
    [](const ForwardLaunch& launch, std::int64_t begin, std::int64_t end, void* scratch) {
      kernels_for(launch).forward(launch, begin, end, scratch);
    },
    [](const BackwardLaunch& launch, std::int64_t neurons) {
      return kernels_for(launch).backward_scratch(launch, neurons);
    },
    [](const BackwardLaunch& launch, std::int64_t begin, std::int64_t end, void* scratch) {
      kernels_for(launch).backward(launch, begin, end, scratch);
    },
};

}  // namespace
}  // namespace CPU_CAPABILITY

#if defined(CPU_CAPABILITY_AVX512)
const Kernels& kernels_avx512() { return table; }
#elif defined(CPU_CAPABILITY_AVX2)
const Kernels& kernels_avx2() { return table; }
#else
const Kernels& kernels_default() { return table; }
#endif

}  // namespace spikeforge::cpu
