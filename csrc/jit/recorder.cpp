#include "csrc/jit/recorder.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <map>
#include <string_view>
#include <thread>

#include <fmt/format.h>

namespace spikeforge::jit {
namespace {

// Returns the numbers of multiprocessors of data centre and workstation cards, since a schedule depends on how many
// multiprocessors share the neurons.
std::vector<int> multiprocessors_of(std::string_view arch) {
  static const std::map<std::string_view, std::vector<int>> known = {
      {"sm_70", {80}},           {"sm_75", {40, 72}},   {"sm_80", {108, 98}},   {"sm_86", {84, 82, 72}},
      {"sm_89", {142, 128, 58}}, {"sm_90", {132, 114}}, {"sm_100", {148, 142}}, {"sm_103", {148}},
      {"sm_120", {188, 170}},    {"sm_121", {48}}};
  const auto found = known.find(arch);
  return found == known.end() ? std::vector<int>{132} : found->second;
}

PackedKernel pack(const KernelSource& source, const std::string& arch) {
  return {KernelCache::key(source, arch), source.name + " " + arch, KernelCache::get().image(source, arch)->bytes};
}

// Every call reads this flag, so that it locks the mutex only while a pack is being recorded.
std::atomic<bool> is_recording = false;
std::mutex recorder_mutex;
std::shared_ptr<Recorder> current;

}  // namespace

void check_arch(const std::string& arch) {
  if (arch.size() < 5 || arch.size() > 8 || !arch.starts_with("sm_") ||
      arch.find_first_not_of("0123456789", 3) != std::string::npos)
    throw PackError(fmt::format("an architecture is sm_ and a number, such as sm_90, not \"{}\"", arch));
}

Recorder::Recorder(std::vector<std::string> archs) : archs_(std::move(archs)) {
  if (archs_.empty()) throw PackError("at least one architecture is needed, such as sm_90");
  for (const std::string& arch : archs_) check_arch(arch);
}

void Recorder::ask(const std::string& arch, int multiprocessors, const KernelsOn& kernels_on) {
  const int number = std::stoi(arch.substr(3));
  const Device device{.major = number / 10, .minor = number % 10, .multiprocessors = multiprocessors};
  kernels_on(device, [&](KernelSource source) {
    const std::lock_guard lock(mutex_);
    if (seen_.emplace(arch, source.text).second) kernels_.push_back({arch, std::move(source)});
  });
}

void Recorder::add(const KernelsOn& kernels_on) {
  for (const std::string& arch : archs_)
    for (const int multiprocessors : multiprocessors_of(arch)) ask(arch, multiprocessors, kernels_on);
}

void Recorder::add_by_arch(const KernelsOn& kernels_on) {
  for (const std::string& arch : archs_) ask(arch, multiprocessors_of(arch).front(), kernels_on);
}

void Recorder::add_compiled(const KernelSource& source) {
  for (const std::string& arch : archs_) {
    PackedKernel kernel = pack(source, arch);
    const std::lock_guard lock(mutex_);
    if (std::ranges::none_of(packed_, [&](const PackedKernel& other) { return other.key == kernel.key; }))
      packed_.push_back(std::move(kernel));
  }
}

std::vector<PackedKernel> Recorder::packed() const {
  const std::lock_guard lock(mutex_);
  return packed_;
}

std::vector<Recorder::Wanted> Recorder::kernels() const {
  const std::lock_guard lock(mutex_);
  return kernels_;
}

void start_recording(std::vector<std::string> archs) {
  auto made = std::make_shared<Recorder>(std::move(archs));
  const std::lock_guard lock(recorder_mutex);
  current = std::move(made);
  is_recording = true;
}

std::shared_ptr<const Recorder> stop_recording() {
  const std::lock_guard lock(recorder_mutex);
  is_recording = false;
  return std::exchange(current, nullptr);
}

std::shared_ptr<Recorder> recorder() {
  if (!is_recording.load(std::memory_order_relaxed)) return nullptr;
  const std::lock_guard lock(recorder_mutex);
  return current;
}

std::size_t write_pack(const std::string& path, const Recorder& recorder,
                       const std::function<void(std::size_t, std::size_t)>& progress) {
  const std::vector<Recorder::Wanted> wanted = recorder.kernels();
  std::vector<PackedKernel> packed(wanted.size());
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;  // guards the two below, and progress
  std::size_t done = 0;
  std::exception_ptr error;
  const auto work = [&] {
    for (std::size_t i = next++; i < wanted.size(); i = next++) {
      try {
        packed[i] = pack(wanted[i].source, wanted[i].arch);
        const std::lock_guard lock(mutex);
        if (progress) progress(++done, wanted.size());
      } catch (...) {
        const std::lock_guard lock(mutex);
        error = std::current_exception();
        next = wanted.size();
      }
    }
  };
  std::vector<std::jthread> threads(std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 64));
  for (std::jthread& thread : threads) thread = std::jthread(work);
  threads.clear();  // joins
  if (error) std::rethrow_exception(error);
  std::ranges::move(recorder.packed(), std::back_inserter(packed));
  write_pack(path, packed);
  return packed.size();
}

}  // namespace spikeforge::jit
