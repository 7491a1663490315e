#include "csrc/simulation/internal/cpu_steps.h"
#include "csrc/simulation/internal/running.h"
#include "ops/common/fired.h"
#include "ops/multistep/cpu_tiles.h"

#include <ATen/Parallel.h>
#include <ATen/ops/min.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

namespace spikeforge::simulation {
namespace {

// The minimum number of neurons per thread: fewer take about as long as starting a parallel region.
constexpr std::int64_t least_neurons = 1024;
// The neurons of a word of bits. Parts begin on whole words, and thus on cache lines.
constexpr std::int64_t granule = 64;
// The maximum number of steps of a block.
constexpr std::int64_t most_steps = 32;
// The maximum number of values per input of a batch in all steps of a block, which stay in a cache near the processor;
// and the minimum number of neurons, because calling the loop takes as long as some steps of so few.
constexpr std::int64_t most_values = 4608;
constexpr std::int64_t least_batch = 256;
// The maximum number of neurons of a granule that are gathered, in blocks of many and of few steps: stepping all of
// them takes less time than gathering more.
constexpr int most_gathered = 32, most_gathered_of_few_steps = 4;
constexpr std::int64_t few_steps = 8;
// Setting a mark takes as long as reading and clearing this number of columns.
constexpr std::int64_t columns_of_mark = 4;
// Steps between two tests for rest, and between two trials in networks in which marks do not pay off.
constexpr std::int64_t test_period = 128, trial_period = 2048;
// The maximum number of rows that the kernel processes one by one. It interleaves 16 rows or more, in an order that
// depends on their begins.
constexpr std::int64_t most_rows = 15;

std::vector<double> numbers_of(const at::Tensor& t) {
  const at::Tensor numbers = t.to(at::kDouble);
  const auto* const begin = numbers.const_data_ptr<double>();
  return {begin, begin + numbers.numel()};
}

// Returns the bits of the neurons [begin, end) of a granule.
std::uint64_t bits_of(std::int64_t begin, std::int64_t end) {
  return ~std::uint64_t{0} >> (granule - (end - begin)) << (begin % granule);
}

// Calls f(word, begin, end) for each granule of the neurons [begin, end), with the part of them that it contains.
template <class F> void for_each_granule(std::int64_t begin, std::int64_t end, F&& f) {
  for (std::int64_t next = begin; begin < end; begin = next) {
    next = std::min((begin / granule + 1) * granule, end);
    f(static_cast<std::size_t>(begin / granule), begin, next);
  }
}

// Copies values; most runs have one.
template <class T> void copy(const T* from, T* to, std::int64_t count) {
  if (count == 1)
    *to = *from;
  else
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
}

template <class T> bool same_bits(T a, T b) {
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  return std::bit_cast<Bits>(a) == std::bit_cast<Bits>(b);
}

at::Tensor tensor_of(const std::vector<std::int64_t>& numbers) {
  at::Tensor t = at::empty({std::ssize(numbers)}, at::kLong);
  if (!numbers.empty()) std::memcpy(t.mutable_data_ptr(), numbers.data(), numbers.size() * sizeof(std::int64_t));
  return t;
}

}  // namespace

CpuSteps::Cell::Cell(const Group& group, const GroupPart& part, std::vector<at::Tensor> inputs,
                     const at::Tensor& output, std::int64_t shift)
    : GroupCall(group, part, std::move(inputs), output,
                group.seeds.empty() ? at::Tensor() : group.seeds[static_cast<std::size_t>(part.copy)], {}),
      begin(part.begin),
      end(part.begin + part.size),
      shift(shift) {
  program = cpu::program_of(launch());
  scratch_bytes = program.loop.forward_scratch(launch(), program.context, program.largest_tile);
}

void CpuSteps::Batch::add(std::int64_t first, std::int64_t count) {
  if (!runs.empty() && runs.back().first + runs.back().count == first)
    runs.back().count += count;
  else
    runs.push_back({first, count, size});
  size += count;
}

CpuSteps::CpuSteps(NetworkState& state, CallGuard& guard)
    : state_(state),
      guard_(guard),
      kernels_(cpu::event_kernels()),
      poisson_(cpu::poisson_kernels()),
      slots_(state.ring.size(0)),
      offsets_(static_cast<std::size_t>(slots_ + std::max(slots_, most_steps))) {
  const Connectivity& matrix = state.matrix;
  const auto* const begins = matrix.indptr.const_data_ptr<std::int64_t>();
  const auto rows_from = [&](std::int64_t first, std::int64_t rows) -> event::Rows {
    return {.indices = matrix.indices.const_data_ptr<std::int32_t>(),
            .indptr = begins + first,
            .wide_indptr = true,
            .rows = rows,
            .cols = state.copy_columns,
            .nnz = begins[first + rows] - begins[first]};
  };
  weights_ = {matrix.weights.const_data_ptr(), ops::dtype_of(matrix.weights.scalar_type()),
              matrix.weights.numel() == 1};
  const auto ring_of = [&](const at::Tensor& buffer) -> event::Ring {
    return {.sums = buffer.mutable_data_ptr(),
            .offsets = nullptr,
            .delays = matrix.delays.const_data_ptr(),
            .wide_delays = matrix.delays.scalar_type() == at::kInt,
            .same_delay = matrix.delays.numel() == 1};
  };
  within_ = {rows_from(0, state.copy_size), ring_of(state.ring)};
  if (state.block > 0)
    between_ = {rows_from(state.copy_size, state.partition.whole()),
                ring_of(state.between.defined() ? state.between : state.ring)};
  for (std::size_t i = 0; i < offsets_.size(); ++i) offsets_[i] = static_cast<std::int64_t>(i) % slots_ * state.columns;
  make_groups();
  make_drives();
  find_least_delay();
  find_restless();
  wake();
}

void CpuSteps::find_least_delay() {
  const at::Tensor& delays = state_.matrix.delays;
  const std::int64_t nnz = within_.matrix.nnz;
  least_delay_ = most_steps;
  if (nnz == 0) return;
  const at::Tensor within = delays.numel() == 1 ? delays : delays.narrow(0, 0, nnz);
  least_delay_ = std::min(least_delay_, within.min().item<std::int64_t>());
}

void CpuSteps::find_restless() {
  const std::int64_t size = state_.size;
  const auto words = static_cast<std::size_t>((size + granule - 1) / granule);
  const auto inputs = static_cast<std::size_t>(state_.inputs);
  awake_.resize(words);
  restless_.resize(words);
  driven_.resize(inputs * words);
  given_.resize(inputs * words);
  arriving_.resize(inputs * words);
  arriving_last_.resize(words);
  arrivals_.resize(static_cast<std::size_t>(slots_) * inputs * words);
  const auto set = [](std::uint64_t* to, std::int64_t begin, std::int64_t end) {
    for_each_granule(
        begin, end, [&](std::size_t word, std::int64_t first, std::int64_t last) { to[word] |= bits_of(first, last); });
  };
  for (const Cell& cell : groups_)
    if (cell.launch().cell->draws || !state_.plastic.empty()) set(restless_.data(), cell.begin, cell.end);
  for (const PoissonDrive& drive : drives_)
    for (std::size_t column = 0; column < drive.rates.size(); ++column) {
      if (drive.rates[column] == 0) continue;
      const auto [copy, within] = std::lldiv(static_cast<long long>(column), state_.copy_columns);
      const auto [input, place] = std::lldiv(within, state_.copy_size);
      const std::int64_t neuron = copy * state_.copy_size + place;
      set(restless_.data(), neuron, neuron + 1);
      set(&driven_[static_cast<std::size_t>(input) * words], neuron, neuron + 1);
    }
  for_each_granule(0, size, [&](std::size_t word, std::int64_t begin, std::int64_t end) {
    can_rest_ |= (restless_[word] & bits_of(begin, end)) != bits_of(begin, end);
  });
}

void CpuSteps::wake() {
  for_each_granule(0, state_.size,
                   [&](std::size_t word, std::int64_t begin, std::int64_t end) { awake_[word] = bits_of(begin, end); });
  marks_ = false;
  next_trial_ = 0;
}

void CpuSteps::make_groups() {
  std::vector<std::pair<const Group*, GroupPart>> parts;
  for (const Group& group : state_.groups)
    for (const GroupPart& part : state_.parts_of(group)) parts.emplace_back(&group, part);
  std::ranges::sort(parts, {}, [](const auto& each) { return each.second.begin; });  // the order of spikes in lists
  for (const auto& [group, part] : parts) {
    const std::int64_t shift = part.copy * (state_.copy_columns - state_.copy_size);
    std::vector<at::Tensor> inputs;
    for (std::size_t k = 0; k < group->cell->inputs.size(); ++k) {
      const std::int64_t column = part.begin + shift + static_cast<std::int64_t>(k) * state_.copy_size;
      inputs.push_back(state_.ring.narrow(0, 0, 1).narrow(1, column, part.size));
    }
    const at::Tensor spikes = state_.spikes.narrow(0, part.begin, part.size).unsqueeze(0);
    groups_.emplace_back(*group, part, std::move(inputs), spikes, shift);
  }
}

void CpuSteps::make_drives() {
  for (const PoissonLayer& layer : state_.drives) {
    PoissonDrive drive{
        .keys = {}, .runs = {}, .rates = numbers_of(layer.rates), .none = {}, .weights = numbers_of(layer.weights)};
    for (const at::Tensor& seed : layer.seeds)
      drive.keys.push_back(static_cast<std::uint64_t>(seed.item<std::int64_t>()));
    drive.runs = runs_of(drive);
    const auto has_each = std::ranges::any_of(drive.runs, [](const PoissonRun& run) { return !run.of_all; });
    for (std::size_t i = 0; has_each && i < drive.rates.size(); ++i)
      drive.none.push_back(cpu::probability_of_none(drive.rates[i]));
    drives_.push_back(std::move(drive));
  }
}

std::vector<CpuSteps::PoissonRun> CpuSteps::runs_of(const PoissonDrive& drive) {
  std::vector<PoissonRun> runs;
  const at::Tensor columns = state_.partition.whole_columns(state_.inputs).repeat({state_.copies});
  const auto* const whole = columns.const_data_ptr<std::int64_t>();
  const auto are_neighbours = [&](std::int64_t i, std::int64_t j) { return whole[j] - whole[i] == j - i; };
  const auto same = [&](std::int64_t i, std::int64_t j) {
    const auto a = static_cast<std::size_t>(i), b = static_cast<std::size_t>(j);
    return drive.rates[a] == drive.rates[b] && drive.weights[a] == drive.weights[b] && are_neighbours(i, j);
  };
  for (std::int64_t begin = 0, end = 0; begin < state_.columns; begin = end) {
    end = begin + 1;
    while (end < state_.columns && same(begin, end)) ++end;
    const double rate = drive.rates[static_cast<std::size_t>(begin)];
    if (rate == 0) continue;
    const std::uint64_t key = drive.keys[static_cast<std::size_t>(begin / state_.copy_columns)];
    if (end - begin >= cpu::least_tabled && cpu::is_inverted(rate)) {
      const auto [table, is_new] = thresholds_.try_emplace(rate);
      if (is_new) table->second = cpu::poisson_thresholds(rate);
      runs.push_back({begin, end, whole[begin], key,
                      cpu::PoissonInput{.rate = rate,
                                        .weight = drive.weights[static_cast<std::size_t>(begin)],
                                        .thresholds = table->second.data(),
                                        .count = static_cast<int>(table->second.size())}});
    } else if (!runs.empty() && runs.back().end == begin && !runs.back().of_all &&
               are_neighbours(runs.back().begin, begin)) {
      runs.back().end = end;
    } else {
      runs.push_back({begin, end, whole[begin], key, std::nullopt});
    }
  }
  return runs;
}

CpuSteps::Parts CpuSteps::divided(std::int64_t threads) const {
  const std::int64_t size = state_.size;
  const std::int64_t count = std::clamp<std::int64_t>(size / least_neurons, 1, std::max(threads, state_.copies));
  Parts parts(static_cast<std::size_t>(count));
  const auto boundary = [&](std::int64_t p) { return p == count ? size : size * p / count / granule * granule; };
  for (std::int64_t p = 0; p < count; ++p) {
    Part& part = parts[static_cast<std::size_t>(p)];
    part.begin = boundary(p);
    part.end = boundary(p + 1);
    part.fired.resize(most_steps);
    part.rows.reserve(most_rows);
    part.begins.reserve(most_rows);
    part.starts.reserve(most_rows + 1);
  }
  return parts;
}

void CpuSteps::prepare() {
  if (guard_.is_shared() && state_.block > 0) guard_.exchange().reserve();
  const std::int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  if (threads == threads_) return;
  shared_ = divided(threads);
  alone_ = divided(1);
  threads_ = threads;
}

Spikes CpuSteps::run(const Steps& steps, bool spikes, const RecordedStates& states) {
  SpikeList list;
  run_steps(steps, {spikes ? &list : nullptr, states});
  return {tensor_of(list.steps), tensor_of(list.neurons)};
}

void CpuSteps::step(const Steps& steps, const at::Tensor& fired) {
  prepare();
  run_steps(steps, {.states = {}, .fired = fired.mutable_data_ptr<bool>()});
}

// Applies the spikes that arrive at learning connections.
void CpuSteps::arrive() {
  if (state_.plastic.empty()) return;
  const at::Tensor slot = state_.ring.select(0, step_ % slots_);
  for (std::size_t i = 0; i < state_.plastic.size(); ++i) {
    const std::int64_t copy = static_cast<std::int64_t>(i) % state_.copies;
    state_.plastic[i].arrive(step_, slot.slice(0, copy * state_.copy_columns).mutable_data_ptr());
  }
}

void CpuSteps::run_steps(const Steps& call, const CpuRecord& record) {
  const std::int64_t steps = call.count;
  if (steps == 0) return;
  using Clock = std::chrono::steady_clock;
  input_ = &call.input;
  const std::int64_t first = state_.steps(), block = state_.block;
  const bool is_shared = guard_.is_shared();
  if (is_shared && block > 0) guard_.exchange().expect(first, first + steps);
  for (PlasticConnections& plastic : state_.plastic) plastic.loaded();
  if (const std::uint64_t now = state_.version(); now != version_) {
    wake();
    version_ = now;
  }
  step_ = first_of_exchange_ = first_step_ = first;
  try {
    while (step_ < first + steps) {
      guard_.set_between_steps(false);
      const Clock::time_point begun = Clock::now();
      steps_ = steps_of_block(first + steps - step_, !record.states.probes.empty());
      begin_marks();
      mark_input();
      arrive();
      run_block(choice_.shares() ? shared_ : alone_);
      for (std::size_t i = 0; i < state_.plastic.size(); ++i)
        state_.plastic[i].fire(step_, fired_.back(), static_cast<std::int64_t>(i) % state_.copies * state_.copy_size);
      choice_.took((Clock::now() - begun) / steps_);
      end_marks();
      const std::int64_t row = step_ - first;
      step_ += steps_;
      if (block > 0) {
        to_exchange_.insert(to_exchange_.end(), fired_.begin(), fired_.end());
        if (std::ssize(to_exchange_) == block || step_ == first + steps) end_exchange_block();
      }
      guard_.end_step(/*is_last=*/false);
      this->record(row, record);
    }
  } catch (...) {
    if (guard_.is_between_steps()) end(step_);
    throw;
  }
  end(step_);
}

std::int64_t CpuSteps::steps_of_block(std::int64_t left, bool records_states) const {
  if (records_states || !state_.plastic.empty()) return 1;
  const std::int64_t steps = std::min(left, least_delay_), exchange = state_.block;
  return exchange == 0 ? steps : std::min(steps, exchange - std::ssize(to_exchange_));
}

// Delivers all spikes, so that the tensors of a state are complete between calls.
void CpuSteps::end(std::int64_t step) {
  guard_.set_between_steps(false);
  if (!to_exchange_.empty()) end_exchange_block();
  for (Part& part : alone_) deliver(part);
  fired_.clear();
  told_.clear();
  state_.step.fill_(step);
  guard_.set_between_steps(true);
}

// Sends the spikes since the last exchange, and stores those of all ranks for delivery.
void CpuSteps::end_exchange_block() {
  first_told_ = first_of_exchange_;
  first_of_exchange_ += std::ssize(to_exchange_);
  told_.swap(to_exchange_);
  to_exchange_.clear();
  if (guard_.is_shared()) {
    std::vector<std::vector<std::int64_t>> all(told_.size());
    guard_.exchange().run(first_told_, told_, all, guard_.others_throw_too());
    told_.swap(all);
  }
  expect_arrivals(told_, first_told_);
}

// Extends last_arrival_ for spikes that are to be delivered, of steps from `first` on.
void CpuSteps::expect_arrivals(const std::vector<std::vector<std::int64_t>>& fired, std::int64_t first) {
  if (std::ranges::any_of(fired, [](const auto& spikes) { return !spikes.empty(); }))
    last_arrival_ = std::max(last_arrival_, first + std::ssize(fired) + slots_);
}

void CpuSteps::run_block(Parts& parts) {
  const bool is_double = state_.options().dtype() == at::kDouble;
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      Part& part = parts[static_cast<std::size_t>(p)];
      is_double ? run_part<double>(part) : run_part<float>(part);
    }
  };
  if (&parts == &shared_)
    at::parallel_for(0, std::ssize(parts), 1, run);
  else
    run(0, std::ssize(parts));
  told_.clear();
  fired_.resize(static_cast<std::size_t>(steps_));
  first_fired_ = step_;
  needs_marks_ = false;
  std::int64_t delivered = 0;
  for (std::vector<std::int64_t>& fired : fired_) fired.clear();
  for (const Part& part : parts) {
    for (std::size_t t = 0; t < fired_.size(); ++t)
      fired_[t].insert(fired_[t].end(), part.fired[t].begin(), part.fired[t].end());
    needs_marks_ |= part.any_rests;
    delivered += part.delivered;
  }
  expect_arrivals(fired_, first_fired_);
  needs_marks_ |= delivered * columns_of_mark < state_.columns * steps_;
}

