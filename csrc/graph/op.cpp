#include "csrc/graph/op.h"

#include <cstddef>
#include <initializer_list>

namespace spikeforge::graph {
namespace {

constexpr auto number = Kind::number;
constexpr auto boolean = Kind::boolean;

constexpr OpInfo describe(std::string_view name, std::string_view text, Form form, int precedence, Kind result,
                          std::initializer_list<Kind> operands) {
  OpInfo op{name, text, form, precedence, result, 0, {}, {}, 0};
  for (const Kind operand : operands) op.operands[op.arity++] = operand;
  return op;
}

constexpr OpInfo described[] = {
#define SPIKEFORGE_OP(name, text, form, precedence, result, ...) \
  describe(#name, text, Form::form, precedence, result, {__VA_ARGS__}),
#include "csrc/graph/ops.def"
};

constexpr auto with_defaults = [] {
  std::array<OpInfo, std::size(described)> ops{};
  for (std::size_t i = 0; i < ops.size(); ++i) ops[i] = described[i];
#define SPIKEFORGE_DEFAULTED(name, second) ops[static_cast<std::size_t>(Op::name)].last_default = second;
#define SPIKEFORGE_DRAW(name, count, ...) ops[static_cast<std::size_t>(Op::name)].words = count;
#include "csrc/graph/ops.def"
  return ops;
}();

template <class Predicate> std::optional<Op> find(Predicate&& is_it) {
  for (std::size_t i = 0; i < with_defaults.size(); ++i)
    if (is_it(with_defaults[i])) return static_cast<Op>(i);
  return std::nullopt;
}

}  // namespace

const OpInfo& info(Op op) { return with_defaults[static_cast<std::size_t>(op)]; }

std::optional<Op> find_call(std::string_view text) {
  return find([=](const OpInfo& op) {
    return (op.form == Form::call || op.form == Form::spike || op.form == Form::draw) && op.text == text;
  });
}

std::optional<Op> find_infix(std::string_view text) {
  return find([=](const OpInfo& op) { return op.form == Form::infix && op.text == text; });
}

}  // namespace spikeforge::graph
