// The instructions of a tape, each as one loop over the vectors of its rows.
#pragma once

#include "csrc/cpu/multistep/tape.h"
#include "csrc/cpu/operations.h"

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

// The value of a constant: a truth is a mask.
template <class T> at::vec::Vectorized<T> vector_of(const Constant& constant) {
  if (constant.is_truth) return Operations<T>::mask(constant.number != 0);
  return at::vec::Vectorized<T>(static_cast<T>(constant.number));
}

template <class T>
using Kernel = void (*)(const Instruction&, const Row<T>* rows, std::int64_t begin, std::int64_t end);

template <class T, auto function, int... i>
void run_instruction(const Instruction& instruction, const Row<T>* rows, std::int64_t begin, std::int64_t end) {
  using V = at::vec::Vectorized<T>;
  const T* operands[] = {rows[instruction.operands[i]].data...};
  const std::int64_t steps[] = {rows[instruction.operands[i]].step...};
  T* const result = rows[instruction.result].data;
  for (std::int64_t at = begin; at < end; at += V::size())
    function(V::loadu(operands[i] + at * steps[i])...).store(result + at);
}

template <class T, class V, auto function> constexpr Kernel<T> kernel_of(V (*)(V)) {
  return run_instruction<T, function, 0>;
}
template <class T, class V, auto function> constexpr Kernel<T> kernel_of(V (*)(V, V)) {
  return run_instruction<T, function, 0, 1>;
}
template <class T, class V, auto function> constexpr Kernel<T> kernel_of(V (*)(V, V, V)) {
  return run_instruction<T, function, 0, 1, 2>;
}

template <class T, template <class> class Surrogate>
void run_surrogate(const Instruction& instruction, const Row<T>* rows, std::int64_t begin, std::int64_t end) {
  using V = at::vec::Vectorized<T>;
  const Row<T> x = rows[instruction.operands[0]];
  T* const result = rows[instruction.result].data;
  for (std::int64_t at = begin; at < end; at += V::size())
    surrogate_gradient<T, Surrogate>(V::loadu(x.data + at * x.step), instruction.surrogate_args.data())
        .store(result + at);
}

template <class T> Kernel<T> kernel_of(SurrogateKind kind) {
  switch (kind) {
#define SPIKEFORGE_SURROGATE(name, Struct, ...) \
  case SurrogateKind::name:                     \
    return run_surrogate<T, Struct>;
#include "csrc/neuron/surrogate.def"
#undef SPIKEFORGE_SURROGATE
  }
  return nullptr;
}

template <class T> Kernel<T> kernel_of(const Instruction& instruction) {
  using Operation = Operations<T>;
  using V = typename Operation::V;
  switch (instruction.multiply_add) {
    case MultiplyAdd::sum: return run_instruction<T, &Operation::multiply_add, 0, 1, 2>;
    case MultiplyAdd::minus_product: return run_instruction<T, &Operation::subtract_product, 0, 1, 2>;
    case MultiplyAdd::minus_addend: return run_instruction<T, &Operation::product_less, 0, 1, 2>;
    case MultiplyAdd::no: break;
  }
  switch (instruction.op) {
#define SPIKEFORGE_LEAF(name, result)
#define SPIKEFORGE_SPIKE(name)
// clang-format off
#define SPIKEFORGE_OP(name, ...) case graph::Op::name: return kernel_of<T, V, &Operation::name>(&Operation::name);
#include "csrc/graph/ops.def"
      // clang-format on
    case graph::Op::surrogate_gradient: return kernel_of<T>(instruction.surrogate);
    default: return nullptr;  // not in tapes: spikes are lowered to comparisons
  }
}

// Runs a tape whose rows are all set; `kernels` has one kernel per instruction.
template <class T> void run_tape(const Tape& tape, const Kernel<T>* kernels, const Row<T>* rows, std::int64_t padded) {
  for (std::size_t i = 0; i < tape.instructions.size(); ++i) kernels[i](tape.instructions[i], rows, 0, padded);
}

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