template <class T> void CpuSteps::run_part(Part& part) {
  part.delivered = 0;
  part.any_rests = false;
  deliver(part);
  if (marks_) wake_at_arrivals(part);
  for (std::int64_t t = 0; t < steps_; ++t) part.fired[static_cast<std::size_t>(t)].clear();
  for (const Cell& cell : groups_) run_cell<T>(cell, part);
}

// Delivers the spikes of the last block, and those of the last exchange, to the part's neurons.
void CpuSteps::deliver(Part& part) {
  for (std::size_t i = 0; i < fired_.size(); ++i)
    deliver(part, fired_[i], within_, first_fired_ + static_cast<std::int64_t>(i));
  for (std::size_t i = 0; i < told_.size(); ++i)
    deliver(part, told_[i], between_, first_told_ + static_cast<std::int64_t>(i));
}

void CpuSteps::deliver(Part& part, const std::vector<std::int64_t>& fired, const Way& way, std::int64_t step) {
  if (fired.empty() || way.matrix.nnz == 0) return;
  event::Ring ring = way.ring;
  ring.offsets = &offsets_[static_cast<std::size_t>(step % slots_)];
  const auto bytes = static_cast<std::int64_t>(state_.ring.element_size());
  for (std::int64_t copy = state_.copy_of(part.begin); copy <= state_.copy_of(part.end - 1); ++copy) {
    const std::int64_t first = copy * state_.copy_size;
    std::span<const std::int64_t> own(fired);
    if (state_.copies > 1) {
      const auto begin = std::ranges::lower_bound(fired, first);
      own = {begin, std::lower_bound(begin, fired.end(), first + state_.copy_size)};
    }
    ring.sums = static_cast<char*>(way.ring.sums) + copy * state_.copy_columns * bytes;
    for (std::int64_t input = 0; input < state_.inputs; ++input) deliver_to(part, own, way, ring, {input, first}, step);
  }
}

