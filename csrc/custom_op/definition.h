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
// read the data of tensors, because meta and fake tensors have none.
using ShapeFunction = std::function<std::vector<Result>(const Arguments& in)>;

// Computes the results, which are allocated and contiguous, from the arguments, whose tensors are contiguous.
using Kernel = std::function<void(Tensors out, const Arguments& in)>;

// Returns the gradients of the differentiable arguments, in their order, from those of the results. A Tensor[] has one
// for each of its tensors. A gradient that is not needed (in.wants_gradient) may be an undefined tensor. The function
// must be composed of torch operators or other custom operators: torch.compile traces through it, and a second
// derivative differentiates it.
using Vjp = std::function<std::vector<at::Tensor>(const Arguments& in, Tensors grads)>;

// Returns the tangents of the results from those of the differentiable arguments, which are zeros if absent.
using Jvp = std::function<std::vector<at::Tensor>(const Arguments& in, Tensors tangents)>;

// Returns the results of `size` calls at once, stacked in dimension 0; in.is_mapped is true for arguments that have
// this dimension.
using Batching = std::function<std::vector<at::Tensor>(const Arguments& in, std::int64_t size)>;

// Returns the results rather than writing them, for operators that are composed of others.
using Compute = std::function<std::vector<at::Tensor>(const Arguments& in)>;

struct Dim3 {
  std::int64_t x = 1, y = 1, z = 1;
};

// A grid or block size of a launch: a constant, or a function of the sizes of a call. An empty function raises an error
// at registration.
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

// Returns a grid of one thread per element of the first result, in blocks of `block`.
inline Extent one_thread_an_element(std::int64_t block) {
  return [block](const Arguments&, Tensors out) { return Dim3{.x = (out[0].numel() + block - 1) / block}; };
}

// A kernel as CUDA source, compiled when it is first used, for the GPU's architecture and the dtypes of the call.
//
// `entry` is an extern "C" __global__ function in the source. Its parameters are those of the schema: arguments, then
// results. A Tensor x is Array<const x_t> x, a result y is Array<y_t> y (cuda/custom_op.cuh), where x_t and y_t are
// names for the dtypes of this call; an int is long long, a float or Scalar double, a bool bool. A result without a
// name in the schema is called result, or result0, result1, ... A kernel with other parameters does not compile. The
// source may include the library's device headers, <spikeforge/cuda/half.cuh>, and `headers`.
struct CudaKernel {
  std::string source;
  std::string entry;
  Extent grid = one_thread_an_element(256);
  Extent block = 256;
  std::int64_t shared_bytes = 0;
  std::vector<std::string> options = {};                          // options of NVRTC
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
  std::function<void(const Arguments& in)> say_copies;  // called once before copies run; if null, torch warns
  bool save_results = false;
  bool zero_all = false;
  std::vector<std::size_t> zeroed;
  bool names_differentiable = false;  // if false, every tensor is differentiable
  std::vector<std::string> differentiable;
  std::map<std::string, std::vector<c10::ScalarType>> dtypes;
};

}  // namespace spikeforge::custom_op
