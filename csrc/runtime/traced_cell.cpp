#include <spikeforge/graph/copy.h>
#include <spikeforge/graph/dependence.h>
#include <spikeforge/graph/errors.h>
#include <spikeforge/graph/text.h>
#include <spikeforge/runtime/published_map.h>
#include <spikeforge/runtime/traced_cell.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

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

// Numbers of a step that its backward pass reads, one by one, while it walks a segment: inputs, states, and whatever is
// dearer to compute again than to keep.
int count_kept_values(const autodiff::Stages& stages) {
  const Graph& backward = stages.backward;
  const graph::Dependence depends(backward);
  const std::size_t at_step = stages.inputs + stages.states;
  const std::size_t upstream = at_step + stages.hoisted;
  const auto is_of_the_step = [&](Id id) {
    return !depends.beyond(id, 0, upstream) && depends.beyond(id, at_step, stages.hoisted);
  };
  const std::vector<bool> live = live_nodes(backward);
  std::vector<bool> kept(backward.size());
  for (Id id = 0; id < at_step; ++id) kept[id] = live[id];
  for (Id id = 0; id < backward.size(); ++id)
    for (const Id x : backward.operands(id))
      if (!is_of_the_step(id) && is_of_the_step(x) && cost_of(backward[x].op) > 1 &&
          !backward.is(x, Op::surrogate_gradient))
        kept[x] = true;
  return static_cast<int>(std::ranges::count(kept, true));
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
  // would be long code. A second state leaves no registers for 16 steps.
  const int most = type == DType::f64 ? 1000 : 2000;
  const bool is_small = stages.states <= 1 && kept_values <= (type == DType::f32 ? 3 : 2);
  int length = type != DType::f64 && is_small ? 16 : 8;
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
