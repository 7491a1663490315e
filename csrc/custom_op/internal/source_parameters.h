// The parameters for which the source of a custom operator is compiled, with the dtypes of a call.
#pragma once

#include "csrc/custom_op/internal/cuda_source.h"
#include "csrc/custom_op/internal/operator.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <string>
#include <vector>

namespace spikeforge::custom_op {

// A dtype that sources can read, and its names there.
struct ElementType {
  c10::ScalarType type;
  const char *cuda, *host;
};

inline constexpr ElementType element_types[] = {
    {c10::kFloat, "float", "float"},
    {c10::kDouble, "double", "double"},
    {c10::kHalf, "spikeforge::f16", "c10::Half"},
    {c10::kBFloat16, "spikeforge::bf16", "c10::BFloat16"},
    {c10::kBool, "bool", "bool"},
    {c10::kByte, "unsigned char", "std::uint8_t"},
    {c10::kChar, "signed char", "std::int8_t"},
    {c10::kShort, "short", "std::int16_t"},
    {c10::kInt, "int", "std::int32_t"},
    {c10::kLong, "long long", "std::int64_t"},
};

// Returns the element type of an operator's tensor. Throws TypeError for an unsupported dtype; `readers` names the code
// that does not support it.
inline const ElementType& element_type(const std::string& op, const std::string& tensor, c10::ScalarType type,
                                       const char* readers) {
  for (const ElementType& known : element_types)
    if (known.type == type) return known;
  TORCH_CHECK_TYPE(false, op, ": ", tensor, " is ", type, ", which ", readers,
                   " do not support: they take Float, Double, Half, BFloat16, Bool, Byte, Char, Short, Int and Long");
}

inline at::Tensor tensor_or_none(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

// The dtypes of a call's tensors: calls with the same ones share what is compiled.
inline std::string key_of_dtypes(const Operator& op, Tensors out, const Arguments& in) {
  std::string key;
  const auto add = [&](const at::Tensor& t) {
    key.push_back(static_cast<char>(t.defined() ? t.scalar_type() : c10::ScalarType::Undefined));
  };
  for (std::size_t i = 0; i < op.argument_count(); ++i)
    if (holds_tensors(op.kinds[i])) add(tensor_or_none(in.value(i)));
  for (const at::Tensor& t : out) add(t);
  return key;
}

// `type_name` is ElementType::cuda or ElementType::host; `readers` is that of element_type.
inline std::vector<CudaParameter> parameters_of(const Operator& op, Tensors out, const Arguments& in,
                                                const char* ElementType::*type_name, const char* readers) {
  using Kind = CudaParameter::Kind;
  std::vector<CudaParameter> parameters;
  const auto add_tensor = [&](const std::string& name, const at::Tensor& t, Kind kind) {
    const char* const type = t.defined() ? element_type(op.name, name, t.scalar_type(), readers).*type_name : "float";
    parameters.push_back({name, kind, type});
  };
  for (std::size_t i = 0; i < op.argument_count(); ++i) {
    const std::string name = op.argument_name(i);
    switch (op.kinds[i]) {
      case ArgumentKind::integer: parameters.push_back({name, Kind::integer, ""}); break;
      case ArgumentKind::number: parameters.push_back({name, Kind::number, ""}); break;
      case ArgumentKind::truth: parameters.push_back({name, Kind::truth, ""}); break;
      default: add_tensor(name, tensor_or_none(in.value(i)), Kind::argument);
    }
  }
  for (std::size_t i = 0; i < out.size(); ++i) add_tensor(op.result_name(i), out[i], Kind::result);
  return parameters;
}

}  // namespace spikeforge::custom_op
