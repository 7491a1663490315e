#include "csrc/kernels/event/plan.h"
#include "csrc/kernels/shared_bytes.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace spikeforge::event {
namespace {

constexpr std::int64_t most_bytes_of_bits = 48 << 10;     // in shared memory, which every device has
constexpr std::int64_t shared_bytes_of_lists = 14 << 10;  // of find_tasks in cuda/event/scatter.cuh, rounded up
constexpr std::int64_t most_grid_y = 65535;
constexpr std::int64_t most_workspace = std::int64_t{1} << 28;  // bytes for batches that run at once

// Overrides for measurements: SPIKEFORGE_EVENT_SCHEDULE="lanes=32,unroll=8,...", read at every call. With a default of
// 0 or -1, the plan chooses the value. Values are not checked: some result in a kernel that is wrong or does not
// terminate.
struct Choices {
  std::int64_t lanes = 0;                  // threads per row, by rows
  std::int64_t unroll = 0;                 // indices in flight per thread
  std::int64_t block = 0;                  // threads per block, by rows
  std::int64_t blocks = 0;                 // blocks per multiprocessor, by rows
  std::int64_t long_row = 0;               // a block sums a row of more nonzeros
  std::int64_t chunk = 0;                  // nonzeros per task, by columns
  std::int64_t private_from = -1;          // nonzeros per column from which blocks use private sums
  std::int64_t private_allowed = 1;        // whether the kernel is compiled with private sums
  std::int64_t in_place_from = 1'000'000;  // results from which clearing twice is faster than a copy
};

Choices choices() {
  Choices result;
  const char* const text = std::getenv("SPIKEFORGE_EVENT_SCHEDULE");
  if (text == nullptr) return result;
  struct Field {
    std::string_view name;
    std::int64_t Choices::*value;
  };
  constexpr Field fields[] = {{"lanes", &Choices::lanes},
                              {"unroll", &Choices::unroll},
                              {"block", &Choices::block},
                              {"blocks", &Choices::blocks},
                              {"long_row", &Choices::long_row},
                              {"chunk", &Choices::chunk},
                              {"private_from", &Choices::private_from},
                              {"private_allowed", &Choices::private_allowed},
                              {"in_place_from", &Choices::in_place_from}};
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) continue;
    for (const Field& field : fields)
      if (item.substr(0, equals) == field.name)
        std::from_chars(item.data() + equals + 1, item.data() + item.size(), result.*field.value);
  }
  return result;
}

std::int64_t or_default(std::int64_t given, std::int64_t value) { return given > 0 ? given : value; }

std::int64_t floor_to_power(std::int64_t x) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(1, x))));
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t mean_row(const Product& p) { return p.rows == 0 ? 0 : p.nnz / p.rows; }

// Returns the number of lanes of a group that process different vectors of a product.
std::uint8_t columns_of(const Product& p) {
  return static_cast<std::uint8_t>(std::min<std::int64_t>(32, std::bit_ceil(static_cast<std::uint64_t>(p.n))));
}

// Returns the number of blocks for `threads` threads, at most `each` per multiprocessor.
std::int64_t grid(std::int64_t threads, std::int64_t block, std::int64_t each, const jit::Device& device) {
  return std::clamp<std::int64_t>(divide_up(threads, block), 1, each * device.multiprocessors);
}

KernelSpec spec_of(Kernel kernel, const Product& p) {
  return {.kernel = kernel,
          .weight = p.weight,
          .entry = p.entry,
          .values = p.values,
          .homogeneous = p.homogeneous,
          .indptr_bytes = p.indptr_bytes};
}

// Returns the number of nonzeros in flight per thread: `most`, or half of it for float64 weights, which need more
// registers.
std::uint8_t unroll_of(const Product& p, std::int64_t most, const Choices& chosen) {
  return static_cast<std::uint8_t>(
      or_default(chosen.unroll, p.weight == DType::f64 && !p.homogeneous ? most / 2 : most));
}

Step pack_step(const Product& p, std::int64_t words, const jit::Device& device) {
  KernelSpec spec = spec_of(Kernel::pack, p);
  spec.weight = DType::f32;  // the kernel reads neither weights nor rows
  spec.homogeneous = false;
  spec.indptr_bytes = 0;
  return {.spec = spec, .blocks = grid(words * 32, 256, 8, device), .threads = 256};
}

// Returns the representation of the sums. With a ring, floats are added directly to it.
Sums sums_of(const Product& p) {
  if (p.delays != Delays::none && !p.deterministic) return Sums::floats;
  return sums_by_columns(p.values, p.homogeneous, p.deterministic);
}

std::vector<Step> limits_steps(const Product& p, Sums sums, const jit::Device& device) {
  if (sums != Sums::fixed) return {};
  KernelSpec spec = spec_of(Kernel::limits, p);
  spec.sums = sums;
  spec.transpose = p.transpose;
  return {{.spec = spec, .blocks = grid(p.nnz, 256, 4, device), .threads = 256}};
}

