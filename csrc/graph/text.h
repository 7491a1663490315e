// Neuron text: the written form of a cell's equations, and the form in which this library stores them. print -> parse
// -> print is the identity. docs/neuron_text.md has examples.
//
//   neuron     = "neuron" name "(" [names] [";" [states] [";" [names]]] ")" "{" {statement} "}"
//                                                            inputs; states; parameters
//   names      = name {"," name}
//   states     = name ["=" constant] {"," name ["=" constant]}       the initial value of a state; 0 by default
//   statement  = name "=" expression                         once per name; it cannot be an argument's
//              | name "'" "=" expression                     the next state; once for each state, in any order
//              | "return" expression {"," expression}        the outputs; once
//                                                            statements are separated by ";" or a line break
//   expression = conjunction {"or" conjunction}
//   conjunction= comparison {"and" comparison}
//   comparison = sum [("<" | "<=" | ">" | ">=" | "==" | "!=") sum]
//   sum        = product {("+" | "-") product}
//   product    = prefixed {("*" | "/") prefixed}
//   prefixed   = ("-" | "not") prefixed | primary
//   primary    = number | "inf" | "nan" | "true" | "false" | name | "(" expression ")" | call
//   call       = function "(" [expression {"," expression}] ")"      also custom_gradient
//              | "draw" "(" call "," number ")" | "draw_once" "(" call ["," number] ")"      the call is a draw
//              | ("spike" | "spike_strict" | "surrogate_gradient") "(" expression "," surrogate ")"
//   surrogate  = name ["(" [constant {"," constant}] ")"]    of surrogate.def, or none
//   constant   = ["-"] (number | "inf" | "nan")
//   name       = letter or "_", then letters, digits and "_"; no reserved word (and false inf nan neuron not or return
//                true). Function names are legal too: only functions are followed by a parenthesis.
//
// Functions are those of ops.def. Numbers are double precision, rounded to the type of the computation. Within
// parentheses a line break is a space. # begins a comment. custom_gradient(f, x, d, ...) is short for
// add_gradient(detach(f), x, d) and so on. Draws are numbered in the order of the text, each after the largest number
// before it, unless a number is given: so a neuron derived from another keeps its draws.
#pragma once

#include "csrc/base/export.h"
#include "csrc/graph/cell.h"

#include <string>
#include <string_view>

namespace spikeforge::graph {

constexpr std::size_t most_text = std::size_t{2} << 20;  // bytes; the text of the largest legal cell is shorter
constexpr int most_nesting = 200;

// Prints a cell without its unused nodes. Unnamed nodes that are used twice, or by a long expression, are printed as
// named statements.
SPIKEFORGE_API std::string print(const Cell& cell);
// Returns an equivalent text without line breaks and comments. torch.compile copies the strings of operators into
// comments of the code that it generates, where a second line would not be part of the comment.
SPIKEFORGE_API std::string on_a_line(std::string_view text);

// Prints any graph for readers: "graph <name>(<arguments>) { ... return <results> }".
SPIKEFORGE_API std::string print(const Graph& graph, std::string_view name);

// Parses neuron text. Throws TextError.
SPIKEFORGE_API Cell parse(std::string_view text);

}  // namespace spikeforge::graph
