// A module in a container: a module with states, or any torch module whose forward maps a tensor to a tensor.
#pragma once

#include "csrc/nn/stateful.h"

#include <type_traits>

namespace spikeforge::nn {

class SPIKEFORGE_API Part {
 public:
  template <class M, std::enable_if_t<std::is_base_of_v<torch::nn::Module, M>, int> = 0>
  Part(std::shared_ptr<M> module)  // NOLINT(google-explicit-constructor)
      : module_(std::move(module)) {
    if constexpr (std::is_base_of_v<Stateful, M>)
      stateful_ = static_cast<Stateful*>(module_.get());
    else
      call_ = [](torch::nn::Module& m, const at::Tensor& x) -> at::Tensor { return static_cast<M&>(m).forward(x); };
  }
  template <class M>
  Part(const torch::nn::ModuleHolder<M>& holder) : Part(holder.ptr()) {}  // NOLINT(google-explicit-constructor)

  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  Stateful* stateful() const { return stateful_; }  // null for a torch module

  Names input_names() const { return stateful_ ? stateful_->input_names() : Names{"in"}; }
  Names output_names() const { return stateful_ ? stateful_->output_names() : Names{"out"}; }

  // Calls a torch module once per step, on memory aligned as that of a new tensor: the last bits of a layer's result
  // for one row may depend on the number of rows and on their alignment, because BLAS and convolutions choose different
  // code paths, and BatchNorm in training depends on the other rows in any case. TimeDistributed makes one call for all
  // steps.
  Tensors run(at::TensorList inputs, std::int64_t steps) const;
  // Calls a torch module once.
  at::Tensor call(const at::Tensor& x) const { return call_(*module_, x); }

  Part clone() const;

 private:
  std::shared_ptr<torch::nn::Module> module_;
  Stateful* stateful_ = nullptr;
  at::Tensor (*call_)(torch::nn::Module&, const at::Tensor&) = nullptr;
};

}  // namespace spikeforge::nn
