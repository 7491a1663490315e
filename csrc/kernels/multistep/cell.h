// The description of a cell of any kind, which the loops and all other components read.
//
// There are three kinds: predefined neurons (predefined_cells.h), neuron text (traced_cell.h) and the neurons of Loihi
// (loihi_cells.h). Predefined cells and those of Loihi have static lifetime; the cell of a text exists while it is
// referenced, or while the table of texts has space for it (traced_cell.h). The address of an existing cell identifies
// it.
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

// The choices of a call for a predefined neuron. Other cells have no such choices, and use the default values.
struct CellForm {
  bool hard_reset = true;     // V = v_reset if it fired; else V = H - v_threshold * S
  bool detach_reset = false;  // no gradient through S in the reset
  bool spiking = true;        // if false, the surrogate's primitive replaces Θ
  bool decay_input = true;    // LIF and related neurons: X is divided by tau
  SurrogateKind surrogate{};
  bool with_surrogate = true;  // false in a spiking forward pass

  bool operator==(const CellForm&) const = default;
};

using SurrogateArgs = std::array<double, max_surrogate_args>;

// The legal values of a parameter. NaN is in no range.
struct LegalRange {
  double least, most;

  bool contains(double value) const { return least <= value && value <= most; }
};

struct CellParam {
  std::string name;
  double default_value = 0;
  Legal legal = Legal::unchecked;
  std::int64_t least = 0, most = 0;  // for `between`
  // If a neuron has an illegal parameter, a GPU replaces all of its parameters: integers by this value, others by NaN.
  std::int64_t poison = 0;

  bool is_checked() const { return legal != Legal::unchecked; }
  // Returns the legal range in arithmetic of this type.
  LegalRange range(DType arithmetic) const;
};

// The text that a device compiles, in terms of `Compute`, the type of the arithmetic.
struct CellText {
  std::string name;                // of the kernel, for readers
  std::string text;                // the required declarations: an #include, or the cell itself
  std::vector<std::string> types;  // "Options = ...", and so on for Surrogate and Cell
};

// Storage in an object for data of a higher-level component: created by the first request, then read without a lock,
// and destroyed with the object. A slot has one type, which the component defines and the object does not use. Several
// threads may access the data concurrently, so it must synchronise itself.
class Slot {
 public:
  Slot() = default;
  ~Slot() { delete content_.load(std::memory_order_acquire); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  // Returns the data. At the first call, `make` returns a T. If two threads make the first call concurrently, both
  // create a T, and one is kept.
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

  // Returns the form with a fixed value for each choice that does not change this cell's results, so that such choices
  // do not result in different kernels.
  virtual CellForm canonical(CellForm form) const { return form; }

  // Returns the number of steps between two checkpoints, a power of two. It determines the shape of saved tensors, so
  // it depends only on properties that are the same on every device, and that are known when a graph is traced with
  // symbolic sizes.
  std::int64_t checkpoint_length(DType type) const;

  std::size_t arguments() const { return inputs.size() + states.size() + params.size(); }

  const Maker maker;
  std::size_t number = 0;           // for cell_of_number, which finds a cell with static lifetime
  std::string name;                 // of the operator, or of the neuron in the text
  std::string forward_op;           // prefix of error messages of a call
  std::string backward_op;          // prefix of error messages of its backward pass
  std::vector<std::string> inputs;  // at least one
  std::vector<std::string> states;
  std::vector<std::string> outputs;
  std::vector<CellParam> params;

  bool draws = false;       // true if it draws random numbers: a call has a seed
  bool is_integer = false;  // int32 for all values, and forward only
  int kept_values = 0;      // values of a step that its backward pass keeps, without the incoming gradients
  int forward_cost = 0;     // of a step, in simple instructions: it limits unrolling, unless it is 0
  int backward_cost = 0;    // of the vjp of a step, which recomputes the values that it needs

  // Data of other components, stored for the cell and destroyed with it.
  Slot loaded_kernels;     // launch.cpp
  Slot recurrent_kernels;  // kernels/recurrent/launch.cpp
  Slot scan_kernels;       // kernels/scan/scan.cpp
  Slot composition;        // kernels/scan/scan.cpp
  Slot layer_kernels;      // kernels/layer/batch_norm.cpp
  Slot cpu_program;        // cpu/multistep/traced_program.cpp
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
