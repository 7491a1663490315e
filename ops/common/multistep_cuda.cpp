#include <spikeforge/kernels/multistep/schedule.h>
#include <spikeforge/ops/common/multistep.h>
#include <spikeforge/ops/common/on_stream.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <c10/cuda/CUDAGuard.h>

namespace spikeforge::ops {
namespace {

// Gradients of parameters. Where all neurons of a warp share a parameter, the kernel writes one sum a warp.
class SummedByWarps {
 public:
  SummedByWarps(const BackwardCall& call, const Prepared& prepared, DescribedBackward& described, Gradients& gradients)
      : call_(call), launch_(described.launch) {
    if (!launch_.any_grad_param) return;
    const kernels::Schedule schedule = kernels::schedule_of(launch_, gpu_of(prepared.first_input).multiprocessors);
    neurons_each_ = kernels::neurons_of_a_warp(schedule);
    const std::int64_t warps = (launch_.neurons + neurons_each_ - 1) / neurons_each_;
    for (std::size_t j = 0; j < launch_.params.size(); ++j) {
      const bool wanted = wants_grad_param(call, j);
      summed_.push_back(wanted && launch_.neurons > 0 && kernels::shared_by_warps(launch_.params[j], schedule));
      if (!wanted) continue;
      gradients.params[j] =
          summed_[j] ? at::empty({warps}, prepared.state_options) : prepared.layout.empty_step(prepared.state_options);
    }
    described.set_grad_params(gradients.params);
  }

  // Adds up the warps that share a value, in the order of the memory of the parameter: that of the layout.
  void finish(Gradients& gradients) const {
    for (std::size_t j = 0; j < summed_.size(); ++j) {
      if (!summed_[j]) continue;
      const ParamView& view = launch_.params[j];
      const at::Tensor& param = call_.param(j);
      at::Tensor& grad = gradients.params[j];
      grad = view.count == 1 ? grad.sum().view(param.sizes())
                             : grad.view({-1, view.count, view.inner / neurons_each_})
                                   .sum(at::IntArrayRef{0, 2})
                                   .as_strided(param.sizes(), param.strides());
    }
  }

 private:
  const BackwardCall& call_;
  const BackwardLaunch& launch_;
  std::int64_t neurons_each_ = 0;
  c10::SmallVector<bool, 10> summed_;
};

// Of a call that autograd will take back, from what requires a gradient. In a graph that was compiled nothing does:
// there inputs and parameters mostly get one.
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
  const Prepared prepared = prepare(call);  // first: a CPU x beside a CUDA state comes here too
  const at::Tensor& x = prepared.first_input;
  const c10::cuda::OptionalCUDAGuard guard(x.device());
  MultistepResults results = allocate_forward(call, prepared, save);
  DescribedForward described(call, prepared, results);
  if (save) described.launch.to_come = {wants_gradient, &call};
  kernels::launch(described.launch, gpu_of(x), stream_of(x));
  return results;
}

Tensors backward_cuda(const BackwardCall& call) {
  const Prepared prepared = prepare(call);
  const at::Tensor& x = prepared.first_input;
  check_backward(call, prepared);
  const c10::cuda::OptionalCUDAGuard guard(x.device());
  Gradients gradients = allocate_backward(call, prepared);
  DescribedBackward described(call, prepared, gradients);
  const SummedByWarps summed(call, prepared, described, gradients);
  kernels::launch(described.launch, gpu_of(x), stream_of(x));
  summed.finish(gradients);
  return reduce_and_list(call, gradients);
}

}  // namespace spikeforge::ops