void CpuSteps::deliver_to(Part& part, std::span<const std::int64_t> fired, const Way& way, const event::Ring& ring,
                          const Input& input, std::int64_t step) {
  const event::Rows& matrix = way.matrix;
  const std::int64_t size = state_.copy_size, start = input.number * size;
  const std::int64_t first = start + std::max<std::int64_t>(part.begin - input.first, 0),
                     last = start + std::min(part.end - input.first, size);
  const bool are_all = first == 0 && last == matrix.cols;
  for (std::size_t next = 0; next < fired.size();) {
    part.rows.clear();
    part.begins.clear();
    part.starts.clear();
    std::int64_t total = 0;
    for (; next < fired.size() && std::ssize(part.rows) < most_rows; ++next) {
      const std::int64_t row = fired[next] - input.first;
      std::int64_t begin = matrix.begin(row), end = matrix.end(row);
      if (!are_all) {
        const std::int32_t* const to = std::lower_bound(matrix.indices + begin, matrix.indices + end, last);
        begin = std::lower_bound(matrix.indices + begin, to, first) - matrix.indices;
        end = to - matrix.indices;
      }
      if (begin == end) continue;
      part.rows.push_back(static_cast<std::int32_t>(row));
      part.begins.push_back(begin);
      part.starts.push_back(total);
      total += end - begin;
    }
    part.starts.push_back(total);
    part.delivered += total;
    const cpu::Share share{part.rows.data(), part.begins.data(), part.starts.data(), std::ssize(part.rows), 0, total};
    const cpu::Prepared events{event::Values::event};
    if (total > 0) kernels_.deliver(matrix, weights_, events, share, ring);
    if (marks_) mark(part, matrix, ring, input, step);
  }
}

