// Records the kernels that a program needs on a GPU, while it runs on the CPU. The family of a call returns its kernels
// for a given device.
#pragma once

#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/jit/kernel_pack.h"

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace spikeforge::jit {

// Throws PackError for an arch that is not of the form "sm_90".
void check_arch(const std::string& arch);

// Receives the source of a required kernel.
using Want = std::function<void(KernelSource)>;
// Calls `want` for each kernel of a call on a device.
using KernelsOn = std::function<void(const Device&, const Want&)>;

class Recorder {
 public:
  explicit Recorder(std::vector<std::string> archs);

  // Called for each architecture, and each of its devices that differ in multiprocessors.
  void add(const KernelsOn& kernels_on);
  // Called once for each architecture, for kernels that are the same on all of its devices.
  void add_by_arch(const KernelsOn& kernels_on);
  // One kernel, compiled at once: its source may point to text that does not last. Throws what KernelCache does.
  void add_compiled(const KernelSource& source);

  struct Wanted {
    std::string arch;
    KernelSource source;
  };
  // In the order of their first call, without duplicates.
  std::vector<Wanted> kernels() const;
  // Those compiled already.
  std::vector<PackedKernel> packed() const;

 private:
  void ask(const std::string& arch, int multiprocessors, const KernelsOn& kernels_on);

  const std::vector<std::string> archs_;
  mutable std::mutex mutex_;
  std::vector<Wanted> kernels_;
  std::set<std::pair<std::string, std::string>> seen_;  // arch and text
  std::vector<PackedKernel> packed_;
};

// The calls of this process, from here on, in all its threads; a second start forgets what the first noted.
void start_recording(std::vector<std::string> archs);
// Ends the recording, and returns it; null if none was started.
std::shared_ptr<const Recorder> stop_recording();
// Null mostly.
std::shared_ptr<Recorder> recorder();

// Called by every call on the CPU, with a KernelsOn, which is only evaluated while a pack is recorded.
template <class Kernels> void note(const Kernels& kernels_on) {
  if (const auto active = recorder()) active->add(kernels_on);
}
template <class Kernels> void note_by_arch(const Kernels& kernels_on) {
  if (const auto active = recorder()) active->add_by_arch(kernels_on);
}

// Compiles them all, on all cores, and writes the pack; progress(done, of) comes from any thread, one at a time.
// Returns how many there are.
std::size_t write_pack(const std::string& path, const Recorder& recorder,
                       const std::function<void(std::size_t, std::size_t)>& progress = {});

}  // namespace spikeforge::jit
