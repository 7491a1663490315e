#include "csrc/kernels/multistep/channel_sums.h"
#include "ops/common/on_stream.h"
#include "ops/multistep/multistep.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>

namespace spikeforge::ops {
namespace {

// Gradients of parameters, for which the kernel computes partial sums.
class PartlySummed {
 public:
  PartlySummed(const BackwardCall& call, const Prepared& prepared, DescribedBackward& described, Gradients& gradients)
      : call_(call), launch_(described.launch), options_(prepared.state_options) {
    if (!launch_.any_grad_param) return;
    const int multiprocessors = gpu_of(prepared.first_input).multiprocessors;
    const kernels::Schedule schedule = kernels::schedule_of(launch_, multiprocessors);
    const std::int64_t at_once = kernels::neurons_at_once(launch_, schedule, multiprocessors);
    for (std::size_t j = 0; j < launch_.params.size(); ++j) {
      const bool wanted = wants_grad_param(call, j);
      left_.push_back(wanted ? kernels::partial_sums(launch_, launch_.params[j], schedule, at_once)
                             : kernels::PartialSums{});
      if (!wanted) continue;
      gradients.params[j] =
          left_[j].size() > 0 ? at::empty({left_[j].size()}, options_) : prepared.layout.empty_step(options_);
    }
    described.set_grad_params(gradients.params);
  }

  // Adds the partial sums.
  void finish(Gradients& gradients, const jit::Device& device, void* stream) {
    for (std::size_t j = 0; j < left_.size(); ++j)
      if (left_[j].size() > 0) sum_alike(gradients, left_[j], device, stream);
  }

 private:
  // Adds all partial sums of these sizes, in one or two launches.
  void sum_alike(Gradients& gradients, const kernels::PartialSums sizes, const jit::Device& device, void* stream) {
    c10::SmallVector<std::size_t, 10> alike;
    for (std::size_t j = 0; j < left_.size() && alike.size() < kernels::ChannelSums::most; ++j)
      if (left_[j] == sizes) alike.push_back(j);
    const auto sum = [&](const kernels::PartialSums& from, std::int64_t parts) {
      kernels::ChannelSums sums{.sizes = from, .parts = parts, .count = alike.size()};
      Tensors results;
      for (std::size_t i = 0; i < alike.size(); ++i) {
        sums.from[i] = gradients.params[alike[i]].const_data_ptr();
        sums.to[i] = results.emplace_back(at::empty({parts * from.count}, options_)).mutable_data_ptr();
      }
      kernels::launch_channel_sums(sums, compute_type(launch_.type), device, stream);
      for (std::size_t i = 0; i < alike.size(); ++i) gradients.params[alike[i]] = results[i];
    };
    const std::int64_t parts = kernels::parts_of(sizes, alike.size(), device.multiprocessors);
    sum(sizes, parts);
    if (parts > 1) sum({parts, sizes.count, 1}, 1);
    for (const std::size_t j : alike) set(gradients, j);
  }

  // Views the sum in the memory order of the parameter, which is that of the layout.
  void set(Gradients& gradients, std::size_t j) {
    const at::Tensor& param = call_.param(j);
    at::Tensor& sum = gradients.params[j];
    sum = launch_.params[j].count == 1 ? sum.view(param.sizes()) : sum.as_strided(param.sizes(), param.strides());
    left_[j] = {};
  }

  const BackwardCall& call_;
  const BackwardLaunch& launch_;
  const c10::TensorOptions options_;
  c10::SmallVector<kernels::PartialSums, 10> left_;  // of each parameter; size 0 if there is nothing to sum
};

// Allocates `shared`, through which blocks on x's device communicate.
auto memory_for_blocks(const at::Tensor& x, at::Tensor& shared) {
  return [&](std::size_t bytes) {
    const auto options = x.options().dtype(at::kByte).memory_format(std::nullopt);
    shared = at::empty({static_cast<std::int64_t>(bytes)}, options);
    return shared.mutable_data_ptr();
  };
}

// Predicts the needed gradients of a call from the tensors that require a gradient. In a compiled graph no tensor does;
// there, inputs and parameters usually have one.
bool wants_gradient(const void* of, std::size_t argument) {
  const auto& call = *static_cast<const MultistepCall*>(of);
  bool any = false, is_there = false, requires_grad = false;
  std::size_t i = 0;
  for_each_argument(call, [&](const at::Tensor& t) {
    const bool needs = t.defined() && t.requires_grad();
    any = any || needs;
    if (i++ == argument) {
      is_there = t.defined();
      requires_grad = needs;
    }
  });
  const std::size_t states = call.cell->states.size(), first_state = call.cell->inputs.size();
  const bool is_state = argument >= first_state && argument < first_state + states;
  return any ? requires_grad : is_there && !is_state;
}

}  // namespace

MultistepResults forward_cuda(const MultistepCall& call, bool save) {
  const Prepared prepared = prepare(call);  // first, because a CPU x with a CUDA state is dispatched here too
  const at::Tensor& x = prepared.first_input;
  const c10::cuda::OptionalCUDAGuard guard(x.device());
  MultistepResults results = allocate_forward(call, prepared, save);
  DescribedForward described(call, prepared, results);
  if (save) described.launch.to_come = {wants_gradient, &call};
  if (described.launch.packed.bits != 0) results.packed.valid.fill_(true);
  at::Tensor shared;
  kernels::launch_multistep(described.launch, gpu_of(x), stream_of(x), memory_for_blocks(x, shared));
  described.pack_rest(results);
  return results;
}

Tensors backward_cuda(const BackwardCall& call) {
  const Prepared prepared = prepare(call);
  const at::Tensor& x = prepared.first_input;
  check_backward(call, prepared);
  const c10::cuda::OptionalCUDAGuard guard(x.device());
  Gradients gradients = allocate_backward(call, prepared);
  DescribedBackward described(call, prepared, gradients);
  PartlySummed summed(call, prepared, described, gradients);
  at::Tensor shared;
  kernels::launch_multistep(described.launch, gpu_of(x), stream_of(x), memory_for_blocks(x, shared));
  summed.finish(gradients, gpu_of(x), stream_of(x));
  return reduce_and_list(call, gradients);
}

}  // namespace spikeforge::ops
