#include "csrc/simulation/internal/cpu_steps.h"
#include "csrc/simulation/internal/running.h"
#include "ops/common/fired.h"
#include "ops/multistep/cpu_tiles.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace spikeforge::simulation {
namespace {

// The minimum number of neurons per thread: fewer take about as long as starting a parallel region.
constexpr std::int64_t least_neurons = 1024;
constexpr std::int64_t granule = 64;  // parts begin on cache lines
// The maximum number of rows that the kernel processes one by one. It interleaves 16 rows or more, in an order that
// depends on their begins.
constexpr std::int64_t most_rows = 15;

std::vector<double> numbers_of(const at::Tensor& t) {
  const at::Tensor numbers = t.to(at::kDouble);
  const auto* const begin = numbers.const_data_ptr<double>();
  return {begin, begin + numbers.numel()};
}

at::Tensor tensor_of(const std::vector<std::int64_t>& numbers) {
  at::Tensor t = at::empty({std::ssize(numbers)}, at::kLong);
  if (!numbers.empty()) std::memcpy(t.mutable_data_ptr(), numbers.data(), numbers.size() * sizeof(std::int64_t));
  return t;
}

}  // namespace

CpuSteps::Cell::Cell(const Group& group, const GroupPart& part, std::vector<at::Tensor> inputs,
                     const at::Tensor& output)
    : GroupCall(group, part, std::move(inputs), output, {}), begin(group.begin + part.first), end(begin + part.size) {
  program = cpu::program_of(launch());
  scratch_bytes = program.loop.forward_scratch(launch(), program.context, program.largest_tile);
}

void CpuSteps::Cell::run(std::int64_t first, std::int64_t last) const {
  void* const scratch = ops::thread_scratch(scratch_bytes);
  const std::int64_t stop = std::min(last, end) - begin;
  for (std::int64_t tile = std::max(first, begin) - begin; tile < stop; tile += program.largest_tile)
    program.loop.forward(launch(), program.context, tile, std::min(tile + program.largest_tile, stop), scratch);
}