// Marks the slots and columns to which the rows of the part have just delivered the spikes of a step.
void CpuSteps::mark(const Part& part, const event::Rows& matrix, const event::Ring& ring, const Input& input,
                    std::int64_t step) {
  const std::int64_t shift = input.first - input.number * state_.copy_size;
  const auto* const wide = static_cast<const std::int32_t*>(ring.delays);
  const auto* const narrow = static_cast<const std::uint8_t*>(ring.delays);
  const auto arrivals_after = [&](std::int64_t k) {
    return arrivals(step + (ring.wide_delays ? wide[k] : narrow[k]), input.number);
  };
  for (std::size_t i = 0; i < part.begins.size(); ++i) {
    const std::int64_t begin = part.begins[i], end = begin + part.starts[i + 1] - part.starts[i];
    std::uint64_t* words = arrivals_after(ring.same_delay ? 0 : begin);
    for (std::int64_t k = begin; k < end; ++k) {
      if (!ring.same_delay) words = arrivals_after(k);
      const auto neuron = static_cast<std::size_t>(matrix.indices[k] + shift);
      words[neuron / granule] |= std::uint64_t{1} << (neuron % granule);
    }
  }
}

// Returns the marks of an input's columns at which spikes arrive in a step.
std::uint64_t* CpuSteps::arrivals(std::int64_t step, std::int64_t input) {
  return &arrivals_[static_cast<std::size_t>(step % slots_ * state_.inputs + input) * awake_.size()];
}

