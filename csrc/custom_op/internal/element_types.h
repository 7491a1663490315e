// The dtypes that the source of a custom operator can read, and their names in the source.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <string>

namespace spikeforge::custom_op {

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

// The element type of an operator's tensor. Throws TypeError for another dtype; `readers` names the code that does not
// support it.
inline const ElementType& element_type(const std::string& op, const std::string& tensor, c10::ScalarType type,
                                       const char* readers) {
  for (const ElementType& known : element_types)
    if (known.type == type) return known;
  TORCH_CHECK_TYPE(false, op, ": ", tensor, " is ", type, ", which ", readers,
                   " do not support: they take Float, Double, Half, BFloat16, Bool, Byte, Char, Short, Int and Long");
}

}  // namespace spikeforge::custom_op
