#include <spikeforge/graph/dependence.h>
#include <spikeforge/graph/errors.h>
#include <spikeforge/graph/text.h>
#include <spikeforge/runtime/published_map.h>
#include <spikeforge/runtime/traced_cell.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>

namespace spikeforge {
namespace {

using graph::Graph;
using graph::Id;
using graph::Op;

// About how many instructions an operation is in float32.
int cost_of(Op op) {
  switch (op) {
    case Op::argument:
    case Op::constant:
    case Op::truth:
      return 0;
    case Op::divide:
    case Op::reciprocal:
    case Op::sqrt:
    case Op::rsqrt:
    case Op::exp:
    case Op::exp2:
    case Op::surrogate_gradient:
      return 8;
    case Op::expm1:
    case Op::log:
    case Op::log1p:
    case Op::log2:
    case Op::asin:
    case Op::acos:
    case Op::atan:
    case Op::sinh:
    case Op::cosh:
    case Op::tanh:
    case Op::erf:
    case Op::sigmoid:
    case Op::softplus:
    case Op::gelu:
    case Op::silu:
    case Op::elu:
      return 20;
    case Op::sin:
    case Op::cos:
    case Op::tan:
    case Op::pow:
    case Op::atan2:
    case Op::fmod:
    case Op::remainder:
      return 60;
    default:
      return 1;
  }
}

int cost_of(const Graph& graph) {
  int cost = 0;
  for (const graph::Node& node : graph.nodes()) cost += cost_of(node.op);
  return cost;
}

// Arguments of the backward graph that differ from step to step, and that some result needs.
int count_kept_values(const autodiff::Stages& stages) {
  const graph::Dependence depends(stages.backward);
  const auto needed = [&](std::size_t argument) {
    return std::ranges::any_of(stages.backward.results(), [&](Id result) { return depends.on(result, argument); });
  };
  const std::size_t first_hoisted = stages.inputs + stages.states;
  const std::size_t first_upstream = first_hoisted + stages.hoisted;
  int kept = 0;
  for (std::size_t i = 0; i < first_hoisted; ++i) kept += needed(i);
  for (std::size_t i = 0; i < stages.outputs; ++i) kept += needed(first_upstream + i);
  return kept;
}

struct HashOfText {
  std::size_t operator()(std::string_view text) const { return runtime::hash64(text.data(), text.size()); }
};

}  // namespace

TracedCell::TracedCell(std::string_view text)
    : text(text),
      hash(runtime::hash128({text})),
      cell(graph::parse(text)),
      stages(autodiff::stages_of(cell)),
      kept_values(count_kept_values(stages)),
      forward_cost(cost_of(stages.step)),
      backward_cost(cost_of(stages.backward)) {}

std::int64_t TracedCell::checkpoint_length(DType type) const {
  // As for the predefined neurons (schedule.cpp), and shorter where a segment of the backward pass, which is unrolled,
  // would be long code.
  const int most = type == DType::f64 ? 1000 : 2000;
  int length = type != DType::f64 && kept_values <= (type == DType::f32 ? 3 : 2) ? 16 : 8;
  while (length > 2 && length * (forward_cost + backward_cost) > most) length /= 2;
  return length;
}

const TracedCell& intern(std::string_view text) {
  // Never destroyed: operators may run in the destructors of a program.
  static auto& cells = *new runtime::PublishedMap<std::string_view, const TracedCell, HashOfText>;
  static std::atomic<std::size_t> count = 0;
  if (const TracedCell* const cell = cells.find(text)) return *cell;
  if (count >= most_traced_cells)
    throw graph::GraphError(
        fmt::format("more than {} different neurons in one program; make the numbers that vary from call to call "
                    "parameters of one neuron",
                    most_traced_cells));
  auto made = std::make_unique<const TracedCell>(text);
  const TracedCell& cell = cells.insert(made->text, *made);
  if (&cell == made.get()) {
    (void)made.release();
    ++count;
  }
  return cell;
}

}  // namespace spikeforge
