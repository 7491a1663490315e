#include "csrc/kernels/multistep/traced_cell.h"
#include "csrc/autodiff/stages.h"
#include "csrc/autodiff/vjp.h"
#include "csrc/base/environment.h"
#include "csrc/codegen/cell_printer.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/dependence.h"
#include "csrc/graph/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <iterator>
#include <vector>

namespace spikeforge {
namespace {

using graph::Graph;
using graph::Id;
using graph::Op;

// About how many instructions each operation is in float32.
constexpr std::size_t op_count = 0
#define SPIKEFORGE_OP(name, ...) +1
#include "csrc/graph/ops.def"
    ;
constexpr auto costs = [] {
  using enum Op;
  std::array<int, op_count> costs;
  costs.fill(-1);
  const auto set = [&](int cost, std::initializer_list<Op> ops) {
    for (const Op op : ops) costs[static_cast<std::size_t>(op)] = cost;
  };
  set(0, {argument, constant, truth});
  set(1, {logical_or, logical_and, logical_not, less, less_equal, greater, greater_equal, equal, not_equal});
  set(1, {add, subtract, multiply, neg, abs, sign, square, relu, leaky_relu, floor, ceil, round, trunc});
  set(1, {minimum, maximum, clamp, lerp, where, select, spike, spike_strict, detach, add_gradient});
  set(8, {divide, reciprocal, sqrt, rsqrt, exp, exp2, surrogate_gradient});
  set(20, {expm1, log, log1p, log2, asin, acos, atan, sinh, cosh, tanh, erf, sigmoid, softplus, gelu, silu, elu});
  set(60, {sin, cos, tan, pow, atan2, fmod, remainder, normal});
  set(40, {uniform, bernoulli});  // mostly Philox's multiplications
  set(300, {poisson});
  return costs;
}();
static_assert(std::ranges::none_of(costs, [](int cost) { return cost < 0; }), "every operation has a cost");

int cost_of(Op op) { return costs[static_cast<std::size_t>(op)]; }

int cost_of(const Graph& graph) {
  int cost = 0;
  for (const graph::Node& node : graph.nodes()) cost += cost_of(node.op);
  return cost;
}

// Counts the values of a step that the backward loop keeps while it processes a segment: inputs, states, and every
// value that costs more to recompute than to keep.
int count_kept_values(const autodiff::Stages& stages) {
  const Graph& backward = stages.backward;
  const graph::Dependence depends(backward);
  const std::vector<bool> drawn = drawn_anew(backward);
  const std::size_t at_step = stages.inputs + stages.states;
  const std::size_t upstream = at_step + stages.hoisted;
  const auto is_of_the_step = [&](Id id) {
    return !depends.beyond(id, 0, upstream) && (drawn[id] || depends.beyond(id, at_step, stages.hoisted));
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

// The bytes of a node, its entry in the hash table of equal nodes, and its name.
constexpr std::size_t bytes_of_node = 2 * sizeof(graph::Node) + 4 * sizeof(void*) + sizeof(std::string);

std::size_t bytes_of(const Graph& graph) {
  std::size_t bytes = sizeof(Graph) + graph.size() * bytes_of_node;
  for (Id id = 0; id < graph.size(); ++id) bytes += graph.name(id).capacity();
  return bytes;
}

double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// A factor for tapes, which need the same memory as graphs.
constexpr std::size_t with_tapes = 2;

graph::Cell parsed(std::string_view text, std::size_t most_bytes) {
  graph::Cell cell = graph::parse(text);
  const std::size_t count = autodiff::count_slopes(cell.graph()), bytes = with_tapes * count * bytes_of_node;
  if (bytes > most_bytes)
    throw NoRoomForCell(
        fmt::format("the derivatives of the surrogates of neuron {} need {} operations, which take {:.1f} MiB of the "
                    "{:.1f} MiB that neurons may use; choose a surrogate with fewer terms, split the neuron, or set "
                    "SPIKEFORGE_NEURONS_LIMIT_MB to more",
                    cell.signature().name, count, mebibytes(bytes), mebibytes(most_bytes)));
  return cell;
}

}  // namespace

TracedCell::TracedCell(std::string_view text, std::size_t most_bytes)
    : Cell(Maker::traced),
      text(text),
      hash(hash128({text})),
      graph(parsed(text, most_bytes)),
      stages(autodiff::stages_of(graph)),
      coefficients(static_cast<int>(autodiff::coefficients(stages).size())) {
  const graph::Signature& signature = graph.signature();
  name = signature.name;
  forward_op = "run(" + name + ")";
  backward_op = "run_backward(" + name + ")";
  inputs = signature.inputs;
  for (const graph::State& state : signature.states) states.push_back(state.name);
  for (const std::string& param : signature.params) params.push_back({param});
  outputs.resize(graph.output_count());
  draws = graph::draws(graph.graph());
  kept_values = count_kept_values(stages);
  forward_cost = cost_of(stages.step);
  backward_cost = cost_of(stages.backward);
}

std::string TracedCell::why_too_long() const {
  return fmt::format(
      "a step of neuron {} and its derivative need about {} instructions, but at most {} are compiled "
      "for a GPU; split the neuron, or run it on the CPU",
      name, forward_cost + backward_cost, longest_compiled);
}

CellText TracedCell::device_text(const CellForm&) const {
  if (is_too_long()) throw graph::GraphError(why_too_long());
  return {.name = name,
          .text = codegen::print_cell(graph, stages),
          .types = {"Options = NoOptions", "Surrogate = NoSurrogate<Compute>", "Cell = Neuron<Compute>"}};
}

std::size_t TracedCell::bytes() const {
  const std::size_t stages_bytes =
      bytes_of(stages.prologue) + bytes_of(stages.step) + bytes_of(stages.backward) + bytes_of(stages.epilogue);
  return sizeof *this + text.capacity() + bytes_of(graph.graph()) + with_tapes * stages_bytes;
}

std::shared_ptr<const TracedCell> TracedCells::intern(std::string_view text) {
  {
    const std::scoped_lock lock(mutex_);
    if (auto found = find(text)) return found;
  }
  auto made = std::make_shared<const TracedCell>(text, most_bytes_);
  const std::size_t bytes = made->bytes();
  Cells dropped;  // destroyed after the lock is released
  const std::scoped_lock lock(mutex_);
  if (auto found = find(text)) return found;
  dropped = make_room(bytes);
  if (bytes_ + bytes > most_bytes_)
    throw NoRoomForCell(fmt::format(
        "the memory limit of neurons is exceeded: the {} neurons in use need {:.1f} MiB of at most {:.1f} MiB, "
        "and neuron {} needs {:.1f} MiB; pass values that change between calls as parameters of one "
        "neuron, destroy unused neurons, or increase the limit: set the environment variable "
        "SPIKEFORGE_NEURONS_LIMIT_MB",
        cells_.size(), mebibytes(bytes_), mebibytes(most_bytes_), made->name, mebibytes(bytes)));
  cells_.push_front(made);
  places_.emplace(made->text, cells_.begin());
  bytes_ += bytes;
  return made;
}

std::shared_ptr<const TracedCell> TracedCells::find(std::string_view text) {
  const auto place = places_.find(text);
  if (place == places_.end()) return nullptr;
  cells_.splice(cells_.begin(), cells_, place->second);
  return *place->second;
}

TracedCells::Cells TracedCells::make_room(std::size_t bytes) {
  Cells dropped;
  for (auto at = cells_.end(); at != cells_.begin() && bytes_ + bytes > most_bytes_;) {
    const auto cell = std::prev(at);
    // References are created under the lock, or copied from another reference, so no other thread creates one
    // meanwhile.
    if (cell->use_count() > 1) {
      at = cell;
      continue;
    }
    places_.erase((*cell)->text);
    bytes_ -= (*cell)->bytes();
    dropped.splice(dropped.end(), cells_, cell);
  }
  return dropped;
}

std::size_t TracedCells::size() const {
  const std::scoped_lock lock(mutex_);
  return cells_.size();
}

std::size_t TracedCells::bytes() const {
  const std::scoped_lock lock(mutex_);
  return bytes_;
}

std::shared_ptr<const TracedCell> intern(std::string_view text) {
  // Never destroyed: operators may run in the destructors of a program.
  static TracedCells& cells = *[] {
    constexpr std::size_t usual_mebibytes = 256;
    const std::size_t most = whole_number_in_environment("SPIKEFORGE_NEURONS_LIMIT_MB").value_or(usual_mebibytes);
    return new TracedCells((most <= (std::size_t{1} << 40) ? most : usual_mebibytes) << 20);
  }();
  return cells.intern(text);
}

}  // namespace spikeforge
