// The one description of a cell, whatever its kind: the loops, and everything around them, read it.
//
// A predefined neuron (predefined_cells.h), a neuron's text (traced_cell.h) and Loihi's neurons (loihi_cells.h) are its
// three kinds. Predefined and Loihi's cells live as long as the process; the cell of a text lives while it is
// referenced, or while the table of texts has space for it (traced_cell.h). The address of a living cell identifies it.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/neuron/neuron_kind.h"
#include "csrc/neuron/surrogate.h"
#include "csrc/neuron/surrogate_kind.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace spikeforge {

// The choices that a predefined neuron leaves to the call; other cells have made theirs, and leave these as they are.
struct CellForm {
  bool hard_reset = true;     // V = v_reset if it fired; else V = H - v_threshold * S
  bool detach_reset = false;  // no gradient through S in the reset
  bool spiking = true;        // else Θ is replaced by the surrogate's primitive
  bool decay_input = true;    // LIF and its kin: X is divided by tau
  SurrogateKind surrogate{};
  bool with_surrogate = true;  // not in a spiking forward pass

  bool operator==(const CellForm&) const = default;
};

using SurrogateArgs = std::array<double, max_surrogate_args>;

// NaN is in no range.
struct LegalRange {
  double least, most;

  bool contains(double value) const { return least <= value && value <= most; }
};

struct CellParam {
  std::string name;
  double default_value = 0;
  Legal legal = Legal::unchecked;
  std::int64_t least = 0, most = 0;  // of `between`
  // If a neuron has an illegal parameter, a GPU replaces all of its parameters: by this value for integers, else by
  // NaN.
  std::int64_t poison = 0;

  bool is_checked() const { return legal != Legal::unchecked; }
  // In arithmetic of this type.
  LegalRange range(DType arithmetic) const;
};

// The text that a device compiles, in terms of `Compute`, the type of the arithmetic.
struct CellText {
  std::string name;                // of the kernel, for people
  std::string text;                // what must be declared: an #include, or the cell itself
  std::vector<std::string> types;  // "Options = ...", and so on for Surrogate and Cell
};

// Storage in an object for data of a component above: created by the first request, then read without a lock, and
// destroyed with the object. A slot has one type, which the component defines and the object does not use. Several
// threads may change the data at once: it synchronises itself.
class Slot {
 public:
  Slot() = default;
  ~Slot() { delete content_.load(std::memory_order_acquire); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  // `make` returns a T, in place. If two threads come first, both create one, and one is kept.
  template <class T, class Make> T& get(const Make& make) const {
    if (Base* const there = content_.load(std::memory_order_acquire)) return static_cast<Content<T>*>(there)->value;
    auto made = std::make_unique<Content<T>>(make);
    Base* there = nullptr;
    if (content_.compare_exchange_strong(there, made.get(), std::memory_order_acq_rel, std::memory_order_acquire))
      return made.release()->value;
    return static_cast<Content<T>*>(there)->value;
  }

 private:
  struct Base {
    virtual ~Base() = default;
  };
  template <class T> struct Content : Base {
    template <class Make> explicit Content(const Make& make) : value(make()) {}
    T value;
  };

  mutable std::atomic<Base*> content_ = nullptr;
};

class Cell {
 public:
  enum class Maker : std::uint8_t { predefined, traced, loihi };

  virtual ~Cell() = default;
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;

  virtual CellText device_text(const CellForm& form) const = 0;

  // The form with choices that do not change this cell's results brought to one value, so that they do not multiply
  // kernels.
  virtual CellForm canonical(CellForm form) const { return form; }

  // Steps between two checkpoints, a power of two. It decides the shape of what the forward pass saves, so it depends
  // only on what is the same on every device and known when a graph is traced with symbolic sizes.
  std::int64_t checkpoint_length(DType type) const;

  std::size_t arguments() const { return inputs.size() + states.size() + params.size(); }

  const Maker maker;
  std::size_t number = 0;           // by which cell_of_number finds one that lives as long as the process
  std::string name;                 // as the operator, or the text, has it
  std::string forward_op;           // prefix of error messages of a call
  std::string backward_op;          // prefix of those of its backward pass
  std::vector<std::string> inputs;  // at least one
  std::vector<std::string> states;
  std::vector<std::string> outputs;
  std::vector<CellParam> params;

  bool draws = false;       // random numbers: a call has a seed
  bool is_integer = false;  // int32 throughout, and forward only
  int kept_values = 0;      // values of a step that its backward pass keeps, without the incoming gradients
  int forward_cost = 0;     // of a step, in simple instructions: it bounds unrolling, unless it is 0
  int backward_cost = 0;    // of its vjp, which recomputes the values of the step that it needs

  // Data of other components, stored for the cell and destroyed with it.
  Slot loaded_kernels;     // launch.cpp
  Slot recurrent_kernels;  // kernels/recurrent/launch.cpp
  Slot scan_kernels;       // kernels/scan/scan.cpp
  Slot composition;        // kernels/scan/scan.cpp
  Slot layer_kernels;      // kernels/layer/batch_norm.cpp
  Slot cpu_program;        // cpu/traced_program.cpp
  Slot compiled_tapes;     // cpu/multistep/program.cpp
  Slot derivatives;        // ops/multistep/derivatives.cpp
  Slot layers;             // ops/layer/batch_norm.cpp

 protected:
  explicit Cell(Maker maker) : maker(maker) {}
};

// Assigns a number to a cell with static lifetime. Throws std::length_error if there are too many.
void enroll(Cell& cell);
const Cell& cell_of_number(std::size_t number);

}  // namespace spikeforge
