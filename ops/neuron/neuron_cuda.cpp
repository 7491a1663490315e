#include <spikeforge/ops/neuron/lowered.h>
#include <spikeforge/ops/neuron/on_stream.h>
#include <spikeforge/ops/neuron/prepare.h>
#include <spikeforge/runtime/schedule.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <c10/cuda/CUDAGuard.h>

#include <array>
#include <cstdint>

namespace spikeforge::ops {
namespace {

template <class Launch>
void run(const Launch& launch, const at::Tensor& x) {
  runtime::launch(launch, gpu_of(x), stream_of(x));
}

// Gradients of parameters. Where all neurons of a warp share a parameter, the kernel writes one sum a warp.
class SummedByWarps {
 public:
  SummedByWarps(const BackwardArguments& args, const Prepared& prepared, BackwardLaunch& launch,
                BackwardResults& results) {
    if (!launch.any_grad_param) return;
    const runtime::Schedule schedule = runtime::backward_schedule(launch, gpu_of(prepared.x).multiprocessors);
    neurons_each_ = runtime::neurons_of_a_warp(schedule);
    for (int j = 0; j < launch.n_params; ++j) {
      if (!wants_grad_param(args, j)) continue;
      summed_[j] = launch.neurons > 0 && runtime::shared_by_warps(launch.params[j], schedule);
      results.grad_params[j] =
          summed_[j] ? at::empty({(launch.neurons + neurons_each_ - 1) / neurons_each_}, prepared.state_options)
                     : prepared.layout.empty_step(prepared.state_options);
      launch.grad_params[j] = results.grad_params[j].mutable_data_ptr();
    }
  }

  // Adds up the warps that share a value, in the order of the memory of the parameter: that of the layout.
  void finish(const BackwardArguments& args, const BackwardLaunch& launch, BackwardResults& results) const {
    for (int j = 0; j < launch.n_params; ++j) {
      if (!summed_[j]) continue;
      const ParamView& view = launch.params[j];
      const at::Tensor param = args.params.get(static_cast<std::size_t>(j)).value();
      at::Tensor& grad = results.grad_params[j];
      grad = view.count == 1 ? grad.sum().view(param.sizes())
                             : grad.view({-1, view.count, view.inner / neurons_each_})
                                   .sum(at::IntArrayRef{0, 2})
                                   .as_strided(param.sizes(), param.strides());
    }
  }

 private:
  std::int64_t neurons_each_ = 0;
  std::array<bool, max_params> summed_{};
};

ForwardResults forward_cuda(const NeuronArguments& args, bool save) {
  const Prepared prepared = prepare(args);  // first: a CPU x beside a CUDA state comes here too
  const c10::cuda::OptionalCUDAGuard guard(prepared.x.device());
  ForwardResults results = allocate_forward(args, prepared, save);
  Copies copies;
  run(forward_launch(args, prepared, results, copies), prepared.x);
  return results;
}

std::vector<at::Tensor> backward_cuda(const BackwardArguments& args) {
  const Prepared prepared = prepare(args);
  check_backward(args, prepared);
  const c10::cuda::OptionalCUDAGuard guard(prepared.x.device());
  BackwardResults results = allocate_backward(args, prepared);
  Copies copies;
  BackwardLaunch launch = backward_launch(args, prepared, results, copies);
  const SummedByWarps summed(args, prepared, launch, results);
  run(launch, prepared.x);
  summed.finish(args, launch, results);
  return reduce_and_list(args, results);
}

TORCH_LIBRARY_IMPL(spikeforge, CUDA, library) { register_lowered<forward_cuda, backward_cuda>(library); }

}  // namespace
}  // namespace spikeforge::ops
