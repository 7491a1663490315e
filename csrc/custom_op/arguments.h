// One call of a custom operator, as its functions see it.
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

// An argument by its place in the schema or by its name.
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

// Sizes of a result: {in.size("x", 0), 3}, or in.sizes("x").
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

// The arguments of a call, in the schema's order, defaults filled in. Asking for an argument that the schema does not
// have, or for it as something that it is not, is a ValueError that names operator and argument.
class SPIKEFORGE_API Arguments {
 public:
  Arguments(const c10::FunctionSchema& schema, std::span<const c10::IValue> values)
      : schema_(schema), values_(values) {}

  std::size_t count() const { return values_.size(); }
  const c10::IValue& value(Which which) const;
  bool has(Which which) const;  // false for an optional argument that was not given

  const at::Tensor& tensor(Which which) const;
  std::vector<at::Tensor> tensors(Which which) const;  // of a Tensor[]
  std::int64_t integer(Which which) const;
  double number(Which which) const;  // of a float or a Scalar
  bool flag(Which which) const;
  const std::string& text(Which which) const;

  // The queries of a shape function: while a graph is traced, tensors have no data, and sizes may be symbols.
  c10::SymIntArrayRef sizes(Which which) const;
  c10::SymInt size(Which which, std::int64_t dim) const;  // dim may count from the end: -1
  c10::SymInt symbol(Which which) const;                  // of a SymInt: a size that the caller gives
  c10::ScalarType dtype(Which which) const;
  Result like(Which which) const { return {sizes(which), dtype(which)}; }

  // In a vjp: whether anybody wants the gradient of this argument, and a result of the call, if the operator saves its
  // results.
  bool wants_gradient(Which which) const;
  const at::Tensor& result(std::size_t i) const;

  // In a batching rule: whether torch.vmap maps over this argument, as its dimension 0.
  bool is_mapped(Which which) const;

 private:
  friend struct ArgumentsAccess;
  std::size_t position(Which which) const;
  const c10::Argument& described(Which which) const;

  const c10::FunctionSchema& schema_;
  std::span<const c10::IValue> values_;
  Tensors results_;
  std::span<const char> wanted_, mapped_;  // one an argument
};

}  // namespace spikeforge::custom_op
