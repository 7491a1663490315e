// The definition of a custom operator by a user, which CustomOp in custom_op.h collects.
#pragma once

#include "csrc/custom_op/arguments.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace spikeforge::custom_op {

// Returns the sizes and dtype of every result, from the sizes and dtypes of the arguments, and the scalars. It must not
// read the data of a tensor, because meta and fake tensors have none.
using ShapeFunction = std::function<std::vector<Result>(const Arguments& in)>;

// Writes the results, which are allocated and contiguous, from the arguments, whose tensors are made contiguous.
using Kernel = std::function<void(Tensors out, const Arguments& in)>;

// The gradients of the differentiable arguments, in their order, from those of the results. A Tensor[] has one for each
// of its tensors. A gradient that is not wanted (in.wants_gradient) may be an undefined tensor. Composed of torch
// operators, or of other custom operators: torch.compile traces through it, and a second derivative differentiates it.
using Vjp = std::function<std::vector<at::Tensor>(const Arguments& in, Tensors grads)>;

// The tangents of the results from those of the differentiable arguments: zeros if there are none.
using Jvp = std::function<std::vector<at::Tensor>(const Arguments& in, Tensors tangents)>;

// The results of `size` calls at once, their dimension 0; in.is_mapped is true for arguments that have such a
// dimension.
using Batching = std::function<std::vector<at::Tensor>(const Arguments& in, std::int64_t size)>;

// Returns the results rather than writing them: for operators composed of others.
using Compute = std::function<std::vector<at::Tensor>(const Arguments& in)>;

struct Dim3 {
  std::int64_t x = 1, y = 1, z = 1;
};

// An extent of a launch: constant, or a function of a call's sizes. Registration refuses an empty function.
class Extent {
 public:
  using Function = std::function<Dim3(const Arguments& in, Tensors out)>;

  Extent(std::int64_t x) : constant_{.x = x} {}          // NOLINT(google-explicit-constructor)
  Extent(int x) : Extent(std::int64_t{x}) {}             // NOLINT(google-explicit-constructor)
  Extent(const Dim3& constant) : constant_(constant) {}  // NOLINT(google-explicit-constructor)
  template <class F>
  requires std::is_invocable_r_v<Dim3, F&, const Arguments&, Tensors> Extent(F function)
      : function_(std::move(function)), is_function_(true) {}  // NOLINT(google-explicit-constructor)

  Dim3 operator()(const Arguments& in, Tensors out) const { return is_function_ ? function_(in, out) : constant_; }
  bool is_empty() const { return is_function_ && !function_; }

 private:
  Dim3 constant_;
  Function function_;
  bool is_function_ = false;
};

// One thread for each element of the first result, in blocks of `block`.
inline Extent one_thread_an_element(std::int64_t block) {
  return [block](const Arguments&, Tensors out) { return Dim3{.x = (out[0].numel() + block - 1) / block}; };
}

// A kernel as CUDA source, compiled when it is first used, for the GPU's architecture and the dtypes of the call.
//
// `entry` is an extern "C" __global__ function in it. Its parameters are the schema's: arguments, then results. A
// Tensor x is Array<const x_t> x, a result y is Array<y_t> y (cuda/custom_op.cuh), where x_t and y_t are names for the
// dtypes of this call; an int is long long, a float or Scalar double, a bool bool. A result without a name in the
// schema is called result, or result0, result1, ... A kernel with other parameters does not compile. The source may
// include the library's device headers, <spikeforge/cuda/half.cuh>, and `headers`.
struct CudaKernel {
  std::string source;
  std::string entry;
  Extent grid = one_thread_an_element(256);
  Extent block = 256;
  std::int64_t shared_bytes = 0;
  std::vector<std::string> options = {};                          // of NVRTC
  std::vector<std::pair<std::string, std::string>> headers = {};  // name, text
};

struct Definition {
  std::string schema;
  ShapeFunction shapes;
  std::variant<std::monostate, Kernel, Compute> cpu;
  std::variant<std::monostate, CudaKernel, Kernel, Compute> cuda;
  std::variant<std::monostate, Vjp, std::string> vjp;  // a function, or the name of an operator
  std::optional<Jvp> jvp;
  std::optional<Batching> batching;
  bool cpu_for_missing_devices = false;
  std::function<void(const Arguments& in)> say_copies;  // once, before copies run; null: torch's warning
  bool save_results = false;
  bool zero_all = false;
  std::vector<std::size_t> zeroed;
  bool names_differentiable = false;  // else every tensor is
  std::vector<std::string> differentiable;
  std::map<std::string, std::vector<c10::ScalarType>> dtypes;
};

}  // namespace spikeforge::custom_op
