#include "csrc/nn/internal/scoped_samples.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/take_along_dim.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>

namespace spikeforge::nn {
namespace {

template <class Impl> bool takes_statistics_as(const torch::nn::Module& module) {
  const auto* const norm = dynamic_cast<const Impl*>(&module);
  return norm != nullptr && (norm->is_training() || !norm->running_mean.defined());
}

bool takes_statistics(const torch::nn::Module& module) {
  return takes_statistics_as<torch::nn::BatchNorm1dImpl>(module) ||
         takes_statistics_as<torch::nn::BatchNorm2dImpl>(module) ||
         takes_statistics_as<torch::nn::BatchNorm3dImpl>(module);
}

// Reshapes [n, B] to the number of dimensions of x.
at::Tensor beside(const at::Tensor& of_samples, const at::Tensor& x) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.dim()), 1);
  sizes[0] = of_samples.size(0);
  sizes[1] = of_samples.size(1);
  return of_samples.reshape(sizes);
}

void check_shapes(const Stateful& module, const Samples& samples, at::TensorList inputs, std::int64_t steps) {
  for (const at::Tensor& x : inputs) {
    TORCH_CHECK_VALUE(x.defined() && x.dim() >= 2, module.title(),
                      ": with lengths or start an input must be [T, B, *shape], with samples along dimension 1, but ",
                      x.defined() ? "has shape " + c10::str(x.sizes()) : "is undefined");
    const auto check = [&](const char* name, const at::Tensor& t, at::IntArrayRef shape) {
      TORCH_CHECK_VALUE(!t.defined() || t.sizes() == shape, module.title(), ": ", name, " must have shape ", shape,
                        " for an input of shape ", x.sizes(), ", but has ", t.sizes());
    };
    check("lengths", samples.lengths, {x.size(1)});
    check("start", samples.start, {steps, x.size(1)});
  }
}

}  // namespace

ScopedSamples::ScopedSamples(Stateful& module, const Samples& samples, at::TensorList inputs, std::int64_t steps) {
  check_shapes(module, samples, inputs, steps);
  std::vector<Stateful*> modules;
  module.apply([&](torch::nn::Module& m) {
    TORCH_CHECK_VALUE(!takes_statistics(m), module.title(), ": takes neither lengths nor start: statistics of a ",
                      m.name(), " would include values after the ends of sequences");
    auto* const stateful = dynamic_cast<Stateful*>(&m);
    if (stateful == nullptr) return;
    TORCH_CHECK_VALUE(stateful->takes_samples(), stateful->title(), ": takes neither lengths nor start");
    modules.push_back(stateful);
  });
  for (Stateful* const m : modules) before_.emplace_back(m, std::exchange(m->samples_, samples));
}

ScopedSamples::~ScopedSamples() {
  for (auto& [module, before] : before_) module->samples_ = std::move(before);
}

at::Tensor without_restarted(const Samples& samples, const at::Tensor& arriving, std::int64_t delay) {
  if (!samples.start.defined()) return arriving;
  const std::int64_t steps = samples.start.size(0);
  at::Tensor restarted = samples.start;
  for (std::int64_t back = 1; back < std::min(delay, steps); ++back)
    restarted = restarted.logical_or(
        at::cat({at::zeros_like(samples.start.narrow(0, 0, back)), samples.start.narrow(0, 0, steps - back)}));
  return arriving.masked_fill(beside(restarted, arriving), 0);
}

at::Tensor leaving(const Samples& samples, const at::Tensor& sent, std::int64_t delay, const at::Tensor& before,
                   const std::function<at::Tensor(const at::Tensor&)>& through) {
  const std::int64_t steps = sent.size(0);
  const auto options = sent.options().dtype(at::kLong).memory_format(std::nullopt);
  const at::Tensor ends = samples.lengths.defined() ? samples.lengths.to(options).clamp(0, steps)
                                                    : at::full({sent.size(1)}, steps, options);
  const at::Tensor places = ends + at::arange(-delay, 0, options).unsqueeze(1);  // steps, [delay, B]
  std::vector<std::int64_t> row = sent.sizes().vec();
  row[0] = 1;
  at::Tensor recent =
      at::take_along_dim(at::cat({sent, sent.new_zeros(row)}), beside(at::where(places >= 0, places, steps), sent), 0);
  if (through) recent = through(recent);
  if (before.defined()) {
    const at::Tensor earlier = at::take_along_dim(before, beside((places + delay).clamp_max(delay - 1), before), 0);
    recent = at::where(beside(places >= 0, recent), recent, earlier);
  } else {
    recent = recent.masked_fill(beside(places < 0, recent), 0);
  }
  if (!samples.start.defined() || steps == 0) return recent;
  const at::Tensor present = samples.start.logical_and(at::arange(steps, options).unsqueeze(1) < ends);
  const at::Tensor from_step = present.flip(0).cumsum(0).flip(0);  // the number of starts from each step on
  const at::Tensor since =
      at::cat({from_step, at::zeros_like(from_step.narrow(0, 0, 1))}).gather(0, (places + 1).clamp_min(0));
  return recent.masked_fill(beside(since > 0, recent), 0);
}

}  // namespace spikeforge::nn
