// plastic_step, plastic_step_: plastic connections with a rule as text (docs/plasticity.md).
//
// A connection from row i to column j is stored as the products store it, by `indices` and `indptr`; `by_columns` are
// the indices, indptr and slots that csr_transpose returns, for rules with "on post", else an empty list. `states` are
// those of the rule's header, [connections] each, the first of which are weights of any floating type and the others of
// the type of the arithmetic; if a state decays, they are followed by int32 [connections], the step of the last update
// of each connection. `traces` are [rows] or [cols], in the order of the header. An entry of `pre` [rows] and `post`
// [cols] is a spike if it is true, or x > 0. A step is, in this order: all traces decay; presynaptic spikes arrive, and
// then change their traces; the same for postsynaptic spikes; signals; each step. `sent`, [cols], is the sum of
// arrivals, or has no elements without `sends`. With `refresh`, decaying states are updated to this step, and nothing
// else happens. The operator whose name ends with _ changes states and traces in place.
#include "ops/common/plastic.h"
#include "csrc/jit/recorder.h"
#include "ops/common/checks.h"
#include "ops/common/fired.h"
#include "ops/common/library.h"
#include "ops/event/plastic_step.h"
#include "ops/event/product.h"

#include <ATen/Context.h>
#include <ATen/core/List.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <algorithm>
#include <tuple>

