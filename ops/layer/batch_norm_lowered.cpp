// A layer with the statistics of its input, below autograd: composed of the operators of `run`, or on a GPU one
// cooperative launch per pass.
#include "csrc/jit/recorder.h"
#include "csrc/kernels/layer/batch_norm.h"
#include "ops/common/library.h"
#include "ops/common/next_key.h"
#include "ops/layer/batch_norm.h"
#include "ops/multistep/text_call.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#if defined(SPIKEFORGE_WITH_CUDA)
#include "ops/common/on_stream.h"

#include <c10/cuda/CUDAGuard.h>
#endif

namespace spikeforge::ops::layers {
namespace {

constexpr const char* forward_op = "batch_norm_run_forward";
constexpr const char* backward_op = "batch_norm_run_backward";

// `numbers` are center, scale, shift and rstd, with the input's dimensions; the backward operator has the first three
// after the neuron's parameters, and returns in their places nothing and the gradients of weight and bias. `arguments`
// are as for run_forward.
SPIKEFORGE_SCHEMAS(library) {
  library.def(
      "batch_norm_run_forward(str neuron, Tensor[] arguments, Tensor? weight, Tensor? bias, Tensor? residual, *, str "
      "residual_mode, int channel_dim, float eps, bool store_states, bool save, "
      "int bits=0, bool last_states=True) -> (Tensor[] outputs, Tensor[] states, Tensor mean, Tensor var, "
      "Tensor[] numbers, Tensor[] checkpoints)");
  library.def(
      "batch_norm_run_backward(str neuron, Tensor?[] grad_outputs, Tensor?[] grad_states, Tensor? grad_mean, "
      "Tensor? grad_var, Tensor[] inputs, Tensor[] states, Tensor[] params, Tensor rstd, Tensor[] checkpoints, "
      "bool[] needs_grad, *, str? residual_mode, int channel_dim, bool store_states) -> Tensor[]");
}

// ---- composed of run's operators ----

// Adds the contribution of a tensor's statistics to its gradient, dmean / n + 2 dvar (x - mean) / n. The text is on one
// line, as all texts that may be in a graph of torch.compile (graph::on_a_line).
constexpr std::string_view add_statistics =
    "neuron add_statistics(g, x; ; mean, offset, slope) { return g + (offset + slope * (x - mean)) }";
// Computes the values per channel of a normalisation from its statistics: x becomes (x - mean) * scale + shift.
constexpr std::string_view of_layer =
    "neuron of_layer(mean, var, weight, bias; ; eps) {"
    " rstd = 1 / sqrt(var + eps); return mean, rstd * weight, bias, rstd }";
// Computes the gradient of the weight, and offset and slope, from the gradients of scale and shift.
constexpr std::string_view of_channels =
    "neuron of_channels(of_scale, of_shift, rstd, scale; ; count) {"
    " w = of_scale * rstd; share = scale / count; return w, -(of_shift * share), -(w * rstd * share) }";

// Returns a scalar parameter on the CPU, which a call of a neuron on t's device reads without synchronisation.
at::Tensor on_the_host(const at::Scalar& number, const at::Tensor& t) {
  return at::full({}, number, t.options().device(c10::kCPU));
}

// The gradient of the weight, and the contribution of the statistics to that of x, from the gradients of scale and
// shift.
struct Shares {
  Shares(const LayerBackward& layer, const at::Tensor& of_scale, const at::Tensor& of_shift) {
    const at::Tensor& rstd = layer.rstd;
    const at::Scalar numbers = numbers_of_a_channel(layer.run.inputs[0], layer.channel_dim);
    const auto row = [&](const at::Tensor& t) { return t.flatten().to(rstd.scalar_type()).unsqueeze(0); };
    const List sums{row(of_scale), row(of_shift), row(rstd), row(layer.run.param(layer.run.params.size() - 2))};
    const List count{on_the_host(numbers, rstd)};
    const Tensors shares =
        call_run(traced_call(of_channels, sums, /*states=*/{}, count, /*store_states=*/false)).outputs;
    of_weight = shares[0].squeeze(0);
    offset = shares[1].squeeze(0);
    slope = shares[2].squeeze(0);
    // Adds the upstream gradients of the returned statistics.
    if (layer.grad_mean.defined()) offset = offset + layer.grad_mean / numbers;
    if (layer.grad_var.defined()) slope = slope + layer.grad_var * 2 / numbers;
  }

