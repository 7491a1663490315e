// A layer with sparse connections, composed of existing operators: `run`, one step at a time, and the products of
// ops/event.
//
// In the forward pass, the output of step t is added to the currents of the following max_delay steps, which are in the
// ring of csr_deliver, together with the inputs. In the backward pass, the gradients of the currents are [step, neuron,
// sample], so that those of the following max_delay steps are the columns of one matrix: a connection with delay d to
// neuron j leads to row (d - 1) * H + j of the window, in every step.
#include "ops/recurrent/sparse.h"
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/common/verified.h"
#include "ops/recurrent.h"
#include "ops/recurrent/stepped.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <c10/core/DeviceGuard.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace spikeforge::ops::recurrent {
namespace {

using sparse::Values;

// Sizes of a call whose sizes are known.
struct Sizes {
  explicit Sizes(const MultistepCall& call)
      : steps(call.inputs[0].size(0)),
        width(call.inputs[0].size(-1)),
        samples(c10::multiply_integers(call.inputs[0].sizes().slice(1, call.inputs[0].dim() - 2))) {}
  std::int64_t steps, width, samples;
};

c10::ScalarType sum_type(const MultistepCall& call) { return state_type(call.inputs[0].scalar_type()); }

StoredMatrix stored_matrix(const Connections& connections, std::int64_t width) {
  return {.op = sparse_op,
          .indices = &connections.indices,
          .indptr = &connections.indptr,
          .delays = &connections.delays,
          .rows = width,
          .cols = width,
          .ring = connections.max_delay + 1};
}

// Returns whether each sample restarts at step t, [samples].
at::Tensor restarts_of(const MultistepCall& call, std::int64_t t) {
  std::vector<std::int64_t> sizes = call.inputs[0].sizes().slice(1).vec();  // [*batch, H]
  sizes.back() = 1;
  return call.start.select(0, t).expand(sizes).flatten();
}

// ---- the forward pass ----

class SparseFeedback final : public Feedback {
 public:
  explicit SparseFeedback(const SparseCall& call)
      : call_(call),
        sizes_(call),
        slots_(call.connections.max_delay + 1),
        x_(call.inputs[static_cast<std::size_t>(call.into)].reshape({sizes_.steps, sizes_.samples, sizes_.width})),
        step_(at::zeros({}, at::kLong)),
        ring_(at::zeros({slots_, sizes_.samples, sizes_.width},
                        call.inputs[0].options().dtype(sum_type(call)).memory_format(std::nullopt))) {
    const std::int64_t first = std::min(slots_, sizes_.steps);
    ring_.narrow(0, 0, first).copy_(x_.narrow(0, 0, first));
    if (call.spikes.defined())
      for (std::int64_t k = 0; k < slots_ - 1; ++k) send(k + 1 - slots_, call.spikes.select(0, k));
  }

  at::Tensor current(std::int64_t t) override {
    if (call_.start.defined()) {  // what was sent before a restart does not arrive
      const at::Tensor restarts = restarts_of(call_, t).view({1, sizes_.samples, 1});
      for (std::int64_t s = t, end = std::min(t + slots_, sizes_.steps); s < end;) {  // up to two contiguous parts
        const std::int64_t slot = s % slots_, count = std::min(end - s, slots_ - slot);
        const at::Tensor part = ring_.narrow(0, slot, count);
        part.copy_(at::where(restarts, x_.narrow(0, s, count), part));
        s += count;
      }
    }
    return ring_.select(0, t % slots_)
        .to(call_.inputs[0].scalar_type())
        .view(call_.inputs[0].sizes().slice(1))
        .unsqueeze(0);
  }
  // The step may be before the first one.
  void send(std::int64_t t, const at::Tensor& output) override {
    const std::int64_t next = t + slots_;  // in the same slot
    if (next < sizes_.steps) ring_.select(0, next % slots_).copy_(x_.select(0, next));
    const Connections& c = call_.connections;
    step_.fill_(next);
    sparse::deliver_({c.weights, c.indices, c.indptr, sizes_.width, sizes_.width, c.values, ring_.is_cpu()},
                     output.reshape({sizes_.samples, sizes_.width}), c.delays, ring_, step_);
  }

