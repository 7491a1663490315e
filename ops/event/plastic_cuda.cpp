#include "ops/common/on_stream.h"
#include "ops/event/plastic_step.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <optional>

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

// The presynaptic and postsynaptic neurons that fired: their count and their indices.
class Fired {
 public:
  Fired(const GpuStep& step, const at::Tensor& like)
      : rows_(step.rows.rows),
        cols_(step.columns == nullptr ? 0 : step.columns->rows),
        words_(at::empty({2 + rows_ + cols_}, like.options().dtype(at::kInt))) {
    words_.narrow(0, 0, 2).zero_();
  }

  const int* count(bool post) const { return words() + (post ? 1 : 0); }
  const int* list(bool post) const { return words() + 2 + (post ? rows_ : 0); }

  event::FiredArguments arguments(const GpuStep& step) const {
    const auto bytes = [](const at::Tensor& t) { return static_cast<const unsigned char*>(t.const_data_ptr()); };
    return {.lines = {rows_, cols_},
            .spikes = {bytes(step.pre), bytes(step.post)},
            .lists = {words() + 2, words() + 2 + rows_},
            .counts = words()};
  }

 private:
  int* words() const { return words_.data_ptr<int>(); }

  std::int64_t rows_, cols_;
  at::Tensor words_;
};

// Returns the arguments of a part: its neurons, and the matrix in their order.
event::PlasticArguments arguments_of(const GpuStep& step, event::PlasticPart part, std::size_t signal,
                                     const std::optional<Fired>& fired) {
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
  if (pre || post) {
    args.fired = fired->list(post);
    args.fired_count = fired->count(post);
  }
  const std::int64_t of_a_line = step.rows.nnz / std::max<std::int64_t>(order.rows, 1);
  args.pieces = std::clamp<std::int64_t>((of_a_line + 31) / 32, 1, 1024);
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
  std::optional<Fired> fired;  // listed before the first part that needs them
  for_parts(step.rule.rule(), signals, step.sends, step.refresh, [&](PlasticPart part, std::size_t signal) {
    const auto launch = [&](std::int64_t threads, const auto& args) {
      const std::int64_t blocks = (threads + event::plastic_threads - 1) / event::plastic_threads;
      kernel_of(step, part, signal, device)
          .launch({static_cast<unsigned>(blocks), 1, 1}, event::plastic_threads, 0, stream_of(weights), &args,
                  sizeof args);
    };
    const std::int64_t most = std::int64_t{16} * device.multiprocessors * event::plastic_threads;
    if (part == PlasticPart::fired) {
      const event::FiredArguments args = fired.emplace(step, weights).arguments(step);
      if (const std::int64_t lines = std::max(args.lines[0], args.lines[1]); lines > 0) launch(lines, args);
      return;
    }
    const event::PlasticArguments args = arguments_of(step, part, signal, fired);
    const bool of_traces = part == PlasticPart::pre_traces || part == PlasticPart::post_traces;
    if (args.lines == 0 || (!of_traces && step.rows.nnz == 0)) return;
    launch(std::min<std::int64_t>(of_traces ? args.lines : 32 * args.lines * args.pieces, most), args);
  });
}

}  // namespace spikeforge::ops::sparse
