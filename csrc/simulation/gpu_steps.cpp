#include "csrc/simulation/internal/gpu_steps.h"
#include "csrc/cpu/network/poisson_input.h"
#include "csrc/simulation/internal/spike_lists.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#if defined(SPIKEFORGE_WITH_CUDA)
#include "ops/common/on_stream.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#endif

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

namespace spikeforge::simulation {
namespace {

// The kernel's table of the rates of a drive, which has few distinct rates.
struct RateTables {
  std::vector<double> none;
  std::vector<std::int32_t> tables, thresholds;

  explicit RateTables(const at::Tensor& rates) {
    const at::Tensor numbers = rates.to(at::kCPU, at::kDouble);
    const std::span<const double> all(numbers.const_data_ptr<double>(), static_cast<std::size_t>(numbers.numel()));
    std::map<double, std::int64_t> columns_of;
    for (const double rate : all) ++columns_of[rate];
    std::map<double, std::pair<double, std::int32_t>> known;
    for (const auto& [rate, columns] : columns_of)
      known[rate] = {cpu::probability_of_none(rate), rate == 0 ? network::not_driven : table_of(rate, columns)};
    for (const double rate : all) {
      none.push_back(known[rate].first);
      tables.push_back(known[rate].second);
    }
  }

 private:
  std::int32_t table_of(double rate, std::int64_t columns) {
    if (columns < cpu::least_tabled || !cpu::is_inverted(rate)) return network::no_table;
    const auto place = static_cast<std::int32_t>(thresholds.size());
    for (const std::uint32_t threshold : cpu::poisson_thresholds(rate))
      thresholds.push_back(static_cast<std::int32_t>(threshold));
    thresholds.push_back(-1);  // the largest word, which ends the search
    return place;
  }
};

constexpr std::int64_t steps_of_a_graph = 50;

// The maximum number of steps between exchanges for which an exchange through peer memory in each step is not slower
// than one all-gather after all steps.
constexpr std::int64_t most_steps_for_peer_exchange = 5;

// Returns the number of words that have a bit for each neuron.
std::int64_t words_of(std::int64_t neurons) { return (neurons + 31) / 32; }

bool are_bits(const at::Tensor& fired) { return fired.scalar_type() == at::kInt; }

template <class T> at::Tensor on_device(const std::vector<T>& numbers, at::ScalarType type, c10::Device device) {
  at::Tensor t = at::empty({std::ssize(numbers)}, type);
  if (!numbers.empty()) std::memcpy(t.mutable_data_ptr(), numbers.data(), numbers.size() * sizeof(T));
  return t.to(device);
}

}  // namespace

std::unique_ptr<GpuSteps> GpuSteps::make(NetworkState& state, CallGuard& guard) {
  // All ranks must choose the same code path.
  const bool has_neurons = guard.is_shared() ? guard.exchange().all_have_neurons() : state.size > 0;
  if (!state.device.is_cuda() || state.is_deterministic || !has_neurons || !state.plastic.empty()) return nullptr;
  std::unique_ptr<GpuSteps> steps(new GpuSteps(state, guard));
  return steps->plan() ? std::move(steps) : nullptr;
}

GpuSteps::GpuSteps(NetworkState& state, CallGuard& guard)
    : state_(state), guard_(guard), counts_(at::empty({3}, state.options().dtype(at::kInt))) {
  make_groups();
  make_drives();
  const Connectivity& matrix = state.matrix;
  const at::Tensor& delays = matrix.delays;
  network::Arguments& a = launch_.arguments;
  launch_.type = ops::dtype_of(state.options().dtype().toScalarType());
  launch_.groups = groups_;
  launch_.weights = {matrix.weights.const_data_ptr(), ops::dtype_of(matrix.weights.scalar_type()),
                     matrix.weights.numel() == 1};
  launch_.delays = delays.numel() == 1                 ? event::Delays::one
                   : delays.scalar_type() == at::kByte ? event::Delays::bytes
                                                       : event::Delays::words;
  a.matrix.nnz = state.block == 0 ? matrix.indices.numel() : matrix.indptr[state.copy_size].item<std::int64_t>();
  if (state.near.defined())
    launch_.next_step = state.near.slice(0, 0, state.copy_size).sum().item<std::int64_t>();
  else if (delays.numel() == 1 && delays.item<std::int64_t>() == 1)
    launch_.next_step = launch_.arguments.matrix.nnz;
  if (a.matrix.nnz > 0)
    launch_.least_delay = delays.slice(0, 0, static_cast<std::int64_t>(a.matrix.nnz)).min().item<std::int64_t>();
  if (matrix.indices.numel() > 0) launch_.arriving = matrix.indices.max().item<std::int64_t>() / state.copy_size + 1;
  a.matrix.indices = matrix.indices.const_data_ptr<std::int32_t>();
  a.matrix.indptr = matrix.indptr.const_data_ptr();
  a.matrix.rows = state.copy_size;
  a.matrix.cols = state.copy_columns;
  a.matrix.weights = launch_.weights.data;
  a.matrix.delays = delays.const_data_ptr();
  a.matrix.delay_bytes = delays.element_size();
  a.near = state.near.defined() ? state.near.const_data_ptr<int>() : nullptr;
  a.size = state.size;
  a.columns = state.columns;
  a.copy_size = state.copy_size;
  a.copy_columns = state.copy_columns;
  a.slots = state.ring.size(0);
  a.ring = state.ring.mutable_data_ptr();
  a.step = static_cast<network::Int*>(state.step.mutable_data_ptr());
  a.current = state.current.defined() ? state.current.const_data_ptr() : nullptr;
  a.silenced = state.silenced.defined() ? reinterpret_cast<const unsigned char*>(state.silenced.const_data_ptr<bool>())
                                        : nullptr;
  a.spikes = state.spikes.mutable_data_ptr();
  a.counts = counts_.mutable_data_ptr<int>();
  a.whole = state.partition.whole();
  if (!state.partition.is_whole()) {
    numbers_ = state.partition.numbers().to(matrix.indices.options());
    a.numbers = numbers_.const_data_ptr<int>();
  }
  if (guard.is_shared() && state.block > 0 && state.block <= most_steps_for_peer_exchange)
    peers_ = PeerExchange::make(state, guard);
  if (peers_ != nullptr) {
    a.peers = peers_->peers();
    a.matrix.nnz = matrix.indices.numel();
  } else if (state.block > 0) {
    exchange_ = std::make_unique<GpuExchange>(state, guard, launch_);
  }
}

void GpuSteps::make_groups() {
  for (const Group& group : state_.groups) {
    std::vector<GroupPart> parts = state_.parts_of(group);
    if (state_.copies > 1 && !parts.empty()) {  // the kernel divides the copies
      parts.resize(1);
      parts[0].size *= state_.copies;
    }
    at::Tensor seed = group.seeds.empty() ? at::Tensor() : group.seeds[0];
    if (state_.copies > 1 && seed.defined()) seed = at::stack(group.seeds).to(state_.device).select(0, 0);
    for (const GroupPart& part : parts) {
      const at::Tensor own = at::empty({1, part.size}, state_.options());  // not read
      const std::vector<at::Tensor> inputs(group.cell->inputs.size(), own);
      const GroupCall& call = calls_.emplace_back(group, part, inputs, own, seed, state_.step);
      groups_.push_back({&call.launch(), part.begin});
    }
  }
}

void GpuSteps::make_drives() {
  launch_.drives = static_cast<int>(state_.drives.size());
  if (launch_.drives > network::most_drives) return;
  for (std::size_t d = 0; d < state_.drives.size(); ++d) {
    const PoissonLayer& layer = state_.drives[d];
    const RateTables found(layer.rates);
    const c10::Device device = layer.rates.device();
    const at::Tensor none = on_device(found.none, at::kDouble, device),
                     tables = on_device(found.tables, at::kInt, device),
                     thresholds = on_device(found.thresholds, at::kInt, device);
    const at::Tensor keys = at::stack(layer.seeds).to(device);
    rate_tables_.insert(rate_tables_.end(), {none, tables, thresholds, keys});
    launch_.arguments.drives[d] = {.rates = layer.rates.const_data_ptr(),
                                   .none = none.const_data_ptr<double>(),
                                   .weights = layer.weights.const_data_ptr(),
                                   .tables = tables.const_data_ptr<int>(),
                                   .thresholds = static_cast<const unsigned*>(thresholds.const_data_ptr()),
                                   .key = static_cast<unsigned long long>(layer.seeds[0].item<std::int64_t>()),
                                   .keys = static_cast<const unsigned long long*>(keys.const_data_ptr())};
  }
}

#if defined(SPIKEFORGE_WITH_CUDA)
bool GpuSteps::plan() {
  const jit::Device& device = ops::gpu_of(state_.ring);
  const auto plan = kernels::plan_of(launch_, device);
  if (!plan) return false;
  all_.plan = *plan;
  static_assert(sizeof(network::Spike) == 2 * sizeof(std::int64_t));
  lists_ = at::empty({plan->lists(), plan->most_listed(state_.size), 2}, state_.options().dtype(at::kLong));
  launch_.arguments.lists = static_cast<network::Spike*>(lists_.mutable_data_ptr());
  if (!may_skip()) return true;
  launch_.may_skip = true;
  awake_.plan = kernels::plan_of(launch_, device).value();
  if (!awake_.plan.skips) return true;
  until_ = at::empty({state_.size}, state_.options().dtype(at::kInt));
  until_base_ = at::empty({}, state_.step.options());
  stepped_ = at::zeros({}, state_.step.options());
  launch_.arguments.until = until_.mutable_data_ptr<int>();
  launch_.arguments.until_base = static_cast<const network::Int*>(until_base_.const_data_ptr());
  launch_.arguments.stepped = static_cast<network::Int*>(stepped_.mutable_data_ptr());
  return true;
}

// True if a kernel may skip neurons that rest: no spikes arrive from outside of the kernel, and most neurons have
// neither random input nor random numbers of their own.
bool GpuSteps::may_skip() const {
  std::int64_t restless = 0;
  for (const Group& group : state_.groups) restless += group.seeds.empty() ? 0 : state_.copies * group.size();
  for (const PoissonLayer& layer : state_.drives) restless += layer.rates.count_nonzero().item<std::int64_t>();
  return state_.block == 0 && 4 * restless < state_.size;
}

// Makes the next launch step all neurons at first, unless their rest is known from the last one.
void GpuSteps::wake(bool has_new_input) {
  const std::uint64_t version = state_.version();
  if (last_ == &awake_ && version == version_ && !has_new_input) return;
  version_ = version;
  until_.fill_(state_.ring.size(0));  // until all sums in flight have arrived
  until_base_.copy_(state_.step);
}

// Stops skipping for a while if most neurons were awake: a kernel that steps all neurons is then faster.
void GpuSteps::count_stepped() {
  constexpr double most_awake = 0.4;
  constexpr std::int64_t trial_period = 32768;  // steps
  if (rounds_ == 0) return;
  const auto stepped = static_cast<double>(stepped_.item<std::int64_t>());
  if (stepped > most_awake * static_cast<double>(rounds_ * state_.size)) steps_without_skips_ = trial_period;
  stepped_.zero_();
  rounds_ = 0;
}

void GpuSteps::walk(std::int64_t steps, const at::Tensor& fired, std::int64_t row) {
  const c10::DeviceGuard guard(state_.ring.device());
  if (launch_.arguments.matrix.nnz > 0 || peers_ != nullptr) counts_.zero_();  // counts spikes that are sent later
  launch_.arguments.steps = steps;
  launch_.arguments.fired = nullptr;
  launch_.arguments.bits = nullptr;
  if (fired.defined() && are_bits(fired))
    launch_.arguments.bits = reinterpret_cast<unsigned*>(fired.zero_().mutable_data_ptr<std::int32_t>());
  else if (fired.defined())
    launch_.arguments.fired = reinterpret_cast<unsigned char*>(fired.mutable_data_ptr<bool>());
  launch_.arguments.probe_row = row;
  launch_.arguments.input_row = row - first_of_input_;
  if (until_.defined() && c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None)
    until_ = at::Tensor();  // replays change states unseen
  const bool skips = until_.defined() && launch_.arguments.probe_count == 0 && steps_without_skips_ <= 0;
  Kernel& kernel = skips ? awake_ : all_;
  if (kernel.loaded == nullptr) {
    const jit::Device& device = ops::gpu_of(state_.ring);
    ops::stream_of(state_.ring);  // makes the device's context current
    kernel.loaded = &jit::KernelCache::get().get(print_source(launch_, kernel.plan), jit::name_of_arch(device));
  }
  if (skips) {
    wake(launch_.arguments.input != nullptr && !had_input_);
    if (fired.defined() && !are_bits(fired)) fired.narrow(0, 0, steps).zero_();
    rounds_ += (steps + kernel.plan.round - 1) / kernel.plan.round;
  }
  steps_without_skips_ -= steps;
  had_input_ = launch_.arguments.input != nullptr;
  last_ = &kernel;
  kernels::launch_network(launch_, kernel.plan, *kernel.loaded, ops::stream_of(state_.ring));
}
#else
bool GpuSteps::plan() { return false; }
bool GpuSteps::may_skip() const { return false; }
void GpuSteps::wake(bool) {}
void GpuSteps::count_stepped() {}
void GpuSteps::walk(std::int64_t, const at::Tensor&, std::int64_t) {}
#endif

Spikes GpuSteps::run(const Steps& steps, bool spikes, const RecordedStates& states) {
  SpikeLists lists(state_.device, state_.steps());
  record(states.probes, states.own);
  const std::int64_t most = std::min(steps.count, steps_of_a_launch());
  const at::Tensor fired = spikes ? spikes_of_steps(most) : at::Tensor();
  run_launches(
      steps, [&](std::int64_t, std::int64_t count) { return spikes ? fired.narrow(0, 0, count) : fired; },
      [&](const at::Tensor& here, std::int64_t done) {
        if (spikes) are_bits(here) ? lists.add_bits(here, done) : lists.add(here, done, here.size(0));
      });
  count_stepped();
  return lists.take();
}

void GpuSteps::step(const Steps& steps, const at::Tensor& fired) {
  record({}, {});
  run_launches(
      steps, [&](std::int64_t done, std::int64_t count) { return fired.narrow(0, done, count); },
      [](const at::Tensor&, std::int64_t) {});
}

// Launches record spikes into fired(done, count); listed(fired, done) is called after each.
template <class Place, class Listed>
void GpuSteps::run_launches(const Steps& steps, const Place& fired, const Listed& listed) {
  constexpr std::int64_t most_numbers = std::int64_t{1} << 25;  // of a tensor of the input of a launch
  std::int64_t most = steps_of_a_launch();
  if (steps.input.has_events())
    most = std::clamp<std::int64_t>(most_numbers / std::max<std::int64_t>(steps.input.columns().listed.numel(), 1), 1,
                                    most);
  for (std::int64_t done = 0; done < steps.count;) {
    const std::int64_t count = std::min(most, steps.count - done);
    const at::Tensor here = fired(done, count);
    set_input(steps.input, done, count);
    keep();
    guard_.set_between_steps(false);
    launch(count, here, done);
    const bool goes_back = this->goes_back();
    guard_.end_step(/*is_last=*/!goes_back && done + count == steps.count);
    if (goes_back) continue;
    listed(here, done);
    done += count;
  }
}

void GpuSteps::set_input(const ExternalInput& input, std::int64_t first, std::int64_t count) {
  network::Arguments& a = launch_.arguments;
  a.input = nullptr;
  if (input.empty()) return;
  input_ = input.rows(first, count);
  first_of_input_ = first;
  a.input = input_.const_data_ptr();
  a.input_columns = input_.size(1);
  if (places_.defined() && input.columns() == columns_of_input_) return;
  const at::Tensor columns = input.indices();
  places_ = at::full({state_.columns}, -1, state_.options().dtype(at::kInt));
  places_.index_copy_(0, columns, at::arange(columns.numel(), places_.options()));
  columns_of_input_ = input.columns();
  a.places = places_.const_data_ptr<int>();
  had_input_ = false;  // the columns with input are new
}

// Returns the number of steps of a launch: enough to make launch time negligible, and few enough to keep the memory for
// spikes of all neurons small.
std::int64_t GpuSteps::steps_of_a_launch() const {
  constexpr std::int64_t least = 20, most_bytes = std::int64_t{1} << 27;
  const std::int64_t most = exchange_ == nullptr ? 16384 : 1024;
  const std::int64_t of_a_step = exchange_ == nullptr ? 4 * words_of(state_.size) : state_.size;
  const std::int64_t steps = std::clamp(most_bytes / std::max<std::int64_t>(of_a_step, 1), least, most);
  return std::max(steps / at_once(), std::int64_t{1}) * at_once();
}

// Returns a tensor for spikes: bits, or bytes if they are copied after exchanges.
at::Tensor GpuSteps::spikes_of_steps(std::int64_t steps) const {
  if (exchange_ != nullptr) return at::empty({steps, state_.size}, state_.options().dtype(at::kBool));
  return at::empty({steps, words_of(state_.size)}, state_.options().dtype(at::kInt));
}

void GpuSteps::launch(std::int64_t steps, const at::Tensor& fired, std::int64_t row) {
  if (exchange_ == nullptr) {
    if (steps > 0) walk(steps, fired, row);
    return;
  }
  const std::int64_t at_once = this->at_once();
  if (!fired_in_graph_.defined()) fired_in_graph_ = spikes_of_steps(at_once);
  for (std::int64_t done = 0; done < steps; done += at_once) {
    const std::int64_t count = std::min(at_once, steps - done);
    const at::Tensor here = fired_in_graph_.narrow(0, 0, count);
    if (count == at_once && repeats() && graph_ != nullptr) {
      graph_->replay();
    } else {
      run_blocks(count, here, row + done);
      if (count == at_once && repeats())
        graph_ = std::make_unique<LaunchGraph>(here, [&] { run_blocks(count, here, 0); });
    }
    if (fired.defined()) fired.narrow(0, done, count).copy_(here);
  }
}

std::int64_t GpuSteps::at_once() const {
  const std::int64_t block = state_.block;
  return exchange_ == nullptr ? 1 : std::max(block, steps_of_a_graph / block * block);
}

// True if launches take longer than their kernels and have equal arguments: recorded states have different addresses in
// each launch.
bool GpuSteps::repeats() const {
  return 2 * state_.block <= steps_of_a_graph && launch_.arguments.probe_count == 0 &&
         launch_.arguments.input == nullptr;
}

void GpuSteps::run_blocks(std::int64_t steps, const at::Tensor& fired, std::int64_t row) {
  for (std::int64_t done = 0; done < steps; done += state_.block) {
    const at::Tensor here = fired.narrow(0, done, std::min(state_.block, steps - done));
    exchange_->say_where(launch_.arguments);
    walk(here.size(0), here, row + done);
    exchange_->run(here.size(0));
  }
}

void GpuSteps::keep() {
  if (exchange_ == nullptr) return;
  const std::vector<Changing> now = state_.changing();
  if (kept_.empty())
    for (const Changing& c : now) kept_.push_back(at::empty_like(c.tensor));
  for (std::size_t i = 0; i < now.size(); ++i) kept_[i].copy_(now[i].tensor);
}

bool GpuSteps::goes_back() {
  if (peers_ != nullptr) peers_->check();
  if (exchange_ == nullptr || !exchange_->overflowed()) return false;
  graph_ = nullptr;  // the graph uses the lists
  const std::vector<Changing> now = state_.changing();
  for (std::size_t i = 0; i < now.size(); ++i) now[i].tensor.copy_(kept_[i]);
  return true;
}

void GpuSteps::record(const std::vector<Probe>& probes, const std::vector<at::Tensor>& states) {
  std::vector<network::Probe> all;
  for (std::size_t k = 0; k < probes.size(); ++k) {
    const Probe& probe = probes[k];
    const at::Tensor& state = probe.group->states[probe.state];
    const std::int64_t bytes = state.element_size();
    const at::Tensor chosen = probe.neurons.cpu();
    const auto* const neurons = chosen.const_data_ptr<std::int64_t>();
    auto* const to = static_cast<char*>(states[k].mutable_data_ptr());
    const auto* const from = static_cast<const char*>(state.const_data_ptr());
    for (std::int64_t i = 0; i < chosen.numel(); ++i)
      all.push_back({.neuron = state_.neuron_of(*probe.group, neurons[i]),
                     .from = from + neurons[i] * bytes,
                     .to = to + i * bytes,
                     .stride = chosen.numel()});
  }
  std::ranges::stable_sort(all, {}, &network::Probe::neuron);
  const std::int64_t bytes = std::ssize(all) * static_cast<std::int64_t>(sizeof(network::Probe));
  at::Tensor listed = at::empty({bytes}, at::kByte);
  if (bytes > 0) std::memcpy(listed.mutable_data_ptr(), all.data(), static_cast<std::size_t>(bytes));
  probes_ = listed.to(state_.options().device());
  launch_.arguments.probes = static_cast<const network::Probe*>(probes_.const_data_ptr());
  launch_.arguments.probe_count = std::ssize(all);
}

}  // namespace spikeforge::simulation
