// Cells from neuron text, kept for the life of the process: what a traced operator looks up on every call.
#pragma once

#include <spikeforge/autodiff/stages.h>
#include <spikeforge/graph/cell.h>
#include <spikeforge/runtime/hash.h>
#include <spikeforge/runtime/launch.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace spikeforge {

struct TracedCell {
  // Throws TextError for a text that is no neuron, and GraphError for one that cannot be differentiated.
  explicit TracedCell(std::string_view text);

  std::string text;
  runtime::Hash128 hash;  // of the text
  graph::Cell cell;
  autodiff::Stages stages;
  int kept_values;    // numbers of a step that its backward pass keeps, besides the incoming gradients
  int forward_cost;   // of a step, in simple instructions: what bounds unrolling
  int backward_cost;  // of its vjp, which computes what it needs of the step again

  // Steps between two checkpoints, a power of two. It depends on the text and the type alone: it decides a shape.
  std::int64_t checkpoint_length(DType type) const;
};

// More texts than this in a process are refused: what varies from call to call is meant to be a parameter.
constexpr std::size_t most_traced_cells = 4096;

// The cell of a text, made when it is met first. Equal texts give the same cell, which is never destroyed. Later calls
// cost a hash of the text and a look-up without a lock. Throws what TracedCell does, and GraphError for one text too
// many.
const TracedCell& intern(std::string_view text);

}  // namespace spikeforge
