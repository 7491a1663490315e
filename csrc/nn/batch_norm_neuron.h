// A neuron with the batch normalisation before it, and a residual connection after it, in one pass (ops/layer.h).
//
//   BatchNormNeuron layer(torch::nn::BatchNorm2d(64), LIF(LIFOptions().surrogate("atan")));
//   at::Tensor spikes = layer(x_seq);  // [T, B, 64, H, W]
//
// It computes the neuron's output for the normalised sequence, within rounding: in training with the statistics over
// time, batch and space, which also update the running statistics as in torch. Parameters and buffers are those of the
// two modules, "norm.weight" and so on; states are those of the neuron, "neuron.v". On the CPU a predefined neuron runs
// after torch's normalisation: its compiled loop is faster than the fused one.
#pragma once

#include "csrc/nn/neuron_module.h"

namespace spikeforge::nn {

class SPIKEFORGE_API BatchNormNeuronOptions {
 public:
  // Adds the input port "residual" for a tensor r of x's shape. The output is, for "add", s + r; for "and", s r; for
  // "iand", (1 - s) r. An empty mode means no residual.
  BatchNormNeuronOptions& residual(std::string mode) { return residual_ = std::move(mode), *this; }
  // Multiplies the normalised input before the norm's bias is added: alpha times the threshold is threshold-dependent
  // batch normalisation (tdBN).
  BatchNormNeuronOptions& scale(double scale) { return scale_ = scale, *this; }

  const std::string& residual() const { return residual_; }
  double scale() const { return scale_; }

 private:
  std::string residual_;
  double scale_ = 1.0;
};

class SPIKEFORGE_API BatchNormNeuronImpl : public Stateful {
 public:
  // `norm` is a torch::nn::BatchNorm1d, 2d or 3d, `neuron` a neuron of neurons.h or neuron.h with one input and one
  // output. Throws c10::TypeError for other modules, and c10::ValueError for illegal options.
  BatchNormNeuronImpl(std::shared_ptr<torch::nn::Module> norm, std::shared_ptr<NeuronModule> neuron,
                      BatchNormNeuronOptions options = {});
  template <class Norm, class Neuron>
  BatchNormNeuronImpl(const torch::nn::ModuleHolder<Norm>& norm, const torch::nn::ModuleHolder<Neuron>& neuron,
                      BatchNormNeuronOptions options = {})
      : BatchNormNeuronImpl(norm.ptr(), neuron.ptr(), std::move(options)) {}

  Names input_names() const override { return options_.residual().empty() ? Names{"in"} : Names{"in", "residual"}; }
  // Samples are not supported: the statistics would include values after the ends of sequences.
  bool takes_samples() const override { return false; }
  Tensors at_rest(at::TensorList inputs) override;
  void set_path(const std::string& path) override;
  void expect(std::int64_t steps) override;
  void pretty_print(std::ostream& stream) const override;
  // Concatenates the scripts of the two modules.
  Script script() const override;

  const BatchNormNeuronOptions& options() const { return options_; }

 protected:
  const char* kind() const override { return "BatchNormNeuron"; }
  Tensors advance(at::TensorList inputs, std::int64_t steps) override;
  std::shared_ptr<Stateful> fresh() const override;

 private:
  void check(at::TensorList inputs, std::int64_t steps) const;
  bool is_better_apart(const at::Tensor& x) const;
  at::Tensor joined(const at::Tensor& spikes, at::TensorList inputs) const;

  std::shared_ptr<torch::nn::Module> norm_;
  std::shared_ptr<NeuronModule> neuron_;
  BatchNormNeuronOptions options_;
};
TORCH_MODULE(BatchNormNeuron);

}  // namespace spikeforge::nn
