// The description of a module for TorchScript, as plain data that needs no header of the TorchScript compiler.
// Parameters, buffers and submodules are those of the module; everything else is defined here.
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
  std::vector<std::string> inputs = {"x"};                       // the arguments of forward, tensors
  std::size_t outputs = 1;                                       // results of forward: a tensor, or a tuple of tensors
  std::vector<std::string> states = {};                          // buffers; a state that does not exist has shape [0]
  std::vector<std::pair<std::string, std::string>> texts = {};   // constants: a neuron's equations
  std::vector<std::pair<std::string, at::Tensor>> tensors = {};  // constant tensors, as additional buffers
  std::string forward = {};                                      // its body, one statement per line, not indented
  // The body of a second method, which has the inputs of forward and returns the outputs of a module with states before
  // the first step. Empty: the outputs are zeros.
  std::string at_rest = {};
  std::string methods = {};  // further methods of the class, as source
};

// Functions that return pieces of source.
namespace script {

SPIKEFORGE_API std::string number(double value);  // with all significant digits
SPIKEFORGE_API std::string number(std::int64_t value);
SPIKEFORGE_API std::string boolean(bool value);  // "True" or "False"
SPIKEFORGE_API std::string quoted(const std::string& text);
SPIKEFORGE_API std::string list(at::ArrayRef<std::int64_t> values);
SPIKEFORGE_API std::string list(at::ArrayRef<double> values);

// Returns the name of an attribute of a script module: reserved names get an underscore, and each non-ASCII byte
// becomes two hexadecimal digits.
SPIKEFORGE_API std::string attribute(const std::string& name);
// Returns the name of a variable: characters that are illegal in a variable's name become underscores.
SPIKEFORGE_API std::string identifier(const std::string& name);
// Returns self.name, or getattr(self, "name") if self.name is not valid Python.
SPIKEFORGE_API std::string member(const std::string& name, const std::string& of = "self");

// The lines of a body, each two spaces further in.
SPIKEFORGE_API std::string indented(const std::string& body);
// A variable of the state's name: the state, or None if it does not exist.
SPIKEFORGE_API std::string optional_state(const std::string& state);

// Functions for states that are shared by several modules.
//   start(state, x, value)     the state, or if it does not exist, a tensor filled with the value
//   start_at(state, x, value)  the same for a tensor
//   number(value, x)           a scalar as a tensor parameter for neurons with input x
SPIKEFORGE_API extern const char* const start;
SPIKEFORGE_API extern const char* const start_at;
SPIKEFORGE_API extern const char* const number_of;

}  // namespace script
}  // namespace spikeforge
