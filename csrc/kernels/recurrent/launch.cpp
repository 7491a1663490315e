#include "csrc/kernels/recurrent/launch.h"
#include "csrc/jit/recorder.h"
#include "csrc/jit/spec_table.h"
#include "csrc/kernels/multistep/arguments.h"
#include "csrc/kernels/recurrent/schedule.h"
#include "csrc/kernels/recurrent/spec.h"

#include <optional>

namespace spikeforge::kernels {
namespace {

// A kernel's arguments: the 8-byte words of the argument structs of cuda/recurrent/forward.cuh and
// cuda/recurrent/backward.cuh, in their order.
class RecurrentArguments : public ArgumentWords {
 public:
  explicit RecurrentArguments(const RecurrentForwardLaunch& launch) {
    add_call(launch, launch.recurrence);
    add(launch.spikes.data);
    add_results(launch);
    add(launch.current);
    add_samples(launch);
  }

  explicit RecurrentArguments(const RecurrentBackwardLaunch& launch) {
    add_call(launch, launch.recurrence);
    add_gradients(launch);
    add_samples(launch);
  }

 private:
  void add_call(const Launch& launch, const Recurrence& recurrence) {
    add(launch.steps);
    add(launch.neurons);
    add(recurrence.batch);
    add(recurrence.width);
    add_cell(launch);
    add(recurrence.w);
    add(recurrence.scratch);
  }
};

int shared_bytes(const RecurrentForwardLaunch&, const recurrent::Geometry& shape) { return shape.forward_bytes(); }
int shared_bytes(const RecurrentBackwardLaunch&, const recurrent::Geometry& shape) { return shape.backward_bytes(); }

template <class AnyLaunch>
std::optional<RecurrentSchedule> schedule_here(const AnyLaunch& launch, const jit::Device& device) {
  return schedule_of(launch, device, [&](int blocks, int bytes) { return most_clusters(device, blocks, bytes); });
}

std::optional<std::int64_t> scratch_of(const std::optional<RecurrentSchedule>& schedule) {
  if (!schedule) return {};
  return schedule->geometry.by_memory ? schedule->clusters * schedule->geometry.messages_bytes() : 0;
}

template <class AnyLaunch> void launch_any(const AnyLaunch& launch, const jit::Device& device, void* stream) {
  const RecurrentSchedule schedule = schedule_here(launch, device).value();
  using Tables = jit::SpecTables<RecurrentSpec, HashOfRecurrentSpec>;
  Tables& tables = launch.cell->recurrent_kernels.template get<Tables>([] { return Tables(); });
  const jit::LoadedKernel& kernel = tables.of(device).get(spec_of(launch, schedule.geometry), device);
  const RecurrentArguments arguments(launch);
  const recurrent::Geometry& shape = schedule.geometry;
  const auto threads = static_cast<unsigned>(shape.block()), bytes = static_cast<unsigned>(shared_bytes(launch, shape));
  const int index = jit::Driver::get().device();
  kernel.allow_shared(static_cast<int>(bytes), index);  // the same for every launch
  if (shape.blocks == 1)
    return kernel.launch({schedule.blocks(), 1, 1}, threads, bytes, stream, arguments.data(), arguments.bytes());
  if (shape.blocks > 8) kernel.allow_large_clusters(index);
  kernel.launch_in_clusters(schedule.blocks(), static_cast<unsigned>(shape.blocks), threads, bytes, stream,
                            arguments.data(), arguments.bytes());
}

template <class AnyLaunch> void note_any(const AnyLaunch& launch) {
  jit::note([&](const jit::Device& device, const jit::Want& want) {
    const auto schedule =
        schedule_of(launch, device, [&](int blocks, int bytes) { return usual_clusters(device, blocks, bytes); });
    if (!schedule) return;
    want(print_cluster_probe());
    want(print_source(spec_of(launch, schedule->geometry)));
  });
}

}  // namespace

std::optional<std::int64_t> scratch_bytes(const RecurrentForwardLaunch& launch, const jit::Device& device) {
  return scratch_of(schedule_here(launch, device));
}
std::optional<std::int64_t> scratch_bytes(const RecurrentBackwardLaunch& launch, const jit::Device& device) {
  return scratch_of(schedule_here(launch, device));
}

void launch_recurrent(const RecurrentForwardLaunch& launch, const jit::Device& device, void* stream) {
  launch_any(launch, device, stream);
}
void launch_recurrent(const RecurrentBackwardLaunch& launch, const jit::Device& device, void* stream) {
  launch_any(launch, device, stream);
}

void note(const RecurrentForwardLaunch& launch) { note_any(launch); }
void note(const RecurrentBackwardLaunch& launch) { note_any(launch); }

}  // namespace spikeforge::kernels
