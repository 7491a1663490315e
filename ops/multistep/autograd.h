// Autograd of multistep operators: one rule for all families. Only files that register Autograd kernels include this
// header, since autograd's headers compile slowly.
#pragma once

#include "csrc/kernels/multistep/traced_cell.h"
#include "ops/common/next_key.h"
#include "ops/common/packed_result.h"
#include "ops/common/recomputable.h"
#include "ops/common/record.h"
#include "ops/multistep/derivatives.h"

#include <ATen/record_function.h>
#include <c10/core/DispatchKeySet.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace spikeforge::ops {

// The lowered operators of a family, called through the dispatcher, or the kernels of a device.
struct Lowered {
  MultistepResults (*forward)(const MultistepCall&, bool save);
  Tensors (*backward)(const BackwardCall&);
};
inline constexpr Lowered cpu_kernels{forward_cpu, backward_cpu};
#ifdef SPIKEFORGE_WITH_CUDA
inline constexpr Lowered cuda_kernels{forward_cuda, backward_cuda};
#endif

namespace autograd {

template <class Predicate> bool any_tensor(const MultistepCall& call, Predicate&& is) {
  bool found = false;
  for_each_tensor(call, [&](const at::Tensor& t) { found = found || is(t); });
  return found;
}

using ops::keys_of;
inline c10::DispatchKeySet keys_of(const MultistepCall& call) {
  return keys_of(call.inputs) | keys_of(call.states) | keys_of(call.params) | keys_of(call.lengths) |
         keys_of(call.start) | keys_of(call.seed) | keys_of(call.offset);
}
inline c10::DispatchKeySet keys_of(const BackwardCall& call) {
  return keys_of(static_cast<const MultistepCall&>(call)) | keys_of(call.grad_outputs) | keys_of(call.grad_states) |
         call.checkpoints.key_set();
}

// Returns the key whose kernel the dispatcher would call. It belongs to a mode, transform, tracer or tensor subclass,
// if one intercepts the call; under a profiler it is undefined.
template <class Call> c10::DispatchKey next_key(const Call& call) {
  if (at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value()) return c10::DispatchKey::Undefined;
  return next_key_of(keys_of(call));
}

// Returns the kernels that the dispatcher would call below autograd. Without modes, transforms, tracers or profilers
// these are the device's kernels, and the dispatcher would cost 10 % of a small call.
template <const Lowered& lowered, class Call> const Lowered& below(const Call& call, c10::DispatchKey next) {
  if (next == c10::DispatchKey::CPU) return cpu_kernels;
#ifdef SPIKEFORGE_WITH_CUDA
  if (next == c10::DispatchKey::CUDA && call.inputs[0].is_cuda()) return cuda_kernels;
#endif
  return lowered;
}
template <const Lowered& lowered, class Call> const Lowered& below(const Call& call) {
  return below<lowered>(call, next_key(call));
}

inline bool any_dual(at::TensorList list) { return std::any_of(list.begin(), list.end(), has_tangent); }
// True if a backward pass with these gradients is differentiated itself.
inline bool is_differentiated(const variable_list& grads) { return at::GradMode::is_enabled() || any_dual(grads); }
inline bool any_dual(const BackwardCall& call) {
  return any_tensor(call, has_tangent) || any_dual(call.grad_outputs) || any_dual(call.grad_states);
}

// Saves the text of a cell, which autograd can compare and copy, rather than a reference to the cell: if the cell is
// dropped meanwhile, it is created again.
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

// All of a call except its tensors and text, as one list of numbers that autograd saves for the backward pass.
// Predefined cells are saved by number, so that no surrogate's name is parsed again.
class SavedCall {
 public:
  static constexpr int lengths = 1, start = 2, seed = 4, offset = 8;

  static c10::List<double> pack(const MultistepCall& call) {
    c10::List<double> list;
    list.reserve(8 + call.surrogate_args.size() + call.cell->arguments() + call.numbers.size());
    list.push_back(static_cast<double>(call.cell->number));
    list.push_back(call.form.hard_reset);
    list.push_back(call.form.detach_reset);
    list.push_back(call.form.spiking);
    list.push_back(call.form.decay_input);
    list.push_back(static_cast<double>(call.form.surrogate));
    list.push_back(call.store_states);
    list.push_back((call.lengths.defined() ? lengths : 0) + (call.start.defined() ? start : 0) +
                   (call.seed.defined() ? seed : 0) + (call.offset.defined() ? offset : 0));
    for (const double arg : call.surrogate_args) list.push_back(arg);
    for_each_argument(call, [&](const at::Tensor& t) { list.push_back(t.defined()); });
    for (const double number : call.numbers) list.push_back(number);
    return list;
  }

