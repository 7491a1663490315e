// The layer composed of existing operators: torch's product and `run`, one step at a time.
#include "ops/recurrent/stepped.h"
#include "ops/common/checks.h"
#include "ops/common/rows_product.h"
#include "ops/multistep/derivatives.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace spikeforge::ops::recurrent {
namespace {

std::int64_t steps_of(const MultistepCall& call) { return call.inputs[0].sym_size(0).guard_int(__FILE__, __LINE__); }

// Returns step t of each sequence, [1, ...].
Tensors step_of(at::TensorList sequences, std::int64_t t) {
  Tensors step;
  for (const at::Tensor& sequence : sequences) step.push_back(sequence.narrow(0, t, 1));
  return step;
}

at::Tensor empty_sequence(const MultistepCall& call, bool of_states) {
  const at::Tensor& x = call.inputs[0];
  return at::empty_symint(x.sym_sizes(), x.options().dtype(of_states ? state_type(x.scalar_type()) : x.scalar_type()));
}

// Sets the lengths and starts of a call of the steps [t, t + count).
void set_steps(MultistepCall& steps, const MultistepCall& of, std::int64_t t, std::int64_t count) {
  if (of.lengths.defined()) steps.lengths = at::clamp(of.lengths - t, 0, count);
  if (of.start.defined()) steps.start = of.start.narrow(0, t, count);
}

// Returns the states of step t, with zeros for samples that have ended.
at::Tensor unless_ended(const MultistepCall& call, std::int64_t t, const at::Tensor& state) {
  return call.lengths.defined() ? state.masked_fill(call.lengths <= t, 0) : state;
}

// Returns the spikes that arrive at step t, which were sent `delay` steps earlier; zeros for samples that restarted in
// between.
at::Tensor as_fed_back(const at::Tensor& start, std::int64_t t, std::int64_t delay, const at::Tensor& fed_back) {
  if (!start.defined()) return fed_back;
  const std::int64_t from = std::max<std::int64_t>(t - delay + 1, 0);
  return fed_back.masked_fill(start.narrow(0, from, t - from + 1).any(0, /*keepdim=*/true), 0);
}

// Connections of a dense matrix.
class DenseFeedback final : public Feedback {
 public:
  explicit DenseFeedback(const RecurrentCall& call) : call_(call) {}

  at::Tensor current(std::int64_t t) override {
    at::Tensor x = call_.x().narrow(0, t, 1);
    const std::int64_t from = t - call_.delay;
    at::Tensor fed_back;
    if (from >= 0)
      fed_back = sent_[static_cast<std::size_t>(from)];
    else if (call_.spikes.defined())
      fed_back = call_.spikes.narrow(0, t, 1);
    else
      return x;
    fed_back = as_fed_back(call_.start, t, call_.delay, fed_back);
    return at::addmm(in_rows(x), in_rows(fed_back), call_.w).view_symint(x.sym_sizes());
  }
  void send(std::int64_t /*t*/, const at::Tensor& output) override { sent_.push_back(output); }

 private:
  const RecurrentCall& call_;
  List sent_;
};

class DenseBackwardFeedback final : public BackwardFeedback {
 public:
  explicit DenseBackwardFeedback(const RecurrentBackwardCall& call)
      : call_(call), w_transposed_(call.w.t()), steps_(steps_of(call)) {}

  at::Tensor of_output(std::int64_t t, const at::Tensor& upstream) override {
    if (t + call_.delay >= steps_) return upstream;
    const at::Tensor of_current = as_fed_back(call_.start, t + call_.delay, call_.delay,
                                              received_[static_cast<std::size_t>(steps_ - 1 - t - call_.delay)]);
    const at::Tensor rows = in_rows(of_current);
    return (upstream.defined() ? at::addmm(in_rows(upstream), rows, w_transposed_) : at::mm(rows, w_transposed_))
        .view_symint(of_current.sym_sizes());
  }
  void receive(std::int64_t /*t*/, const at::Tensor& of_current) override { received_.push_back(of_current); }

