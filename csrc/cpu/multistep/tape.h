// A graph as a list of instructions on rows of numbers, for the interpreter.
//
// Rows are numbered in this order: the graph's arguments, rows of random bits, the results, the constants, and
// temporaries. Temporaries are few, because a row is reused when its value is no longer needed. Later instructions may
// read the row of a result; it must not overlap any other row.
#pragma once

#include "csrc/graph/graph.h"
#include "csrc/graph/internal/multiply_adds.h"

#include <cstdint>
#include <span>
#include <vector>

namespace spikeforge::cpu {

// A multiply-add of operands a, b, c: a b + c, or with the product or c subtracted. `no`: the instruction executes its
// op.
enum class MultiplyAdd : std::uint8_t { no, sum, minus_product, minus_addend };

struct Instruction {
  graph::Op op{};  // of plain arithmetic (lower.h), surrogate_gradient, or detach, which copies
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
  std::vector<graph::Draw> drawn;  // words of random bits: the first operands of an instruction that draws
  std::vector<Instruction> instructions;

  std::uint32_t argument(std::size_t i) const { return static_cast<std::uint32_t>(i); }
  std::uint32_t bits(std::size_t i) const { return static_cast<std::uint32_t>(arguments - drawn.size() + i); }
  std::uint32_t result(std::size_t i) const { return static_cast<std::uint32_t>(arguments + i); }
  std::uint32_t constant(std::size_t i) const { return static_cast<std::uint32_t>(result(results) + i); }
  std::uint32_t temporary(std::size_t i) const { return static_cast<std::uint32_t>(constant(constants.size()) + i); }
  std::uint32_t rows() const { return temporary(temporaries); }
};

// Returns the number of operands of an instruction, including random bits.
int operands_of(const Instruction& instruction);

// Returns the tape of a graph. `wanted` are the indices of the results to compute, in this order.
Tape tape_of(const graph::Graph& graph, std::span<const std::size_t> wanted,
             const graph::MultiplyAdds& multiply_adds = {});
Tape tape_of(const graph::Graph& graph);

}  // namespace spikeforge::cpu
