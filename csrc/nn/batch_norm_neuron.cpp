#include "csrc/nn/batch_norm_neuron.h"
#include "csrc/jit/recorder.h"
#include "csrc/nn/internal/scoped_samples.h"
#include "ops/layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <ostream>
#include <utility>
#include <vector>

namespace spikeforge::nn {
namespace {

constexpr std::int64_t channel_dim = 2;  // of [T, B, C, ...]

// A torch::nn::BatchNorm1d, 2d or 3d.
struct Norm {
  const torch::nn::BatchNormOptions& options;
  const at::Tensor &weight, &bias, &running_mean, &running_var, &num_batches_tracked;
  at::Tensor (*forward)(torch::nn::Module&, const at::Tensor&);
  std::int64_t fewest_dims, most_dims;  // of x with time
};

template <class Impl>
std::optional<Norm> norm_as(torch::nn::Module& module, std::int64_t fewest_dims, std::int64_t most_dims) {
  auto* const norm = dynamic_cast<Impl*>(&module);
  if (norm == nullptr) return std::nullopt;
  return Norm{norm->options,
              norm->weight,
              norm->bias,
              norm->running_mean,
              norm->running_var,
              norm->num_batches_tracked,
              [](torch::nn::Module& m, const at::Tensor& x) { return dynamic_cast<Impl&>(m).forward(x); },
              fewest_dims,
              most_dims};
}

std::optional<Norm> norm_in(torch::nn::Module& module) {
  if (auto norm = norm_as<torch::nn::BatchNorm2dImpl>(module, 5, 5)) return norm;
  if (auto norm = norm_as<torch::nn::BatchNorm1dImpl>(module, 3, 4)) return norm;
  return norm_as<torch::nn::BatchNorm3dImpl>(module, 6, 6);
}

bool uses_running(const torch::nn::Module& module, const Norm& norm) {
  return !module.is_training() && norm.running_mean.defined();
}

std::optional<at::Tensor> scaled(const Norm& norm, const at::Tensor& x, double scale) {
  if (scale == 1) return maybe_given(norm.weight);
  if (norm.weight.defined()) return norm.weight * scale;
  return at::full({norm.options.num_features()}, scale, x.options().dtype(state_type(x.scalar_type())));
}

// Updates the running statistics as torch does: with the unbiased variance, and not for an empty batch.
void update_running(const Norm& norm, const at::Tensor& mean, const at::Tensor& var, double count) {
  const at::NoGradGuard no_grad;
  norm.num_batches_tracked.add_(1);
  if (count == 0) return;
  const auto momentum = norm.options.momentum();
  const auto move = [&](const at::Tensor& running, const at::Tensor& now) {
    if (momentum)
      running.lerp_(now, *momentum);
    else
      running.lerp_(now, norm.num_batches_tracked.to(now.scalar_type()).reciprocal());
  };
  move(norm.running_mean, mean.detach().to(norm.running_mean.scalar_type()));
  move(norm.running_var, (var.detach() * (count / (count - 1))).to(norm.running_var.scalar_type()));
}

// Restores the running statistics if a call throws: torch's norm updates them before the neuron checks its input.
class UnmovedByErrors {
 public:
  UnmovedByErrors(const torch::nn::Module& module, const Norm& norm) {
    if (!module.is_training() || !norm.running_mean.defined()) return;
    for (const at::Tensor* t : {&norm.running_mean, &norm.running_var, &norm.num_batches_tracked})
      moved_.emplace_back(*t, t->clone());
  }
  UnmovedByErrors(const UnmovedByErrors&) = delete;
  UnmovedByErrors& operator=(const UnmovedByErrors&) = delete;
  ~UnmovedByErrors() {
    if (std::uncaught_exceptions() == outer_exceptions_) return;
    const at::NoGradGuard no_grad;
    for (const auto& [t, before] : moved_) t.copy_(before);
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> moved_;
  int outer_exceptions_ = std::uncaught_exceptions();
};

}  // namespace

BatchNormNeuronImpl::BatchNormNeuronImpl(std::shared_ptr<torch::nn::Module> norm, std::shared_ptr<NeuronModule> neuron,
                                         BatchNormNeuronOptions options)
    : norm_(std::move(norm)), neuron_(std::move(neuron)), options_(std::move(options)) {
  TORCH_CHECK_TYPE(norm_ && norm_in(*norm_),
                   "BatchNormNeuron: norm must be a torch::nn::BatchNorm1d, 2d or 3d, but is ",
                   norm_ ? norm_->name() : "null");
  TORCH_CHECK_TYPE(
      neuron_ && neuron_->takes_layer() && neuron_->input_names().size() == 1 && neuron_->output_names().size() == 1,
      "BatchNormNeuron: neuron must be one of neurons.h or neuron.h, with spikes, one input and one output, but is ",
      neuron_ ? neuron_->title() : "null");
  const std::string& mode = options_.residual();
  TORCH_CHECK_VALUE(mode.empty() || mode == "add" || mode == "and" || mode == "iand",
                    "BatchNormNeuron: residual must be add, and or iand, or empty for none, but is '", mode, "'");
  TORCH_CHECK_VALUE(std::isfinite(options_.scale()), "BatchNormNeuron: scale must be finite, but is ",
                    options_.scale());
  register_module("norm", norm_);
  register_module("neuron", neuron_);
}

void BatchNormNeuronImpl::check(at::TensorList inputs, std::int64_t steps) const {
  const Norm norm = *norm_in(*norm_);
  TORCH_CHECK_VALUE(inputs.size() == input_names().size(), title(), ": takes ", input_names().size(),
                    " inputs, but got ", inputs.size());
  const at::Tensor& x = inputs[0];
  const std::int64_t channels = norm.options.num_features();
  TORCH_CHECK_VALUE(x.defined() && norm.fewest_dims <= x.dim() && x.dim() <= norm.most_dims && x.size(0) == steps &&
                        x.size(channel_dim) == channels,
                    title(), ": x must be [", steps, ", B, ", channels, ", ...] with ", norm.fewest_dims, " to ",
                    norm.most_dims, " dimensions, but ",
                    x.defined() ? "has shape " + c10::str(x.sizes()) : "is undefined");
  if (inputs.size() == 1) return;
  const at::Tensor& residual = inputs[1];
  TORCH_CHECK_VALUE(residual.defined() && residual.sizes() == x.sizes(), title(), ": residual must have shape ",
                    x.sizes(), ", that of x, but ",
                    residual.defined() ? "has " + c10::str(residual.sizes()) : "is undefined");
  TORCH_CHECK_TYPE(residual.scalar_type() == x.scalar_type(), title(), ": residual must be ", x.scalar_type(),
                   ", the type of x, but is ", residual.scalar_type());
}

bool BatchNormNeuronImpl::is_better_apart(const at::Tensor& x) const {
  return x.is_cpu() && options_.scale() == 1 && !neuron_->runs_as_text() && jit::recorder() == nullptr;
}

at::Tensor BatchNormNeuronImpl::joined(const at::Tensor& spikes, at::TensorList inputs) const {
  const std::string& mode = options_.residual();
  if (mode.empty()) return spikes;
  if (mode == "add") return spikes + inputs[1];
  return (mode == "and" ? spikes : 1 - spikes) * inputs[1];
}

Tensors BatchNormNeuronImpl::advance(at::TensorList inputs, std::int64_t steps) {
  check(inputs, steps);
  const Norm norm = *norm_in(*norm_);
  const at::Tensor& x = inputs[0];
  if (is_better_apart(x)) {
    const UnmovedByErrors unmoved(*norm_, norm);
    const at::Tensor y = norm.forward(*norm_, x.flatten(0, 1)).unflatten(0, {x.size(0), x.size(1)});
    return {joined(neuron_->run({&y, 1}, steps)[0], inputs)};
  }
  BatchNorm around{.weight = scaled(norm, x, options_.scale()),
                   .bias = maybe_given(norm.bias),
                   .channel_dim = channel_dim,
                   .eps = norm.options.eps()};
  if (uses_running(*norm_, norm)) {
    // Copies the statistics: a training step may change them before the backward pass.
    around.mean = norm.running_mean.clone();
    around.var = norm.running_var.clone();
  }
  std::optional<ResidualConnection> residual;
  if (!options_.residual().empty()) residual = {.tensor = inputs[1], .mode = options_.residual()};
  const std::int64_t of_a_channel = x.numel() / std::max<std::int64_t>(x.size(channel_dim), 1);
  const auto count = static_cast<double>(of_a_channel);
  const NeuronModule::Layer layer = [&](const spikeforge::Neuron& neuron, at::TensorList given, at::TensorList states,
                                        at::TensorList params, bool store) -> NeuronModule::Results {
    auto [outputs, next, mean, var] = batch_norm_run(neuron, given, states, params, around, residual, store);
    if (norm_->is_training() && norm.running_mean.defined()) update_running(norm, mean, var, count);
    return {std::move(outputs), std::move(next)};
  };
  const NeuronModule::Within within(*neuron_, layer);
  return neuron_->run({&x, 1}, steps);
}

Tensors BatchNormNeuronImpl::at_rest(at::TensorList inputs) { return {joined(at::zeros_like(inputs[0]), inputs)}; }

void BatchNormNeuronImpl::set_path(const std::string& path) {
  Stateful::set_path(path);
  neuron_->set_path(path + ".neuron");
}

void BatchNormNeuronImpl::expect(std::int64_t steps) {
  Stateful::expect(steps);
  neuron_->expect(steps);
}

std::shared_ptr<Stateful> BatchNormNeuronImpl::fresh() const {
  return std::make_shared<BatchNormNeuronImpl>(norm_->clone(),
                                               std::dynamic_pointer_cast<NeuronModule>(neuron_->clone()), options_);
}

void BatchNormNeuronImpl::pretty_print(std::ostream& stream) const {
  stream << "BatchNormNeuron(";
  if (!options_.residual().empty()) stream << "residual=" << options_.residual();
  if (options_.scale() != 1) stream << (options_.residual().empty() ? "" : ", ") << "scale=" << options_.scale();
  stream << ')';
}

Script BatchNormNeuronImpl::script() const {
  TORCH_CHECK_NOT_IMPLEMENTED(options_.scale() == 1, title(),
                              ": there is no TorchScript for it with a scale; multiply the norm's weight by it");
  const std::string& mode = options_.residual();
  Script result{.name = "BatchNormNeuron"};
  if (!mode.empty()) result.inputs.emplace_back("residual");
  result.forward =
      "y = self.norm.forward(torch.flatten(x, 0, 1))\n"
      "s = self.neuron.forward(torch.unflatten(y, 0, [x.size(0), x.size(1)]))\n"
      "return ";
  result.forward += mode.empty()    ? "s"
                    : mode == "add" ? "s + residual"
                    : mode == "and" ? "s * residual"
                                    : "(1 - s) * residual";
  if (!mode.empty())
    result.at_rest = mode == "add" || mode == "iand" ? "return residual" : "return torch.zeros_like(residual)";
  return result;
}

}  // namespace spikeforge::nn
