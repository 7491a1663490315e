#include "ops/common/plastic.h"
#include "csrc/base/fork_safe_mutex.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/evaluate.h"
#include "ops/common/thread_scratch.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace spikeforge::ops::plastic {
namespace {

constexpr std::int64_t least_share = 1 << 13;  // the minimum number of connections per thread
constexpr std::size_t most_rules = 256;        // texts in the cache

std::int64_t parts_for(std::int64_t work) {
  return std::clamp<std::int64_t>(work / least_share, 1, at::in_parallel_region() ? 1 : at::get_num_threads());
}

struct Rules {
  ForkSafeMutex mutex;
  std::unordered_map<std::string, std::shared_ptr<const Rule>> by_text;
};
Rules& rules() {
  static auto* const all = new Rules;  // never destroyed: calls are possible during exit
  return *all;
}

graph::Synapse parsed(std::string_view text, const char* op) {
  try {
    return graph::parse_synapse(text);
  } catch (const graph::GraphError& error) {
    TORCH_CHECK_VALUE(false, op, ": ", error.what());
  }
}

}  // namespace

std::shared_ptr<const Rule> rule_of(std::string_view text, const char* op) {
  Rules& known = rules();
  const std::scoped_lock lock(known.mutex);
  std::string key(text);
  if (const auto found = known.by_text.find(key); found != known.by_text.end()) return found->second;
  auto rule = std::make_shared<const Rule>(parsed(text, op));
  if (known.by_text.size() >= most_rules) known.by_text.clear();
  known.by_text.emplace(std::move(key), rule);
  return rule;
}

std::pair<double, double> weight_bounds(const graph::Synapse& rule, c10::ArrayRef<double> params) {
  constexpr double none = std::numeric_limits<double>::infinity();
  double low = -none, high = none;
  const auto narrow = [&](const std::optional<graph::SynapseBlock>& block) {
    if (!block || block->states.empty() || block->states.front() != 0) return;
    const graph::Graph& graph = block->graph;
    const graph::Id next = graph.results()[0];
    if (!graph.is(next, graph::Op::clamp)) return;
    const auto number = [&](graph::Id id, double otherwise) {
      if (graph.is(id, graph::Op::constant)) return graph[id].number;
      const std::size_t first = rule.param(0);
      return first <= id && id < first + params.size() ? params[id - first] : otherwise;
    };
    low = std::max(low, number(graph.operands(next)[1], -none));
    high = std::min(high, number(graph.operands(next)[2], none));
  };
  narrow(rule.pre);
  narrow(rule.post);
  narrow(rule.each_step);
  std::ranges::for_each(rule.on_signal, narrow);
  return {low, high};
}

BoundRule::BoundRule(std::shared_ptr<const Rule> rule, c10::ArrayRef<double> params, DType type, const char* op)
    : rule_(std::move(rule)), type_(type) {
  const graph::Synapse& s = rule_->synapse;
  TORCH_CHECK_VALUE(params.size() == s.params.size(), op, ": ", s.name, " takes ", s.params.size(), " parameters, but ",
                    params.size(), " are given");
  const std::vector<double> given(params.begin(), params.end());
  states_.resize(s.states.size());
  for (const graph::Decay& decay : s.decays) {
    const std::vector<double> numbers = graph::evaluate<double>(decay.graph, given);
    const double tau = numbers[0], target = numbers[1];
    const std::string& name = decay.of_trace ? s.traces[decay.number].name : s.states[decay.number].name;
    TORCH_CHECK_VALUE(tau > 0, op, ": ", name, " of ", s.name, " must decay by a positive number of steps, but it is ",
                      tau);
    TORCH_CHECK_VALUE(std::isfinite(target), op, ": ", name, " of ", s.name, " must decay to a finite number, not ",
                      target);
    const double log_factor = -1 / tau;
    if (decay.of_trace) {
      trace_decays_.push_back({decay.number, std::exp(log_factor), target});
      continue;
    }
    cpu::PlasticState& state = states_[decay.number];
    state = {
        .data = nullptr, .type = {}, .decays = true, .log_factor = log_factor, .target = target, .factors = nullptr};
    std::vector<double> left(cpu::plastic_factors);
    for (std::size_t n = 0; n < left.size(); ++n) left[n] = std::exp(log_factor * static_cast<double>(n));
    // Pointers into the vectors stay valid when the list of vectors grows.
    if (type == DType::f64)
      state.factors = factors_.emplace_back(std::move(left)).data();
    else
      state.factors = narrow_factors_.emplace_back(left.begin(), left.end()).data();
  }
  const auto bind = [&](const cpu::PlasticBlock& block) {
    if (block.reads.empty() && block.is_empty()) return;
    numbers_.emplace_back(&block, type == DType::f64 ? block.numbers<double>(given) : block.numbers<float>(given));
  };
  const cpu::PlasticProgram& p = rule_->program;
  for (const cpu::PlasticBlock* const block :
       {&p.pre, &p.silent_pre, &p.pre_traces, &p.post, &p.post_traces, &p.each_step})
    bind(*block);
  for (const cpu::PlasticBlock& block : p.on_signal) bind(block);
}

const std::vector<double>& BoundRule::numbers(const cpu::PlasticBlock& block) const {
  return std::ranges::find(numbers_, &block, [](const auto& entry) { return entry.first; })->second;
}

void Segments::clear() {
  own.clear();
  begins.clear();
  ends.clear();
  total = 0;
}

void Segments::add(std::int64_t neuron, std::int64_t begin, std::int64_t end) {
  if (begin == end) return;
  own.push_back(static_cast<std::int32_t>(neuron));
  begins.push_back(begin);
  ends.push_back(end);
  total += end - begin;
}

