#include <spikeforge/ops/common/on_stream.h>
#include <spikeforge/ops/event/plastic_step.h>

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

namespace spikeforge::ops::sparse {
namespace {

const jit::LoadedKernel& kernel_of(const GpuStep& step, event::PlasticPart part, std::size_t signal,
                                   const jit::Device& device) {
  const plastic::Rule& rule = step.rule.rule();
  const std::scoped_lock lock(rule.mutex);
  const jit::LoadedKernel*& kernel = rule.kernels[{device.major * 10 + device.minor, part, signal, step.weight}];
  if (kernel == nullptr)
    kernel = &jit::KernelCache::get().get(print_source(rule.synapse, part, signal, step.weight), name_of_arch(device));
  return *kernel;
}

// The neurons that a part is about, and the matrix in their order.
event::PlasticArguments arguments_of(const GpuStep& step, event::PlasticPart part, std::size_t signal) {
  using event::PlasticPart;
  event::PlasticArguments args = step.args;
  const bool post = part == PlasticPart::post || part == PlasticPart::post_traces;
  const bool pre = part == PlasticPart::pre || part == PlasticPart::sending_pre || part == PlasticPart::pre_traces;
  const event::Rows& order = post ? *step.columns : step.rows;
  args.lines = order.rows;
  args.by_columns = post ? 1 : 0;
  args.others = order.indices;
  args.indptr = order.indptr;
  args.wide_indptr = order.wide_indptr ? 1 : 0;
  args.slots = post ? reinterpret_cast<const event::Int*>(step.slots) : nullptr;
  if (pre || post) args.spikes = static_cast<const unsigned char*>((post ? step.post : step.pre).const_data_ptr());
  if (part == PlasticPart::signal) args.comes = static_cast<const unsigned char*>(step.comes[signal].const_data_ptr());
  return args;
}

}  // namespace

void launch_plastic(const GpuStep& step, const at::Tensor& weights) {
  using event::PlasticPart;
  const c10::cuda::OptionalCUDAGuard guard(weights.device());
  const jit::Device& device = gpu_of(weights);
  std::vector<bool> signals;
  for (const at::Tensor& comes : step.comes) signals.push_back(comes.defined());
  for_parts(step.rule.rule(), signals, step.sends, step.refresh, [&](PlasticPart part, std::size_t signal) {
    const event::PlasticArguments args = arguments_of(step, part, signal);
    const bool of_traces = part == PlasticPart::pre_traces || part == PlasticPart::post_traces;
    if (args.lines == 0 || (!of_traces && step.rows.nnz == 0)) return;
    // A thread for each neuron, or each connection were all of them to fire.
    const std::int64_t wanted = of_traces ? args.lines : std::max<std::int64_t>(args.lines, step.rows.nnz);
    const std::int64_t blocks = std::clamp<std::int64_t>((wanted + event::plastic_threads - 1) / event::plastic_threads,
                                                         1, std::int64_t{8} * device.multiprocessors);
    kernel_of(step, part, signal, device)
        .launch({static_cast<unsigned>(blocks), 1, 1}, event::plastic_threads, 0, stream_of(weights), &args,
                sizeof args);
  });
}

}  // namespace spikeforge::ops::sparse
