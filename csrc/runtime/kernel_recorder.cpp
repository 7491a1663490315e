#include <spikeforge/neuron/eif.h>
#include <spikeforge/neuron/if.h>
#include <spikeforge/neuron/izhikevich.h>
#include <spikeforge/neuron/lif.h>
#include <spikeforge/neuron/plif.h>
#include <spikeforge/neuron/qif.h>
#include <spikeforge/runtime/kernel_pack.h>
#include <spikeforge/runtime/kernel_recorder.h>
#include <spikeforge/runtime/plan.h>
#include <spikeforge/runtime/somewhere.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <iterator>
#include <map>
#include <string_view>
#include <thread>

#include <fmt/format.h>

namespace spikeforge::runtime {
namespace {

// A schedule depends on how many multiprocessors share the neurons: those of data centre and workstation cards.
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

// Asked by every call on the CPU: no lock where nothing is recorded.
std::atomic<bool> is_recording = false;
std::mutex recorder_mutex;
std::shared_ptr<KernelRecorder> current;

struct Common {
  const char* name;
  NeuronKind neuron;
  int n_states, n_params;
};
constexpr std::array predefined = {
#define SPIKEFORGE_NEURON(name, Struct, header) \
  Common{#name, NeuronKind::name, Struct<float, NeuronOptions>::n_states, Struct<float, NeuronOptions>::n_params},
#include <spikeforge/neuron/neurons.def>
#undef SPIKEFORGE_NEURON
};

void add_calls(KernelRecorder& recorder, MultistepLaunch call) {
  call.checkpoint_length = checkpoint_length(call.neuron, call.type);
  call.x = {.data = somewhere(), .time_stride = call.neurons};
  if (call.neuron == NeuronKind::plif) call.params[0] = {.data = somewhere(), .type = compute_type(call.type)};  // w
  ForwardLaunch forward;
  static_cast<MultistepLaunch&>(forward) = call;
  forward.spikes = somewhere();
  for (int s = 0; s < call.n_states; ++s) forward.states[static_cast<std::size_t>(s)] = somewhere();
  recorder.add(forward);
  forward.checkpoints = somewhere();
  recorder.add(forward);
  BackwardLaunch backward;
  static_cast<MultistepLaunch&>(backward) = call;
  backward.grad_spikes = call.x;
  backward.checkpoints = somewhere();
  backward.grad_x = somewhere();
  if (call.neuron == NeuronKind::plif) {
    backward.grad_params[0] = somewhere();
    backward.any_grad_param = true;
  }
  recorder.add(backward);
}

}  // namespace

void check_arch(const std::string& arch) {
  if (arch.size() < 5 || arch.size() > 8 || !arch.starts_with("sm_") ||
      arch.find_first_not_of("0123456789", 3) != std::string::npos)
    throw PackError(fmt::format("an architecture is sm_ and a number, such as sm_90, not \"{}\"", arch));
}

KernelRecorder::KernelRecorder(std::vector<std::string> archs) : archs_(std::move(archs)) {
  if (archs_.empty()) throw PackError("at least one architecture is needed, such as sm_90");
  for (const std::string& arch : archs_) check_arch(arch);
}

void KernelRecorder::want(const std::string& arch, KernelSource source) {
  const std::lock_guard lock(mutex_);
  if (seen_.emplace(arch, source.text).second) kernels_.push_back({arch, std::move(source)});
}

// f(arch, device)
template <class F>
void KernelRecorder::for_devices(F&& f) const {
  for (const std::string& arch : archs_) {
    const int number = std::stoi(arch.substr(3));
    for (const int multiprocessors : multiprocessors_of(arch))
      f(arch, Device{.major = number / 10, .minor = number % 10, .multiprocessors = multiprocessors});
  }
}

template <class Launch>
void KernelRecorder::add(const Launch& launch) {
  if (launch.neurons == 0) return;
  for_devices([&](const std::string& arch, const Device& device) {
    want(arch, print_source(plan(launch, device.multiprocessors).spec));
  });
}

void KernelRecorder::want(const KernelSource& source) {
  for (const std::string& arch : archs_) want(arch, source);
}

void KernelRecorder::add(const EventSpec& spec) { want(print_source(spec)); }
void KernelRecorder::add(const EventJitSpec& spec) { want(print_source(spec)); }
void KernelRecorder::add(const EventLinearSpec& spec) { want(print_source(spec)); }

void KernelRecorder::add(const EventProduct& product) {
  if (product.connections == 0) return;
  for_devices([&](const std::string& arch, const Device& device) {
    for (const EventSpec& spec : kernels_of(product, device)) want(arch, print_source(spec));
  });
}

void KernelRecorder::add(const EventWeightGradient& gradient) {
  for_devices([&](const std::string& arch, const Device& device) {
    want(arch, print_source(plan_weight_gradient(gradient.product, device).spec));
  });
}

template void KernelRecorder::add(const ForwardLaunch&);
template void KernelRecorder::add(const BackwardLaunch&);
template void KernelRecorder::add(const TracedForwardLaunch&);
template void KernelRecorder::add(const TracedBackwardLaunch&);
template void KernelRecorder::add(const LoihiLaunch&);

void KernelRecorder::add(const KernelSource& source) {
  for (const std::string& arch : archs_) {
    PackedKernel kernel = pack(source, arch);
    const std::lock_guard lock(mutex_);
    if (std::ranges::none_of(packed_, [&](const PackedKernel& other) { return other.key == kernel.key; }))
      packed_.push_back(std::move(kernel));
  }
}

std::vector<PackedKernel> KernelRecorder::packed() const {
  const std::lock_guard lock(mutex_);
  return packed_;
}

std::vector<KernelRecorder::Wanted> KernelRecorder::kernels() const {
  const std::lock_guard lock(mutex_);
  return kernels_;
}

void start_recording(std::vector<std::string> archs) {
  auto made = std::make_shared<KernelRecorder>(std::move(archs));
  const std::lock_guard lock(recorder_mutex);
  current = std::move(made);
  is_recording = true;
}

std::shared_ptr<const KernelRecorder> stop_recording() {
  const std::lock_guard lock(recorder_mutex);
  is_recording = false;
  return std::exchange(current, nullptr);
}

std::shared_ptr<KernelRecorder> recorder() {
  if (!is_recording.load(std::memory_order_relaxed)) return nullptr;
  const std::lock_guard lock(recorder_mutex);
  return current;
}

std::size_t write_pack(const std::string& path, const KernelRecorder& recorder,
                       const std::function<void(std::size_t, std::size_t)>& progress) {
  const std::vector<KernelRecorder::Wanted> wanted = recorder.kernels();
  std::vector<PackedKernel> packed(wanted.size());
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;  // of the two below, and of progress
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

void add_predefined(KernelRecorder& recorder, const std::vector<std::string>& neurons) {
  for (const std::string& name : neurons)
    if (std::ranges::none_of(predefined, [&](const Common& common) { return common.name == name; }))
      throw PackError(fmt::format("there is no predefined neuron \"{}\"", name));
  for (const Common& common : predefined) {
    if (!neurons.empty() && std::ranges::find(neurons, common.name) == neurons.end()) continue;
    for (const DType type : {DType::f32, DType::f16, DType::bf16})
      for (const SurrogateKind surrogate : {SurrogateKind::sigmoid, SurrogateKind::atan})
        for (const std::int64_t steps : {1, 4, 8, 16, 32, 128, 1024})
          for (const std::int64_t count : {1 << 9, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22}) {
            MultistepLaunch call;
            call.neuron = common.neuron;
            call.n_states = common.n_states;
            call.n_params = common.n_params;
            call.surrogate = surrogate;
            call.type = type;
            call.steps = steps;
            call.neurons = count;
            add_calls(recorder, call);
          }
  }
}

}  // namespace spikeforge::runtime
