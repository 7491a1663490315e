// Cells of neuron text, and the table in which `run` looks them up.
#pragma once

#include "csrc/autodiff/stages.h"
#include "csrc/base/export.h"
#include "csrc/base/fork_safe_mutex.h"
#include "csrc/base/hash.h"
#include "csrc/graph/cell.h"
#include "csrc/kernels/multistep/cell.h"

#include <cstddef>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>

namespace spikeforge {

// The maximum number of instructions, approximately, of a step and its derivative together. The time of the compiler
// grows faster than the square of the length of a chain of instructions. A chain of divisions, sm_90, on a core of 2
// GHz: 100 of them, 3,600 instructions, 0.8 s forward and 1.1 s backward; 300 4.6 and 8.1 s; 1000 21 and 88 s. Hodgkin
// and Huxley's neuron has 900.
constexpr int longest_compiled = 8000;

class TracedCell : public Cell {
 public:
  // Throws TextError if the text is not a neuron, GraphError if it cannot be differentiated, and NoRoomForCell, before
  // differentiation, if the derivative itself would need more than most_bytes.
  explicit TracedCell(std::string_view text, std::size_t most_bytes = std::numeric_limits<std::size_t>::max());

  // Throws GraphError if is_too_long().
  CellText device_text(const CellForm& form) const override;

  // True if a step and its derivative are too long to be compiled for a device. The CPU's interpreter runs them.
  bool is_too_long() const { return forward_cost + backward_cost > longest_compiled; }
  std::string why_too_long() const;

  // Returns the approximate memory of the cell, including its program for the CPU (cpu/multistep/traced_program.h).
  std::size_t bytes() const;

  const std::string text;
  const Hash128 hash;  // of the text
  const graph::Cell graph;
  const autodiff::Stages stages;
  const int coefficients;  // of the derivative, where it is computed in two parts: autodiff/stages.h
};

// Thrown if the table of cells is full. Exported, like GraphError.
struct SPIKEFORGE_API NoRoomForCell : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Cells by their texts, in bounded memory: among those that are not referenced, the least recently used are removed for
// new ones.
class TracedCells {
 public:
  explicit TracedCells(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  // Returns the cell of a text, which is created if it is absent. Equal texts have the same cell while it is
  // referenced; the table itself does not count as a reference. Throws the errors of TracedCell, and NoRoomForCell if
  // cells in use fill the table.
  std::shared_ptr<const TracedCell> intern(std::string_view text);

  std::size_t size() const;
  std::size_t bytes() const;

 private:
  using Cells = std::list<std::shared_ptr<const TracedCell>>;

  std::shared_ptr<const TracedCell> find(std::string_view text);
  Cells make_room(std::size_t bytes);

  const std::size_t most_bytes_;
  mutable ForkSafeMutex mutex_;  // guards the members below
  std::size_t bytes_ = 0;
  Cells cells_;  // the most recently used first
  std::unordered_map<std::string_view, Cells::iterator> places_;
};

// The same in the table of this process, whose size is SPIKEFORGE_NEURONS_LIMIT_MB, or 256 MiB.
std::shared_ptr<const TracedCell> intern(std::string_view text);

}  // namespace spikeforge
