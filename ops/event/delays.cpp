// Products with a delay for each connection, and the sums that arrive.
//
// Sums that arrive at step t are in buffer[t % slots]: an event of step t through a connection of delay d is added to
// buffer[(t + d) % slots], with 0 <= d < slots. buffer is [slots, *batch, out] of the weights' type, float32 with half
// types; delays are uint8 or int32, one per connection or one for all; step is int64, on the CPU or the buffer's
// device, where kernels read it: a captured CUDA graph may advance it. A negative step delivers nothing on a GPU, and
// raises an error if the host can read it. Operators whose names end with _ change the buffer in place. The rest is as
// for event_csrmv.
#include "ops/event/delays.h"
#include "csrc/kernels/event/note.h"
#include "ops/common/checks.h"
#include "ops/common/library.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/InferenceMode.h>

namespace spikeforge::ops::sparse {
namespace {

constexpr std::int64_t most_slots = 1 << 30;  // so that step % slots + delay is an int32

void check_buffer(const char* op, const at::Tensor& buffer) {
  TORCH_CHECK_TYPE(
      buffer.layout() == c10::kStrided &&
          (buffer.scalar_type() == c10::ScalarType::Float || buffer.scalar_type() == c10::ScalarType::Double),
      op, ": buffer must be a dense float32 or float64 tensor, but is ", buffer.layout(), " ", buffer.scalar_type());
  TORCH_CHECK_VALUE(buffer.dim() >= 2 && buffer.sym_size(0) >= 1 && buffer.sym_size(0) <= most_slots, op,
                    ": buffer must have shape [slots, *batch, neurons] with 1 to 2^30 slots, but has ",
                    buffer.sym_sizes());
}

void check_step(const char* op, const at::Tensor& step, const at::Tensor& buffer) {
  TORCH_CHECK_TYPE(step.layout() == c10::kStrided && step.scalar_type() == c10::ScalarType::Long, op,
                   ": step must be an int64 tensor, but is ", step.layout(), " ", step.scalar_type());
  TORCH_CHECK_VALUE(step.dim() == 0, op, ": step must be 0-dimensional, but has shape ", step.sym_sizes());
  TORCH_CHECK_VALUE(step.is_cpu() || step.device() == buffer.device(), op, ": step must be on the CPU or on ",
                    buffer.device(), ", the device of buffer, but is on ", step.device());
  if (!step.is_cpu()) return;
  const std::int64_t number = *step.const_data_ptr<std::int64_t>();
  TORCH_CHECK_VALUE(number >= 0, op, ": step must be 0 or more, but is ", number);
}

void deliver_(const DeliverCall& call) {
  check_deliver(call);
  const auto& [weights, indices, indptr, x, options] = call.product;
  const ChangedBuffer changed(call.name(), call.buffer);
  const at::Tensor own_weights = changed.apart(weights).contiguous(), own_indices = changed.apart(indices),
                   own_x = changed.apart(x).contiguous(), own_delays = changed.apart(call.delays),
                   own_step = changed.apart(call.step);
  const std::optional<at::Tensor> own_indptr = indptr ? std::optional(changed.apart(*indptr)) : std::nullopt;
  const DeliverCall dense{
      {own_weights, own_indices, own_indptr, own_x, options}, own_delays, changed.contiguous(), own_step};
  if (call.buffer.is_cuda()) {
#if defined(SPIKEFORGE_WITH_CUDA)
    deliver_cuda(dense);
#endif
  } else {
    deliver_cpu(dense);
  }
  changed.write_back();
}

at::Tensor take_(const at::Tensor& buffer, const at::Tensor& step) {
  const char* const op = "take_arrivals";
  check_buffer(op, buffer);
  check_step(op, step, buffer);
  const ChangedBuffer changed(op, buffer);
  event::note_kernels([&](const jit::Device&) { return std::vector{event::take_of(dtype_of(buffer.scalar_type()))}; });
  at::Tensor arrivals;
  if (step.is_cpu()) {
    const at::Tensor slot = changed.contiguous().select(0, *step.const_data_ptr<std::int64_t>() % buffer.size(0));
    arrivals = slot.clone();
    slot.zero_();
  } else {
    arrivals = at::empty(buffer.sizes().slice(1), buffer.options());
#if defined(SPIKEFORGE_WITH_CUDA)
    take_cuda(changed.contiguous(), changed.apart(step), arrivals);
#endif
  }
  changed.write_back();
  return arrivals;
}

std::tuple<at::Tensor, at::Tensor> take(const at::Tensor& buffer, const at::Tensor& step) {
  check_buffer("take_arrivals", buffer);
  at::Tensor left = buffer.clone(at::MemoryFormat::Contiguous);
  at::Tensor arrivals = take_(left, step);
  return {std::move(arrivals), std::move(left)};
}

at::Tensor take_meta_(const at::Tensor& buffer, const at::Tensor& step) {
  check_buffer("take_arrivals", buffer);
  check_step("take_arrivals", step, buffer);
  return at::empty_symint(buffer.sym_sizes().slice(1), buffer.options());
}

std::tuple<at::Tensor, at::Tensor> take_meta(const at::Tensor& buffer, const at::Tensor& step) {
  at::Tensor arrivals = take_meta_(buffer, step);
  return {std::move(arrivals), at::empty_symint(buffer.sym_sizes(), buffer.options())};
}

// For lazily negated tensors: torch's fallback copies the results of an operator to its mutable arguments.
void deliver_negated_(const DeliverCall& call) {
  const auto& [weights, indices, indptr, x, options] = call.product;
  const at::Tensor w = weights.resolve_neg(), columns = indices.resolve_neg(), entries = x.resolve_neg(),
                   delays = call.delays.resolve_neg(), buffer = call.buffer.resolve_neg(),
                   step = call.step.resolve_neg();
  const std::optional<at::Tensor> begins = indptr ? std::optional(indptr->resolve_neg()) : std::nullopt;
  call_deliver_({{w, columns, begins, entries, options}, delays, buffer, step});
  if (call.buffer.is_neg()) call.buffer.copy_(buffer);
}

at::Tensor take_negated_(const at::Tensor& buffer, const at::Tensor& step) {
  const at::Tensor resolved = buffer.resolve_neg();
  at::Tensor arrivals = call_take_(resolved, step.resolve_neg());
  if (buffer.is_neg()) buffer.copy_(resolved);
  return arrivals;
}

// The public operators.
template <class Result, Result (*run)(const DeliverCall&)>
Result csr(const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& indptr, const at::Tensor& events,
           const at::Tensor& delays, const at::Tensor& buffer, const at::Tensor& step, c10::SymInt rows,
           c10::SymInt cols, bool transpose, bool graded, bool deterministic, bool unchecked) {
  return deliver_kernel<Result, run>(weights, indices, indptr, events, delays, buffer, step, std::move(rows),
                                     std::move(cols), transpose, name_of(event_values(graded)), deterministic,
                                     unchecked);
}

template <class Result, Result (*run)(const DeliverCall&)>
Result ell(const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& events, const at::Tensor& delays,
           const at::Tensor& buffer, const at::Tensor& step, c10::SymInt cols, bool transpose, bool graded,
           bool deterministic, bool unchecked) {
  return deliver_kernel<Result, run>(weights, indices, std::nullopt, events, delays, buffer, step, ell_rows(indices),
                                     std::move(cols), transpose, name_of(event_values(graded)), deterministic,
                                     unchecked);
}

SPIKEFORGE_SCHEMAS(library) {
  for (const bool in_place : {false, true}) {
    const std::string end = in_place ? "_" : "";
    const std::string ring = std::string(", Tensor delays, Tensor") + (in_place ? "(a!)" : "") + " buffer, Tensor step";
    const std::string result = std::string(") -> ") + (in_place ? "()" : "Tensor");
    const std::string options =
        "bool transpose=False, bool graded=False, bool deterministic=False, bool unchecked=False" + result;
    library.def("event_csrmv_delayed" + end + "(Tensor weights, Tensor indices, Tensor indptr, Tensor events" + ring +
                ", *, SymInt rows, SymInt cols, " + options);
    library.def("event_ellmv_delayed" + end + "(Tensor weights, Tensor indices, Tensor events" + ring +
                ", *, SymInt cols, " + options);
    library.def("csr_deliver" + end + "(Tensor weights, Tensor indices, Tensor? indptr, Tensor x" + ring +
                ", *, SymInt rows, SymInt cols, bool transpose, str values, bool deterministic, bool unchecked" +
                result);
  }
  library.def("take_arrivals(Tensor buffer, Tensor step) -> (Tensor arrivals, Tensor buffer)");
  library.def("take_arrivals_(Tensor(a!) buffer, Tensor step) -> Tensor");
}

// The lowered operators support vmap; otherwise torch would call the public ones once per map.
void register_public(torch::Library& library) {
  library.impl("event_csrmv_delayed", TORCH_FN((csr<at::Tensor, call_deliver>)));
  library.impl("event_csrmv_delayed_", TORCH_FN((csr<void, call_deliver_>)));
  library.impl("event_ellmv_delayed", TORCH_FN((ell<at::Tensor, call_deliver>)));
  library.impl("event_ellmv_delayed_", TORCH_FN((ell<void, call_deliver_>)));
}

SPIKEFORGE_KERNELS(CompositeImplicitAutograd, library) { register_public(library); }

SPIKEFORGE_KERNELS(FuncTorchBatched, library) { register_public(library); }

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("csr_deliver", TORCH_FN((deliver_kernel<at::Tensor, deliver<DeliverCall, deliver_>>)));
  library.impl("csr_deliver_", TORCH_FN((deliver_kernel<void, deliver_>)));
  library.impl("take_arrivals", TORCH_FN(take));
  library.impl("take_arrivals_", TORCH_FN(take_));
}

SPIKEFORGE_KERNELS(Negative, library) {
  library.impl("csr_deliver_", TORCH_FN((deliver_kernel<void, deliver_negated_>)));
  library.impl("take_arrivals_", TORCH_FN(take_negated_));
}

SPIKEFORGE_KERNELS(Meta, library) {
  library.impl("csr_deliver", TORCH_FN((deliver_kernel<at::Tensor, deliver_meta<DeliverCall>>)));
  library.impl("csr_deliver_", TORCH_FN((deliver_kernel<void, check_deliver>)));
  library.impl("take_arrivals", TORCH_FN(take_meta));
  library.impl("take_arrivals_", TORCH_FN(take_meta_));
}

}  // namespace