cpu::PlasticCall Step::call(const Memory& memory, const cpu::PlasticBlock* block) const {
  return {.type = rule_.type(),
          .block = block,
          .numbers = block == nullptr ? std::span<const double>() : std::span(rule_.numbers(*block)),
          .states = memory.states,
          .traces = memory.traces,
          .signals = memory.signals,
          .last = memory.last,
          .now = memory.now,
          .delays = matrix_.delays,
          .wide_delays = matrix_.wide_delays,
          .trace_offsets = memory.trace_offsets,
          .sent = nullptr};
}

void Step::decay(const Memory& memory, bool after, std::int64_t count) const {
  const cpu::PlasticKernels& kernels = cpu::plastic_kernels();
  const auto bytes = static_cast<std::int64_t>(size_of(rule_.type()));
  for (const BoundRule::TraceDecay& decay : rule_.trace_decays()) {
    const cpu::PlasticTrace& trace = memory.traces[decay.trace];
    if (trace.after != after) continue;
    at::parallel_for(0, count, 1 << 15, [&](std::int64_t begin, std::int64_t end) {
      kernels.decay(rule_.type(), static_cast<char*>(trace.data) + begin * bytes, end - begin, decay.factor,
                    decay.target);
    });
  }
}

// If the call computes sums per column, each thread processes a range of columns, and the segments of a thread keep
// their order. Otherwise, each thread processes an equal number of connections.
void Step::run(const cpu::PlasticCall& call, const Segments& segments, bool by_columns) const {
  if (segments.total == 0) return;
  const cpu::PlasticKernels& kernels = cpu::plastic_kernels();
  const event::Rows& order = by_columns ? matrix_.columns : matrix_.rows;
  const bool sums = call.sent != nullptr;
  const std::int64_t parts = sums && !matrix_.columns_ascend ? 1 : parts_for(segments.total);
  const std::size_t bytes = kernels.scratch(call);
  const auto run_part = [&](const Segments& part) {
    const cpu::PlasticWalk walk{.by_columns = by_columns,
                                .own = part.own.data(),
                                .begins = part.begins.data(),
                                .ends = part.ends.data(),
                                .count = std::ssize(part.own),
                                .others = order.indices,
                                .slots = by_columns ? matrix_.slots : nullptr};
    kernels.connections(call, walk, thread_scratch(bytes));
  };
  if (parts == 1) return run_part(segments);
  at::parallel_for(0, parts, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t p = first; p < last; ++p) {
      Segments part;
      if (sums) {
        const auto boundary = [&](std::int64_t q) { return static_cast<std::int32_t>(order.cols * q / parts); };
        const std::int32_t from = boundary(p), to = boundary(p + 1);
        for (std::size_t i = 0; i < segments.own.size(); ++i) {
          const std::int32_t* const end = order.indices + segments.ends[i];
          const std::int32_t* const low = std::lower_bound(order.indices + segments.begins[i], end, from);
          part.add(segments.own[i], low - order.indices, std::lower_bound(low, end, to) - order.indices);
        }
      } else {
        const std::int64_t from = segments.total * p / parts, to = segments.total * (p + 1) / parts;
        std::int64_t before = 0;
        for (std::size_t i = 0; i < segments.own.size() && before < to; ++i) {
          const std::int64_t begin = segments.begins[i], count = segments.ends[i] - begin;
          part.add(segments.own[i], begin + std::clamp<std::int64_t>(from - before, 0, count),
                   begin + std::clamp<std::int64_t>(to - before, 0, count));
          before += count;
        }
      }
      run_part(part);
    }
  });
}

void Step::arrive(const Memory& memory, const Segments& segments, void* sent) {
  const cpu::PlasticBlock& block = sent != nullptr ? rule_.program().pre : rule_.program().silent_pre;
  if (block.is_empty()) return;
  cpu::PlasticCall given = call(memory, &block);
  given.sent = sent;
  run(given, segments, /*by_columns=*/false);
}

void Step::fire(const Memory& memory, const std::vector<std::int32_t>& columns) {
  const cpu::PlasticBlock& block = rule_.program().post;
  if (block.is_empty()) return;
  fired_.clear();
  for (const std::int32_t column : columns)
    fired_.add(column, matrix_.columns.begin(column), matrix_.columns.end(column));
  run(call(memory, &block), fired_, /*by_columns=*/true);
}

void Step::change_traces(const Memory& memory, bool after, const std::vector<std::int32_t>& fired) {
  const cpu::PlasticBlock& block = after ? rule_.program().post_traces : rule_.program().pre_traces;
  if (block.is_empty() || fired.empty()) return;
  const cpu::PlasticKernels& kernels = cpu::plastic_kernels();
  const cpu::PlasticCall given = call(memory, &block);
  kernels.neurons(given, fired.data(), std::ssize(fired), thread_scratch(kernels.scratch(given)));
}

void Step::run_all(const cpu::PlasticCall& call) {
  if (all_.total == 0)
    for (std::int64_t i = 0; i < matrix_.rows.rows; ++i) all_.add(i, matrix_.rows.begin(i), matrix_.rows.end(i));
  run(call, all_, /*by_columns=*/false);
}

void Step::modulate(const Memory& memory, const std::vector<bool>& comes) {
  for (std::size_t i = 0; i < comes.size(); ++i) {
    const cpu::PlasticBlock& block = rule_.program().on_signal[i];
    if (comes[i] && !block.is_empty()) run_all(call(memory, &block));
  }
  const cpu::PlasticBlock& each = rule_.program().each_step;
  if (!each.is_empty()) run_all(call(memory, &each));
}

void Step::refresh(const Memory& memory) {
  if (memory.last != nullptr) run_all(call(memory, nullptr));
}

}  // namespace spikeforge::ops::plastic
