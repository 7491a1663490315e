// Element-wise operators from a C++ lambda over the tracer's values: forward and backward kernels for CPU and CUDA are
// generated from its graph, as for neurons.
//
//   const auto boltzmann = spikeforge::elementwise(
//       "mine::boltzmann(Tensor v, float v_half, float slope) -> Tensor",
//       [](Value v, Value v_half, Value slope) { return sigmoid((v - v_half) / slope); }).registered();
#pragma once

#include "csrc/custom_op/custom_op.h"
#include "csrc/graph/trace.h"

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace spikeforge {
namespace custom_op {

using ElementwiseBody = std::function<std::vector<graph::Value>(graph::Values)>;

SPIKEFORGE_API CustomOp elementwise(std::string schema, std::size_t arity, const ElementwiseBody& body);
[[noreturn]] SPIKEFORGE_API void throw_null_lambda(const std::string& schema);

inline std::vector<graph::Value> as_list(const graph::Value& value) { return {value}; }
inline std::vector<graph::Value> as_list(std::vector<graph::Value> values) { return values; }

template <class Lambda, int... i>
std::vector<graph::Value> call_lambda(Lambda& lambda, graph::Values values, std::integer_sequence<int, i...>) {
  return as_list(lambda(values[i]...));
}

}  // namespace custom_op

// The lambda has one parameter of type Value for each argument, in the schema's order. It returns a Value, or a
// std::vector with one Value for each result. Arguments are of type Tensor, which broadcast and are differentiable, or
// float. All tensors have the same dtype: float16, bfloat16, float32 or float64. The operator is differentiable once.
// Throws GraphError and c10::ValueError.
template <class Lambda> CustomOp elementwise(std::string schema, Lambda lambda) {
  constexpr int count = graph::detail::arity<Lambda>();
  static_assert(count > 0, "the lambda of elementwise takes a Value, by value, for each argument of the schema");
  if constexpr (std::is_pointer_v<Lambda>)
    if (lambda == nullptr) custom_op::throw_null_lambda(schema);
  return custom_op::elementwise(std::move(schema), count, [&](graph::Values values) {
    return custom_op::call_lambda(lambda, values, std::make_integer_sequence<int, count>{});
  });
}

}  // namespace spikeforge