std::vector<Step> finish_steps(const Product& p, Sums sums, const jit::Device& device) {
  if (p.delays == Delays::none || sums == Sums::floats) return {};
  KernelSpec spec = spec_of(Kernel::finish, p);
  spec.sums = sums;
  spec.delays = Delays::one;  // any value: delays are not read
  spec.entry = EntryType::f32;
  spec.indptr_bytes = 0;
  return {{.spec = spec, .blocks = grid(p.ring, 256, 8, device), .threads = 256}};
}

// Returns the plan of a product by rows. `items` is the number of rows or tiles of rows, each for a group of lanes. A
// whole block processes a row that would keep a group busy after all others have finished: a row that is long, and much
// longer than others. If there are too few rows to keep all warps busy, blocks process shorter rows as well, and rows
// are distributed over all multiprocessors. Measured on an H200, from 30 x 200,000 to 200,000 x 7 nonzeros.
GatherPlan by_rows(const Product& p, const KernelSpec& spec, std::int64_t items, const Choices& chosen,
                   const jit::Device& device) {
  const auto [most_threads, most_blocks] = bounds(spec);
  const std::int64_t threads = std::min<std::int64_t>(or_default(chosen.block, most_threads), most_threads);
  const std::int64_t blocks = or_default(chosen.blocks, most_blocks);
  const std::int64_t batches = std::min(p.batches, most_grid_y);
  const std::int64_t warps = divide_up(items * spec.lanes, 32) * batches;
  const bool few = 2 * warps < blocks * threads / 32 * device.multiprocessors;
  const std::int64_t long_row = few ? std::max<std::int64_t>(512, 64 * spec.lanes)
                                    : std::max<std::int64_t>({1024, 128 * spec.lanes, 8 * mean_row(p)});
  return {
      .batches_at_once = batches,
      .words = 0,
      .long_row = or_default(chosen.long_row, long_row),
      .steps = {
          {.spec = spec, .blocks = grid(items * spec.lanes, few ? 32 : threads, blocks, device), .threads = threads}}};
}

GatherPlan gather_bits_plan(const Product& p, const Choices& chosen, const jit::Device& device) {
  const std::int64_t words = divide_up(p.cols, 32);
  KernelSpec spec = spec_of(Kernel::gather_bits, p);
  spec.entry = EntryType::boolean;
  // A thread reads four nonzeros at once, in a row of mean length at least four times (with weights) or eight times.
  spec.lanes = static_cast<std::uint8_t>(or_default(
      chosen.lanes, std::clamp<std::int64_t>(floor_to_power(mean_row(p) / (p.homogeneous ? 32 : 16)), 1, 32)));
  spec.unroll = unroll_of(p, 4, chosen);
  spec.in_shared_memory = words * 4 <= most_bytes_of_bits;
  GatherPlan plan = by_rows(p, spec, p.rows, chosen, device);
  plan.words = words;
  plan.steps[0].shared_bytes = spec.in_shared_memory ? words * 4 : 0;
  plan.steps[0].most_shared_bytes = most_bytes_of_bits;
  plan.steps.insert(plan.steps.begin(), pack_step(p, words, device));
  return plan;
}

GatherPlan gather_entries_plan(Kernel kernel, const Product& p, const Choices& chosen, const jit::Device& device) {
  KernelSpec spec = spec_of(kernel, p);
  spec.columns = columns_of(p);
  const std::int64_t abreast = floor_to_power(mean_row(p) / (spec.columns == 1 ? 8 : 40));  // lanes on other nonzeros
  spec.lanes =
      static_cast<std::uint8_t>(or_default(chosen.lanes, std::clamp<std::int64_t>(abreast * spec.columns, 1, 32)));
  spec.unroll = unroll_of(p, kernel == Kernel::gather ? 8 : 4, chosen);  // gradients need registers
  return by_rows(p, spec, p.rows * divide_up(p.n, spec.columns), chosen, device);
}

}  // namespace

Sums sums_by_columns(Values values, bool homogeneous, bool deterministic) {
  if (homogeneous && values == Values::event) return Sums::counts;
  return deterministic ? Sums::fixed : Sums::floats;
}

std::int64_t size_of_sum(Sums sums, DType weight) {
  if (sums == Sums::counts) return 4;
  if (sums == Sums::fixed) return 8;
  return static_cast<std::int64_t>(size_of(compute_type(weight)));
}

GatherPlan plan_gather(const Product& p, const jit::Device& device) {
  const Choices chosen = choices();
  const bool as_bits = p.values == Values::event && p.n == 1;
  return as_bits ? gather_bits_plan(p, chosen, device) : gather_entries_plan(Kernel::gather, p, chosen, device);
}

GatherPlan plan_gather_with_gradient(const Product& p, const jit::Device& device) {
  return gather_entries_plan(Kernel::gather_with_gradient, p, choices(), device);
}

