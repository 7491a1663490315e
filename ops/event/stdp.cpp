// stdp_pre, stdp_post: change the weights of neurons that fired.
//
// The weight w_ij belongs to row i (presynaptic) and column j (postsynaptic), and is stored as in the products.
//   stdp_pre   for every event i: w_ij += trace[j] over row i;     events [rows], trace [cols]
//   stdp_post  for every event j: w_ij += trace[i] over column j;  events [cols], trace [rows]
// then each changed weight is clipped to w_min and w_max, if given. stdp_post reads the matrix by columns:
// indices, indptr and slots of csr_transpose, computed once; slots has the index of each nonzero's weight. An entry is
// an event if it is true, or x > 0. Operators whose names end with _ change the weights in place.
#include "csrc/kernels/event/note.h"
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/event/product.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/repeat_interleave.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#if defined(SPIKEFORGE_WITH_CUDA)
#include "csrc/jit/spec_table.h"
#include "ops/common/on_stream.h"

#include <c10/cuda/CUDAGuard.h>
#endif

namespace spikeforge::ops::sparse {
namespace {

using MaybeNumber = std::optional<double>;

// A call of stdp_pre or stdp_post. The latter has slots, and its matrix is by columns.
struct StdpCall {
  const at::Tensor& weights;
  const at::Tensor& indices;
  const at::Tensor& indptr;
  const at::Tensor* slots;
  const at::Tensor& events;
  const at::Tensor& trace;
  std::int64_t rows, cols;
  MaybeNumber least, most;
  bool unchecked;

  const char* name() const { return slots == nullptr ? "stdp_pre" : "stdp_post"; }
};

void check_stdp(const StdpCall& call) {
  const auto& [weights, indices, indptr, slots, events, trace, matrix_rows, matrix_cols, least, most, unchecked] = call;
  const char* const op = call.name();
  const bool post = slots != nullptr;
  const std::int64_t rows = post ? matrix_cols : matrix_rows;
  const std::int64_t cols = post ? matrix_rows : matrix_cols;
  check_floating(op, "weights", weights);
  check_matrix(op, indices, indptr, rows, cols);
  TORCH_CHECK_VALUE(weights.sym_sizes() == indices.sym_sizes(), op, ": weights must have one element per connection, ",
                    indices.sym_sizes(), ", but has ", weights.sym_sizes(), "; a shared weight cannot change");
  check_same_device(op, "weights", weights, indices);
  TORCH_CHECK_TYPE(events.scalar_type() == c10::ScalarType::Bool || is_supported(events.scalar_type()), op,
                   ": events must be bool or floating point, but is ", events.scalar_type());
  TORCH_CHECK_VALUE(events.dim() == 1 && events.sym_size(0) == rows, op, ": events must have shape [",
                    post ? "cols" : "rows", "] = [", rows, "], but has ", events.sym_sizes());
  check_same_device(op, "events", events, indices);
  TORCH_CHECK_TYPE(
      trace.scalar_type() == weights.scalar_type() || trace.scalar_type() == state_type(weights.scalar_type()), op,
      ": trace must be ", weights.scalar_type(), ", as the weights, or the type they are computed in, ", "but is ",
      trace.scalar_type());
  TORCH_CHECK_VALUE(trace.dim() == 1 && trace.sym_size(0) == cols, op, ": trace must have shape [",
                    post ? "rows" : "cols", "] = [", cols, "], but has ", trace.sym_sizes());
  check_same_device(op, "trace", trace, indices);
  TORCH_CHECK_VALUE(!least || !std::isnan(*least), op, ": w_min must be a number, but is nan");
  TORCH_CHECK_VALUE(!most || !std::isnan(*most), op, ": w_max must be a number, but is nan");
  TORCH_CHECK_VALUE(!least || !most || *least <= *most, op, ": w_min must not be above w_max, but they are ",
                    least.value_or(0), " and ", most.value_or(0));
  if (!post) return;
  TORCH_CHECK_TYPE(slots->scalar_type() == c10::ScalarType::Long, op, ": slots must be int64, but is ",
                   slots->scalar_type());
  TORCH_CHECK_VALUE(slots->sym_sizes() == indices.sym_sizes(), op, ": slots must have the shape of indices, ",
                    indices.sym_sizes(), ", but has ", slots->sym_sizes());
  check_same_device(op, "slots", *slots, indices);
}

// For every row with an event: weight[k] += trace[column of k], then clipped, over the nonzeros k of the row. With
// `slots`, the weight of nonzero k is weight[slots[k]].
struct WeightUpdate {
  at::Tensor weights;  // contiguous
  HeldRows matrix;
  at::Tensor slots;  // int64 [nnz], or undefined
  at::Tensor events;
  at::Tensor trace;  // in the compute type of the weights
  double least, most;
  const unsigned* refused = nullptr;  // of verify_on_gpu
};

// Returns the GPU kernel of the update.
event::KernelSpec gpu_update(const WeightUpdate& update) {
  const auto& matrix = update.matrix.rows;
  const auto mean_row =
      static_cast<std::uint64_t>(matrix.rows == 0 ? 1 : std::max<std::int64_t>(1, matrix.nnz / matrix.rows));
  return {.kernel = event::Kernel::plasticity,
          .weight = dtype_of(update.weights.scalar_type()),
          .entry = entry_type_of(update.events.scalar_type()),
          .values = Values::event,
          .indptr_bytes = static_cast<std::uint8_t>(matrix.wide_indptr ? 8 : 4),
          .sums = event::Sums::floats,
          .lanes = static_cast<std::uint8_t>(std::min<std::uint64_t>(32, std::bit_floor(mean_row)))};
}

template <class W, class C, class E> void update_rows(const WeightUpdate& update, const E* events) {
  const auto& matrix = update.matrix.rows;
  auto* const weights = update.weights.mutable_data_ptr<W>();
  const auto* const trace = update.trace.const_data_ptr<C>();
  const auto* const slots = update.slots.defined() ? update.slots.const_data_ptr<std::int64_t>() : nullptr;
  const auto is_event = [&](std::int64_t i) { return static_cast<double>(events[i]) > 0; };
  at::parallel_for(0, matrix.rows, 1024, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (!is_event(i)) continue;
      for (std::int64_t k = matrix.begin(i); k < matrix.end(i); ++k) {
        W& weight = weights[slots ? slots[k] : k];
        const C changed = static_cast<C>(weight) + trace[matrix.indices[k]];
        weight = static_cast<W>(std::min(std::max(changed, static_cast<C>(update.least)), static_cast<C>(update.most)));
      }
    }
  });
}

