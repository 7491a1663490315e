#include "csrc/graph/value.h"
#include "csrc/graph/errors.h"

#include <fmt/format.h>

#include <atomic>

namespace spikeforge::graph {
namespace {

thread_local Recording* innermost = nullptr;

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

}  // namespace

Recording::Recording(Graph& graph) : graph_(graph), serial_(next_serial()), outer_(innermost) { innermost = this; }

Recording::~Recording() { innermost = outer_; }

Recording& Recording::current(std::string_view function) {
  if (innermost == nullptr)
    throw GraphError(
        fmt::format("{}: a Value can be used only inside the lambda that trace calls, and on its thread", function));
  return *innermost;
}

Id Recording::id(const Value& value, std::string_view function) const {
  if (value.recording_ == serial_) return value.id_;
  if (value.recording_ != 0)
    throw GraphError(fmt::format(
        "{}: a Value of another trace, or of one that has ended, cannot be used here: make every Value inside the "
        "lambda, and pass what comes from elsewhere as an input, a state or a parameter",
        function));
  return value.is_truth_ ? graph_.truth(value.number_ != 0) : graph_.constant(value.number_);
}

Value apply(Op op, std::initializer_list<Value> operands, const Surrogate& surrogate) {
  const std::string_view function = info(op).text;
  const Recording& recording = Recording::current(function);
  std::vector<Id> ids;
  for (const Value& operand : operands) ids.push_back(recording.id(operand, function));
  return recording.value(recording.graph().make(op, ids, surrogate));
}

Value make_once(const Value& draw) {
  const Recording& recording = Recording::current("draw_once");
  Graph& graph = recording.graph();
  const Id id = recording.id(draw, "draw_once");
  const Node node = graph[id];
  if (!is_draw(node.op)) throw GraphError("draw_once: takes a draw itself, such as bernoulli(0.5)");
  const std::vector<Id> operands(graph.operands(id).begin(), graph.operands(id).end());
  return recording.value(graph.draw(node.op, operands, {node.draw.number, /*once=*/true}));
}

}  // namespace spikeforge::graph
