// Custom operators: a schema, a shape function, a CPU function, a CUDA source string and a vjp become a torch operator,
// torch.ops.<namespace>.<name>, which works in eager mode, autograd, torch.compile, torch.export, torch.vmap and
// TorchScript like torch's own operators.
//
//   const auto scaled = spikeforge::CustomOp("mine::scaled(Tensor x, float factor) -> Tensor y")
//       .shapes([](const Arguments& in) { return std::vector{in.like("x")}; })
//       .cpu([](Tensors out, const Arguments& in) { at::mul_out(...); })
//       .cuda({.source = R"(extern "C" __global__ void scaled(Array<const x_t> x, double factor, Array<y_t> y) { ...
//       })",
//              .entry = "scaled"})
//       .vjp([](const Arguments& in, Tensors grads) { return std::vector{grads[0] * in.number("factor")}; })
//       .registered();
//
// docs/custom_operators.md is a guide; definition.h documents the arguments and results of each function.
#pragma once

#include "csrc/base/export.h"
#include "csrc/custom_op/definition.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace spikeforge {
namespace custom_op {
class Registration;
struct DefinitionAccess;
}  // namespace custom_op

// A registered operator. It is registered with torch during the lifetime of this object, which can be moved, but not
// copied. Destroying it while another thread calls the operator is undefined behaviour.
class SPIKEFORGE_API RegisteredOp {
 public:
  RegisteredOp(RegisteredOp&&) noexcept;
  RegisteredOp& operator=(RegisteredOp&&) noexcept;
  ~RegisteredOp();

  const std::string& name() const;  // "mine::scaled"

  // Calls the operator through torch's dispatcher. Trailing arguments with defaults may be omitted. Throws
  // c10::ValueError for a wrong number of arguments.
  std::vector<at::Tensor> operator()(std::vector<c10::IValue> arguments) const;

  // Compiles the CUDA source for a GPU ("sm_90") and the dtypes of these arguments, whose data are not read: they may
  // be on the CPU, or be meta tensors. The compiled kernel is kept in the caches, so that the first call does not wait.
  // Needs no GPU. Throws std::runtime_error if the source does not compile, with the numbered lines around the error.
  void compile(const std::string& arch, std::vector<c10::IValue> arguments) const;

 private:
  friend class CustomOp;
  explicit RegisteredOp(std::unique_ptr<custom_op::Registration> registration);
  std::unique_ptr<custom_op::Registration> registration_;
};

class SPIKEFORGE_API CustomOp {
 public:
  // `schema` is in torch's schema language: "namespace::name(Tensor x, int n, float a=1.0) -> (Tensor y, Tensor z)". It
  // must have at least one Tensor argument and only Tensor results, and must not mutate arguments.
  explicit CustomOp(std::string schema) { definition_.schema = std::move(schema); }

  CustomOp& shapes(custom_op::ShapeFunction function) { return definition_.shapes = std::move(function), *this; }
  CustomOp& cpu(custom_op::Kernel kernel) { return definition_.cpu = std::move(kernel), *this; }
  CustomOp& cuda(custom_op::CudaKernel kernel) { return definition_.cuda = std::move(kernel), *this; }
  // A host function, which launches kernels itself.
  CustomOp& cuda(custom_op::Kernel kernel) { return definition_.cuda = std::move(kernel), *this; }

  // Makes calls on a device without a kernel run the CPU kernel on copies, with one warning.
  CustomOp& cpu_for_missing_devices() { return definition_.cpu_for_missing_devices = true, *this; }

  // Sets the gradient: a function, or the name of a registered operator. That operator has a Tensor parameter for the
  // gradient of each result, then the arguments of this operator (and its results, with save_results), and returns one
  // gradient for each differentiable argument. Without a vjp, differentiation raises an error.
  CustomOp& vjp(custom_op::Vjp function) { return definition_.vjp = std::move(function), *this; }
  CustomOp& vjp(std::string name) { return definition_.vjp = std::move(name), *this; }

  // Sets the forward-mode derivative. Without it, forward mode raises an error.
  CustomOp& jvp(custom_op::Jvp function) { return definition_.jvp = std::move(function), *this; }

  // Sets the rule for torch.vmap. Without it, the operator is called once for each slice.
  CustomOp& batching(custom_op::Batching function) { return definition_.batching = std::move(function), *this; }

  // Sets the arguments that have a gradient; a required gradient of another argument raises an error. The default is
  // all arguments of type Tensor, Tensor? and Tensor[].
  CustomOp& differentiable(std::vector<std::string> arguments) {
    definition_.names_differentiable = true;
    definition_.differentiable = std::move(arguments);
    return *this;
  }

  // Saves the results for the backward pass, as in.result(0).
  CustomOp& save_results() { return definition_.save_results = true, *this; }

  // Initialises results with zeros: all results, or those at these indices.
  CustomOp& zero_results() { return definition_.zero_all = true, *this; }
  CustomOp& zero_results(std::vector<std::size_t> places) { return definition_.zeroed = std::move(places), *this; }

  // Sets the dtypes that an argument may have. Others raise a TypeError.
  CustomOp& dtypes(const std::string& argument, std::vector<c10::ScalarType> allowed) {
    return definition_.dtypes[argument] = std::move(allowed), *this;
  }

  // The schema. Its name is used by the vjp of other operators, and begins error messages.
  const std::string& schema() const { return definition_.schema; }

  // Registers the operator. Throws c10::ValueError, without registering anything, for a schema that cannot be parsed or
  // is not supported, a name that exists, an empty function, and inconsistent parts.
  [[nodiscard]] RegisteredOp registered() const;

  // Sets a function that returns its results rather than writing them, composed of torch's operators; see
  // elementwise.h.
  CustomOp& compute(const custom_op::Compute& function) {
    definition_.cpu = function;
    definition_.cuda = function;
    return *this;
  }

 private:
  friend struct custom_op::DefinitionAccess;
  custom_op::Definition definition_;
};

namespace custom_op {

// Registers operators when a library is loaded, and keeps them until it is unloaded. Exceptions cannot pass through the
// dynamic loader: operators that cannot be registered are reported on stderr, and the others are registered.
class SPIKEFORGE_API AtLoad {
 public:
  explicit AtLoad(std::vector<CustomOp> (*operators)());

 private:
  std::vector<RegisteredOp> registered_;
};

}  // namespace custom_op
}  // namespace spikeforge

// At namespace scope, once per file:
//   SPIKEFORGE_OPERATORS() {
//     return {scaled(), clipped()};  // CustomOps; an operator that is another's vjp must precede it
//   }
#define SPIKEFORGE_OPERATORS() SPIKEFORGE_OPERATORS_OF(__COUNTER__)
#define SPIKEFORGE_OPERATORS_OF(n) SPIKEFORGE_OPERATORS_NAMED(n)  // expands __COUNTER__ to its number
#define SPIKEFORGE_OPERATORS_NAMED(n)                                                          \
  static std::vector<spikeforge::CustomOp> spikeforge_operators_##n();                         \
  static const spikeforge::custom_op::AtLoad spikeforge_at_load_##n(spikeforge_operators_##n); \
  static std::vector<spikeforge::CustomOp> spikeforge_operators_##n()
