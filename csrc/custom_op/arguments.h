// The arguments of one call of a custom operator, as its functions receive them.
#pragma once

#include "csrc/base/export.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/core/SymIntArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spikeforge::custom_op {

using Tensors = std::span<const at::Tensor>;

// Selects an argument by its index in the schema or by its name.
class Which {
 public:
  Which(int position) : position_(static_cast<std::size_t>(position)) {}  // NOLINT(google-explicit-constructor)
  Which(std::size_t position) : position_(position) {}                    // NOLINT(google-explicit-constructor)
  Which(const char* name) : name_(name) {}                                // NOLINT(google-explicit-constructor)
  Which(const std::string& name) : name_(name) {}                         // NOLINT(google-explicit-constructor)

 private:
  friend class Arguments;
  std::size_t position_ = 0;
  std::string_view name_;
};

// The sizes of a result: {in.size("x", 0), 3}, or in.sizes("x").
class Sizes : public std::vector<c10::SymInt> {
 public:
  Sizes(std::initializer_list<c10::SymInt> sizes) : std::vector<c10::SymInt>(sizes) {}
  Sizes(c10::SymIntArrayRef sizes)  // NOLINT(google-explicit-constructor)
      : std::vector<c10::SymInt>(sizes.begin(), sizes.end()) {}
};

// A shape function's description of one result.
struct Result {
  Sizes sizes;
  c10::ScalarType dtype;
};

// The arguments of a call, in the schema's order, including defaults. Access to an argument that is not in the schema,
// or with a wrong type, throws a ValueError with the operator and the argument.
class SPIKEFORGE_API Arguments {
 public:
  Arguments(const c10::FunctionSchema& schema, std::span<const c10::IValue> values)
      : schema_(schema), values_(values) {}

  std::size_t count() const { return values_.size(); }
  const c10::IValue& value(Which which) const;
  bool has(Which which) const;  // false for an optional argument that was not given

  const at::Tensor& tensor(Which which) const;
  std::vector<at::Tensor> tensors(Which which) const;  // the tensors of a Tensor[]
  std::int64_t integer(Which which) const;
  double number(Which which) const;  // the value of a float or a Scalar
  bool flag(Which which) const;
  const std::string& text(Which which) const;

  // Access for shape functions: while a graph is traced, tensors have no data, and sizes may be symbolic.
  c10::SymIntArrayRef sizes(Which which) const;
  c10::SymInt size(Which which, std::int64_t dim) const;  // a negative dim counts from the end
  c10::SymInt symbol(Which which) const;                  // a SymInt: a size that the caller passes
  c10::ScalarType dtype(Which which) const;
  Result like(Which which) const { return {sizes(which), dtype(which)}; }

  // For a vjp: true if the gradient of this argument is needed; and a result of the call, if the operator saves its
  // results.
  bool wants_gradient(Which which) const;
  const at::Tensor& result(std::size_t i) const;

  // For a batching rule: true if torch.vmap maps over this argument, in its dimension 0.
  bool is_mapped(Which which) const;

 private:
  friend struct ArgumentsAccess;
  std::size_t position(Which which) const;
  const c10::Argument& described(Which which) const;

  const c10::FunctionSchema& schema_;
  std::span<const c10::IValue> values_;
  Tensors results_;
  std::span<const char> wanted_, mapped_;  // one per argument
};

}  // namespace spikeforge::custom_op
