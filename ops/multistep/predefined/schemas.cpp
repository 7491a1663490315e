// The schemas of the public and the lowered operators, generated from neurons.def.
#include "csrc/kernels/multistep/predefined_cells.h"
#include "ops/common/library.h"

#include <fmt/format.h>

#include <string>

namespace spikeforge::ops {
namespace {

const std::string common =
    "bool detach_reset=False, str surrogate=\"sigmoid\", float[] surrogate_args=[], bool spiking=True, bool "
    "store_v=False, int bits=0, Tensor? lengths=None, Tensor? start=None)";

// Returns a number with a decimal point, because a Scalar without one is an integer.
std::string decimal(double number) {
  const std::string text = fmt::format("{}", number);
  return text.find('.') == std::string::npos ? text + "." : text;
}

struct Rows {
  std::string tensors, any, numbers, optional_tensors;
};

// Returns the parameters of all overloads. None is the default value, except for v_reset, where None is soft reset;
// overloads whose parameters are tensors require it explicitly.
Rows rows_of(const NeuronRow& neuron) {
  Rows rows;
  for (const char* const tensor : neuron.tensors) rows.tensors += fmt::format("Tensor {}, ", tensor);
  for (const NeuronParam& param : neuron.params) {
    if (param.role == NeuronParam::decay_input) {
      for (std::string* row : {&rows.any, &rows.numbers, &rows.optional_tensors}) *row += "bool decay_input=True, ";
      continue;
    }
    const bool is_reset = param.role == NeuronParam::v_reset;
    const std::string name_and_default = fmt::format("{}={}, ", param.name, decimal(param.default_value));
    rows.any += "Any? " + name_and_default;
    rows.numbers += (is_reset ? "Scalar? " : "Scalar ") + name_and_default;
    rows.optional_tensors += fmt::format("Tensor? {}{}, ", param.name, is_reset ? "" : "=None");
  }
  return rows;
}

void define_public(Schemas& library, NeuronKind kind) {
  const PredefinedCell& cell = predefined_cell(kind);
  const Rows rows = rows_of(neuron_row(kind));
  std::string states, results = " -> (Tensor spikes";
  for (const std::string& state : cell.states) {
    states += "Tensor? " + state + "=None, ";
    results += ", Tensor " + state;
  }
  results += ")";
  const auto define = [&](const char* overload, const std::string& params) {
    library.def(cell.name + overload + "(Tensor x, " + rows.tensors + states + "*, " + params + common + results);
  };
  define(".any", rows.any);  // first, because torch tries them in this order
  define("", rows.numbers);
  define(".tensor", rows.optional_tensors);
}

// <neuron>_forward and <neuron>_backward. params has one entry for each parameter in the order of neurons.def, None if
// it is the scalar in `numbers`. lengths and start are as in samples.h. needs_grad is over x, the states and the
// parameters; the result has one tensor for each true entry.
void define_lowered(Schemas& library, NeuronKind kind) {
  const PredefinedCell& cell = predefined_cell(kind);
  std::string given, results, grads;
  for (const std::string& state : cell.states) {
    given += "Tensor? " + state + ", ";
    results += "Tensor " + state + ", ";
    grads += "Tensor? grad_" + state + ", ";
  }
  const std::string options =
      std::string(has_decay_input(kind) ? "bool decay_input, " : "") +
      "bool hard_reset, bool detach_reset, str surrogate, float[] surrogate_args, bool spiking, bool store_v, ";
  library.def(cell.name + "_forward(Tensor x, " + given + "Tensor?[] params, float[] numbers, *, " + options +
              "bool save, Tensor? lengths=None, Tensor? start=None) -> (Tensor spikes, " + results +
              "Tensor checkpoints)");
  library.def(cell.name + "_backward(Tensor? grad_spikes, " + grads + "Tensor x, " + given +
              "Tensor checkpoints, Tensor?[] params, float[] numbers, *, " + options +
              "bool[] needs_grad, Tensor? lengths=None, Tensor? start=None) -> Tensor[]");
}

SPIKEFORGE_SCHEMAS(library) {
  for (const NeuronKind kind : all_neurons) {
    define_public(library, kind);
    define_lowered(library, kind);
  }
}

}  // namespace
}  // namespace spikeforge::ops