// Wakes the neurons of the part at which spikes arrive in this block.
void CpuSteps::wake_at_arrivals(const Part& part) {
  if (!any_arrives_) return;
  const auto begin = static_cast<std::size_t>(part.begin / granule),
             end = static_cast<std::size_t>((part.end + granule - 1) / granule);
  std::fill(arriving_last_.data() + begin, arriving_last_.data() + end, std::uint64_t{0});
  for (std::int64_t input = 0; input < state_.inputs; ++input) {
    std::uint64_t* const any = arriving_.data() + static_cast<std::size_t>(input) * awake_.size();
    std::fill(any + begin, any + end, std::uint64_t{0});
    for (std::int64_t t = 0; t < steps_; ++t) {
      const std::uint64_t* const marks = arrivals(step_ + t, input);
      for (std::size_t word = begin; word < end; ++word) any[word] |= marks[word];
    }
    const std::uint64_t* const last = arrivals(step_ + steps_ - 1, input);
    for (std::size_t word = begin; word < end; ++word) {
      awake_[word] |= any[word];
      arriving_last_[word] |= last[word];
    }
  }
}

// Runs the neurons of a cell that are awake.
template <class T> void CpuSteps::run_cell(const Cell& cell, Part& part) {
  const std::int64_t fits = std::max(least_batch, most_values / steps_ / granule * granule);
  const std::int64_t capacity = std::min(fits, cell.program.largest_tile);
  const int gathered = steps_ < few_steps ? most_gathered_of_few_steps : most_gathered;
  const auto add = [&](std::int64_t first, std::int64_t count) {
    if (part.batch.size + count > capacity) run_batch<T>(cell, part);
    part.batch.add(first, count);
  };
  for_each_granule(std::max(part.begin, cell.begin), std::min(part.end, cell.end),
                   [&](std::size_t word, std::int64_t begin, std::int64_t end) {
                     const std::uint64_t all = bits_of(begin, end);
                     std::uint64_t awake = awake_[word] & all;
                     part.any_rests |= awake != all;
                     if (awake == 0) return;
                     if (awake == all || std::popcount(awake) > gathered) return add(begin, end - begin);
                     for (; awake != 0; awake &= awake - 1)
                       add(static_cast<std::int64_t>(word) * granule + std::countr_zero(awake), 1);
                   });
  if (part.batch.size > 0) run_batch<T>(cell, part);
}

