// A module tree as TorchScript: what torch::jit::load runs in C++, and torch.jit.load in Python, with nothing but this
// library.
//
//   torch::jit::Module script = to_torchscript(*net, x);   // x: [T, batch, ...]
//   script.eval();
//   script.save("net.pt");
//
// Works for every module of spikeforge::nn, for torch::nn's Linear, Conv1d/2d, BatchNorm1d/2d, average, maximum and
// adaptive average pooling, ConstantPad1d/2d, Flatten, Dropout, ReLU, Sigmoid, Tanh, Identity and Sequential, and for
// custom modules that define their script: a Stateful by overriding script(), others by script_as. Any other
// module raises an error with its path: "to_torchscript: net.encoder.2 (Embedding): ...".
//
// forward takes every input of the module and returns every output: one tensor, or a tuple of several. It has the bits
// of the module's own forward, from states that do not exist, whatever states the module has now. Parameters and
// buffers have the module's names (a name that is taken in Python gets an underscore: "lambda_") and are shared with it
// until saved. States are buffers by their names, and a state that does not exist has shape [0]. Calls keep their
// values. The root and every module with states have two methods: reset() removes the states, detach_state() detaches
// them from the graph.
//
// freeze(script.eval(), {"reset"}) and optimize_for_inference(frozen, {"reset"}) keep states, and keep reset() where it
// is named; they fold BatchNorm into convolutions, which changes last bits.
#pragma once

#include "csrc/base/export.h"
#include "csrc/nn/script.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <typeindex>

namespace torch::jit {
struct Module;
}

namespace spikeforge {

// Converts a module to TorchScript. `example` has its inputs, [T, ...] each (for a layer of torch, the inputs of that
// layer). A copy of the module and the script run on them. Throws c10::ValueError unless their results agree: bit by
// bit on the CPU, or in shape and type if a module occurs twice in the tree. Throws c10::NotImplementedError for a
// module that has no TorchScript form.
SPIKEFORGE_API torch::jit::Module to_torchscript(const torch::nn::Module& module, at::TensorList example);

// Registers how modules of exactly this class are converted to TorchScript, and called.
SPIKEFORGE_API void script_as(std::type_index type, std::function<Script(const torch::nn::Module&)> script,
                              std::function<at::Tensor(torch::nn::Module&, const at::Tensor&)> call);

//   script_as<SumPool>([](const SumPool& pool) { return Script{.name = "SumPool", .forward = "return ..."}; });
template <class Module, class Function> void script_as(Function script) {
  script_as(
      typeid(Module), [script](const torch::nn::Module& m) { return script(dynamic_cast<const Module&>(m)); },
      [](torch::nn::Module& m, const at::Tensor& x) { return dynamic_cast<Module&>(m).forward(x); });
}

}  // namespace spikeforge
