// Networks with common structures.
#pragma once

#include "csrc/nn/composite.h"

#include <initializer_list>

namespace spikeforge::nn {

// Calls its parts in order: Sequential net(torch::nn::Linear(4, 8), LIF(), torch::nn::Linear(8, 2), LI()). Their names
// are "0", "1", ..., or those passed to push_back.
class SPIKEFORGE_API SequentialImpl : public CompositeImpl {
 public:
  SequentialImpl() = default;
  template <class... Parts, std::enable_if_t<(std::is_constructible_v<Part, const Parts&> && ...), int> = 0>
  explicit SequentialImpl(const Parts&... parts) {
    build({Part(parts)...});
  }

  void push_back(const std::string& name, Part part);

 protected:
  const char* kind() const override { return "Sequential"; }
  std::shared_ptr<Stateful> fresh() const override;

 private:
  void build(std::initializer_list<Part> parts);

  Names parts_;  // the output port of each part
};
TORCH_MODULE(Sequential);

// A cell whose output is fed back through a module: y[t] = cell(x[t] + module(y[t - 1])), where y[-1] is zero. Parts:
// "cell" and "module". The last y is the state "cell_out_to_module_in".
class SPIKEFORGE_API RecurrentImpl : public CompositeImpl {
 public:
  RecurrentImpl(const Part& cell, const Part& module, CompositeOptions options = {});

 protected:
  const char* kind() const override { return "Recurrent"; }
  std::shared_ptr<Stateful> fresh() const override;

 private:
  explicit RecurrentImpl(CompositeOptions options) : CompositeImpl(options) {}
};
TORCH_MODULE(Recurrent);

}  // namespace spikeforge::nn
