// Compiled once for each instruction set (CPU_CAPABILITY), with the same care as kernels.cpp.
#include <spikeforge/cpu/interpreter.h>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

template <class T, class Stored>
constexpr TracedKernels kernels_of() {
  using Loop = Interpreter<T, Stored>;
  return {Loop::forward_scratch, Loop::run_forward, Loop::backward_scratch, Loop::run_backward};
}

TracedKernels kernels_for(DType type) {
  switch (type) {
    case DType::f16:
      return kernels_of<float, c10::Half>();
    case DType::bf16:
      return kernels_of<float, c10::BFloat16>();
    case DType::f32:
      return kernels_of<float, float>();
    default:
      return kernels_of<double, double>();
  }
}

constexpr TracedKernels table = {
    [](const TracedForwardLaunch& launch, const TracedProgram& program, std::int64_t neurons) {
      return kernels_for(launch.type).forward_scratch(launch, program, neurons);
    },
    [](const TracedForwardLaunch& launch, const TracedProgram& program, const TapeFunctions& functions,
       std::int64_t begin, std::int64_t end,
       void* scratch) { kernels_for(launch.type).forward(launch, program, functions, begin, end, scratch); },
    [](const TracedBackwardLaunch& launch, const TracedProgram& program, std::int64_t neurons) {
      return kernels_for(launch.type).backward_scratch(launch, program, neurons);
    },
    [](const TracedBackwardLaunch& launch, const TracedProgram& program, const TapeFunctions& functions,
       std::int64_t begin, std::int64_t end,
       void* scratch) { kernels_for(launch.type).backward(launch, program, functions, begin, end, scratch); },
};

}  // namespace
}  // namespace CPU_CAPABILITY

#if defined(CPU_CAPABILITY_AVX512)
const TracedKernels& traced_kernels_avx512() { return table; }
#elif defined(CPU_CAPABILITY_AVX2)
const TracedKernels& traced_kernels_avx2() { return table; }
#else
const TracedKernels& traced_kernels_default() { return table; }
#endif

}  // namespace spikeforge::cpu