 private:
  const SparseCall& call_;
  const Sizes sizes_;
  const std::int64_t slots_;
  const at::Tensor x_;
  const at::Tensor step_;
  const at::Tensor ring_;  // [slot, sample, neuron]: the current of step t is in slot t % slots
};

// ---- the backward pass ----

class SparseBackwardFeedback final : public BackwardFeedback {
 public:
  explicit SparseBackwardFeedback(const SparseBackwardCall& call)
      : call_(call),
        sizes_(call),
        delay_(call.connections.max_delay),
        options_(call.inputs[0].options().dtype(sum_type(call)).memory_format(std::nullopt)),
        grads_(at::zeros({2 * delay_ + rows_between_moves, sizes_.width, sizes_.samples}, options_)),
        first_(grads_.size(0) - delay_) {
    const Connections& c = call.connections;
    TORCH_CHECK_VALUE(delay_ * sizes_.width <= std::numeric_limits<std::int32_t>::max(), sparse_op,
                      ": max_delay times the number of neurons must be below 2^31, but is ", delay_, " x ",
                      sizes_.width);
    targets_ = c.delays.to(at::kLong).sub(1).mul(sizes_.width).add(c.indices).to(at::kInt);
    weights_ = c.are_homogeneous() ? at::ones({1}, options_) : c.weights.to(options_.dtype());
    if (call.wants_weights)
      of_weights = at::zeros(c.are_homogeneous() ? at::IntArrayRef({1}) : c.indices.sizes(), options_);
  }

  at::Tensor of_output(std::int64_t t, const at::Tensor& upstream) override {
    const at::Tensor grad = sent(call_.output.select(0, t)).to(call_.inputs[0].scalar_type());
    return upstream.defined() ? upstream + grad.view_as(upstream)
                              : grad.view(call_.inputs[0].sizes().slice(1)).unsqueeze(0);
  }
  void receive(std::int64_t t, const at::Tensor& of_current) override {
    next_row().copy_(of_current.reshape({sizes_.samples, sizes_.width}).t());
    if (!call_.start.defined()) return;
    const at::Tensor restarts = restarts_of(call_, t).view({1, 1, sizes_.samples});
    grads_.narrow(0, first_, delay_).masked_fill_(restarts, 0);
  }

  // Returns the gradient of the spikes before the first step, and adds their part to that of the weights.
  at::Tensor of_spikes() {
    at::Tensor found = at::empty_like(call_.spikes, at::MemoryFormat::Contiguous);
    for (std::int64_t k = delay_ - 1; k >= 0; --k) {
      const at::Tensor output = call_.spikes.select(0, k);
      found.select(0, k).copy_(sent(output).view_as(output));
      next_row().zero_();
    }
    return found;
  }

  at::Tensor of_weights;  // undefined if it is not wanted

 private:
  static constexpr std::int64_t rows_between_moves = 64;

  // Moves the window by one step back, and returns its first row.
  at::Tensor next_row() {
    if (first_ == 0) {
      first_ = grads_.size(0) - delay_;
      grads_.narrow(0, first_, delay_).copy_(grads_.narrow(0, 0, delay_));
    }
    return grads_.select(0, --first_);
  }

  // Returns the gradient of the output [samples, H] of the step before the window, and adds to the gradient of weights.
  at::Tensor sent(const at::Tensor& output) {
    const Connections& c = call_.connections;
    const at::Tensor window = grads_.narrow(0, first_, delay_).view({delay_ * sizes_.width, sizes_.samples});
    const sparse::CsrMatrix matrix{weights_,       targets_,       c.indptr, sizes_.width, delay_ * sizes_.width,
                                   Values::number, grads_.is_cpu()};
    // Returns the output as [H, samples].
    const auto entries = [&] { return output.reshape({sizes_.samples, sizes_.width}).t().contiguous(); };
    if (!c.are_homogeneous())
      return (of_weights.defined() ? sparse::product_and_weight_grad(matrix, window, entries(), c.values, of_weights)
                                   : sparse::product(matrix, window))
          .t();
    const at::Tensor products = sparse::product(matrix, window);
    if (of_weights.defined())
      of_weights += (sparse::counted(entries(), c.values, options_.dtype().toScalarType()) * products).sum();
    return (products * c.weights.to(options_.dtype())).t();
  }

  const SparseBackwardCall& call_;
  const Sizes sizes_;
  const std::int64_t delay_;
  const at::TensorOptions options_;
  const at::Tensor grads_;  // of the currents, [step, H, samples]: a window of max_delay steps, and earlier steps
  std::int64_t first_;      // row of the window
  at::Tensor targets_;      // of the connections, within a window of max_delay steps
  at::Tensor weights_;
};

}  // namespace

