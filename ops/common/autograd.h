// Autograd of multistep operators: one rule, for every family. Included where a family registers it, since autograd's
// headers are dear.
#pragma once

#include <spikeforge/kernels/multistep/traced_cell.h>
#include <spikeforge/ops/common/multistep.h>
#include <spikeforge/ops/common/record.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace spikeforge::ops {

// How a family calls its lowered operators, through the dispatcher.
struct Lowered {
  MultistepResults (*forward)(const MultistepCall&, bool save);
  Tensors (*backward)(const BackwardCall&);
};

namespace autograd {

template <class Predicate>
bool any_tensor(const MultistepCall& call, Predicate&& is) {
  bool found = false;
  for_each_argument(call, [&](const at::Tensor& t) { found = found || (t.defined() && is(t)); });
  return found;
}

inline bool any_dual(at::TensorList list) { return std::any_of(list.begin(), list.end(), has_tangent); }

// A cell of a text is kept by its text, which autograd can compare and copy, and not by a hold on it: where others drop
// it meanwhile, it is made again.
inline void save_neuron(AutogradContext* ctx, const MultistepCall& call) {
  if (call.cell->maker == Cell::Maker::traced)
    ctx->saved_data["neuron"] = static_cast<const TracedCell*>(call.cell)->text;
}
inline void find_neuron(AutogradContext* ctx, MultistepCall& call) {
  const auto neuron = ctx->saved_data.find("neuron");
  if (neuron == ctx->saved_data.end()) return;
  call.holder = intern(neuron->second.toStringView());
  call.cell = call.holder.get();
}

// All of a call but its tensors and its text, as the one list of numbers in which autograd keeps it for the backward
// pass: another cell by its number, so that no surrogate's name is read again.
class SavedCall {
 public:
  static c10::List<double> pack(const MultistepCall& call) {
    c10::List<double> list;
    list.reserve(7 + call.surrogate_args.size() + call.cell->arguments() + call.numbers.size());
    list.push_back(static_cast<double>(call.cell->number));
    list.push_back(call.form.hard_reset);
    list.push_back(call.form.detach_reset);
    list.push_back(call.form.spiking);
    list.push_back(call.form.decay_input);
    list.push_back(static_cast<double>(call.form.surrogate));
    list.push_back(call.store_states);
    for (const double arg : call.surrogate_args) list.push_back(arg);
    for_each_argument(call, [&](const at::Tensor& t) { list.push_back(t.defined()); });
    for (const double number : call.numbers) list.push_back(number);
    return list;
  }

  // `call` then points into this object. Its cell is there already where it is one of a text.
  SavedCall(const c10::List<double>& list, MultistepCall& call) {
    std::size_t read = 0;
    const auto next = [&] { return list.get(read++); };
    const auto number = static_cast<std::size_t>(next());
    if (call.cell == nullptr) call.cell = &cell_of_number(number);
    call.form.hard_reset = next() != 0;
    call.form.detach_reset = next() != 0;
    call.form.spiking = next() != 0;
    call.form.decay_input = next() != 0;
    call.form.surrogate = static_cast<SurrogateKind>(next());
    call.store_states = next() != 0;
    for (double& arg : call.surrogate_args) arg = next();
    for (std::size_t i = 0; i < call.cell->arguments(); ++i) given_.push_back(next() != 0);
    while (read < list.size()) numbers_.push_back(next());
    call.numbers = numbers_;
  }
  SavedCall(const SavedCall&) = delete;
  SavedCall& operator=(const SavedCall&) = delete;

  // Whether the call has a tensor for an input, a state or a parameter, counted in this order.
  bool given(std::size_t argument) const { return given_[argument]; }

 private:
  c10::SmallVector<bool, 16> given_;
  c10::SmallVector<double, 10> numbers_;
};

template <const Lowered& lowered>
struct MultistepRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    BackwardCall call;
    find_neuron(ctx, call);
    const SavedCall saved_call(ctx->saved_data.at("call").toDoubleList(), call);
    const variable_list saved = ctx->get_saved_variables();
    const Cell& cell = *call.cell;

    // The tensors that the call had, then the checkpoints. Autograd counts the given tensors alone.
    c10::SmallVector<at::Tensor, 16> tensors(cell.arguments());
    std::size_t given = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      call.needs_grad.push_back(saved_call.given(i) && ctx->needs_input_grad(given));
      if (saved_call.given(i)) tensors[i] = saved[given++];
    }
    const at::TensorList all = tensors;
    call.inputs = all.slice(0, cell.inputs.size());
    call.states = all.slice(cell.inputs.size(), cell.states.size());
    call.params = all.slice(cell.inputs.size() + cell.states.size());
    call.checkpoints = saved.back();
    call.grad_outputs = at::TensorList(grads).slice(0, cell.outputs.size());
    call.grad_states = at::TensorList(grads).slice(cell.outputs.size());

    Tensors results = run_backward(call);
    auto result = results.begin();
    variable_list grad_inputs;
    grad_inputs.reserve(given);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (saved_call.given(i)) grad_inputs.push_back(call.needs_grad[i] ? std::move(*result++) : at::Tensor());
    return grad_inputs;
  }

 private:
  // Where something differentiates the backward pass, autograd's own kernel of the backward operator refuses in words;
  // otherwise it has nothing to do, and would take longer than the rest of the call.
  static Tensors run_backward(const BackwardCall& call) {
    if (at::GradMode::is_enabled() || any_tensor(call, has_tangent) || any_dual(call.grad_outputs) ||
        any_dual(call.grad_states))
      return lowered.backward(call);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return lowered.backward(call);
  }
};

}  // namespace autograd

template <const Lowered& lowered>
MultistepResults run_autograd(const MultistepCall& call) {
  using namespace autograd;
  refuse_tangents(call.cell->maker == Cell::Maker::traced ? std::string_view("run") : call.cell->name,
                  any_tensor(call, has_tangent));
  if (!any_tensor(call, wants_gradient)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return lowered.forward(call, /*save=*/false);
  }
  variable_list given;
  given.reserve(call.cell->arguments());
  for_each_argument(call, [&](const at::Tensor& t) {
    if (t.defined()) given.push_back(t);
  });
  MultistepResults results;
  record<MultistepRule<lowered>>(given, [&](AutogradContext* ctx) {
    results = lowered.forward(call, /*save=*/true);
    variable_list saved;
    saved.reserve(given.size() + 1);
    saved.assign(given.begin(), given.end());
    saved.push_back(results.checkpoints);
    ctx->set_materialize_grads(false);
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["call"] = SavedCall::pack(call);
    save_neuron(ctx, call);
    Tensors all = results.outputs;
    all.append(results.states.begin(), results.states.end());
    return all;
  });
  return results;
}

}  // namespace spikeforge::ops