 private:
  const RecurrentBackwardCall& call_;
  at::Tensor w_transposed_;
  std::int64_t steps_;
  List received_;  // from the last step to the first
};

// Runs the neuron for 0 steps, which returns its initial states as results.
MultistepResults run_no_step(const MultistepCall& call) {
  MultistepCall none = call;
  Tensors inputs;
  for (const at::Tensor& input : call.inputs) inputs.push_back(input.narrow(0, 0, 0));
  none.inputs = inputs;
  set_steps(none, call, 0, 0);
  return call_run(none);
}

}  // namespace

RecurrentResults forward_by_steps(const MultistepCall& call, std::int64_t into, Feedback& feedback, bool save) {
  const std::int64_t steps = steps_of(call);
  const std::size_t outputs = call.cell->outputs.size(), states = call.cell->states.size();
  const std::int64_t length = call.cell->checkpoint_length(dtype_of(call.inputs[0].scalar_type()));
  RecurrentResults results;
  for (std::size_t k = 0; k < outputs; ++k) results.outputs.push_back(empty_sequence(call, false));
  if (call.store_states)
    for (std::size_t s = 0; s < states; ++s) results.states.push_back(empty_sequence(call, true));
  if (save) results.current = empty_sequence(call, false);
  List checkpoints;
  Tensors now(call.states.begin(), call.states.end());
  MultistepCall step = call;
  step.store_states = false;
  for (std::int64_t t = 0; t < steps; ++t) {
    Tensors inputs = step_of(call.inputs, t);
    at::Tensor& current = inputs[static_cast<std::size_t>(into)];
    current = feedback.current(t);
    if (save) {
      results.current.narrow(0, t, 1).copy_(current);
      if (t > 0 && t % length == 0 && states > 0) checkpoints.push_back(at::stack(traced::list_of(now)));
    }
    step.inputs = inputs;
    step.states = now;
    set_steps(step, call, t, 1);
    MultistepResults of_step = call_run(step);
    for (std::size_t k = 0; k < outputs; ++k) results.outputs[k].narrow(0, t, 1).copy_(of_step.outputs[k]);
    feedback.send(t, of_step.outputs[0]);
    now = std::move(of_step.states);
    if (call.store_states)
      for (std::size_t s = 0; s < states; ++s) results.states[s].select(0, t).copy_(unless_ended(call, t, now[s]));
  }
  if (!call.store_states) results.states = steps > 0 ? std::move(now) : run_no_step(call).states;
  if (!save) return results;
  if (checkpoints.empty()) {
    c10::SymDimVector shape(call.inputs[0].sym_sizes());
    shape[0] = (std::max<std::int64_t>(steps, 1) - 1) / length;
    shape.insert(shape.begin() + 1, static_cast<std::int64_t>(states));
    results.checkpoints =
        at::empty_symint(shape, call.inputs[0].options().dtype(state_type(call.inputs[0].scalar_type())));
  } else {
    results.checkpoints = at::stack(checkpoints);
  }
  return results;
}

namespace {

// Returns the states before each step of a segment, from those before its first step.
std::vector<Tensors> states_in_segment(const BackwardCall& call, std::int64_t t0, std::int64_t t1,
                                       const Tensors& first) {
  std::vector<Tensors> before{first};
  if (t1 - t0 == 1 || call.cell->states.empty()) {
    before.resize(static_cast<std::size_t>(t1 - t0));
    return before;
  }
  MultistepCall segment = call;
  Tensors inputs;
  for (const at::Tensor& input : call.inputs) inputs.push_back(input.narrow(0, t0, t1 - t0 - 1));
  segment.inputs = inputs;
  segment.states = first;
  segment.store_states = true;
  set_steps(segment, call, t0, t1 - t0 - 1);
  const MultistepResults results = call_run(segment);
  for (std::int64_t i = 0; i < t1 - t0 - 1; ++i) {
    Tensors& states = before.emplace_back();
    for (const at::Tensor& sequence : results.states) states.push_back(sequence.select(0, i));
  }
  return before;
}

void add_to(at::Tensor& sum, const at::Tensor& more) {
  if (more.defined()) sum = sum.defined() ? sum + more : more;
}

}  // namespace