  // Restores `call`, which then points into this object.
  SavedCall(AutogradContext* ctx, MultistepCall& call) {
    find_neuron(ctx, call);
    const std::vector<double> list = ctx->saved_data.at("call").toDoubleVector();
    std::size_t read = 0;
    const auto next = [&] { return list[read++]; };
    const auto number = static_cast<std::size_t>(next());
    if (call.cell == nullptr) call.cell = &cell_of_number(number);
    call.form.hard_reset = next() != 0;
    call.form.detach_reset = next() != 0;
    call.form.spiking = next() != 0;
    call.form.decay_input = next() != 0;
    call.form.surrogate = static_cast<SurrogateKind>(next());
    call.store_states = next() != 0;
    others_ = static_cast<int>(next());
    for (double& arg : call.surrogate_args) arg = next();
    for (std::size_t i = 0; i < call.cell->arguments(); ++i) given_.push_back(next() != 0);
    while (read < list.size()) numbers_.push_back(next());
    call.numbers = numbers_;
  }
  SavedCall(const SavedCall&) = delete;
  SavedCall& operator=(const SavedCall&) = delete;

  // True if the call has a tensor for an input, a state or a parameter, counted in this order.
  bool given(std::size_t argument) const { return given_[argument]; }
  // True if the call has lengths, starts, a seed, or an offset.
  bool has(int what) const { return (others_ & what) != 0; }

 private:
  int others_ = 0;
  c10::SmallVector<bool, 16> given_;
  c10::SmallVector<double, 10> numbers_;
};

// The saved form of a call, from which the call is restored.
class Kept {
 public:
  // `tensors` are those of the call, followed by others. Its first input may be recomputed.
  static void save(AutogradContext* ctx, const MultistepCall& call, variable_list tensors) {
    ctx->set_materialize_grads(false);
    if (!tensors.empty()) tensors[0] = Recomputed::keep(ctx, first_input, tensors[0]);
    for (const at::Tensor* t : {&call.lengths, &call.start, &call.seed, &call.offset})
      if (t->defined()) tensors.push_back(*t);
    ctx->save_for_backward(std::move(tensors));
    ctx->saved_data["call"] = SavedCall::pack(call);
    save_neuron(ctx, call);
  }

  explicit Kept(AutogradContext* ctx) : saved_(ctx, call), tensors_(ctx->get_saved_variables()) {
    if (saved_.has(SavedCall::offset)) call.offset = taken_from_end();
    if (saved_.has(SavedCall::seed)) call.seed = taken_from_end();
    if (saved_.has(SavedCall::start)) call.start = taken_from_end();
    if (saved_.has(SavedCall::lengths)) call.lengths = taken_from_end();
    arguments_.resize(call.cell->arguments());
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      wanted_.push_back(given(i) && ctx->needs_input_grad(count_));
      if (given(i)) arguments_[i] = tensors_[count_++];
    }
    arguments_[0] = Recomputed::restored(ctx, first_input, arguments_[0]);
    set_tensors(call, arguments_);
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  BackwardCall call;

  bool given(std::size_t argument) const { return saved_.given(argument); }
  std::size_t count() const { return count_; }                          // the number of the call's tensors
  const variable_list& tensors() const { return tensors_; }             // as they were saved
  const c10::SmallVector<bool, 16>& wanted() const { return wanted_; }  // by argument: true if its gradient is needed

  // Returns one gradient for each tensor of the call.
  variable_list placed(at::ArrayRef<at::Tensor> by_argument) const {
    variable_list list;
    list.reserve(count_);
    for (std::size_t i = 0; i < arguments_.size(); ++i)
      if (given(i)) list.push_back(by_argument[i]);
    return list;
  }

 private:
  static constexpr const char* first_input = "first_input";

  at::Tensor taken_from_end() {
    at::Tensor last = std::move(tensors_.back());
    tensors_.pop_back();
    return last;
  }

