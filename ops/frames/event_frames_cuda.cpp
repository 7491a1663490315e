#include "ops/common/library.h"
#include "ops/common/on_stream.h"
#include "ops/frames/event_frames.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include <mutex>
#include <utility>

namespace spikeforge::ops::frames {
namespace {

// Events that kernels refused: copied to pinned memory without synchronisation, and reported by a later call.
class RefusedEvents {
 public:
  // `first` is an int64 on the GPU: the index of the first event that was refused, or -1.
  void read_later(const at::Tensor& first) {
    at::Tensor answer = at::full({1}, pending, first.options().device(at::kCPU).pinned_memory(true));
    answer.copy_(first, /*non_blocking=*/true);
    const std::scoped_lock lock(mutex_);
    answers_.push_back(std::move(answer));
  }

  void raise() {
    std::int64_t refused = none;
    {
      const std::scoped_lock lock(mutex_);
      std::erase_if(answers_, [&](const at::Tensor& answer) {
        const std::int64_t event = *static_cast<const volatile std::int64_t*>(answer.const_data_ptr());
        if (event >= 0) refused = event;
        return event != pending;
      });
    }
    TORCH_CHECK_VALUE(refused < 0, "event_frames: in an earlier call, event ", refused,
                      " of the batch was not on the sensor, had another p than -1, 0 or 1, was before the first event "
                      "of its sample, or offsets did not end with the number of events; such events are skipped");
  }

 private:
  static constexpr std::int64_t none = -1, pending = -2;
  std::mutex mutex_;
  std::vector<at::Tensor> answers_;
};

RefusedEvents& refused_events() {
  static auto& events = *new RefusedEvents;  // never destroyed: its tensors would outlive the allocators
  return events;
}

}  // namespace

at::Tensor frames_cuda(const Events& events, const FrameOptions& options) {
  const c10::cuda::OptionalCUDAGuard guard(events.t.device());
  const bool checks = c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None;
  if (checks) refused_events().raise();
  FramesCall call = prepare_frames(events, options);
  spikeforge::frames::FramesArguments& a = call.launch.arguments;
  const at::Tensor flags = at::full({2 + a.samples}, -1, events.t.options().dtype(at::kLong));
  a.wrong = static_cast<spikeforge::frames::Int*>(flags.mutable_data_ptr());
  a.arrived = a.wrong + 1;
  a.redone = a.wrong + 2;
  spikeforge::frames::launch_frames(call.launch, gpu_of(events.t), stream_of(events.t));
  if (checks) refused_events().read_later(flags.narrow(0, 0, 1));
  return finished_frames(call, options);
}

}  // namespace spikeforge::ops::frames