template <class T> void CpuSteps::run_batch(const Cell& cell, Part& part) {
  Batch& batch = part.batch;
  const bool is_one = batch.runs.size() == 1;
  const std::int64_t first = batch.runs.front().first - cell.begin;
  const std::int64_t lanes = is_one ? batch.size : (batch.size + granule - 1) / granule * granule;
  ForwardLaunch launch = cell.launch();
  const auto inputs = std::ssize(launch.inputs), states = std::ssize(launch.states), params = std::ssize(launch.params);
  const std::int64_t rows = (inputs + 1) * steps_ + 2 * states + params;
  auto* const scratch =
      static_cast<char*>(ops::thread_scratch(cell.scratch_bytes + static_cast<std::size_t>(rows * lanes) * sizeof(T)));
  T* unused = reinterpret_cast<T*>(scratch + cell.scratch_bytes);
  const auto take_rows = [&](std::int64_t count) { return std::exchange(unused, unused + count * lanes); };

  // The lanes after the last neuron repeat the first one.
  const auto gather = [&](const T* from) {
    T* const row = take_rows(1);
    for (const Run& run : batch.runs) copy(from + run.first - cell.begin, row + run.at, run.count);
    std::fill(row + batch.size, row + lanes, row[0]);
    return row;
  };
  const auto scatter = [&](const T* row, T* to) {
    for (const Run& run : batch.runs) copy(row + run.at, to + run.first - cell.begin, run.count);
  };

  c10::SmallVector<SequenceView, 4> views;
  for (std::int64_t k = 0; k < inputs; ++k) views.push_back(take<T>(cell, batch, k, lanes, take_rows(steps_)));
  c10::SmallVector<StateView, 8> before(launch.initial.begin(), launch.initial.end());
  c10::SmallVector<void*, 8> after;
  for (StateView& state : before) {
    T* const own = static_cast<T*>(launch.states[after.size()]);
    after.push_back(is_one ? own + first : gather(own));
    state.data = after.back();
  }
  c10::SmallVector<ParamView, 8> values(launch.params.begin(), launch.params.end());
  for (ParamView& value : values) {
    if (value.count == 1) continue;
    const T* const own = static_cast<const T*>(value.data);
    value.data = is_one ? own + first : gather(own);
    value.count = lanes;
  }
  T* const last_spikes = state_.spikes.mutable_data_ptr<T>() + cell.begin;
  const bool in_place = is_one && steps_ == 1;
  T* const spikes = in_place ? last_spikes + first : take_rows(steps_);
  c10::SmallVector<void*, 4> outputs(launch.outputs.begin(), launch.outputs.end());

  launch.neurons = lanes;
  launch.inputs = views;
  launch.initial = before;
  launch.states = after;
  launch.params = values;
  launch.outputs = outputs;
  launch.draws.first += first;  // all neurons of a cell that draws are awake, so that it has one run
  const auto forward = [&](std::int64_t from, std::int64_t steps) {
    launch.steps = steps;
    launch.draws.offset_number = step_ + from;
    outputs[0] = spikes + from * lanes;
    cell.program.loop.forward(launch, cell.program.context, 0, lanes, scratch);
    for (SequenceView& view : views) view.data = static_cast<const T*>(view.data) + steps * view.time_stride;
  };
  if (tests_) {
    if (steps_ > 1) forward(0, steps_ - 1);
    T* const kept = take_rows(states);
    for (std::int64_t s = 0; s < states; ++s) copy(static_cast<const T*>(after[s]), kept + s * lanes, lanes);
    forward(steps_ - 1, 1);
    let_rest(batch, kept, lanes, launch);
  } else {
    forward(0, steps_);
  }

  const auto neuron_of = [&](std::int64_t lane) {
    const auto run = std::ranges::upper_bound(batch.runs, lane, {}, &Run::at) - 1;
    return run->first + lane - run->at;
  };
  if (state_.silenced.defined()) {
    const bool* const silenced = state_.silenced.const_data_ptr<bool>();
    for (const Run& run : batch.runs)
      for (std::int64_t i = 0; i < run.count; ++i)
        for (std::int64_t t = 0; t < steps_ && silenced[run.first + i]; ++t) spikes[t * lanes + run.at + i] = 0;
  }
  for (std::int64_t s = 0; s < states && !is_one; ++s)
    scatter(static_cast<const T*>(after[s]), static_cast<T*>(cell.launch().states[s]));
  if (!in_place) scatter(spikes + (steps_ - 1) * lanes, last_spikes);
  for (std::int64_t t = 0; t < steps_; ++t)
    ops::for_each_fired(spikes + t * lanes, 0, batch.size,
                        [&](std::int64_t lane) { part.fired[static_cast<std::size_t>(t)].push_back(neuron_of(lane)); });
  batch.runs.clear();
  batch.size = 0;
}

