// The description of a module for TorchScript: plain data, without a header of the compiler. Parameters, buffers and
// submodules are taken from the module; the rest is defined here.
#pragma once

#include "csrc/base/export.h"

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace spikeforge {

struct Script {
  std::string name;                                              // of the class: "LIF"
  std::vector<std::string> inputs = {"x"};                       // tensors, the arguments of forward
  std::size_t outputs = 1;                                       // of forward: a tensor, or a tuple of tensors
  std::vector<std::string> states = {};                          // buffers; a state that does not exist has shape [0]
  std::vector<std::pair<std::string, std::string>> texts = {};   // constants: a neuron's equations
  std::vector<std::pair<std::string, at::Tensor>> tensors = {};  // the same, as buffers that the module does not have
  std::string forward = {};                                      // its body, a line for each statement, not indented
  // The body of a second method: the outputs of a module with states before the first step, from the inputs of forward;
  // empty: zeros.
  std::string at_rest = {};
  std::string methods = {};  // further methods, as text of the class
};

// Pieces of source.
namespace script {

SPIKEFORGE_API std::string number(double value);  // all digits it takes
SPIKEFORGE_API std::string number(std::int64_t value);
SPIKEFORGE_API std::string boolean(bool value);  // True
SPIKEFORGE_API std::string quoted(const std::string& text);
SPIKEFORGE_API std::string list(at::ArrayRef<std::int64_t> values);
SPIKEFORGE_API std::string list(at::ArrayRef<double> values);

// The name of an attribute of a script module: names that the language or every script uses get an underscore, and
// bytes beyond ASCII become two hexadecimal digits each.
SPIKEFORGE_API std::string attribute(const std::string& name);
// The name of a variable: in addition, characters that a variable's name cannot have become underscores.
SPIKEFORGE_API std::string identifier(const std::string& name);
// self.name, or getattr(self, "name") if that is not valid Python.
SPIKEFORGE_API std::string member(const std::string& name, const std::string& of = "self");

// The lines of a body, each two spaces further in.
SPIKEFORGE_API std::string indented(const std::string& body);
// A variable of the state's name: the state, or None if it does not exist.
SPIKEFORGE_API std::string optional_state(const std::string& state);

// Functions of state that several modules use.
//   start(state, x, value)     the state, or if there is none, the value everywhere
//   start_at(state, x, value)  the same of a tensor
//   number(value, x)           a number as the tensor that x's neurons take
SPIKEFORGE_API extern const char* const start;
SPIKEFORGE_API extern const char* const start_at;
SPIKEFORGE_API extern const char* const number_of;

}  // namespace script
}  // namespace spikeforge