const char* DeliverCall::name() const {
  return product.indptr.has_value() ? "event_csrmv_delayed" : "event_ellmv_delayed";
}

void check_ring(const char* op, const at::Tensor& weights, const at::Tensor& x, const Options& options,
                const at::Tensor& buffer, const at::Tensor& step) {
  check_buffer(op, buffer);
  const c10::ScalarType type = state_type(weights.scalar_type());
  TORCH_CHECK_TYPE(buffer.scalar_type() == type, op, ": buffer must be ", type, ", in which sums of ",
                   weights.scalar_type(), " weights are computed, but is ", buffer.scalar_type());
  c10::SymDimVector sizes = result_sizes(x, options);
  sizes.insert(sizes.begin(), buffer.sym_size(0));
  TORCH_CHECK_VALUE(buffer.sym_sizes() == c10::SymIntArrayRef(sizes), op, ": buffer must have shape [slots, *batch, ",
                    options.transpose ? "cols" : "rows", "] = ", c10::SymIntArrayRef(sizes),
                    " to match events, but has ", buffer.sym_sizes());
  check_device({op, "events", x}, "buffer", buffer);
  check_step(op, step, buffer);
}

void check_deliver(const DeliverCall& call) {
  const char* const op = call.name();
  const auto& [product, delays, buffer, step] = call;
  check_product(op, product);
  TORCH_CHECK_TYPE(delays.layout() == c10::kStrided &&
                       (delays.scalar_type() == c10::ScalarType::Byte || delays.scalar_type() == c10::ScalarType::Int),
                   op, ": delays must be a dense uint8 or int32 tensor, but is ", delays.layout(), " ",
                   delays.scalar_type());
  TORCH_CHECK_VALUE(delays.sym_numel() == 1 || delays.sym_sizes() == product.indices.sym_sizes(), op,
                    ": delays must have one element, shared by all connections, or the shape of indices, ",
                    product.indices.sym_sizes(), ", but has ", delays.sym_sizes());
  check_same_device(op, "delays", delays, product.indices);
  check_ring(op, product.weights, product.x, product.options, buffer, step);
}