Tensors backward_by_steps(const BackwardCall& call, std::int64_t into, BackwardFeedback& feedback) {
  const std::int64_t steps = steps_of(call);
  const Cell& cell = *call.cell;
  const std::size_t inputs = cell.inputs.size(), states = cell.states.size(), params = cell.params.size();
  const std::int64_t length = cell.checkpoint_length(dtype_of(call.inputs[0].scalar_type()));
  const c10::ScalarType sum_type = state_type(call.inputs[0].scalar_type());

  Tensors grads(inputs), grad_states(states), grad_params(params);
  for (std::size_t i = 0; i < inputs; ++i)
    if (call.needs_grad[i]) grads[i] = empty_sequence(call, false);
  // The gradients of parameters, summed over the steps in the type of the arithmetic.
  Tensors wide_params;
  for (const at::Tensor& param : call.params) wide_params.push_back(param.to(sum_type));
  if (!call.store_states) grad_states = Tensors(call.grad_states.begin(), call.grad_states.end());
  const bool has_states = !traced::given_states(call).empty();

  for (std::int64_t t1 = steps; t1 > 0;) {
    const std::int64_t t0 = (t1 - 1) / length * length;
    Tensors first;
    if (t0 > 0)
      for (std::size_t s = 0; s < states; ++s)
        first.push_back(call.checkpoints.select(0, t0 / length - 1).select(0, static_cast<std::int64_t>(s)));
    else
      first = Tensors(call.states.begin(), call.states.end());
    const std::vector<Tensors> before = states_in_segment(call, t0, t1, first);
    for (std::int64_t t = t1 - 1; t >= t0; --t) {
      Tensors step_inputs = step_of(call.inputs, t), grad_outputs;
      for (const at::Tensor& grad : call.grad_outputs)
        grad_outputs.push_back(grad.defined() ? grad.narrow(0, t, 1) : grad);
      grad_outputs[0] = feedback.of_output(t, grad_outputs[0]);
      if (call.store_states)
        for (std::size_t s = 0; s < states; ++s)
          if (const at::Tensor& grad = call.grad_states[s]; grad.defined())
            add_to(grad_states[s], unless_ended(call, t, grad.select(0, t)));

      BackwardCall step;
      static_cast<MultistepCall&>(step) = call;
      step.store_states = false;
      step.inputs = step_inputs;
      set_steps(step, call, t, 1);
      step.states = before[static_cast<std::size_t>(t - t0)];
      step.params = wide_params;
      step.grad_outputs = grad_outputs;
      step.grad_states = grad_states;
      step.checkpoints = call.checkpoints.narrow(0, 0, 0);
      step.needs_grad = call.needs_grad;
      const bool given = !step.states.empty();
      for (std::size_t s = 0; s < states; ++s) step.needs_grad[inputs + s] = given;
      const ByArgument found = gradients_by_argument(step, call_run_backward(step));
      feedback.receive(t, found[static_cast<std::size_t>(into)]);
      for (std::size_t i = 0; i < inputs; ++i)
        if (call.needs_grad[i]) grads[i].narrow(0, t, 1).copy_(found[i]);
      for (std::size_t s = 0; s < states; ++s) grad_states[s] = given ? found[inputs + s] : at::Tensor();
      for (std::size_t j = 0; j < params; ++j) add_to(grad_params[j], found[inputs + states + j]);
    }
    t1 = t0;
  }

  Tensors list;
  for (std::size_t i = 0; i < inputs; ++i)
    if (call.needs_grad[i]) list.push_back(grads[i]);
  for (std::size_t s = 0; s < states; ++s)
    if (has_states && call.needs_grad[inputs + s]) {
      const at::Tensor& of = call.states[s];
      list.push_back(grad_states[s].defined() ? grad_states[s].to(of.scalar_type())
                                              : at::zeros_symint(of.sym_sizes(), of.options()));
    }
  for (std::size_t j = 0; j < params; ++j)
    if (call.needs_grad[inputs + states + j]) {
      const at::Tensor& of = call.params[j];
      list.push_back(grad_params[j].defined() ? grad_params[j].to(of.options())
                                              : at::zeros_symint(of.sym_sizes(), of.options()));
    }
  return list;
}

RecurrentResults forward_stepped(const RecurrentCall& call, bool save) {
  DenseFeedback feedback(call);
  return forward_by_steps(call, call.into, feedback, save);
}

Tensors backward_stepped(const RecurrentBackwardCall& call) {
  DenseBackwardFeedback feedback(call);
  return backward_by_steps(call, call.into, feedback);
}

}  // namespace spikeforge::ops::recurrent