namespace spikeforge::ops::sparse {
namespace {

constexpr const char* plastic_name = "plastic_step";
using SignalList = c10::List<std::optional<at::Tensor>>;

struct PlasticArguments {
  std::string_view rule;
  at::TensorList states, traces;
  const at::Tensor& indices;
  const at::Tensor& indptr;
  at::TensorList by_columns;
  const at::Tensor& pre;
  const at::Tensor& post;
  const SignalList& signals;
  const std::optional<at::Tensor>& step;
  c10::ArrayRef<double> params;
  std::int64_t rows, cols;
  bool sends, refresh, unchecked;
};

void check_spikes(const char* name, const at::Tensor& spikes, std::int64_t count, const char* length,
                  const at::Tensor& indices) {
  TORCH_CHECK_TYPE(spikes.layout() == c10::kStrided &&
                       (spikes.scalar_type() == c10::ScalarType::Bool || is_supported(spikes.scalar_type())),
                   plastic_name, ": ", name, " must be bool or floating point, but is ", spikes.layout(), " ",
                   spikes.scalar_type());
  TORCH_CHECK_VALUE(spikes.dim() == 1 && spikes.sym_size(0) == count, plastic_name, ": ", name, " must have shape [",
                    length, "] = [", count, "], without a batch, since weights are changed in place, but has ",
                    spikes.sym_sizes());
  check_same_device(plastic_name, name, spikes, indices);
}

void check_states(const graph::Synapse& s, const PlasticArguments& call) {
  const bool decays = s.states_decay();
  const std::size_t wanted = s.states.size() + (decays ? 1 : 0);
  TORCH_CHECK_VALUE(call.states.size() == wanted, plastic_name, ": ", s.name, " has ", s.states.size(), " states",
                    decays ? " and, since a state decays, the steps of their last updates" : "", ", but ",
                    call.states.size(), " tensors are given");
  const c10::ScalarType type = call.states[0].scalar_type();
  check_floating(plastic_name, s.states[0].name.c_str(), call.states[0]);
  for (std::size_t i = 0; i < wanted; ++i) {
    const at::Tensor& state = call.states[i];
    const std::string name = i < s.states.size() ? s.states[i].name : "the steps of states";
    const c10::ScalarType own = i == 0 ? type : i < s.states.size() ? state_type(type) : at::kInt;
    TORCH_CHECK_TYPE(state.layout() == c10::kStrided && state.scalar_type() == own, plastic_name, ": ", name,
                     " must be a dense ", own, " tensor, but is ", state.layout(), " ", state.scalar_type());
    TORCH_CHECK_VALUE(state.sym_sizes() == call.indices.sym_sizes(), plastic_name, ": ", name,
                      " must have one element per connection, ", call.indices.sym_sizes(), ", but has ",
                      state.sym_sizes());
    check_same_device(plastic_name, name.c_str(), state, call.indices);
  }
}

at::ScalarType arithmetic_of(const PlasticArguments& call) { return state_type(call.states[0].scalar_type()); }

void check_traces(const graph::Synapse& s, const PlasticArguments& call) {
  TORCH_CHECK_VALUE(call.traces.size() == s.traces.size(), plastic_name, ": ", s.name, " has ", s.traces.size(),
                    " traces, but ", call.traces.size(), " tensors are given");
  const c10::ScalarType type = arithmetic_of(call);
  for (std::size_t i = 0; i < s.traces.size(); ++i) {
    const at::Tensor& trace = call.traces[i];
    const std::int64_t count = s.traces[i].after ? call.cols : call.rows;
    TORCH_CHECK_TYPE(trace.layout() == c10::kStrided && trace.scalar_type() == type, plastic_name, ": ",
                     s.traces[i].name, " must be a dense ", type, " tensor, but is ", trace.layout(), " ",
                     trace.scalar_type());
    TORCH_CHECK_VALUE(trace.dim() == 1 && trace.sym_size(0) == count, plastic_name, ": ", s.traces[i].name,
                      " must have shape [", s.traces[i].after ? "cols" : "rows", "] = [", count, "], but has ",
                      trace.sym_sizes());
    check_same_device(plastic_name, s.traces[i].name.c_str(), trace, call.indices);
  }
}

void check_by_columns(const graph::Synapse& s, const PlasticArguments& call) {
  if (!s.post && call.by_columns.empty()) return;
  TORCH_CHECK_VALUE(call.by_columns.size() == 3, plastic_name,
                    ": by_columns must be the three tensors of csr_transpose, which \"on post\" reads, but has ",
                    call.by_columns.size());
  const at::Tensor &indices = call.by_columns[0], &indptr = call.by_columns[1], &slots = call.by_columns[2];
  check_matrix(plastic_name, indices, indptr, call.cols, call.rows);
  check_same_device(plastic_name, "by_columns", indices, call.indices);
  TORCH_CHECK_TYPE(slots.scalar_type() == c10::ScalarType::Long, plastic_name, ": slots must be int64, but is ",
                   slots.scalar_type());
  TORCH_CHECK_VALUE(indices.sym_sizes() == call.indices.sym_sizes() && slots.sym_sizes() == call.indices.sym_sizes(),
                    plastic_name, ": by_columns must be csr_transpose of the matrix, with indices and slots of shape ",
                    call.indices.sym_sizes(), ", but has ", indices.sym_sizes(), " and ", slots.sym_sizes());
  check_same_device(plastic_name, "slots", slots, call.indices);
}

void check_signals(const graph::Synapse& s, const PlasticArguments& call) {
  TORCH_CHECK_VALUE(call.signals.size() <= s.signals.size(), plastic_name, ": ", s.name, " has ", s.signals.size(),
                    " signals, but ", call.signals.size(), " are given");
  const c10::ScalarType type = arithmetic_of(call);
  for (std::size_t i = 0; i < call.signals.size(); ++i) {
    const std::optional<at::Tensor> signal = call.signals.get(i);
    if (!signal) continue;
    TORCH_CHECK_TYPE(signal->layout() == c10::kStrided && signal->scalar_type() == type, plastic_name, ": ",
                     s.signals[i], " must be ", type, ", but is ", signal->layout(), " ", signal->scalar_type());
    TORCH_CHECK_VALUE(signal->dim() == 0 || (signal->dim() == 1 && signal->sym_size(0) == call.cols), plastic_name,
                      ": ", s.signals[i], " must be one number, of no dimension, or have shape [cols] = [", call.cols,
                      "], but has ", signal->sym_sizes());
    check_same_device(plastic_name, s.signals[i].c_str(), *signal, call.indices);
  }
}

void check_step(const graph::Synapse& s, const PlasticArguments& call) {
  if (!call.step) {
    TORCH_CHECK_VALUE(!s.states_decay(), plastic_name, ": step must be given, since a state of the connections decays");
    return;
  }
  TORCH_CHECK_TYPE(call.step->layout() == c10::kStrided && call.step->scalar_type() == at::kLong, plastic_name,
                   ": step must be an int64 tensor, but is ", call.step->layout(), " ", call.step->scalar_type());
  TORCH_CHECK_VALUE(call.step->dim() == 0, plastic_name, ": step must be 0-dimensional, but has shape ",
                    call.step->sym_sizes());
  TORCH_CHECK_VALUE(call.step->is_cpu() || call.step->device() == call.indices.device(), plastic_name,
                    ": step must be on the CPU or on ", call.indices.device(), ", but is on ", call.step->device());
}

// Runs all checks of a call, except of the indices of the matrix. Returns the rule.
std::shared_ptr<const plastic::Rule> check_plastic(const PlasticArguments& call) {
  std::shared_ptr<const plastic::Rule> rule = plastic::rule_of(call.rule, plastic_name);
  const graph::Synapse& s = rule->synapse;
  check_matrix(plastic_name, call.indices, call.indptr, call.rows, call.cols);
  check_states(s, call);
  check_traces(s, call);
  check_by_columns(s, call);
  check_spikes("pre", call.pre, call.rows, "rows", call.indices);
  check_spikes("post", call.post, call.cols, "cols", call.indices);
  check_step(s, call);
  check_signals(s, call);
  return rule;
}

// Throws if changed tensors share memory: results are written in place.
void check_memory(const PlasticArguments& call) {
  std::vector<at::Tensor> changed(call.states.begin(), call.states.end());
  changed.insert(changed.end(), call.traces.begin(), call.traces.end());
  for (std::size_t i = 0; i < changed.size(); ++i) {
    TORCH_CHECK_VALUE(changed[i].is_contiguous(), plastic_name,
                      ": states and traces that change in place must be contiguous, but one has strides ",
                      changed[i].strides());
    for (std::size_t j = 0; j < i; ++j)
      TORCH_CHECK_VALUE(!share_memory(changed[i], changed[j]), plastic_name,
                        ": states and traces must not share memory");
  }
}

std::vector<std::int32_t> places_of(const at::Tensor& spikes) {
  std::vector<std::int32_t> places;
  with_entries(spikes, [&](const auto* entries) {
    for_each_fired(entries, 0, spikes.numel(), [&](std::int64_t i) { places.push_back(static_cast<std::int32_t>(i)); });
  });
  return places;
}

// The tensors of a checked call. Inputs share no memory with changed tensors.
struct PlasticTensors {
  PlasticTensors(const PlasticArguments& call, const graph::Synapse& s)
      : indices(apart(call, call.indices)),
        indptr(apart(call, call.indptr)),
        pre(apart(call, call.pre)),
        post(apart(call, call.post)),
        signals(s.signals.size()),
        rows(hold_rows(indices, indptr, call.rows, call.cols)) {
    if (s.post) {
      column_indices = apart(call, call.by_columns[0]);
      column_indptr = apart(call, call.by_columns[1]);
      slots = apart(call, call.by_columns[2]);
      columns = hold_rows(column_indices, column_indptr, call.cols, call.rows);
    }
    for (std::size_t i = 0; i < call.signals.size(); ++i)
      if (const std::optional<at::Tensor> signal = call.signals.get(i)) signals[i] = apart(call, *signal);
  }
  PlasticTensors(const PlasticTensors&) = delete;
  PlasticTensors& operator=(const PlasticTensors&) = delete;