ScatterPlan plan_scatter(const Product& p, const jit::Device& device) {
  const Choices chosen = choices();
  const std::int64_t results = p.cols * p.n;
  ScatterPlan plan;
  plan.sums = sums_of(p);
  plan.sum_bytes = size_of_sum(plan.sums, p.weight);
  const bool fixed = plan.sums == Sums::fixed;
  const bool to_ring = p.delays != Delays::none;
  plan.in_place = plan.sums == Sums::floats && (to_ring || (!p.homogeneous && p.weight == compute_type(p.weight) &&
                                                            results * p.batches >= chosen.in_place_from));
  plan.chunk = floor_to_power(or_default(chosen.chunk, 256));

  plan.limits = limits_steps(p, plan.sums, device);
  plan.finish = finish_steps(p, plan.sums, device);

  KernelSpec spec = spec_of(Kernel::scatter, p);
  spec.sums = plan.sums;
  spec.delays = p.delays;
  spec.columns = columns_of(p);
  const std::int64_t own_bytes = plan.sum_bytes * results;
  const std::int64_t most_own_bytes = kernels::most_shared_bytes(device) - shared_bytes_of_lists;
  spec.in_shared_memory =
      !fixed && !to_ring && p.batches == 1 && chosen.private_allowed != 0 && own_bytes <= most_own_bytes;
  spec.unroll = unroll_of(p, 8, chosen);
  // From this number of nonzeros per column, private sums of each block are faster, for one vector or several.
  plan.private_from = (chosen.private_from >= 0 ? chosen.private_from : 32) * p.cols;
  plan.tasks = p.rows + p.nnz / plan.chunk;

  // The sums of a ring are stored once for all batches.
  const std::int64_t of_sums = to_ring ? 0 : (plan.in_place ? 0 : plan.sum_bytes * results) + (fixed ? 4 * results : 0);
  const std::int64_t each = of_sums + task_bytes * plan.tasks + 1;
  plan.batches_at_once = std::clamp<std::int64_t>(most_workspace / each, 1, p.batches);
  // Blocks wait for each other, so all of them must be resident.
  const auto [threads, blocks] = bounds(spec);
  const std::int64_t wanted = std::max(32 * plan.tasks, to_ring ? 0 : results) * plan.batches_at_once;
  plan.scatter = {.spec = spec,
                  .blocks = grid(wanted, threads, blocks, device),
                  .threads = threads,
                  .shared_bytes = spec.in_shared_memory ? own_bytes : 0,
                  .most_shared_bytes = most_own_bytes,
                  .together = true};
  plan.rows_at_once = std::min<std::int64_t>(threads, divide_up(p.rows * plan.batches_at_once, plan.scatter.blocks));
  return plan;
}

ScatterPlan plan_delivery(const Product& p, const jit::Device& device) {
  if (p.transpose) return plan_scatter(p, device);
  const Choices chosen = choices();
  ScatterPlan plan;
  plan.sums = sums_of(p);
  plan.sum_bytes = size_of_sum(plan.sums, p.weight);
  plan.in_place = plan.sums == Sums::floats;
  plan.batches_at_once = std::min(p.batches, most_grid_y);
  plan.limits = limits_steps(p, plan.sums, device);
  plan.finish = finish_steps(p, plan.sums, device);
  KernelSpec spec = spec_of(Kernel::deliver, p);
  spec.sums = plan.sums;
  spec.delays = p.delays;
  spec.lanes = static_cast<std::uint8_t>(
      or_default(chosen.lanes, std::clamp<std::int64_t>(floor_to_power(mean_row(p) / 8), 1, 32)));
  spec.unroll = plan.sums == Sums::fixed ? 1 : unroll_of(p, 8, chosen);
  const auto [threads, blocks] = bounds(spec);
  plan.scatter = {.spec = spec, .blocks = grid(p.rows * spec.lanes, threads, 2 * blocks, device), .threads = threads};
  return plan;
}

KernelSpec take_of(DType compute) {
  return {.kernel = Kernel::take, .weight = compute, .entry = EntryType::f32, .delays = Delays::drawn};
}

std::vector<KernelSpec> kernels_of(const Product& p, const jit::Device& device) {
  std::vector<KernelSpec> kernels;
  if (p.nnz == 0) return kernels;
  if (p.transpose || p.delays != Delays::none) {
    const ScatterPlan plan = plan_delivery(p, device);
    for (const Step& step : plan.limits) kernels.push_back(step.spec);
    kernels.push_back(plan.scatter.spec);
    for (const Step& step : plan.finish) kernels.push_back(step.spec);
  } else {
    for (const Step& step : plan_gather(p, device).steps) kernels.push_back(step.spec);
  }
  return kernels;
}

KernelSpec check_of(std::uint8_t indptr_bytes, bool wide_indices, Delays delays) {
  return {.kernel = Kernel::check,
          .weight = DType::f32,
          .entry = EntryType::f32,
          .indptr_bytes = indptr_bytes,
          .delays = delays,
          .wide_indices = wide_indices};
}

Step plan_weight_gradient(const Product& p, const jit::Device& device) {
  KernelSpec spec = spec_of(Kernel::weight_gradient, p);
  spec.homogeneous = false;
  spec.transpose = p.transpose;
  spec.lanes = static_cast<std::uint8_t>(std::min<std::int64_t>(32, floor_to_power(mean_row(p))));
  return {.spec = spec, .blocks = grid(p.rows * spec.lanes, 256, 8, device), .threads = 256};
}

}  // namespace spikeforge::event
