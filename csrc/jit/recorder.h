// Records the kernels that a program would need on a GPU, while it runs on the CPU. Each kind of call returns its
// kernels for a given device.
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

// Throws PackError unless the arch has the form "sm_90".
void check_arch(const std::string& arch);

// Receives the source of a required kernel.
using Want = std::function<void(KernelSource)>;
// Calls `want` for each kernel of a call on a device.
using KernelsOn = std::function<void(const Device&, const Want&)>;

class Recorder {
 public:
  explicit Recorder(std::vector<std::string> archs);

  // Adds the kernels for each architecture, and for each number of multiprocessors of its devices.
  void add(const KernelsOn& kernels_on);
  // Adds the kernels once for each architecture, if they are the same on all of its devices.
  void add_by_arch(const KernelsOn& kernels_on);
  // Compiles a kernel immediately and adds it: its source may point to temporary text. Throws the errors of
  // KernelCache.
  void add_compiled(const KernelSource& source);

  struct Wanted {
    std::string arch;
    KernelSource source;
  };
  // Returns the kernels in the order of their first call, without duplicates.
  std::vector<Wanted> kernels() const;
  // Returns the kernels that are already compiled.
  std::vector<PackedKernel> packed() const;

 private:
  void ask(const std::string& arch, int multiprocessors, const KernelsOn& kernels_on);

  const std::vector<std::string> archs_;
  mutable std::mutex mutex_;
  std::vector<Wanted> kernels_;
  std::set<std::pair<std::string, std::string>> seen_;  // arch and text
  std::vector<PackedKernel> packed_;
};

// Starts to record the calls of all threads of the process. A second start discards the first recording.
void start_recording(std::vector<std::string> archs);
// Ends the recording, and returns it; null if none was started.
std::shared_ptr<const Recorder> stop_recording();
// Returns the active recorder, or null.
std::shared_ptr<Recorder> recorder();

// Records the kernels of a call. Every call on the CPU passes a KernelsOn, which is called only while a pack is
// recorded.
template <class Kernels> void note(const Kernels& kernels_on) {
  if (const auto active = recorder()) active->add(kernels_on);
}
template <class Kernels> void note_by_arch(const Kernels& kernels_on) {
  if (const auto active = recorder()) active->add_by_arch(kernels_on);
}

// Compiles all kernels, on all cores, and writes the pack. progress(done, of) is called by any thread, but not
// concurrently. Returns the number of kernels.
std::size_t write_pack(const std::string& path, const Recorder& recorder,
                       const std::function<void(std::size_t, std::size_t)>& progress = {});

}  // namespace spikeforge::jit