  SavedCall saved_;
  variable_list tensors_;
  ByArgument arguments_;
  c10::SmallVector<bool, 16> wanted_;
  std::size_t count_ = 0;
};

template <const Lowered& lowered> struct MultistepRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    Kept kept(ctx);
    BackwardCall& call = kept.call;
    call.needs_grad = kept.wanted();
    call.checkpoints = kept.tensors().back();
    call.grad_outputs = at::TensorList(grads).slice(0, call.cell->outputs.size());
    call.grad_states = at::TensorList(grads).slice(call.cell->outputs.size(), call.cell->states.size());
    return kept.placed(gradients_by_argument(call, run_backward(call)));
  }

 private:
  // Skips autograd's kernel of the backward operator unless the backward pass is differentiated, because it would take
  // longer than the rest of the call.
  static Tensors run_backward(const BackwardCall& call) {
    if (at::GradMode::is_enabled() || any_dual(call)) return lowered.backward(call);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return below<lowered>(call).backward(call);
  }
};

// The derivative of the backward pass.
struct BackwardRule {
  static constexpr bool is_traceable = true;

  static void save(AutogradContext* ctx, const BackwardCall& call, variable_list given) {
    Kept::save(ctx, call, std::move(given));
    c10::List<bool> requested, came;
    for (const bool needs : call.needs_grad) requested.push_back(needs);
    for (const at::TensorList list : {call.grad_outputs, call.grad_states})
      for (const at::Tensor& grad : list) came.push_back(grad.defined());
    ctx->saved_data["requested"] = std::move(requested);
    ctx->saved_data["came"] = std::move(came);
  }

  // `directions` are the upstream gradients of the computed gradients (u in derivatives.h).
  static variable_list backward(AutogradContext* ctx, const variable_list& directions) {
    const Kept kept(ctx);
    const c10::List<bool> requested = ctx->saved_data.at("requested").toBoolList(),
                          came = ctx->saved_data.at("came").toBoolList();
    ByArgument tangents(requested.size());
    auto direction = directions.begin();
    for (std::size_t i = 0; i < tangents.size(); ++i)
      if (requested.get(i)) tangents[i] = *direction++;
    Tensors grads;
    std::size_t count = kept.count();
    bool wants_grads = false;
    for (std::size_t k = 0; k < came.size(); ++k) {
      wants_grads = wants_grads || (came.get(k) && ctx->needs_input_grad(count));
      grads.push_back(came.get(k) ? kept.tensors()[count++] : at::Tensor());
    }
    const auto is_defined = [](const at::Tensor& t) { return t.defined(); };
    if (std::none_of(tangents.begin(), tangents.end(), is_defined)) return variable_list(count);

    ByArgument by_argument(tangents.size());
    const auto& wanted = kept.wanted();
    if (std::any_of(wanted.begin(), wanted.end(), [](bool is) { return is; }))
      by_argument = gradients_with_tangents(kept.call, tangents, Tensors(grads.size()), grads, wanted);
    variable_list list = kept.placed(by_argument);
    if (!wants_grads) {
      list.resize(count);
      return list;
    }
    const Tangents results = run_with_tangents(kept.call, tangents);
    for (std::size_t k = 0; k < came.size(); ++k)
      if (came.get(k))
        list.push_back(k < results.outputs.size() ? results.outputs[k] : results.states[k - results.outputs.size()]);
    return list;
  }
};

// A call at the values of dual tensors.
template <class Call> class AtValues {
 public:
  explicit AtValues(const Call& duals) : call(duals) {
    for (const at::Tensor& t : tensors_of(duals)) {
      values_.push_back(value_of(t));
      tangents.push_back(tangent_of(t));
    }
    set_tensors(call, values_);
  }
  AtValues(const AtValues&) = delete;
  AtValues& operator=(const AtValues&) = delete;

  static at::Tensor value_of(const at::Tensor& t) { return t.defined() ? t._fw_primal(/*level=*/0) : t; }
  static at::Tensor tangent_of(const at::Tensor& t) { return has_tangent(t) ? t._fw_grad(/*level=*/0) : at::Tensor(); }

  Call call;
  ByArgument tangents;

 private:
  ByArgument values_;
};

inline void set_tangents(Tensors& results, const Tensors& tangents) {
  for (std::size_t i = 0; i < results.size(); ++i)
    results[i]._set_fw_grad(tangents[i], /*level=*/0, /*is_inplace_op=*/false);
}

inline void set_tangents(MultistepResults& results, const Tangents& of) {
  set_tangents(results.outputs, of.outputs);
  set_tangents(results.states, of.states);
}

// Returns the defined tensors of a call.
inline variable_list given_tensors(const MultistepCall& call) {
  variable_list given;
  given.reserve(call.cell->arguments());
  for_each_tensor(call, [&](const at::Tensor& t) { given.push_back(t); });
  return given;
}