  at::Tensor of_weight, offset, slope;
};

at::Tensor with_share(const at::Tensor& of_x, const at::Tensor& x, const at::Tensor& center, const at::Tensor& offset,
                      const at::Tensor& slope) {
  const List inputs{of_x, x}, params{center, offset, slope};
  return call_run(traced_call(add_statistics, inputs, /*states=*/{}, params, /*store_states=*/false)).outputs[0];
}

// Computes only the gradient of x, including that through the statistics, by a call of the cell with_statistics.
class SecondPass {
 public:
  SecondPass(const BackwardCall& first, std::shared_ptr<const TracedCell> cell, const at::Tensor& offset,
             const at::Tensor& slope)
      : params_(first.params.begin(), first.params.end()),
        grads_(first.grad_outputs.begin(), first.grad_outputs.end()) {
    params_.insert(params_.end(), {offset, slope});
    grads_.emplace_back();
    static_cast<MultistepCall&>(call) =
        traced_call(std::move(cell), first.inputs, traced::given_states(first), params_, first.store_states);
    call.grad_outputs = grads_;
    call.grad_states = first.grad_states;
    call.checkpoints = first.checkpoints;
    call.needs_grad.resize(call.cell->arguments());
    call.needs_grad[0] = true;
  }
  SecondPass(const SecondPass&) = delete;
  SecondPass& operator=(const SecondPass&) = delete;

  at::Tensor gradient() {
    const at::Tensor& x = call.inputs[0];
    grads_.back() = at::ones({}, x.options()).expand_symint(x.sym_sizes());
    call.grad_outputs = grads_;
    return call_run_backward(call)[0];
  }

  BackwardCall call;

