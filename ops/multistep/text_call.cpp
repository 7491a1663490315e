#include "ops/multistep/text_call.h"
#include "csrc/graph/errors.h"
#include "csrc/kernels/scan/scan.h"

#include <c10/util/Exception.h>

#include <array>
#include <string>
#include <utility>

namespace spikeforge::ops {
namespace {

const std::string& name_of(const std::string& name) { return name; }
const std::string& name_of(const CellParam& param) { return param.name; }

template <class Names> std::string listed(const Names& names) {
  std::string list;
  for (const auto& name : names) list += (list.empty() ? "" : ", ") + name_of(name);
  return list.empty() ? list : " (" + list + ")";
}

template <class Names> void check_list(const Cell& cell, const char* what, const Names& names, at::TensorList given) {
  TORCH_CHECK_VALUE(given.size() == names.size(), cell.forward_op, ": ", what, " must have ", names.size(),
                    names.size() == 1 ? " tensor" : " tensors", listed(names), ", but has ", given.size());
  for (std::size_t i = 0; i < given.size(); ++i)
    TORCH_CHECK_VALUE(given[i].defined(), cell.forward_op, ": ", name_of(names[i]), " is an undefined tensor");
}

void check_scan(const TracedCell& cell) {
  TORCH_CHECK_VALUE(!cell.draws, cell.forward_op,
                    ": scan=True: the neuron draws random numbers, and a scan draws none");
  try {
    composition_of(cell);
  } catch (const graph::GraphError& error) {
    TORCH_CHECK_VALUE(false, cell.forward_op, ": scan=True: ", error.what());
  }
}

// The last texts that a thread ran, so that a program with few neurons does not lock the shared table.
class RecentCells {
 public:
  RecentCells() = default;
  ~RecentCells();
  RecentCells(const RecentCells&) = delete;
  RecentCells& operator=(const RecentCells&) = delete;

  std::shared_ptr<const TracedCell> find(std::string_view text) const {
    for (const auto& cell : cells_)
      // Calls within this library pass the text of the cell itself, so the addresses are compared first.
      if (cell != nullptr && text.size() == cell->text.size() &&
          (text.data() == cell->text.data() || text == cell->text))
        return cell;
    return nullptr;
  }

  void add(std::shared_ptr<const TracedCell> cell) {
    cells_[next_] = std::move(cell);
    next_ = (next_ + 1) % cells_.size();
  }

 private:
  std::array<std::shared_ptr<const TracedCell>, 4> cells_;
  std::size_t next_ = 0;
};

thread_local bool is_thread_over = false;
thread_local RecentCells recent_cells;

RecentCells::~RecentCells() { is_thread_over = true; }

}  // namespace

std::shared_ptr<const TracedCell> cell_of(std::string_view text, const char* caller) {
  // Operators may run in destructors after thread-local objects are destroyed.
  RecentCells* const recent = is_thread_over ? nullptr : &recent_cells;
  if (recent != nullptr)
    if (auto found = recent->find(text)) return found;
  try {
    auto cell = intern(text);
    if (recent != nullptr) recent->add(cell);
    return cell;
  } catch (const graph::GraphError& error) {
    TORCH_CHECK_VALUE(false, caller, ": the neuron's text is not legal: ", error.what());
  } catch (const NoRoomForCell& full) {
    TORCH_CHECK(false, caller, ": ", full.what());
  }
}

void refuse_draws(const Cell& cell, const char* op) {
  TORCH_CHECK_NOT_IMPLEMENTED(!cell.draws, op, ": neuron ", cell.name,
                              " draws random numbers, which only run() does; draw them outside, and pass them as an "
                              "input");
}

MultistepCall traced_call(std::shared_ptr<const TracedCell> held, at::TensorList inputs, at::TensorList states,
                          at::TensorList params, bool store_states, std::int64_t bits, bool scan) {
  const TracedCell& cell = *held;
  check_list(cell, "inputs", cell.inputs, inputs);
  TORCH_CHECK_VALUE(!cell.is_too_long() || !inputs[0].is_cuda(), cell.forward_op, ": ", cell.why_too_long());
  if (!states.empty()) check_list(cell, "states", cell.states, states);
  check_list(cell, "params", cell.params, params);
  if (bits != 0) check_bits(cell.forward_op.c_str(), bits);
  if (scan) check_scan(cell);
  MultistepCall call;
  call.cell = &cell;
  call.holder = std::move(held);
  call.inputs = inputs;
  call.states = states;
  call.params = params;
  call.store_states = store_states;
  call.bits = bits;
  call.scan = scan;
  return call;
}

traced::List traced::arguments_of(at::TensorList inputs, at::TensorList states, at::TensorList params) {
  List all;
  all.reserve(inputs.size() + states.size() + params.size());
  for (const at::TensorList list : {inputs, states, params}) all.insert(all.end(), list.begin(), list.end());
  return all;
}

traced::Arguments traced::split(const char* op, const Cell& cell, at::TensorList arguments) {
  const std::size_t inputs = cell.inputs.size(), params = cell.params.size(), given = arguments.size();
  const std::size_t states = given == inputs + params ? 0 : cell.states.size();
  TORCH_CHECK_VALUE(given == inputs + states + params, op, ": arguments must have ", cell.arguments(),
                    " tensors, or none for the states, but has ", given);
  for (const at::Tensor& t : arguments)
    TORCH_CHECK_VALUE(t.defined(), op, ": one of the arguments is an undefined tensor");
  return {arguments.slice(0, inputs), arguments.slice(inputs, states), arguments.slice(inputs + states)};
}

void traced::check_counts(const MultistepCall& call, std::size_t grad_outputs, std::size_t grad_states,
                          std::size_t checkpoints, std::size_t needs_grad) {
  const Cell& cell = *call.cell;
  TORCH_CHECK_VALUE(grad_outputs == cell.outputs.size() && grad_states == cell.states.size(), cell.backward_op,
                    ": grad_outputs and grad_states must have ", cell.outputs.size(), " and ", cell.states.size(),
                    " entries, but have ", grad_outputs, " and ", grad_states);
  TORCH_CHECK_VALUE(checkpoints == 1, cell.backward_op, ": checkpoints must have 1 tensor, but has ", checkpoints);
  const std::size_t n_gradients = call.inputs.size() + call.states.size() + call.params.size();
  TORCH_CHECK_VALUE(needs_grad == n_gradients, cell.backward_op, ": needs_grad must have ", n_gradients,
                    " entries, one for each tensor of inputs, states and params, but has ", needs_grad);
}

}  // namespace spikeforge::ops
