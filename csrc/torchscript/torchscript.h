// Converts a module tree to TorchScript, which runs with torch::jit::load in C++ and torch.jit.load in Python and needs
// only this library.
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
// forward has all inputs of the module, and returns all outputs: one tensor, or a tuple of several. It returns the same
// bits as the module's forward after reset(), whatever states the module has now. Parameters and buffers have the
// module's names (a name that is taken in Python gets an underscore: "lambda_") and are shared with it until saved.
// States are buffers with their names, which keep their values between calls; a state that does not exist has shape
// [0]. The root and every module with states have two methods: reset() removes the states, detach_state() detaches them
// from the graph.
//
// freeze(script.eval(), {"reset"}) and optimize_for_inference(frozen, {"reset"}) keep the states, and the method
// reset() because it is listed. They fold BatchNorm into convolutions, which changes the last bits.
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
// layer). A copy of the module and the script are run on the example. Throws c10::ValueError unless their results
// agree: bit by bit on the CPU, or in shape and type if a module occurs twice in the tree. Throws
// c10::NotImplementedError for a module that has no TorchScript form.
SPIKEFORGE_API torch::jit::Module to_torchscript(const torch::nn::Module& module, at::TensorList example);

// Registers the functions that convert modules of exactly this class to TorchScript and call them.
SPIKEFORGE_API void script_as(std::type_index type, std::function<Script(const torch::nn::Module&)> script,
                              std::function<at::Tensor(torch::nn::Module&, const at::Tensor&)> call);

//   script_as<SumPool>([](const SumPool& pool) { return Script{.name = "SumPool", .forward = "return ..."}; });
template <class Module, class Function> void script_as(Function script) {
  script_as(
      typeid(Module), [script](const torch::nn::Module& m) { return script(dynamic_cast<const Module&>(m)); },
      [](torch::nn::Module& m, const at::Tensor& x) { return dynamic_cast<Module&>(m).forward(x); });
}

}  // namespace spikeforge