 private:
  List params_;
  Tensors grads_;
};

// Returns the cell of a second pass, or null if its checkpoints have another spacing, because it is longer.
std::shared_ptr<const TracedCell> second_cell(const LayerBackward& layer) {
  auto cell = layer_cell(layer.neuron, layer.residual, /*with_statistics=*/true);
  const DType type = dtype_of(layer.run.inputs[0].scalar_type());
  return cell->checkpoint_length(type) == layer.run.cell->checkpoint_length(type) ? std::move(cell) : nullptr;
}

}  // namespace

at::Scalar numbers_of_a_channel(const at::Tensor& x, std::int64_t channel_dim) {
  c10::SymInt numbers = 1;
  for (std::int64_t d = 0; d < x.dim(); ++d)
    if (d != channel_dim) numbers = numbers * x.sym_size(d);
  return {numbers};
}

LayerResults forward_of_parts(const LayerCall& layer, bool save) {
  LayerResults results;
  std::tie(results.mean, results.var) = statistics_of_input(layer.inputs[0], layer.channel_dim);
  const at::Tensor& mean = results.mean;
  const auto row = [&](const at::Tensor& t, double otherwise) {
    if (!t.defined()) return at::full_like(mean, otherwise).unsqueeze(0);
    return (t.scalar_type() == mean.scalar_type() ? t : t.to(mean.scalar_type())).unsqueeze(0);
  };
  const List of_channels{mean.unsqueeze(0), results.var.unsqueeze(0), row(layer.weight, 1), row(layer.bias, 0)};
  const List eps{on_the_host(layer.eps, mean)};
  Tensors made = call_run(traced_call(of_layer, of_channels, /*states=*/{}, eps, /*store_states=*/false)).outputs;
  for (at::Tensor& t : made) t = beside(t.squeeze(0), layer.inputs[0], layer.channel_dim);
  results.numbers = {made[0], made[1], made[2], made[3]};
  const LayerArguments arguments(layer, made[0], made[1], made[2]);
  const auto cell = layer_cell(layer.neuron, layer.joins());
  results.run = call_run_forward(
      traced_call(cell, arguments.inputs, layer.states, arguments.params, layer.store_states, layer.bits), save);
  if (!layer.last_states) results.run.states.clear();
  return results;
}

// Computes the gradients. On a GPU, which is bound by memory, x's gradient takes two passes: the first computes sums
// over channels; the second recomputes the neuron's derivative, with the contribution of the statistics.
ByArgument backward_of_parts(const LayerBackward& layer, bool is_differentiated) {
  BackwardCall call = layer.run;
  const at::Tensor& x = call.inputs[0];
  const std::size_t scale_at = layer.scale_at(), shift_at = layer.shift_at();
  const bool wants_x = call.needs_grad[0], wants_weight = call.needs_grad[scale_at],
             wants_bias = call.needs_grad[shift_at];
  const bool is_gpu = x.is_cuda() || jit::recorder() != nullptr;
  const auto second = wants_x && is_gpu && !is_differentiated ? second_cell(layer) : nullptr;
  call.needs_grad[0] = wants_x && !second;
  call.needs_grad[scale_at] = wants_x || wants_weight;
  call.needs_grad[shift_at] = wants_x || wants_bias;
  ByArgument found = gradients_by_argument(call, call_run_backward(call));
  const at::Tensor of_shift = std::exchange(found[shift_at], {}), of_scale = std::exchange(found[scale_at], {});

  if (wants_bias) found[shift_at] = of_shift.flatten();
  if (wants_x) {
    const Shares shares(layer, of_scale, of_shift);
    if (wants_weight) found[scale_at] = shares.of_weight;
    const at::Tensor offset = beside(shares.offset, x, layer.channel_dim),
                     slope = beside(shares.slope, x, layer.channel_dim);
    found[0] = second ? SecondPass(call, second, offset, slope).gradient()
                      : with_share(found[0], x, call.param(call.params.size() - 3), offset, slope);
  } else if (wants_weight) {
    found[scale_at] = of_scale.flatten() * layer.rstd.flatten();
  }
  return found;
}

namespace {

// ---- one launch per pass ----

using OneForward = spikeforge::layers::BatchNormForward;
using spikeforge::layers::Included;
using OneBackward = spikeforge::layers::BatchNormBackward;

// Returns a dense tensor in the type of the arithmetic.
at::Tensor readable(const at::Tensor& t, c10::ScalarType type) { return t.defined() ? t.to(type).contiguous() : t; }
const void* data_of(const at::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }

// True if a kernel can write these values per channel in place, without copies in another order.
template <std::size_t count>
bool are_last(std::span<const ParamView> params, const std::array<at::Tensor, count>& numbers) {
  const auto last = params.last(count);
  for (std::size_t i = 0; i < count; ++i)
    if (last[i].data != numbers[i].const_data_ptr()) return false;
  return true;
}

// True if a kernel may write the running statistics.
bool can_be_moved(const Running& running, c10::ScalarType type) {
  const auto fits = [&](const at::Tensor& t) { return t.scalar_type() == type && t.is_contiguous(); };
  return running.momentum.value_or(0) >= 0 && fits(running.mean) && fits(running.var) && !running.mean.is_inference() &&
         !running.var.is_inference();
}

// Returns the results of run(launch), or std::nullopt if it does not support the launch.
template <class Run, class Ask>
std::optional<LayerResults> forward_in_one(const LayerCall& layer, bool save, Ask&& launch_includes, Run&& run) {
  const at::Tensor& x = layer.inputs[0];
  const c10::ScalarType type = state_type(x.scalar_type());
  const auto options = x.options().dtype(type).memory_format(std::nullopt);
  c10::SmallVector<std::int64_t, 4> sizes(static_cast<std::size_t>(x.dim() - layer.channel_dim), 1);
  sizes[0] = x.size(layer.channel_dim);
  LayerResults results;
  results.mean = at::empty(sizes[0], options);
  results.var = at::empty(sizes[0], options);
  Numbers& numbers = results.numbers;
  for (at::Tensor* const t : {&numbers.center, &numbers.scale, &numbers.shift, &numbers.rstd})
    *t = at::empty(sizes, options);
  const LayerArguments arguments(layer, numbers.center, numbers.scale, numbers.shift);
  const auto cell = layer_cell(layer.neuron, layer.joins());
  MultistepCall call =
      traced_call(cell, arguments.inputs, layer.states, arguments.params, layer.store_states, layer.bits);
  call.last_states = layer.last_states;
  const Prepared prepared = prepare(call);
  results.run = allocate_forward(call, prepared, save);
  DescribedForward described(call, prepared, results.run);
  const at::Tensor weight = readable(layer.weight, type), bias = readable(layer.bias, type);
  OneForward one{.run = described.launch,
                 .eps = layer.eps,
                 .weight = data_of(weight),
                 .bias = data_of(bias),
                 .mean = results.mean.mutable_data_ptr(),
                 .var = results.var.mutable_data_ptr(),
                 .rstd = numbers.rstd.mutable_data_ptr()};
  Running* const running = layer.running;
  const bool wants_bits = described.launch.packed.bits != 0;
  const Included included = running != nullptr || wants_bits ? launch_includes(one) : Included();
  if (!included.writes_bits)
    described.launch.packed = {};
  else if (wants_bits)
    results.run.packed.valid.fill_(true);
  const bool moves = running != nullptr && can_be_moved(*running, type) && included.moves_running;
  if (moves) {
    one.running_mean = running->mean.mutable_data_ptr();
    one.running_var = running->var.mutable_data_ptr();
    one.batches = running->batches.mutable_data_ptr<std::int64_t>();
    one.momentum = running->momentum;
  }
  const bool is_run = are_last<3>(described.launch.params, {numbers.center, numbers.scale, numbers.shift}) && run(one);
  if (is_run && moves) {
    running->is_moved = true;
    for (const at::Tensor* t : {&running->mean, &running->var, &running->batches})
      t->unsafeGetTensorImpl()->bump_version();
  }
  if (!is_run) return std::nullopt;
  described.pack_rest(results.run);
  return results;
}

// Runs the backward pass of a layer whose x has a gradient.
template <class Run> std::optional<ByArgument> backward_in_one(const LayerBackward& layer, Run&& run) {
  const auto cell = second_cell(layer);
  if (!cell) return std::nullopt;
  BackwardCall sums = layer.run;
  for (const std::size_t i : {std::size_t{0}, layer.scale_at(), layer.shift_at()}) sums.needs_grad[i] = false;
  const auto empty_numbers = [&] { return at::empty_like(layer.rstd, at::MemoryFormat::Contiguous); };
  const std::array<at::Tensor, 2> of_statistics{empty_numbers(), empty_numbers()};
  const SecondPass second(sums, cell, of_statistics[0], of_statistics[1]);

  const Prepared prepared_sums = prepare(sums), prepared_second = prepare(second.call);
  check_backward(sums, prepared_sums);
  Gradients gradients = allocate_backward(sums, prepared_sums);
  const Gradients of_x = allocate_backward(second.call, prepared_second);
  DescribedBackward described(sums, prepared_sums, gradients);
  const DescribedBackward described_second(second.call, prepared_second, of_x);
  described.launch.any_grad_param = true;  // at least two are sums
  c10::SmallVector<std::int64_t, 4> step(static_cast<std::size_t>(layer.run.inputs[0].dim() - 1), 1);
  step[static_cast<std::size_t>(layer.channel_dim - 1)] = layer.rstd.size(0);
  for (std::size_t j = 0; j < gradients.params.size(); ++j)
    if (wants_grad_param(sums, j)) gradients.params[j] = empty_numbers().view(step);
  described.set_grad_params(gradients.params);
  const c10::ScalarType type = layer.rstd.scalar_type();
  const at::Tensor rstd = readable(layer.rstd, type), grad_mean = readable(layer.grad_mean, type),
                   grad_var = readable(layer.grad_var, type);
  const at::Tensor of_weight = empty_numbers(), of_bias = empty_numbers();
  if (!are_last(described_second.launch.params, of_statistics) ||
      !run(OneBackward{.sums = described.launch,
                       .gradient = described_second.launch,
                       .rstd = data_of(rstd),
                       .grad_mean = data_of(grad_mean),
                       .grad_var = data_of(grad_var),
                       .grad_weight = of_weight.mutable_data_ptr(),
                       .grad_bias = of_bias.mutable_data_ptr()}))
    return std::nullopt;
  ByArgument found = gradients_by_argument(sums, reduce_and_list(sums, gradients));
  found[0] = of_x.inputs[0];
  if (layer.run.needs_grad[layer.scale_at()]) found[layer.scale_at()] = of_weight.flatten();
  if (layer.run.needs_grad[layer.shift_at()]) found[layer.shift_at()] = of_bias.flatten();
  return found;
}

// ---- the kernels of the lowered operators ----

// Makes the checks that `run` does not make.
void check(const LayerBackward& layer) {
  const BackwardCall& call = layer.run;
  const at::Tensor& x = call.inputs[0];
  const Leader leader{backward_op, "inputs", x};
  check_leader(leader);
  const c10::SymInt channels = x.sym_size(dim_of_channels(leader, layer.channel_dim));
  TORCH_CHECK_VALUE(layer.channel_dim > 0, backward_op, ": channel_dim is counted from the front, but is ",
                    layer.channel_dim);
  c10::SymDimVector sizes(static_cast<std::size_t>(x.dim() - layer.channel_dim), 1);
  sizes[0] = channels;
  const std::size_t numbers = call.params.size() - 3;
  const std::array<std::pair<const char*, const at::Tensor*>, 4> of_channels{{{"center", &call.params[numbers]},
                                                                              {"scale", &call.params[numbers + 1]},
                                                                              {"shift", &call.params[numbers + 2]},
                                                                              {"rstd", &layer.rstd}}};
  const c10::ScalarType type = state_type(x.scalar_type());
  for (const auto& [name, t] : of_channels) check_gradient(leader, "", name, *t, sizes, type);
  for (const auto& [name, t] : {std::pair("grad_mean", &layer.grad_mean), std::pair("grad_var", &layer.grad_var)})
    if (t->defined()) check_gradient(leader, "", name, *t, {channels}, type);
  TORCH_CHECK_VALUE(!call.needs_grad[layer.mean_at()], backward_op, ": center (the mean) has no separate gradient");
}

LayerResults layer_forward_cpu(const LayerCall& layer, bool save) {
  if (jit::recorder() != nullptr)
    forward_in_one(
        layer, save, [](const OneForward&) { return Included{.writes_bits = true}; },
        [](const OneForward& one) {
          note(one);
          return false;
        });
  return forward_of_parts(layer, save);
}

ByArgument layer_backward_cpu(const LayerBackward& layer) {
  if (jit::recorder() != nullptr && layer.run.needs_grad[0])
    backward_in_one(layer, [](const OneBackward& one) {
      note(one);
      return false;
    });
  return backward_of_parts(layer, /*is_differentiated=*/false);
}

#if defined(SPIKEFORGE_WITH_CUDA)
// Returns true if the launch was made.
template <class One> bool launch_on(const at::Tensor& x, const One& one) {
  at::Tensor partial;
  return launch_batch_norm(one, gpu_of(x), stream_of(x), [&](std::size_t bytes) {
    partial = at::empty(static_cast<std::int64_t>(bytes), x.options().dtype(at::kByte).memory_format(std::nullopt));
    return partial.mutable_data_ptr();
  });
}

bool calls_go_to_cuda(const LayerCall& call) {
  const c10::DispatchKeySet keys =
      keys_of(call.inputs) | keys_of(call.states) | keys_of(call.params) | keys_of(call.own());
  return next_key_of(keys) == c10::DispatchKey::CUDA && call.inputs[0].is_cuda();
}

LayerResults layer_forward_cuda(const LayerCall& layer, bool save) {
  const at::Tensor& x = layer.inputs[0];
  if (x.numel() == 0) return forward_of_parts(layer, save);
  const c10::cuda::OptionalCUDAGuard guard(x.device());
  auto results = forward_in_one(
      layer, save, [&](const OneForward& one) { return launch_includes(one, gpu_of(x)); },
      [&](const OneForward& one) { return launch_on(x, one); });
  return results ? std::move(*results) : forward_of_parts(layer, save);
}

ByArgument layer_backward_cuda(const LayerBackward& layer) {
  const at::Tensor& x = layer.run.inputs[0];
  const c10::cuda::OptionalCUDAGuard guard(x.device());
  if (layer.run.needs_grad[0] && x.numel() != 0)
    if (auto found = backward_in_one(layer, [&](const OneBackward& one) { return launch_on(x, one); }))
      return std::move(*found);
  return backward_of_parts(layer, /*is_differentiated=*/false);
}
#endif

LayerResults layer_forward_meta(const LayerCall& layer, bool save) { return forward_of_parts(layer, save); }
ByArgument layer_backward_meta(const LayerBackward& layer) {
  return backward_of_parts(layer, /*is_differentiated=*/false);
}

using Forward = std::tuple<List, List, at::Tensor, at::Tensor, List, List>(std::string_view, at::TensorList,
                                                                           const MaybeTensor&, const MaybeTensor&,
                                                                           const MaybeTensor&, std::string_view,
                                                                           std::int64_t, double, bool, bool,
                                                                           std::int64_t, bool);
using Backward = List(std::string_view, const traced::OptionalTensorList&, const traced::OptionalTensorList&,
                      const MaybeTensor&, const MaybeTensor&, at::TensorList, at::TensorList, at::TensorList,
                      const at::Tensor&, at::TensorList, c10::List<bool>, std::optional<std::string_view>, std::int64_t,
                      bool);

template <LayerResults (*forward)(const LayerCall&, bool)>
std::tuple<List, List, at::Tensor, at::Tensor, List, List> forward_kernel(
    std::string_view neuron, at::TensorList arguments, const MaybeTensor& weight, const MaybeTensor& bias,
    const MaybeTensor& residual, std::string_view residual_mode, std::int64_t channel_dim, double eps,
    bool store_states, bool save, std::int64_t bits, bool last_states) {
  const auto [inputs, states, params] = traced::split(forward_op, *cell_of(neuron, forward_op), arguments);
  const LayerCall call =
      checked_call(forward_op, neuron, inputs, states, params, weight, bias, /*mean=*/std::nullopt,
                   /*var=*/std::nullopt, residual, residual_mode, channel_dim, eps, store_states, bits, last_states);
  const LayerResults results = forward(call, save);
  const Numbers& numbers = results.numbers;
  return {traced::list_of(results.run.outputs),
          traced::list_of(results.run.states),
          results.mean,
          results.var,
          {numbers.center, numbers.scale, numbers.shift, numbers.rstd},
          traced::kept_of(results.run)};
}

template <ByArgument (*backward)(const LayerBackward&)>
List backward_kernel(std::string_view neuron, const traced::OptionalTensorList& grad_outputs,
                     const traced::OptionalTensorList& grad_states, const MaybeTensor& grad_mean,
                     const MaybeTensor& grad_var, at::TensorList inputs, at::TensorList states, at::TensorList params,
                     const at::Tensor& rstd, at::TensorList checkpoints,
                     c10::List<bool> needs_grad,  // NOLINT(performance-unnecessary-value-param): for the dispatcher
                     std::optional<std::string_view> residual_mode, std::int64_t channel_dim, bool store_states) {
  const std::optional<graph::Residual> residual =
      residual_mode ? std::optional(residual_named(backward_op, *residual_mode)) : std::nullopt;
  const auto cell = layer_cell(neuron, residual);
  const traced::GivenBackward given(cell->text, grad_outputs, grad_states, inputs, states, params, checkpoints,
                                    needs_grad, store_states);
  const auto of_statistic = [](const MaybeTensor& t) { return t.value_or(at::Tensor()); };
  const LayerBackward layer{.run = given.call,
                            .neuron = neuron,
                            .residual = residual,
                            .rstd = rstd,
                            .grad_mean = of_statistic(grad_mean),
                            .grad_var = of_statistic(grad_var),
                            .channel_dim = channel_dim};
  check(layer);
  List wanted;
  for (at::Tensor& t : backward(layer))
    if (t.defined()) wanted.push_back(std::move(t));
  return wanted;
}

}  // namespace

LayerResults call_layer_forward(const LayerCall& call, bool save) {
#if defined(SPIKEFORGE_WITH_CUDA)
  // The lowered operator changes no argument. If no mode, transform or profiler intercepts calls, its kernel is called
  // directly, and updates running statistics too.
  if (call.running != nullptr && calls_go_to_cuda(call)) return layer_forward_cuda(call, save);
#endif
  static const auto handle = find_operator<Forward>("spikeforge::batch_norm_run_forward");
  const traced::LoweredText neuron(call.neuron, call.inputs[0]);
  auto [outputs, states, mean, var, numbers, kept] =
      handle.call(neuron.text(), traced::arguments_of(call.inputs, call.states, call.params), maybe(call.weight),
                  maybe(call.bias), maybe(call.residual), call.residual_mode, call.channel_dim, call.eps,
                  call.store_states, save, call.bits, call.last_states);
  return {.run = traced::results_of(outputs, states, kept),
          .mean = std::move(mean),
          .var = std::move(var),
          .numbers = {numbers[0], numbers[1], numbers[2], numbers[3]}};
}

ByArgument call_layer_backward(const LayerBackward& layer) {
  static const auto handle = find_operator<Backward>("spikeforge::batch_norm_run_backward");
  const BackwardCall& call = layer.run;
  const traced::LoweredText neuron(layer.neuron, call.inputs[0]);
  const auto mode = layer.residual ? std::optional(graph::name_of(*layer.residual)) : std::nullopt;
  return gradients_by_argument(
      call, traced::tensors_of(handle.call(neuron.text(), traced::optional_list(call.grad_outputs),
                                           traced::optional_list(call.grad_states), maybe(layer.grad_mean),
                                           maybe(layer.grad_var), call.inputs, traced::given_states(call), call.params,
                                           layer.rstd, call.checkpoints, traced::needs_grad_of_given(call), mode,
                                           layer.channel_dim, call.store_states)));
}

namespace {

#define SPIKEFORGE_LAYER_KERNELS(device)                                      \
  library.impl(forward_op, TORCH_FN(forward_kernel<layer_forward_##device>)); \
  library.impl(backward_op, TORCH_FN(backward_kernel<layer_backward_##device>));
SPIKEFORGE_KERNELS(CPU, library){SPIKEFORGE_LAYER_KERNELS(cpu)} SPIKEFORGE_KERNELS(Meta, library){
    SPIKEFORGE_LAYER_KERNELS(meta)}
#if defined(SPIKEFORGE_WITH_CUDA)
SPIKEFORGE_KERNELS(CUDA, library) {
  SPIKEFORGE_LAYER_KERNELS(cuda)
}
#endif
#undef SPIKEFORGE_LAYER_KERNELS

}  // namespace
}  // namespace spikeforge::ops::layers