ChangedBuffer::ChangedBuffer(const char* op, const at::Tensor& buffer) : buffer_(buffer) {
  TORCH_CHECK_VALUE(at::has_internal_overlap(buffer) != at::MemOverlap::Yes, op,
                    ": a buffer that is changed in place must not have elements that share memory");
  TORCH_CHECK_VALUE(!buffer.is_inference() || c10::InferenceMode::is_enabled(), op,
                    ": a buffer created in torch.inference_mode() can be changed in that mode only");
  changed_ = buffer.contiguous();
}

void ChangedBuffer::write_back() const {
  if (!buffer_.is_contiguous()) buffer_.copy_(changed_);
  buffer_.unsafeGetTensorImpl()->bump_version();  // because autograd checks the version of saved tensors
}

std::vector<std::int64_t> slot_offsets(const at::Tensor& buffer, const at::Tensor& step) {
  const std::int64_t slots = buffer.size(0), size = buffer.numel() / slots;
  const std::int64_t now = *step.const_data_ptr<std::int64_t>() % slots;
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(slots));
  for (std::int64_t d = 0; d < slots; ++d) offsets[static_cast<std::size_t>(d)] = (now + d) % slots * size;
  return offsets;
}

StoredMatrix stored_matrix(const DeliverCall& call) {
  StoredMatrix stored = stored_matrix(call.name(), call.product);
  stored.delays = &call.delays;
  stored.ring = call.buffer.size(0);
  return stored;
}