// Returns the input of the batch in all steps of the block: arrivals, current, input of the caller and drive. They are
// in `rows`, [steps, lanes], unless all are zero.
template <class T>
SequenceView CpuSteps::take(const Cell& cell, const Batch& batch, std::int64_t input, std::int64_t lanes, T* rows) {
  static constexpr T zero = 0;
  const auto words = awake_.size() * static_cast<std::size_t>(input);
  const auto arrives = [&](const Run& run) { return !marks_ || any_of(&arriving_[words], run); };
  const auto is_driven = [&](const Run& run) { return !drives_.empty() && any_of(&driven_[words], run); };
  const std::int64_t shift = cell.shift + input * state_.copy_size;  // of a column from the index of its neuron
  const T* const current = state_.current.defined() ? state_.current.const_data_ptr<T>() + shift : nullptr;
  const auto is_given = [&](const Run& run) { return !input_->empty() && any_of(&given_[words], run); };
  const bool is_zero = current == nullptr && std::ranges::none_of(batch.runs, arrives) &&
                       std::ranges::none_of(batch.runs, is_driven) && std::ranges::none_of(batch.runs, is_given);
  if (is_zero) return {&zero, 0, 0};
  const bool fills = !marks_ && batch.size == lanes;
  if (!fills) std::memset(rows, 0, static_cast<std::size_t>(steps_ * lanes) * sizeof(T));
  for (const Run& run : batch.runs) {
    const std::int64_t end = run.first + run.count;
    if (!marks_)
      take_arrivals(shift + run.first, run.count, lanes, rows + run.at);
    else
      for_each_granule(run.first, end, [&](std::size_t word, std::int64_t from, std::int64_t to) {
        if ((arriving_[words + word] & bits_of(from, to)) != 0)
          take_marked(input, from, to, shift, lanes, rows + run.at - run.first);
      });
    for (std::int64_t t = 0; t < steps_ && current != nullptr; ++t)
      for (std::int64_t i = 0; i < run.count; ++i) rows[t * lanes + run.at + i] += current[run.first + i];
    const std::int64_t column = shift + run.first;
    const bool has_given = is_given(run), has_drive = is_driven(run);
    for (std::int64_t t = 0; t < steps_ && has_given; ++t)
      input_->add(step_ + t - first_step_, column, column + run.count, rows + t * lanes + run.at);
    for (std::int64_t t = 0; t < steps_ && has_drive; ++t)
      drive(column, column + run.count, step_ + t, rows + t * lanes + run.at);
  }
  return {rows, lanes, 1};
}

// Moves the sums of columns that arrive in the steps of the block to `rows`.
template <class T> void CpuSteps::take_arrivals(std::int64_t column, std::int64_t count, std::int64_t lanes, T* rows) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
  const std::int64_t* const offsets = &offsets_[static_cast<std::size_t>(step_ % slots_)];
  for (std::int64_t t = 0; t < steps_; ++t) {
    T* const to = rows + t * lanes;
    T* const slot = static_cast<T*>(within_.ring.sums) + offsets[t] + column;
    copy(slot, to, count);
    if (count > 1 || !same_bits(*slot, T(0))) std::memset(slot, 0, bytes);
    if (!state_.between.defined()) continue;
    T* const other = static_cast<T*>(between_.ring.sums) + offsets[t] + column;
    for (std::int64_t i = 0; i < count; ++i) to[i] += other[i];
    std::memset(other, 0, bytes);
  }
}

// Moves the sums of marked columns of neurons [begin, end) of one granule to `rows`; those of neuron i to column i.
template <class T>
void CpuSteps::take_marked(std::int64_t input, std::int64_t begin, std::int64_t end, std::int64_t shift,
                           std::int64_t lanes, T* rows) {
  const auto word = static_cast<std::size_t>(begin / granule);
  const std::int64_t first = begin / granule * granule;
  const std::uint64_t neurons = bits_of(begin, end);
  const std::int64_t* const offsets = &offsets_[static_cast<std::size_t>(step_ % slots_)];
  T* const sums = static_cast<T*>(within_.ring.sums) + shift;
  T* const between = state_.between.defined() ? static_cast<T*>(between_.ring.sums) + shift : nullptr;
  for (std::int64_t t = 0; t < steps_; ++t, rows += lanes) {
    std::uint64_t& marks = arrivals(step_ + t, input)[word];
    std::uint64_t arriving = marks & neurons;
    if (arriving == 0) continue;
    marks &= ~neurons;
    for (; arriving != 0; arriving &= arriving - 1) {
      const std::int64_t neuron = first + std::countr_zero(arriving);
      rows[neuron] = std::exchange(sums[offsets[t] + neuron], T(0));
      if (between != nullptr) rows[neuron] += std::exchange(between[offsets[t] + neuron], T(0));
    }
  }
}

bool CpuSteps::any_of(const std::uint64_t* bits, const Run& run) {
  bool any = false;
  for_each_granule(run.first, run.first + run.count, [&](std::size_t word, std::int64_t begin, std::int64_t end) {
    any |= (bits[word] & bits_of(begin, end)) != 0;
  });
  return any;
}

// Adds the Poisson input of columns [first, last) in a step.
void CpuSteps::drive(std::int64_t first, std::int64_t last, std::int64_t step, void* to) const {
  const DType type = ops::dtype_of(state_.ring.scalar_type());
  const auto bytes = static_cast<std::int64_t>(size_of(type));
  for (const PoissonDrive& drive : drives_) {
    const auto ends_before = [](const PoissonRun& run, std::int64_t column) { return run.end <= column; };
    auto run = std::lower_bound(drive.runs.begin(), drive.runs.end(), first, ends_before);
    for (; run != drive.runs.end() && run->begin < last; ++run) {
      const std::int64_t begin = std::max(first, run->begin), end = std::min(last, run->end);
      const cpu::PoissonDraws draws{run->key, static_cast<std::uint64_t>(step),
                                    static_cast<std::uint64_t>(run->whole + begin - run->begin)};
      void* const x = static_cast<char*>(to) + (begin - first) * bytes;
      if (run->of_all)
        poisson_.add(*run->of_all, draws, type, end - begin, x);
      else
        poisson_.add_each({&drive.rates[static_cast<std::size_t>(begin)], &drive.none[static_cast<std::size_t>(begin)],
                           &drive.weights[static_cast<std::size_t>(begin)]},
                          draws, type, end - begin, x);
    }
  }
}

