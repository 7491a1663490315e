// What the first use of a kernel costs, in parts, without a GPU: opening NVRTC, printing the source, compiling it, and
// finding it on disk; and of the two kernels of a training step. The driver's loading of the images comes on top.
#include "csrc/jit/compile_ahead.h"
#include "csrc/jit/errors.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/multistep/predefined_cells.h"
#include "csrc/kernels/multistep/typical_kernels.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

namespace {

using namespace spikeforge;
using namespace spikeforge::jit;

bool processor_time = false;

double now() {
  timespec time;
  ::clock_gettime(processor_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

template <class Body> double milliseconds(Body&& body) {
  const double start = now();
  body();
  return now() - start;
}

// float32, hard reset, all parameters numbers, the last states returned; upstream gradients of the spikes alone.
struct Example {
  const char* name;
  kernels::KernelSpec spec;
};

kernels::TypicalKernels lif() {
  return kernels::typical_kernels(predefined_cell(NeuronKind::lif), {.steps = 32, .tensors = kernels::Tensors::none});
}

std::vector<Example> examples() {
  return {{"lif inference", lif().inference}, {"lif forward", lif().forward}, {"lif backward", lif().backward}};
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "spikeforge_first_use_XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Both kernels of a training step, compiled one after the other, or the second beside the first as a call does.
double both(const kernels::TypicalKernels& lif, const std::string& arch, bool side_by_side) {
  const TemporaryFolder folder;
  DiskCache& entries = *new DiskCache({folder.path() / "kernels", 1 << 24, {}});  // threads may outlast this function
  KernelCache& cache = *new KernelCache({&entries, Nvrtc::get, {}});
  const KernelSource forward = print_source(lif.forward), backward = print_source(lif.backward);
  return milliseconds([&] {
    if (side_by_side) compile_ahead(cache, backward, arch);
    cache.image(forward, arch);
    cache.image(backward, arch);
  });
}

void measure(const std::string& arch, int repeats, const std::vector<std::string>& options) {
  std::printf("opening NVRTC %.1f\n", milliseconds([] { Nvrtc::get(); }));
  std::printf("%-14s %8s %8s %8s   (ms, %s)\n", "", "print", "compile", "disk", arch.c_str());
  for (const Example& example : examples()) {
    double print = 1e9, compile = 1e9, disk = 1e9;
    std::size_t bytes = 0;
    for (int i = 0; i < repeats; ++i) {
      const TemporaryFolder folder;
      DiskCache entries({folder.path() / "kernels", 1 << 24, {}});
      const KernelCache::Parts parts{&entries, Nvrtc::get, {}};
      KernelSource source;
      print = std::min(print, milliseconds([&] { source = print_source(example.spec); }));
      source.options = options;
      KernelCache cold(parts), warm(parts);
      compile = std::min(compile, milliseconds([&] { bytes = cold.image(source, arch)->bytes.size(); }));
      disk = std::min(disk, milliseconds([&] { warm.image(source, arch); }));
      if (cold.statistics().compiled != 1 || warm.statistics().disk_hits != 1)
        throw RuntimeError("the cache on disk did not work");
    }
    std::printf("%-14s %8.3f %8.1f %8.3f   %zu bytes\n", example.name, print, compile, disk, bytes);
  }
  double after = 1e9, beside = 1e9;
  for (int i = 0; i < repeats; ++i) {
    after = std::min(after, both(lif(), arch, false));
    beside = std::min(beside, both(lif(), arch, true));
  }
  std::printf("lif training, both kernels: one after the other %.1f, side by side %.1f\n", after, beside);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Milliseconds of a kernel's first use, the least of several");
  std::string arch = "sm_90";
  int repeats = 5;
  std::vector<std::string> options;
  app.add_option("--arch", arch)->capture_default_str();
  app.add_option("--repeats", repeats)->capture_default_str();
  app.add_option("--option", options, "for NVRTC, beside ours; several times");
  app.add_flag("--processor-time", processor_time, "in place of the clock's, for a busy machine");
  CLI11_PARSE(app, argc, argv);

  try {
    measure(arch, repeats, options);
  } catch (const RuntimeError& error) {
    std::fprintf(stderr, "first_use: %s\n", error.what());
    return 1;
  }
}