void check(const SparseCall& call) {
  refuse_draws(*call.cell, sparse_op);
  check_arguments(call);
  check_recurrent(sparse_op, call, call.into);
  const Connections& c = call.connections;
  const at::Tensor& x = call.inputs[0];
  const Leader leader{sparse_op, call.cell->inputs[0].c_str(), x};
  const c10::SymInt width = x.sym_size(-1);
  TORCH_CHECK_VALUE(c.indptr.dim() != 1 || c.indptr.sym_size(0) == width + 1, sparse_op, ": ", leader.name,
                    " must have one neuron in its last dimension for each row of the matrix, ",
                    c.indptr.sym_size(0) - 1, ", but has shape ", x.sym_sizes());
  sparse::check_matrix(sparse_op, c.indices, c.indptr, width, width);
  TORCH_CHECK_VALUE(c.max_delay >= 1 && c.max_delay < (1 << 30), sparse_op,
                    ": max_delay must be 1 or more steps, and below 2^30, but is ", c.max_delay);
  TORCH_CHECK_VALUE(c.are_homogeneous() || c.weights.sym_sizes() == c.indices.sym_sizes(), sparse_op,
                    ": weights must have one element, or one for each connection, ", c.indices.sym_sizes(),
                    ", but has shape ", c.weights.sym_sizes());
  TORCH_CHECK_TYPE(is_supported(c.weights.scalar_type()) && state_type(c.weights.scalar_type()) == sum_type(call),
                   sparse_op, ": weights must have the type of ", leader.name, ", ", x.scalar_type(),
                   ", or a half type with float32, but is ", c.weights.scalar_type());
  TORCH_CHECK_TYPE(c.delays.scalar_type() == at::kByte || c.delays.scalar_type() == at::kInt, sparse_op,
                   ": delays must be uint8 or int32, but is ", c.delays.scalar_type());
  TORCH_CHECK_VALUE(c.delays.sym_numel() == 1 || c.delays.sym_sizes() == c.indices.sym_sizes(), sparse_op,
                    ": delays must have one element, or one for each connection, ", c.indices.sym_sizes(),
                    ", but has shape ", c.delays.sym_sizes());
  for (const auto& [name, t] : {std::pair("weights", &c.weights), std::pair("indices", &c.indices),
                                std::pair("indptr", &c.indptr), std::pair("delays", &c.delays)}) {
    check_dense(sparse_op, name, *t);
    check_device(leader, name, *t);
  }
  check_spikes(sparse_op, call, call.spikes, c.max_delay);
}

RecurrentResults forward_sparse(const SparseCall& call, bool save) {
  const Connections& c = call.connections;
  const c10::DeviceGuard guard(call.inputs[0].device());
  if (c.indices.is_cpu()) {
    if (c.delays.numel() > 0) {
      const auto [first, last] = at::aminmax(c.delays);
      const auto least = first.item<std::int64_t>(), most = last.item<std::int64_t>();
      TORCH_CHECK_VALUE(least >= 1 && most <= c.max_delay, sparse_op, ": delays must be from 1 to max_delay, ",
                        c.max_delay, ", but are from ", least, " to ", most);
    }
    verify(stored_matrix(c, call.inputs[0].size(-1)));
  }
  SparseFeedback feedback(call);
  return forward_by_steps(call, call.into, feedback, save);
}

Tensors backward_sparse(const SparseBackwardCall& call) {
  const c10::DeviceGuard guard(call.inputs[0].device());
  SparseBackwardFeedback feedback(call);
  Tensors list = backward_by_steps(call, call.into, feedback);
  at::Tensor of_spikes;
  if (call.spikes.defined() && (call.wants_spikes || call.wants_weights)) of_spikes = feedback.of_spikes();
  if (call.wants_weights)
    list.push_back(feedback.of_weights.to(call.connections.weights.scalar_type()).view_as(call.connections.weights));
  if (call.wants_spikes) list.push_back(of_spikes);
  return list;
}

RecurrentResults forward_sparse_meta(const SparseCall& call, bool save) {
  return allocate(call, prepare_samples<c10::SymInt>(call), save);
}

Tensors backward_sparse_meta(const SparseBackwardCall& call) {
  Tensors list = reduce_and_list(call, check_and_allocate(call, prepare_samples<c10::SymInt>(call)));
  if (call.wants_weights) list.push_back(at::empty_like(call.connections.weights));
  if (call.wants_spikes) list.push_back(at::empty_like(call.spikes));
  return list;
}

