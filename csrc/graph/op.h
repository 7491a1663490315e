// The operations of ops.def as an enumeration, and the properties of each.
#pragma once

#include "csrc/base/export.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace spikeforge::graph {

enum class Op : std::uint8_t {
#define SPIKEFORGE_OP(name, ...) name,
#include "csrc/graph/ops.def"
};

enum class Kind : std::uint8_t { number, boolean };
enum class Form : std::uint8_t { leaf, prefix, infix, call, spike, draw };

constexpr int most_operands = 3;

struct OpInfo {
  std::string_view name;  // of the enumerator
  std::string_view text;  // the spelling in neuron text
  Form form;
  int precedence;  // of an infix operator; higher binds tighter
  Kind result;
  int arity;
  std::array<Kind, most_operands> operands;
  std::optional<double> last_default;  // the default of the last operand, if it has one
  std::uint32_t words = 0;             // of random bits that a draw uses
};

SPIKEFORGE_API const OpInfo& info(Op op);

inline bool is_draw(Op op) { return info(op).form == Form::draw; }

// Finds the operation of a call in neuron text by its name.
std::optional<Op> find_call(std::string_view text);
// Finds the infix operation of a symbol or word.
std::optional<Op> find_infix(std::string_view text);

}  // namespace spikeforge::graph