CpuSteps::CpuSteps(NetworkState& state, CallGuard& guard)
    : state_(state),
      guard_(guard),
      kernels_(cpu::event_kernels()),
      poisson_(cpu::poisson_kernels()),
      slots_(state.ring.size(0)),
      arriving_(at::zeros({state.columns}, state.options())),
      offsets_(static_cast<std::size_t>(2 * slots_)) {
  const Connectivity& matrix = state.matrix;
  const auto* const begins = matrix.indptr.const_data_ptr<std::int64_t>();
  const auto rows_from = [&](std::int64_t first, std::int64_t rows) -> event::Rows {
    return {.indices = matrix.indices.const_data_ptr<std::int32_t>(),
            .indptr = begins + first,
            .wide_indptr = true,
            .rows = rows,
            .cols = state.columns,
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
  within_ = {rows_from(0, state.size), ring_of(state.ring)};
  if (state.block > 0)
    between_ = {rows_from(state.size, state.partition.whole()),
                ring_of(state.between.defined() ? state.between : state.ring)};
  for (std::size_t i = 0; i < offsets_.size(); ++i) offsets_[i] = static_cast<std::int64_t>(i) % slots_ * state.columns;
  make_groups();
  make_drives();
}

void CpuSteps::make_groups() {
  const std::int64_t size = state_.size;
  for (const Group& group : state_.groups)
    for (const GroupPart& part : state_.parts_of(group)) {
      const std::int64_t first = group.begin + part.first;
      std::vector<at::Tensor> inputs;
      for (std::size_t k = 0; k < group.cell->inputs.size(); ++k)
        inputs.push_back(arriving_.narrow(0, static_cast<std::int64_t>(k) * size + first, part.size).unsqueeze(0));
      groups_.emplace_back(group, part, std::move(inputs), state_.spikes.narrow(0, first, part.size).unsqueeze(0));
    }
}

void CpuSteps::make_drives() {
  for (const PoissonLayer& layer : state_.drives) {
    PoissonDrive drive{.key = static_cast<std::uint64_t>(layer.seed.item<std::int64_t>()),
                       .runs = {},
                       .rates = numbers_of(layer.rates),
                       .none = {},
                       .weights = numbers_of(layer.weights)};
    drive.runs = runs_of(drive);
    const auto has_each = std::ranges::any_of(drive.runs, [](const PoissonRun& run) { return !run.of_all; });
    for (std::size_t i = 0; has_each && i < drive.rates.size(); ++i)
      drive.none.push_back(cpu::probability_of_none(drive.rates[i]));
    drives_.push_back(std::move(drive));
  }
}

std::vector<CpuSteps::PoissonRun> CpuSteps::runs_of(const PoissonDrive& drive) {
  std::vector<PoissonRun> runs;
  const at::Tensor columns = state_.partition.whole_columns(state_.inputs);
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
    if (end - begin >= cpu::least_tabled && cpu::is_inverted(rate)) {
      const auto [table, is_new] = thresholds_.try_emplace(rate);
      if (is_new) table->second = cpu::poisson_thresholds(rate);
      runs.push_back({begin, end, whole[begin],
                      cpu::PoissonInput{.rate = rate,
                                        .weight = drive.weights[static_cast<std::size_t>(begin)],
                                        .thresholds = table->second.data(),
                                        .count = static_cast<int>(table->second.size())}});
    } else if (!runs.empty() && runs.back().end == begin && !runs.back().of_all &&
               are_neighbours(runs.back().begin, begin)) {
      runs.back().end = end;
    } else {
      runs.push_back({begin, end, whole[begin], std::nullopt});
    }
  }
  return runs;
}

CpuSteps::Parts CpuSteps::divided(std::int64_t threads) const {
  const std::int64_t size = state_.size;
  const std::int64_t count = std::clamp<std::int64_t>(size / least_neurons, 1, threads);
  Parts parts(static_cast<std::size_t>(count));
  const auto boundary = [&](std::int64_t p) { return p == count ? size : size * p / count / granule * granule; };
  for (std::int64_t p = 0; p < count; ++p) {
    Part& part = parts[static_cast<std::size_t>(p)];
    part.begin = boundary(p);
    part.end = boundary(p + 1);
    part.fired.reserve(static_cast<std::size_t>(part.end - part.begin));
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
  fired_.reserve(static_cast<std::size_t>(state_.size));
  threads_ = threads;
}

void CpuSteps::set_step(std::int64_t step) {
  step_ = step;
  for (Cell& cell : groups_) cell.launch().draws.offset_number = step;
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
void CpuSteps::arrive(std::int64_t step) {
  if (state_.plastic.empty()) return;
  void* const slot = state_.ring.select(0, step % slots_).mutable_data_ptr();
  for (PlasticConnections& plastic : state_.plastic) plastic.arrive(step, slot);
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
  first_of_block_ = first_step_ = first;
  std::int64_t step = first;
  try {
    while (step < first + steps) {
      guard_.set_between_steps(false);
      const Clock::time_point begun = Clock::now();
      set_step(step);
      arrive(step);
      run_step(choice_.shares() ? shared_ : alone_);
      for (PlasticConnections& plastic : state_.plastic) plastic.fire(step, fired_);
      choice_.took(Clock::now() - begun);
      if (block > 0) {
        block_.push_back(fired_);
        if (std::ssize(block_) == block || step + 1 == first + steps) end_block();
      }
      guard_.end_step(/*is_last=*/false);
      this->record(step - first, step, record);
      ++step;
    }
  } catch (...) {
    if (guard_.is_between_steps()) end(step + 1);
    throw;
  }
  end(step);
}

// Delivers all spikes, so that the tensors of a state are complete between calls.
void CpuSteps::end(std::int64_t step) {
  guard_.set_between_steps(false);
  if (!block_.empty()) end_block();
  set_step(step);
  deliver(alone_.front());
  fired_.clear();
  told_.clear();
  state_.step.fill_(step);
  guard_.set_between_steps(true);
}

// Sends the spikes of the block, and stores those of all ranks for delivery.
void CpuSteps::end_block() {
  first_told_ = first_of_block_;
  first_of_block_ += std::ssize(block_);
  told_.swap(block_);
  block_.clear();
  if (!guard_.is_shared()) return;
  std::vector<std::vector<std::int64_t>> all(told_.size());
  guard_.exchange().run(first_told_, told_, all, guard_.others_throw_too());
  told_.swap(all);
}

void CpuSteps::run_step(Parts& parts) {
  const bool is_double = arriving_.scalar_type() == at::kDouble;
  at::parallel_for(0, std::ssize(parts), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      Part& part = parts[static_cast<std::size_t>(p)];
      is_double ? run_part<double>(part) : run_part<float>(part);
    }
  });
  fired_.clear();
  told_.clear();
  for (const Part& part : parts) fired_.insert(fired_.end(), part.fired.begin(), part.fired.end());
}

template <class T> void CpuSteps::run_part(Part& part) {
  deliver(part);
  const std::int64_t size = state_.size;
  for (std::int64_t column = 0; column < state_.columns; column += size) {
    take<T>(column + part.begin, column + part.end);
    drive(column + part.begin, column + part.end);
  }
  for (const Cell& cell : groups_) cell.run(part.begin, part.end);
  list_fired<T>(part);
}

// Delivers the spikes of the previous step, and those of the previous block, to the part's neurons.
void CpuSteps::deliver(Part& part) const {
  deliver(part, fired_, within_, step_ - 1);
  for (std::size_t i = 0; i < told_.size(); ++i)
    deliver(part, told_[i], between_, first_told_ + static_cast<std::int64_t>(i));
}

void CpuSteps::deliver(Part& part, const std::vector<std::int64_t>& fired, const Way& way, std::int64_t step) const {
  if (fired.empty() || way.matrix.nnz == 0) return;
  event::Ring ring = way.ring;
  ring.offsets = &offsets_[static_cast<std::size_t>(step % slots_)];
  const std::int64_t size = state_.size;
  for (std::int64_t column = 0; column < state_.columns; column += size)
    deliver_to(part, fired, way, ring, column + part.begin, column + part.end);
}

void CpuSteps::deliver_to(Part& part, const std::vector<std::int64_t>& fired, const Way& way, const event::Ring& ring,
                          std::int64_t first, std::int64_t last) const {
  const event::Rows& matrix = way.matrix;
  const bool are_all = first == 0 && last == matrix.cols;
  for (std::size_t next = 0; next < fired.size();) {
    part.rows.clear();
    part.begins.clear();
    part.starts.clear();
    std::int64_t total = 0;
    for (; next < fired.size() && std::ssize(part.rows) < most_rows; ++next) {
      const std::int64_t row = fired[next];
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
    const cpu::Share share{part.rows.data(), part.begins.data(), part.starts.data(), std::ssize(part.rows), 0, total};
    const cpu::Prepared events{event::Values::event};
    if (total > 0) kernels_.deliver(matrix, weights_, events, share, ring);
  }
}

// Reads the sums that arrive in this step, and adds the constant current.
template <class T> void CpuSteps::take(std::int64_t first, std::int64_t last) const {
  const auto count = static_cast<std::size_t>(last - first);
  const std::int64_t place = step_ % slots_ * state_.columns + first;
  T* const slot = static_cast<T*>(within_.ring.sums) + place;
  T* const to = arriving_.mutable_data_ptr<T>() + first;
  if (state_.between.defined()) {
    T* const other = static_cast<T*>(between_.ring.sums) + place;
    for (std::size_t i = 0; i < count; ++i) slot[i] += other[i];
    std::memset(other, 0, count * sizeof(T));
  }
  if (state_.current.defined()) {
    const T* const current = state_.current.const_data_ptr<T>() + first;
    for (std::size_t i = 0; i < count; ++i) to[i] = slot[i] + current[i];
  } else {
    std::memcpy(to, slot, count * sizeof(T));
  }
  std::memset(slot, 0, count * sizeof(T));
  if (!input_->empty()) input_->add(step_ - first_step_, first, last, to);
}

void CpuSteps::drive(std::int64_t first, std::int64_t last) const {
  const DType type = ops::dtype_of(arriving_.scalar_type());
  char* const arriving = static_cast<char*>(arriving_.mutable_data_ptr());
  const auto bytes = static_cast<std::int64_t>(size_of(type));
  for (const PoissonDrive& drive : drives_) {
    const auto ends_before = [](const PoissonRun& run, std::int64_t column) { return run.end <= column; };
    auto run = std::lower_bound(drive.runs.begin(), drive.runs.end(), first, ends_before);
    for (; run != drive.runs.end() && run->begin < last; ++run) {
      const std::int64_t begin = std::max(first, run->begin), end = std::min(last, run->end);
      const cpu::PoissonDraws draws{drive.key, static_cast<std::uint64_t>(step_),
                                    static_cast<std::uint64_t>(run->whole + begin - run->begin)};
      void* const to = arriving + begin * bytes;
      if (run->of_all)
        poisson_.add(*run->of_all, draws, type, end - begin, to);
      else
        poisson_.add_each({&drive.rates[static_cast<std::size_t>(begin)], &drive.none[static_cast<std::size_t>(begin)],
                           &drive.weights[static_cast<std::size_t>(begin)]},
                          draws, type, end - begin, to);
    }
  }
}

template <class T> void CpuSteps::list_fired(Part& part) const {
  part.fired.clear();
  ops::for_each_fired(state_.spikes.const_data_ptr<T>(), part.begin, part.end,
                      [&](std::int64_t i) { part.fired.push_back(i); });
  if (!state_.silenced.defined()) return;
  const bool* const silenced = state_.silenced.const_data_ptr<bool>();
  T* const spikes = state_.spikes.mutable_data_ptr<T>();
  std::erase_if(part.fired, [&](std::int64_t i) {
    if (silenced[i]) spikes[i] = 0;
    return silenced[i];
  });
}

void CpuSteps::record(std::int64_t row, std::int64_t step, const CpuRecord& record) const {
  if (record.spikes != nullptr) {
    record.spikes->neurons.insert(record.spikes->neurons.end(), fired_.begin(), fired_.end());
    record.spikes->steps.insert(record.spikes->steps.end(), fired_.size(), step);
  }
  if (record.fired != nullptr)
    for (const std::int64_t neuron : fired_) record.fired[row * state_.size + neuron] = true;
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
