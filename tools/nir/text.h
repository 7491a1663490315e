// Pieces of text that several commands print.
#pragma once
#include "csrc/nir/node.h"

#include <string>
#include <string_view>

namespace spikeforge::nir {

// "text", with quotes, for JSON and, once it is printable(), for Graphviz.
std::string in_quotes(std::string_view text);

// Formats a number for JSON: NaN and infinities are text.
std::string json_number(double value);

std::string json_shape(const Shape& shape);

// Formats the range of an array's numbers as [0.5, 2]; 0.5 if all are equal.
std::string text_of_range(const Array& array);

// Formats a field that is not an array of parameters: [2, 2], same, 1.
std::string text_of_setting(const Shape& value);
std::string text_of_setting(std::int64_t value);
template <std::size_t D> std::string text_of_setting(const std::array<std::int64_t, D>& value) {
  return D == 1 ? text_of_setting(value[0]) : text_of_setting(Shape(value.begin(), value.end()));
}
template <int D> std::string text_of_setting(const Padding<D>& value) {
  switch (value.mode) {
    case PaddingMode::same: return "same";
    case PaddingMode::valid: return "valid";
    default: return text_of_setting(value.numbers);
  }
}

// Calls field(name, text) for each field of a node that is present and not an array.
template <class Field> void for_each_setting(const Kind& kind, Field&& field) {
  const auto visit = [&]<class T>(const auto& self, std::string_view name, const T& value) -> void {
    if constexpr (requires { value.has_value(); }) {
      if (value) self(self, name, *value);
    } else if constexpr (!std::is_same_v<T, Array>) {
      field(name, text_of_setting(value));
    }
  };
  std::visit(
      [&]<class N>(const N& n) {
        if constexpr (!std::is_same_v<N, Graph>)
          N::fields(n, [&](std::string_view name, const auto& value) { visit(visit, name, value); });
      },
      kind);
}

}  // namespace spikeforge::nir
