// A custom operator with a parsed and checked definition, shared by its kernels for the dispatcher.
#pragma once

#include "csrc/custom_op/definition.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace spikeforge::custom_op {

enum class ArgumentKind { tensor, maybe_tensor, tensor_list, maybe_tensor_list, integer, number, truth, other };

inline bool holds_tensors(ArgumentKind kind) { return kind <= ArgumentKind::maybe_tensor_list; }

using Values = std::span<const c10::IValue>;
using TensorVector = std::vector<at::Tensor>;

class CudaKernels;

// Write access to private members of Arguments.
struct ArgumentsAccess {
  static void results(Arguments& in, Tensors results) { in.results_ = results; }
  static void wanted(Arguments& in, std::span<const char> wanted) { in.wanted_ = wanted; }
  static void mapped(Arguments& in, std::span<const char> mapped) { in.mapped_ = mapped; }
};

class Operator {
 public:
  // Throws ValueError for a definition that cannot become an operator.
  explicit Operator(Definition definition);
  ~Operator();

  const Definition definition;
  const c10::FunctionSchema schema;
  const std::string name;                     // "mine::scaled"
  const std::vector<ArgumentKind> kinds;      // of the arguments
  const std::vector<char> is_differentiable;  // of the arguments
  const std::vector<char> is_zeroed;          // of the results

  std::size_t argument_count() const { return schema.arguments().size(); }
  std::size_t result_count() const { return schema.returns().size(); }
  std::string argument_name(std::size_t i) const { return schema.arguments()[i].name(); }
  std::string result_name(std::size_t i) const;

  Values values(const torch::jit::Stack& stack) const { return std::span(stack).last(argument_count()); }
  Arguments arguments(Values values) const { return {schema, values}; }

  // Visits the tensors of the arguments in order; undefined for a Tensor? that was not given.
  template <class Visit> void for_each_tensor(Values values, Visit&& visit) const;

  // Allocates the results on the device of `leader`, with the sizes and dtypes that the shape function returns.
  TensorVector allocate(const Arguments& in, const at::Tensor& leader) const;

  // Checks that no argument is a list, for a function without support for lists: `taker` names the function,
  // `otherwise` the alternative.
  void check_no_lists(const char* taker, const char* otherwise) const;

  // Checks that x_t, the dtype of x in a source, can be the name of a type.
  void check_names_of_types() const;

  // Checks that a function returned one defined tensor per result.
  void check_results(const char* whose, const TensorVector& results) const;

  // Throws TypeError for a dtype that the user did not allow.
  void check_dtypes(Values values) const;

  // Checks that a call's tensors are dense, of known dtypes and on one device, as kernels rely on, and makes them
  // contiguous. Returns the first of them; the results are allocated on its device.
  const at::Tensor& prepare(torch::jit::Stack& stack) const;

  // Replaces the arguments on the stack by the results.
  void replace(torch::jit::Stack& stack, TensorVector results) const;

  // Runs the CPU kernel, and replaces the arguments by the results. The arguments are checked, and are on the CPU.
  void run_on_cpu(torch::jit::Stack& stack) const;

  // The same for arguments on another device, through copies, with one warning.
  void run_on_cpu_by_copies(torch::jit::Stack& stack) const;

  // Calls the operator of this name through torch's dispatcher.
  TensorVector call(torch::jit::Stack arguments) const;

  // Compiles ahead of the first call.
  void compile(const std::string& arch, const torch::jit::Stack& stack) const;

  const CudaKernels* cuda_kernels() const { return cuda_kernels_.get(); }

 private:
  std::unique_ptr<CudaKernels> cuda_kernels_;  // null without a CUDA source
  mutable std::once_flag warned_of_copies_;
};

// A call that the dispatcher makes; the arguments are on the stack.
struct DispatchedCall {
  const std::shared_ptr<const Operator>& op;
  const c10::OperatorHandle& handle;
  c10::DispatchKeySet keys;
  torch::jit::Stack& stack;
};

// The kernels of the dispatch keys. They replace the arguments by the results.
void call_on_cpu(const DispatchedCall& call);
void call_on_cuda(const DispatchedCall& call);
void call_on_meta(const DispatchedCall& call);
void call_with_autograd(const DispatchedCall& call);
void call_batched(const DispatchedCall& call);

template <class Visit> void Operator::for_each_tensor(Values values, Visit&& visit) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (kinds[i]) {
      case ArgumentKind::tensor: visit(i, values[i].toTensor()); break;
      case ArgumentKind::maybe_tensor: visit(i, values[i].isNone() ? at::Tensor() : values[i].toTensor()); break;
      case ArgumentKind::tensor_list:
        for (const at::Tensor& t : values[i].toTensorList()) visit(i, t);
        break;
      case ArgumentKind::maybe_tensor_list:
        for (const std::optional<at::Tensor> t : values[i].toOptionalTensorList()) visit(i, t.value_or(at::Tensor()));
        break;
      default: break;
    }
  }
}

// Returns the value with each tensor t replaced by exchange(t), in order.
template <class Exchange> c10::IValue exchanged(ArgumentKind kind, const c10::IValue& value, Exchange&& exchange) {
  switch (kind) {
    case ArgumentKind::tensor: return exchange(value.toTensor());
    case ArgumentKind::maybe_tensor: {
      at::Tensor t = exchange(value.isNone() ? at::Tensor() : value.toTensor());
      return t.defined() ? c10::IValue(std::move(t)) : c10::IValue();
    }
    case ArgumentKind::tensor_list: {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorList()) list.push_back(exchange(t));
      return list;
    }
    case ArgumentKind::maybe_tensor_list: {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor> t : value.toOptionalTensorList()) {
        at::Tensor other = exchange(t.value_or(at::Tensor()));
        list.push_back(other.defined() ? std::optional(std::move(other)) : std::nullopt);
      }
      return list;
    }
    default: return value;
  }
}

}  // namespace spikeforge::custom_op
