// Which kernels a program needs on a GPU, noted while it runs on the CPU.
#pragma once

#include <spikeforge/runtime/event_jit_spec.h>
#include <spikeforge/runtime/event_linear_spec.h>
#include <spikeforge/runtime/event_plan.h>
#include <spikeforge/runtime/kernel_cache.h>
#include <spikeforge/runtime/kernel_pack.h>
#include <spikeforge/runtime/launch.h>
#include <spikeforge/runtime/loihi_launch.h>
#include <spikeforge/runtime/traced_launch.h>

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace spikeforge::runtime {

// Throws PackError for an arch that is no "sm_90".
void check_arch(const std::string& arch);

class KernelRecorder {
 public:
  explicit KernelRecorder(std::vector<std::string> archs);

  // The kernels of this call on each architecture, and on each of its devices that differ in multiprocessors.
  // A Launch is whatever plan() knows.
  template <class Launch>
  void add(const Launch& launch);
  void add(const EventProduct& product);
  void add(const EventWeightGradient& gradient);

  // One kernel, whatever the device.
  void add(const EventSpec& spec);
  void add(const EventJitSpec& spec);
  void add(const EventLinearSpec& spec);

  // One kernel, compiled at once: its source may point to text that does not last. Throws what KernelCache does.
  void add(const KernelSource& source);

  struct Wanted {
    std::string arch;
    KernelSource source;
  };
  // In the order of their first call, without duplicates.
  std::vector<Wanted> kernels() const;
  // Those compiled already.
  std::vector<PackedKernel> packed() const;

 private:
  template <class F>
  void for_devices(F&& f) const;
  void want(const KernelSource& source);
  void want(const std::string& arch, KernelSource source);

  const std::vector<std::string> archs_;
  mutable std::mutex mutex_;
  std::vector<Wanted> kernels_;
  std::set<std::pair<std::string, std::string>> seen_;  // arch and text
  std::vector<PackedKernel> packed_;
};

// The calls of this process, from here on, in all its threads; a second start forgets what the first noted.
void start_recording(std::vector<std::string> archs);
// Ends it. Null where none was started.
std::shared_ptr<const KernelRecorder> stop_recording();
// Null mostly.
std::shared_ptr<KernelRecorder> recorder();

// What every call on the CPU does: with its launch, or a function that makes it, for one that costs something to make.
template <class Launch>
void note(const Launch& launch) {
  const auto active = recorder();
  if (!active) return;
  if constexpr (std::is_invocable_v<const Launch&>)
    active->add(launch());
  else
    active->add(launch);
}

// Compiles them all, on all cores, and writes the pack; progress(done, of) comes from any thread, one at a time.
// Returns how many there are.
std::size_t write_pack(const std::string& path, const KernelRecorder& recorder,
                       const std::function<void(std::size_t, std::size_t)>& progress = {});

// What calls of the predefined neurons need most: numbers for parameters (PLIF: one w, learned), a hard reset,
// surrogates sigmoid and atan, float32, float16 and bfloat16, inference and training, few to many neurons and steps.
// `neurons` are operator names; none: all six.
void add_predefined(KernelRecorder& recorder, const std::vector<std::string>& neurons = {});

}  // namespace spikeforge::runtime