// Finds the neurons of the batch that rest. `before` has their states before the last step, which `last` has run.
template <class T>
void CpuSteps::let_rest(const Batch& batch, const T* before, std::int64_t lanes, const ForwardLaunch& last) {
  const auto* const spikes = static_cast<const T*>(last.outputs[0]);
  for (const Run& run : batch.runs)
    for_each_granule(run.first, run.first + run.count, [&](std::size_t word, std::int64_t begin, std::int64_t end) {
      std::uint64_t moves = restless_[word] | arriving_last_[word];
      for (std::size_t at = word; at < given_.size(); at += awake_.size()) moves |= given_[at];
      for (std::int64_t neuron = begin; neuron < end; ++neuron) {
        const std::int64_t lane = run.at + neuron - run.first;
        bool is_same = !(spikes[lane] > 0);
        for (std::size_t s = 0; s < last.states.size(); ++s)
          is_same &= same_bits(static_cast<const T*>(last.states[s])[lane],
                               before[static_cast<std::int64_t>(s) * lanes + lane]);
        moves |= std::uint64_t{!is_same} << (neuron % granule);
      }
      awake_[word] = (awake_[word] & ~bits_of(begin, end)) | (moves & bits_of(begin, end));
    });
}

// Wakes the neurons to which the caller passes input in this block.
void CpuSteps::mark_input() {
  if (input_->empty() && !any_given_) return;
  std::ranges::fill(given_, std::uint64_t{0});
  any_given_ = !input_->empty();
  const auto words = static_cast<std::int64_t>(awake_.size());
  input_->for_each_range(step_ - first_step_, steps_, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {  // ranges may cover several inputs of a copy
      const std::int64_t size = state_.copy_size, inputs_before = begin / size;
      const std::int64_t copy = inputs_before / state_.inputs, input = inputs_before % state_.inputs;
      const std::int64_t stop = std::min(end, (inputs_before + 1) * size), shift = copy * size - inputs_before * size;
      for_each_granule(begin + shift, stop + shift, [&](std::size_t word, std::int64_t from, std::int64_t to) {
        given_[static_cast<std::size_t>(input * words) + word] |= bits_of(from, to);
        awake_[word] |= bits_of(from, to);
      });
      begin = stop;
    }
  });
}

// Marks all inputs of all neurons, in all slots.
void CpuSteps::mark_all_arrivals() {
  for (std::int64_t slot = 0; slot < slots_; ++slot)
    for (const Cell& cell : groups_)
      for (std::int64_t input = 0; input < std::ssize(cell.launch().inputs); ++input)
        for_each_granule(cell.begin, cell.end, [&](std::size_t word, std::int64_t begin, std::int64_t end) {
          arrivals(slot, input)[word] |= bits_of(begin, end);
        });
}

// Begins trials and tests before a block.
void CpuSteps::begin_marks() {
  if (can_rest_ && !marks_ && step_ >= next_trial_) {
    marks_ = true;
    mark_all_arrivals();  // of spikes that were delivered without marks
    last_arrival_ = step_ + slots_;
    end_of_trial_ = next_test_ = step_ + slots_ + 1;
  }
  const bool arrives = std::exchange(any_arrives_, step_ <= last_arrival_);
  if (arrives && !any_arrives_) {
    std::ranges::fill(arriving_, std::uint64_t{0});
    std::ranges::fill(arriving_last_, std::uint64_t{0});
  }
  tests_ = marks_ && step_ + steps_ > next_test_;
  if (tests_) next_test_ = step_ + steps_ + test_period;
}

// Ends marks after a trial in which they do not pay off.
void CpuSteps::end_marks() {
  if (!marks_ || tests_ || needs_marks_ || step_ + steps_ <= end_of_trial_) return;
  marks_ = false;
  next_trial_ = step_ + trial_period;
}

void CpuSteps::record(std::int64_t row, const CpuRecord& record) const {
  for (std::size_t t = 0; record.spikes != nullptr && t < fired_.size(); ++t) {
    record.spikes->neurons.insert(record.spikes->neurons.end(), fired_[t].begin(), fired_[t].end());
    record.spikes->steps.insert(record.spikes->steps.end(), fired_[t].size(),
                                first_fired_ + static_cast<std::int64_t>(t));
  }
  for (std::size_t t = 0; record.fired != nullptr && t < fired_.size(); ++t)
    for (const std::int64_t neuron : fired_[t])
      record.fired[(row + static_cast<std::int64_t>(t)) * state_.size + neuron] = true;
  for (std::size_t k = 0; k < record.states.probes.size(); ++k) {
    const Probe& probe = record.states.probes[k];
    const at::Tensor& state = probe.group->states[probe.state];
    const auto* const neurons = probe.neurons.const_data_ptr<std::int64_t>();
    const std::int64_t count = probe.neurons.numel();
    const auto gather = [&](auto* to, const auto* from) {
      for (std::int64_t i = 0; i < count; ++i) to[row * count + i] = from[neurons[i]];
    };
    if (state.scalar_type() == at::kDouble)
      gather(record.states.own[k].mutable_data_ptr<double>(), state.const_data_ptr<double>());
    else
      gather(record.states.own[k].mutable_data_ptr<float>(), state.const_data_ptr<float>());
  }
}

void always_share(Network& network) { dynamic_cast<CpuSteps&>(network.running().engine()).always_share(); }

}  // namespace spikeforge::simulation