template <class W, class C> void update_typed(const WeightUpdate& update) {
  with_entries(update.events, [&](const auto* events) { update_rows<W, C>(update, events); });
}

void update_weights_cpu(const WeightUpdate& update) {
  switch (dtype_of(update.weights.scalar_type())) {
    case DType::f16: return update_typed<c10::Half, float>(update);
    case DType::bf16: return update_typed<c10::BFloat16, float>(update);
    case DType::f32: return update_typed<float, float>(update);
    default: return update_typed<double, double>(update);
  }
}

#if defined(SPIKEFORGE_WITH_CUDA)
void update_weights_cuda(const WeightUpdate& update) {
  const auto& matrix = update.matrix.rows;
  if (matrix.nnz == 0) return;
  const c10::cuda::OptionalCUDAGuard guard(update.weights.device());
  const jit::Device& device = gpu_of(update.weights);
  const event::KernelSpec spec = gpu_update(update);
  const event::ProductArguments args{
      .indices = matrix.indices,
      .indptr = matrix.indptr,
      .rows = matrix.rows,
      .cols = matrix.cols,
      .nnz = matrix.nnz,
      .weights = update.trace.const_data_ptr(),
      .x = update.events.const_data_ptr(),
      .y = update.weights.mutable_data_ptr(),
      .slots = update.slots.defined() ? static_cast<const event::Int*>(update.slots.const_data_ptr()) : nullptr,
      .n = 1,
      .batches = 1,
      .least = update.least,
      .most = update.most,
      .refused = update.refused};
  constexpr std::int64_t block = 256;
  const std::int64_t blocks = std::clamp<std::int64_t>((matrix.rows * spec.lanes + block - 1) / block, 1,
                                                       std::int64_t{8} * device.multiprocessors);
  jit::SpecTable<event::KernelSpec>::of(device)
      .get(spec, device)
      .launch({static_cast<unsigned>(blocks), 1, 1}, block, 0, stream_of(update.weights), &args, sizeof args);
}
#endif

void stdp_(const StdpCall& call) {
  check_stdp(call);
  const at::Tensor& weights = call.weights;
  TORCH_CHECK_VALUE(at::has_internal_overlap(weights) != at::MemOverlap::Yes, call.name(),
                    ": weights that are changed in place must not have elements that share memory");
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const bool post = call.slots != nullptr;
  const std::int64_t rows = post ? call.cols : call.rows, cols = post ? call.rows : call.cols;
  const StoredMatrix matrix{.op = call.name(),
                            .indices = &call.indices,
                            .indptr = &call.indptr,
                            .slots = call.slots,
                            .rows = rows,
                            .cols = cols};
  const at::Tensor changed = weights.contiguous();
  const auto apart = [&](const at::Tensor& t) { return share_memory(t, changed) ? t.clone() : t; };
  WeightUpdate update{.weights = changed,
                      .matrix = hold_rows(apart(call.indices), apart(call.indptr), rows, cols),
                      .slots = post ? apart(*call.slots).contiguous() : at::Tensor(),
                      .events = apart(call.events).contiguous(),
                      .trace = apart(call.trace).to(state_type(weights.scalar_type())).contiguous(),
                      .least = call.least.value_or(-infinity),
                      .most = call.most.value_or(infinity)};
  if (weights.is_cuda()) {
#if defined(SPIKEFORGE_WITH_CUDA)
    if (!call.unchecked) update.refused = verify_on_gpu(matrix);
    update_weights_cuda(update);
#endif
  } else {
    check_indptr(call.name(), update.matrix.rows);
    if (!call.unchecked) verify(matrix);
    event::note_kernels([&](const jit::Device&) {
      std::vector specs = {gpu_update(update)};
      if (!call.unchecked) specs.push_back(check_kernel(matrix));
      return specs;
    });
    update_weights_cpu(update);
  }
  // Increments the version, which autograd and the cache of checked matrices read. copy_ increments it too.
  if (weights.is_contiguous())
    weights.unsafeGetTensorImpl()->bump_version();
  else
    weights.copy_(update.weights);
}