  static at::Tensor apart(const PlasticArguments& call, const at::Tensor& t) {
    for (const at::TensorList list : {call.states, call.traces})
      for (const at::Tensor& changed : list)
        if (share_memory(t, changed)) return t.clone().contiguous();
    return t.contiguous();
  }

  StoredMatrix stored(const PlasticArguments& call) const {
    return {.op = plastic_name, .indices = &indices, .indptr = &indptr, .rows = call.rows, .cols = call.cols};
  }
  StoredMatrix stored_by_columns(const PlasticArguments& call) const {
    return {.op = plastic_name,
            .indices = &column_indices,
            .indptr = &column_indptr,
            .slots = &slots,
            .rows = call.cols,
            .cols = call.rows,
            .indices_name = "by_columns[0]",
            .indptr_name = "by_columns[1]",
            .cols_name = "rows"};
  }

  const at::Tensor indices, indptr, pre, post;
  std::vector<at::Tensor> signals;  // undefined: not given
  HeldRows rows;
  at::Tensor column_indices, column_indptr, slots;  // undefined if postsynaptic spikes have no effect
  std::optional<HeldRows> columns;
};

void step_on_cpu(const PlasticArguments& given, const plastic::BoundRule& bound, const PlasticTensors& tensors,
                 const at::Tensor& sent) {
  const graph::Synapse& s = bound.synapse();
  const StoredMatrix stored = tensors.stored(given);
  check_indptr(plastic_name, tensors.rows.rows);
  if (!given.unchecked) verify(stored);
  plastic::Matrix matrix;
  matrix.rows = tensors.rows.rows;
  matrix.columns_ascend = given.sends && columns_ascend(stored);
  if (tensors.columns) {
    check_indptr(plastic_name, tensors.columns->rows);
    if (!given.unchecked) verify(tensors.stored_by_columns(given));
    matrix.columns = tensors.columns->rows;
    matrix.slots = tensors.slots.const_data_ptr<std::int64_t>();
  }
  plastic::Memory memory;
  memory.states = bound.states();
  for (std::size_t i = 0; i < s.states.size(); ++i) {
    memory.states[i].data = given.states[i].mutable_data_ptr();
    memory.states[i].type = dtype_of(given.states[i].scalar_type());
  }
  if (s.states_decay()) {
    memory.last = static_cast<std::uint32_t*>(given.states.back().mutable_data_ptr());
    memory.now = static_cast<std::uint32_t>(given.step->item<std::int64_t>());
  }
  for (std::size_t i = 0; i < s.traces.size(); ++i)
    memory.traces.push_back({given.traces[i].mutable_data_ptr(), s.traces[i].after});
  std::vector<bool> comes(s.signals.size());
  memory.signals.resize(s.signals.size());
  for (std::size_t i = 0; i < tensors.signals.size(); ++i) {
    const at::Tensor& signal = tensors.signals[i];
    if (!signal.defined()) continue;
    memory.signals[i] = {signal.const_data_ptr(), signal.dim() == 1};
    comes[i] = signal.count_nonzero().item<std::int64_t>() > 0;
  }

  plastic::Step step(bound, matrix);
  if (given.refresh) return step.refresh(memory);
  const std::vector<std::int32_t> before = places_of(tensors.pre), after = places_of(tensors.post);
  plastic::Segments arriving;
  for (const std::int32_t row : before) arriving.add(row, matrix.rows.begin(row), matrix.rows.end(row));
  step.decay(memory, false, given.rows);
  step.decay(memory, true, given.cols);
  step.arrive(memory, arriving, given.sends ? sent.mutable_data_ptr() : nullptr);
  step.change_traces(memory, false, before);
  step.fire(memory, after);
  step.change_traces(memory, true, after);
  step.modulate(memory, comes);
}

// Adds the kernels of a step to a kernel pack.
void note_step(const PlasticArguments& given, const plastic::Rule& rule, const PlasticTensors& tensors) {
  jit::note_by_arch([&](const jit::Device&, const jit::Want& want) {
    std::vector<bool> signals;
    for (const at::Tensor& signal : tensors.signals) signals.push_back(signal.defined());
    for_parts(rule, signals, given.sends, given.refresh, [&](event::PlasticPart part, std::size_t signal) {
      want(print_source(rule.synapse, part, signal, dtype_of(given.states[0].scalar_type())));
    });
    if (given.unchecked) return;
    want(print_source(check_kernel(tensors.stored(given))));
    if (tensors.columns) want(print_source(check_kernel(tensors.stored_by_columns(given))));
  });
}

#if defined(SPIKEFORGE_WITH_CUDA)
at::Tensor where_fired(const at::Tensor& spikes) { return spikes.scalar_type() == at::kBool ? spikes : spikes.gt(0); }

void step_on_gpu(const PlasticArguments& given, const plastic::BoundRule& bound, const PlasticTensors& tensors,
                 const at::Tensor& sent) {
  const graph::Synapse& s = bound.synapse();
  const auto check_count = [&](const char* what, std::size_t count, int most) {
    TORCH_CHECK_NOT_IMPLEMENTED(count <= static_cast<std::size_t>(most), plastic_name, ": on a GPU a rule has at most ",
                                most, " ", what, ", but ", s.name, " has ", count);
  };
  check_count("states", s.states.size(), event::most_plastic_states);
  check_count("traces", s.traces.size(), event::most_plastic_traces);
  check_count("parameters", s.params.size(), event::most_plastic_params);
  check_count("signals", s.signals.size(), event::most_plastic_signals);
  if (given.sends) at::globalContext().alertNotDeterministic("plastic_step with sends, on a GPU");

  GpuStep step{.rule = bound,
               .args = {},
               .weight = dtype_of(given.states[0].scalar_type()),
               .rows = tensors.rows.rows,
               .columns = tensors.columns ? &tensors.columns->rows : nullptr,
               .slots = tensors.columns ? tensors.slots.const_data_ptr<std::int64_t>() : nullptr,
               .pre = where_fired(tensors.pre),
               .post = where_fired(tensors.post),
               .comes = {},
               .sends = given.sends,
               .refresh = given.refresh};
  if (!given.unchecked) {
    step.args.refused[0] = verify_on_gpu(tensors.stored(given));
    if (tensors.columns) step.args.refused[1] = verify_on_gpu(tensors.stored_by_columns(given));
  }
  for (std::size_t i = 0; i < s.states.size(); ++i) {
    step.args.states[i] = given.states[i].mutable_data_ptr();
    step.args.log_factor[i] = bound.states()[i].log_factor;
    step.args.target[i] = bound.states()[i].target;
  }
  if (s.states_decay()) {
    step.args.last = static_cast<unsigned*>(given.states.back().mutable_data_ptr());
    if (given.step->is_cpu())
      step.args.now = *given.step->const_data_ptr<std::int64_t>();
    else
      step.args.step = static_cast<const event::Int*>(given.step->const_data_ptr());
  }
  for (std::size_t i = 0; i < s.traces.size(); ++i) step.args.traces[i] = given.traces[i].mutable_data_ptr();
  std::copy(given.params.begin(), given.params.end(), step.args.params);
  for (std::size_t i = 0; i < tensors.signals.size(); ++i) {
    const at::Tensor& signal = tensors.signals[i];
    step.comes.push_back(signal.defined() ? signal.ne(0).any() : at::Tensor());
    if (!signal.defined()) continue;
    step.args.signals[i] = signal.const_data_ptr();
    if (signal.dim() == 1) step.args.signals_of_columns |= event::Int{1} << i;
  }
  step.args.sent = given.sends ? sent.mutable_data_ptr() : nullptr;
  if (!given.refresh)
    for (const plastic::BoundRule::TraceDecay& decay : bound.trace_decays()) {
      const at::Tensor& trace = given.traces[decay.trace];
      if (decay.target == 0)
        trace.mul_(decay.factor);
      else
        trace.sub_(decay.target).mul_(decay.factor).add_(decay.target);
    }
  launch_plastic(step, given.states[0]);
}
#endif

at::Tensor plastic_step_(const PlasticArguments& given) {
  const std::shared_ptr<const plastic::Rule> rule = check_plastic(given);
  check_memory(given);
  const at::ScalarType arithmetic = arithmetic_of(given);
  const plastic::BoundRule bound(rule, given.params, dtype_of(arithmetic), plastic_name);
  const PlasticTensors tensors(given, rule->synapse);
  at::Tensor sent = at::zeros({given.sends ? given.cols : 0}, given.states[0].options().dtype(arithmetic));
  if (given.indices.is_cuda()) {
#if defined(SPIKEFORGE_WITH_CUDA)
    step_on_gpu(given, bound, tensors, sent);
#endif
  } else {
    note_step(given, *rule, tensors);
    step_on_cpu(given, bound, tensors, sent);
  }
  for (const at::TensorList list : {given.states, given.traces})
    for (const at::Tensor& changed : list)
      if (!changed.is_inference()) changed.unsafeGetTensorImpl()->bump_version();
  return sent;
}

using PlasticResults = std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>, at::Tensor>;

PlasticResults plastic_step(const PlasticArguments& given) {
  check_plastic(given);
  PlasticResults results;
  for (const at::Tensor& state : given.states)
    std::get<0>(results).push_back(state.clone(at::MemoryFormat::Contiguous));
  for (const at::Tensor& trace : given.traces)
    std::get<1>(results).push_back(trace.clone(at::MemoryFormat::Contiguous));
  PlasticArguments own = given;
  own.states = std::get<0>(results);
  own.traces = std::get<1>(results);
  std::get<2>(results) = plastic_step_(own);
  return results;
}

at::Tensor plastic_step_meta_(const PlasticArguments& given) {
  check_plastic(given);
  return at::empty({given.sends ? given.cols : 0}, given.states[0].options().dtype(arithmetic_of(given)));
}

PlasticResults plastic_step_meta(const PlasticArguments& given) {
  PlasticResults results;
  for (const at::Tensor& state : given.states)
    std::get<0>(results).push_back(at::empty_symint(state.sym_sizes(), state.options()));
  for (const at::Tensor& trace : given.traces)
    std::get<1>(results).push_back(at::empty_symint(trace.sym_sizes(), trace.options()));
  std::get<2>(results) = plastic_step_meta_(given);
  return results;
}

template <auto run>
auto plastic_kernel(std::string_view rule, at::TensorList states, at::TensorList traces, const at::Tensor& indices,
                    const at::Tensor& indptr, at::TensorList by_columns, const at::Tensor& pre, const at::Tensor& post,
                    const SignalList& signals, const std::optional<at::Tensor>& step, c10::ArrayRef<double> params,
                    std::int64_t rows, std::int64_t cols, bool sends, bool refresh, bool unchecked) {
  TORCH_CHECK_VALUE(!states.empty(), plastic_name, ": states must have a tensor for each state of the rule");
  return run({rule, states, traces, indices, indptr, by_columns, pre, post, signals, step, params, rows, cols, sends,
              refresh, unchecked});
}

SPIKEFORGE_SCHEMAS(library) {
  const std::string rest =
      "Tensor indices, Tensor indptr, Tensor[] by_columns, Tensor pre, Tensor post, Tensor?[] signals, Tensor? "
      "step=None, *, float[] params=[], int rows, int cols, bool sends=False, bool refresh=False, bool "
      "unchecked=False) "
      "-> ";
  library.def("plastic_step(str rule, Tensor[] states, Tensor[] traces, " + rest +
              "(Tensor[] states, Tensor[] traces, Tensor sent)");
  library.def("plastic_step_(str rule, Tensor(a!)[] states, Tensor(b!)[] traces, " + rest + "Tensor");
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("plastic_step", TORCH_FN(plastic_kernel<plastic_step>));
  library.impl("plastic_step_", TORCH_FN(plastic_kernel<plastic_step_>));
}

SPIKEFORGE_KERNELS(Meta, library) {
  library.impl("plastic_step", TORCH_FN(plastic_kernel<plastic_step_meta>));
  library.impl("plastic_step_", TORCH_FN(plastic_kernel<plastic_step_meta_>));
}

SPIKEFORGE_KERNELS(Autograd, library) {
  for (const char* const name : {"plastic_step", "plastic_step_"})
    library.impl(name, torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace spikeforge::ops::sparse