namespace {

// `indices`, `indptr` are a matrix [H, H] in CSR form, whose row i contains the connections from neuron i; delays are 1
// to max_delay; `spikes` [max_delay, *batch, H] are those before the first step. The lowered operators are like those
// of recurrent_run.
SPIKEFORGE_SCHEMAS(library) {
  const std::string matrix = "Tensor weights, Tensor indices, Tensor indptr, Tensor delays, ";
  const std::string options = "int max_delay=1, int into=0, str values=\"event\", bool store_states=False, ";
  const std::string samples = "Tensor? lengths=None, Tensor? start=None";
  library.def("sparse_recurrent_run(str neuron, Tensor[] inputs, " + matrix +
              "Tensor[] states, Tensor[] params, Tensor? spikes=None, *, " + options + samples +
              ") -> (Tensor[] outputs, Tensor[] states)");
  library.def("sparse_recurrent_run_forward(str neuron, Tensor[] arguments, " + matrix + "Tensor? spikes, *, " +
              options + "bool save=False, " + samples + ") -> (Tensor[] outputs, Tensor[] states, Tensor[] saved)");
  library.def("sparse_recurrent_run_backward(str neuron, Tensor?[] grads, Tensor[] arguments, Tensor output, " +
              matrix + "Tensor? spikes, Tensor checkpoints, bool[] needs_grad, *, " + options + samples +
              ") -> Tensor[]");
}

using SparseForward = decltype(sparse_forward_kernel<forward_sparse>);
using SparseBackward = decltype(sparse_backward_kernel<backward_sparse>);

RecurrentResults run_inference(const SparseCall& call) { return call_forward(call, /*save=*/false); }

template <RecurrentResults (*forward)(const SparseCall&, bool), Tensors (*backward)(const SparseBackwardCall&)>
void register_lowered(torch::Library& library) {
  library.impl("sparse_recurrent_run_forward", TORCH_FN(sparse_forward_kernel<forward>));
  library.impl("sparse_recurrent_run_backward", TORCH_FN(sparse_backward_kernel<backward>));
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("sparse_recurrent_run", TORCH_FN(sparse_kernel<run_inference>));
}
// Handles a call without any tensor, for which there is no other kernel, so that it raises an error.
SPIKEFORGE_KERNELS(Undefined, library) { library.impl("sparse_recurrent_run", TORCH_FN(sparse_kernel<run_inference>)); }
SPIKEFORGE_KERNELS(CPU, library) { register_lowered<forward_sparse, backward_sparse>(library); }
SPIKEFORGE_KERNELS(Meta, library) { register_lowered<forward_sparse_meta, backward_sparse_meta>(library); }
#if defined(SPIKEFORGE_WITH_CUDA)
SPIKEFORGE_KERNELS(CUDA, library) { register_lowered<forward_sparse, backward_sparse>(library); }
#endif

}  // namespace

RecurrentResults call_forward(const SparseCall& call, bool save) {
  static const auto handle = find_operator<SparseForward>("spikeforge::sparse_recurrent_run_forward");
  const Connections& c = call.connections;
  return raised(handle.call(traced::LoweredText(call).text(), arguments_of(call), c.weights, c.indices, c.indptr,
                            c.delays, maybe(call.spikes), c.max_delay, call.into, event::name_of(c.values),
                            call.store_states, save, maybe(call.lengths), maybe(call.start)));
}

Tensors call_backward(const SparseBackwardCall& call) {
  static const auto handle = find_operator<SparseBackward>("spikeforge::sparse_recurrent_run_backward");
  const Connections& c = call.connections;
  c10::List<bool> needs_grad = traced::needs_grad_of_given(call);
  needs_grad.push_back(call.wants_weights);
  needs_grad.push_back(call.wants_spikes);
  return traced::tensors_of(handle.call(traced::LoweredText(call).text(), upstream_of(call), arguments_of(call),
                                        call.output, c.weights, c.indices, c.indptr, c.delays, maybe(call.spikes),
                                        call.checkpoints, needs_grad, c.max_delay, call.into, event::name_of(c.values),
                                        call.store_states, maybe(call.lengths), maybe(call.start)));
}

}  // namespace spikeforge::ops::recurrent

namespace spikeforge {

std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>> sparse_recurrent_run(
    const Neuron& neuron, at::TensorList inputs, const SparseConnections& connections, at::TensorList states,
    at::TensorList params, const RecurrentOptions& options) {
  static const auto handle = ops::find_operator<ops::recurrent::SparseRun>("spikeforge::sparse_recurrent_run");
  const SparseConnections& c = connections;
  return handle.call(neuron.text(), inputs, c.weights, c.indices, c.indptr, c.delays, states, params, options.spikes,
                     c.max_delay, options.into, c.values, options.store_states, options.lengths, options.start);
}

}  // namespace spikeforge