at::Tensor stdp(const StdpCall& call) {
  at::Tensor result = call.weights.clone();
  stdp_({result, call.indices, call.indptr, call.slots, call.events, call.trace, call.rows, call.cols, call.least,
         call.most, call.unchecked});
  return result;
}

// Runs the checks and returns the shape of the result.
at::Tensor stdp_meta(const StdpCall& call) {
  check_stdp(call);
  return at::empty_like(call.weights);
}

// Kernels for the dispatcher. Slots is const at::Tensor& for stdp_post, and empty for stdp_pre.
template <auto run, class... Slots> struct Stdp {
  static auto kernel(const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& indptr, Slots... slots,
                     const at::Tensor& events, const at::Tensor& trace, std::int64_t rows, std::int64_t cols,
                     MaybeNumber w_min, MaybeNumber w_max, bool unchecked) {
    const at::Tensor* given = nullptr;
    ((given = &slots), ...);
    return run({weights, indices, indptr, given, events, trace, rows, cols, w_min, w_max, unchecked});
  }
};

template <at::Tensor (*run)(const StdpCall&), void (*run_in_place)(const StdpCall&)>
void register_stdp(torch::Library& library) {
  library.impl("stdp_pre", TORCH_FN(Stdp<run>::kernel));
  library.impl("stdp_post", TORCH_FN((Stdp<run, const at::Tensor&>::kernel)));
  library.impl("stdp_pre_", TORCH_FN(Stdp<run_in_place>::kernel));
  library.impl("stdp_post_", TORCH_FN((Stdp<run_in_place, const at::Tensor&>::kernel)));
}

// Returns the same matrix by columns: the row of each nonzero, the begins of columns [cols + 1], and the position of
// each nonzero by rows.
std::tuple<at::Tensor, at::Tensor, at::Tensor> csr_transpose(const at::Tensor& indices, const at::Tensor& indptr,
                                                             std::int64_t rows, std::int64_t cols) {
  check_matrix("csr_transpose", indices, indptr, rows, cols);
  check_numbers({.op = "csr_transpose", .indices = &indices, .indptr = &indptr, .rows = rows, .cols = cols},
                /*sorted=*/false);
  const at::Tensor row = at::repeat_interleave(at::arange(rows, indptr.options().dtype(at::kLong)),
                                               indptr.to(at::kLong).diff(), /*dim=*/0, indices.size(0));
  const at::Tensor slots = at::argsort(indices, /*stable=*/true, /*dim=*/0);
  const at::Tensor begins = at::constant_pad_nd(at::bincount(indices, {}, cols).cumsum(0), {1, 0});
  return {row.index_select(0, slots).to(at::kInt), begins.to(indptr.scalar_type()), slots};
}

const std::string limits = ", *, int rows, int cols, float? w_min=None, float? w_max=None, bool unchecked=False) -> ";

SPIKEFORGE_SCHEMAS(library) {
  for (const bool in_place : {false, true}) {
    const std::string weights = in_place ? "_(Tensor(a!) weights" : "(Tensor weights";
    const std::string result = limits + (in_place ? "()" : "Tensor");
    library.def("stdp_pre" + weights + ", Tensor indices, Tensor indptr, Tensor events, Tensor trace" + result);
    library.def("stdp_post" + weights + ", Tensor indices, Tensor indptr, Tensor slots, Tensor events, Tensor trace" +
                result);
  }
  library.def(
      "csr_transpose(Tensor indices, Tensor indptr, *, int rows, int cols) -> (Tensor indices, Tensor indptr, Tensor "
      "slots)");
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  register_stdp<stdp, stdp_>(library);
  library.impl("csr_transpose", TORCH_FN(csr_transpose));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> csr_transpose_meta(const at::Tensor& indices, const at::Tensor& indptr,
                                                                  std::int64_t rows, std::int64_t cols) {
  check_matrix("csr_transpose", indices, indptr, rows, cols);
  return {at::empty_like(indices), at::empty({cols + 1}, indptr.options()),
          at::empty_symint(indices.sym_sizes(), indices.options().dtype(at::kLong))};
}

SPIKEFORGE_KERNELS(Meta, library) {
  register_stdp<stdp_meta, check_stdp>(library);
  library.impl("csr_transpose", TORCH_FN(csr_transpose_meta));
}

SPIKEFORGE_KERNELS(Autograd, library) {
  for (const char* const name : {"stdp_pre", "stdp_post", "stdp_pre_", "stdp_post_", "csr_transpose"})
    library.impl(name, torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace spikeforge::ops::sparse