event::Product gpu_delivery(const DeliverCall& call, const event::Rows& rows) {
  event::Product product = gpu_product(call.product.weights, rows, call.product.x, call.product.options);
  product.delays = call.delays.numel() == 1                             ? event::Delays::one
                   : call.delays.scalar_type() == c10::ScalarType::Byte ? event::Delays::bytes
                                                                        : event::Delays::words;
  product.ring = call.buffer.numel();
  return product;
}

namespace {

// Calls f with the arguments of the lowered operators, in their order.
template <class Result, class Op> Result call_with(const Op& op, const DeliverCall& call) {
  const auto& [p, delays, buffer, step] = call;
  const Options& o = p.options;
  return op.call(p.weights, p.indices, p.indptr, p.x, delays, buffer, step, o.rows, o.cols, o.transpose,
                 name_of(o.values), o.deterministic, o.unchecked);
}

}  // namespace

void deliver_(const CsrMatrix& matrix, const at::Tensor& x, const at::Tensor& delays, const at::Tensor& ring,
              const at::Tensor& step) {
  const auto& [weights, indices, indptr, rows, cols, values, unchecked] = matrix;
  const std::optional<at::Tensor> begins = indptr;
  call_deliver_({{weights,
                  indices,
                  begins,
                  x,
                  {.rows = rows, .cols = cols, .transpose = true, .values = values, .unchecked = unchecked}},
                 delays,
                 ring,
                 step});
}

at::Tensor call_deliver(const DeliverCall& call) {
  static const auto op = find_operator<decltype(deliver_kernel<at::Tensor, call_deliver>)>("spikeforge::csr_deliver");
  return call_with<at::Tensor>(op, call);
}

void call_deliver_(const DeliverCall& call) {
  static const auto op = find_operator<decltype(deliver_kernel<void, call_deliver_>)>("spikeforge::csr_deliver_");
  call_with<void>(op, call);
}

std::tuple<at::Tensor, at::Tensor> call_take(const at::Tensor& buffer, const at::Tensor& step) {
  static const auto op = find_operator<decltype(take)>("spikeforge::take_arrivals");
  return op.call(buffer, step);
}

at::Tensor call_take_(const at::Tensor& buffer, const at::Tensor& step) {
  static const auto op = find_operator<decltype(take_)>("spikeforge::take_arrivals_");
  return op.call(buffer, step);
}

}  // namespace spikeforge::ops::sparse
