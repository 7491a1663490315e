#include <spikeforge/base/published_map.h>
#include <spikeforge/codegen/cell_printer.h>
#include <spikeforge/graph/errors.h>
#include <spikeforge/graph/internal/copy.h>
#include <spikeforge/graph/internal/dependence.h>
#include <spikeforge/graph/text.h>
#include <spikeforge/kernels/multistep/traced_cell.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
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
    case Op::logical_or:
    case Op::logical_and:
    case Op::logical_not:
    case Op::less:
    case Op::less_equal:
    case Op::greater:
    case Op::greater_equal:
    case Op::equal:
    case Op::not_equal:
    case Op::add:
    case Op::subtract:
    case Op::multiply:
    case Op::neg:
    case Op::abs:
    case Op::sign:
    case Op::square:
    case Op::relu:
    case Op::leaky_relu:
    case Op::floor:
    case Op::ceil:
    case Op::round:
    case Op::trunc:
    case Op::minimum:
    case Op::maximum:
    case Op::clamp:
    case Op::lerp:
    case Op::where:
    case Op::select:
    case Op::spike:
    case Op::spike_strict:
    case Op::detach:
    case Op::add_gradient:
      return 1;
  }
  return 1;
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
  std::size_t operator()(std::string_view text) const { return hash64(text.data(), text.size()); }
};

}  // namespace

TracedCell::TracedCell(std::string_view text)
    : Cell(Maker::traced),
      text(text),
      hash(hash128({text})),
      graph(graph::parse(text)),
      stages(autodiff::stages_of(graph)) {
  const graph::Signature& signature = graph.signature();
  name = signature.name;
  forward_op = "run(" + name + ")";
  backward_op = "run_backward(" + name + ")";
  inputs = signature.inputs;
  for (const graph::State& state : signature.states) states.push_back(state.name);
  for (const std::string& param : signature.params) params.push_back({param});
  outputs.resize(graph.output_count());
  kept_values = count_kept_values(stages);
  forward_cost = cost_of(stages.step);
  backward_cost = cost_of(stages.backward);
}

CellText TracedCell::device_text(const CellForm&) const {
  return {.name = name,
          .text = codegen::print_cell(graph, stages),
          .types = {"Options = NoOptions", "Surrogate = NoSurrogate<Compute>", "Cell = Neuron<Compute>"}};
}

const TracedCell& intern(std::string_view text) {
  // Never destroyed: operators may run in the destructors of a program.
  static auto& cells = *new PublishedMap<std::string_view, const TracedCell, HashOfText>;
  if (const TracedCell* const cell = cells.find(text)) return *cell;
  auto made = std::make_unique<TracedCell>(text);
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);  // a cell that comes second takes no number
  if (const TracedCell* const cell = cells.find(text)) return *cell;
  if (!enroll(*made))
    throw graph::GraphError(
        fmt::format("more than {} different neurons in one program; make the numbers that vary from call to call "
                    "parameters of one neuron",
                    most_traced_cells));
  const TracedCell& cell = *made.release();
  return cells.insert(cell.text, cell);
}

}  // namespace spikeforge
