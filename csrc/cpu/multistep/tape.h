// A graph as a list of instructions over rows of numbers: what the interpreter runs.
//
// Rows are numbered through: the graph's arguments, rows of random bits, the results, the constants, and temporaries,
// which are few because a row is used again once nothing needs its value any more. The row of a result may be
// read by later instructions; it must not overlap any other row.
#pragma once

#include "csrc/graph/graph.h"
#include "csrc/graph/internal/multiply_adds.h"

#include <cstdint>
#include <span>
#include <vector>

namespace spikeforge::cpu {

// A multiply-add of operands a, b, c: a b + c, or with the product or c subtracted. `no`: the instruction is its op.
enum class MultiplyAdd : std::uint8_t { no, sum, minus_product, minus_addend };

struct Instruction {
  graph::Op op{};  // of plain arithmetic (lower.h), surrogate_gradient, or detach: a copy
  MultiplyAdd multiply_add = MultiplyAdd::no;
  SurrogateKind surrogate{};
  decltype(graph::Surrogate::args) surrogate_args{};
  std::uint32_t result = 0;  // a row
  std::array<std::uint32_t, graph::most_operands> operands{};
};

struct Constant {
  double number;
  bool is_truth;
};

struct Tape {
  std::uint32_t arguments = 0,  // those of the graph, followed by the rows of `drawn`
      results = 0, temporaries = 0;
  std::vector<Constant> constants;
  std::vector<graph::Draw> drawn;  // words of random bits; an instruction that draws has theirs as its first operands
  std::vector<Instruction> instructions;

  std::uint32_t argument(std::size_t i) const { return static_cast<std::uint32_t>(i); }
  std::uint32_t bits(std::size_t i) const { return static_cast<std::uint32_t>(arguments - drawn.size() + i); }
  std::uint32_t result(std::size_t i) const { return static_cast<std::uint32_t>(arguments + i); }
  std::uint32_t constant(std::size_t i) const { return static_cast<std::uint32_t>(result(results) + i); }
  std::uint32_t temporary(std::size_t i) const { return static_cast<std::uint32_t>(constant(constants.size()) + i); }
  std::uint32_t rows() const { return temporary(temporaries); }
};

// The operands of an instruction, random bits included.
int operands_of(const Instruction& instruction);

// `wanted` are the results to compute, in this order, by their places among the graph's.
Tape tape_of(const graph::Graph& graph, std::span<const std::size_t> wanted,
             const graph::MultiplyAdds& multiply_adds = {});
Tape tape_of(const graph::Graph& graph);

}  // namespace spikeforge::cpu