// Saves the first output as bits, and packs it if the lowered operator has not done so.
template <class Rule> void keep_bits(PackedResultNode<Rule>& node, std::int64_t bits, const MultistepResults& results) {
  if (bits == 0) return;
  const bool is_packed = results.packed.numbers.defined();
  node.keep(is_packed ? results.packed : call_pack(results.outputs[0], bits), bits);
}

template <const Lowered& lowered> MultistepResults recorded(const MultistepCall& call) {
  const variable_list given = given_tensors(call);
  MultistepResults results;
  using Rule = MultistepRule<lowered>;
  using Node = PackedResultNode<Rule>;
  record<Rule, Node>(given, [&](Node& node) {
    results = below<lowered>(call).forward(call, /*save=*/true);
    variable_list saved;
    saved.reserve(given.size() + 1);
    saved.assign(given.begin(), given.end());
    saved.push_back(results.checkpoints);
    Kept::save(&node.ctx_, call, std::move(saved));
    keep_bits(node, call.bits, results);
    Tensors all = results.outputs;
    all.append(results.states.begin(), results.states.end());
    return all;
  });
  return results;
}

}  // namespace autograd

// The Autograd kernel of the public operators and of the lowered forward operators, which transforms call inside each
// other.
template <const Lowered& lowered> MultistepResults forward_autograd(const MultistepCall& call, bool save) {
  using namespace autograd;
  const bool is_recorded =
      at::GradMode::is_enabled() && any_tensor(call, [](const at::Tensor& t) { return t.requires_grad(); });
  if (any_tensor(call, has_tangent)) {
    const AtValues<MultistepCall> at(call);
    Tangents with_tangents = run_with_tangents(at.call, at.tangents);
    MultistepResults& values = with_tangents.values;
    // A node saves tensors with their tangents, so that gradients have tangents too.
    if (is_recorded)
      values = recorded<lowered>(call);
    else if (save)
      values.checkpoints = lowered.forward(at.call, save).checkpoints;
    set_tangents(values, with_tangents);
    return std::move(values);
  }
  if (is_recorded) return recorded<lowered>(call);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return below<lowered>(call).forward(call, save);
}

template <const Lowered& lowered> MultistepResults run_autograd(const MultistepCall& call) {
  return forward_autograd<lowered>(call, /*save=*/false);
}

// Calls a public operator from C++: directly to the Autograd kernel, or to the device's kernel below it, if nothing
// intercepts calls; otherwise through the dispatcher.
template <const Lowered& lowered>
MultistepResults call_at_once(const MultistepCall& call, MultistepResults (*dispatched)(const MultistepCall&)) {
  const c10::DispatchKey next = autograd::next_key(call);
  if (next == c10::DispatchKey::AutogradCPU || next == c10::DispatchKey::AutogradCUDA)
    return run_autograd<lowered>(call);
  const Lowered& below = autograd::below<lowered>(call, next);
  return &below == &lowered ? dispatched(call) : below.forward(call, /*save=*/false);
}

// The Autograd kernel of the lowered backward operators.
template <const Lowered& lowered> Tensors backward_autograd(const BackwardCall& call) {
  using namespace autograd;
  Tensors grads(call.grad_outputs.begin(), call.grad_outputs.end());
  grads.append(call.grad_states.begin(), call.grad_states.end());
  if (any_dual(call)) {
    AtValues<BackwardCall> at(call);
    Tensors values, tangents;
    for (const at::Tensor& grad : grads) {
      values.push_back(at.value_of(grad));
      tangents.push_back(at.tangent_of(grad));
    }
    const at::TensorList all = values;
    at.call.grad_outputs = all.slice(0, call.grad_outputs.size());
    at.call.grad_states = all.slice(call.grad_outputs.size());
    Tensors results = lowered.backward(at.call), rates;
    for (at::Tensor& rate : gradients_with_tangents(at.call, at.tangents, tangents, values, call.needs_grad))
      if (rate.defined()) rates.push_back(std::move(rate));
    set_tangents(results, rates);
    return results;
  }
  variable_list given = given_tensors(call);
  std::copy_if(grads.begin(), grads.end(), std::back_inserter(given), [](const at::Tensor& t) { return t.defined(); });
  if (std::none_of(given.begin(), given.end(), wants_gradient)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return lowered.backward(call);
  }
  return record<BackwardRule>(given, [&](AutogradContext* ctx) {
    Tensors results = lowered.backward(call);
    BackwardRule::save(ctx, call, given);
    return results;
  });
}

}  // namespace spikeforge::ops
