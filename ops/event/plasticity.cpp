// stdp_pre, stdp_post: weights change where a neuron fired.
//
// A weight is w_ij of row i (before the synapse) and column j (after it), stored as the products store it.
//   stdp_pre   for every event i: w_ij += trace[j] over row i;     events [rows], trace [cols]
//   stdp_post  for every event j: w_ij += trace[i] over column j;  events [cols], trace [rows]
// then each weight that changed is clipped to w_min and w_max, where given. stdp_post reads the matrix by columns:
// indices, indptr and slots of csr_transpose, computed once; slots says which weight a connection has. An entry is an
// event where it is true, or x > 0. The names that end with _ change the weights in place.
#include <spikeforge/ops/event/plasticity.h>
#include <spikeforge/ops/common/checks.h>
#include <spikeforge/ops/common/layout.h>
#include <spikeforge/kernels/event/note.h>

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
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>

namespace spikeforge::ops::sparse {
namespace {

using MaybeNumber = std::optional<double>;

void check_update(const char* op, const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& indptr,
                  const at::Tensor& events, const at::Tensor& trace, std::int64_t rows, std::int64_t cols,
                  const char* of_events, const char* of_trace) {
  TORCH_CHECK_TYPE(is_supported(weights.scalar_type()), op,
                   ": weights must be float16, bfloat16, float32 or float64, but is ", weights.scalar_type());
  check_matrix(op, indices, indptr, rows, cols);
  TORCH_CHECK_VALUE(weights.sym_sizes() == indices.sym_sizes(), op, ": weights must have one element a connection, ",
                    indices.sym_sizes(), ", but has ", weights.sym_sizes(),
                    "; a weight that all share cannot change alone");
  check_same_device(op, "weights", weights, indices);
  TORCH_CHECK_TYPE(events.scalar_type() == c10::ScalarType::Bool || is_supported(events.scalar_type()), op,
                   ": events must be bool or floating point, but is ", events.scalar_type());
  TORCH_CHECK_VALUE(events.dim() == 1 && events.sym_size(0) == rows, op, ": events must have shape [", of_events,
                    "] = [", rows, "], but has ", events.sym_sizes());
  check_same_device(op, "events", events, indices);
  TORCH_CHECK_TYPE(
      trace.scalar_type() == weights.scalar_type() || trace.scalar_type() == state_type(weights.scalar_type()), op,
      ": trace must be ", weights.scalar_type(), ", as the weights, or the type they are computed in, ", "but is ",
      trace.scalar_type());
  TORCH_CHECK_VALUE(trace.dim() == 1 && trace.sym_size(0) == cols, op, ": trace must have shape [", of_trace, "] = [",
                    cols, "], but has ", trace.sym_sizes());
  check_same_device(op, "trace", trace, indices);
}

void check_limits(const char* op, const MaybeNumber& least, const MaybeNumber& most) {
  TORCH_CHECK_VALUE(!least || !std::isnan(*least), op, ": w_min must be a number, but is nan");
  TORCH_CHECK_VALUE(!most || !std::isnan(*most), op, ": w_max must be a number, but is nan");
  TORCH_CHECK_VALUE(!least || !most || *least <= *most, op, ": w_min must not be above w_max, but they are ",
                    least.value_or(0), " and ", most.value_or(0));
}

void check_pre(const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& indptr, const at::Tensor& events,
               const at::Tensor& trace, std::int64_t rows, std::int64_t cols, const MaybeNumber& w_min,
               const MaybeNumber& w_max) {
  check_update("stdp_pre", weights, indices, indptr, events, trace, rows, cols, "rows", "cols");
  check_limits("stdp_pre", w_min, w_max);
}

void check_post(const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& indptr, const at::Tensor& slots,
                const at::Tensor& events, const at::Tensor& trace, std::int64_t rows, std::int64_t cols,
                const MaybeNumber& w_min, const MaybeNumber& w_max) {
  check_update("stdp_post", weights, indices, indptr, events, trace, cols, rows, "cols", "rows");
  check_limits("stdp_post", w_min, w_max);
  TORCH_CHECK_TYPE(slots.scalar_type() == c10::ScalarType::Long, "stdp_post: slots must be int64, but is ",
                   slots.scalar_type());
  TORCH_CHECK_VALUE(slots.sizes() == indices.sizes(), "stdp_post: slots must have the shape of indices, ",
                    indices.sizes(), ", but has ", slots.sizes());
  check_same_device("stdp_post", "slots", slots, indices);
}

void check_no_overlap(const char* op, const at::Tensor& weights) {
  TORCH_CHECK_VALUE(at::has_internal_overlap(weights) != at::MemOverlap::Yes, op,
                    ": weights that change must have memory of their own each, but elements of these share it");
}

void update(const char* op, const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& indptr,
            const at::Tensor& slots, const at::Tensor& events, const at::Tensor& trace, std::int64_t rows,
            std::int64_t cols, MaybeNumber least, MaybeNumber most) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const WeightUpdate all{weights.contiguous(), hold_rows(indices, indptr, rows, cols),
                         slots.defined() ? slots.contiguous() : slots, events.contiguous(),
                         // Weights may be their own trace.
                         trace.to(state_type(weights.scalar_type()), false, trace.is_alias_of(weights)).contiguous(),
                         least.value_or(-infinity), most.value_or(infinity)};
  if (weights.is_cuda()) {
#if defined(SPIKEFORGE_WITH_CUDA)
    update_weights_cuda(all);
#endif
  } else {
    check_indptr(op, all.matrix.rows);
    update_weights_cpu(all);
  }
  if (!weights.is_contiguous()) weights.copy_(all.weights);
}

void stdp_pre_(const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& indptr, const at::Tensor& events,
               const at::Tensor& trace, std::int64_t rows, std::int64_t cols, MaybeNumber w_min, MaybeNumber w_max) {
  check_pre(weights, indices, indptr, events, trace, rows, cols, w_min, w_max);
  check_no_overlap("stdp_pre", weights);
  update("stdp_pre", weights, indices, indptr, {}, events, trace, rows, cols, w_min, w_max);
}

void stdp_post_(const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& indptr, const at::Tensor& slots,
                const at::Tensor& events, const at::Tensor& trace, std::int64_t rows, std::int64_t cols,
                MaybeNumber w_min, MaybeNumber w_max) {
  check_post(weights, indices, indptr, slots, events, trace, rows, cols, w_min, w_max);
  check_no_overlap("stdp_post", weights);
  update("stdp_post", weights, indices, indptr, slots, events, trace, cols, rows, w_min, w_max);
}

at::Tensor stdp_pre(const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& indptr,
                    const at::Tensor& events, const at::Tensor& trace, std::int64_t rows, std::int64_t cols,
                    MaybeNumber w_min, MaybeNumber w_max) {
  at::Tensor result = weights.clone();
  stdp_pre_(result, indices, indptr, events, trace, rows, cols, w_min, w_max);
  return result;
}

at::Tensor stdp_post(const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& indptr,
                     const at::Tensor& slots, const at::Tensor& events, const at::Tensor& trace, std::int64_t rows,
                     std::int64_t cols, MaybeNumber w_min, MaybeNumber w_max) {
  at::Tensor result = weights.clone();
  stdp_post_(result, indices, indptr, slots, events, trace, rows, cols, w_min, w_max);
  return result;
}

// The same matrix by columns: (row of a connection, [cols + 1] where columns begin, place of a connection in the first
// order).
std::tuple<at::Tensor, at::Tensor, at::Tensor> csr_transpose(const at::Tensor& indices, const at::Tensor& indptr,
                                                             std::int64_t rows, std::int64_t cols) {
  check_numbers("csr_transpose", indices, indptr, rows, cols, /*sorted=*/false);
  const at::Tensor row = at::repeat_interleave(at::arange(rows, indptr.options().dtype(at::kLong)),
                                               indptr.to(at::kLong).diff(), /*dim=*/0, indices.size(0));
  const at::Tensor slots = at::argsort(indices, /*stable=*/true, /*dim=*/0);
  const at::Tensor begins = at::constant_pad_nd(at::bincount(indices, {}, cols).cumsum(0), {1, 0});
  return {row.index_select(0, slots).to(at::kInt), begins.to(indptr.scalar_type()), slots};
}

template <class W, class C, class E>
void update_rows(const WeightUpdate& update, const E* events) {
  const auto& matrix = update.matrix.rows;
  auto* const weights = update.weights.mutable_data_ptr<W>();
  const auto* const trace = update.trace.const_data_ptr<C>();
  const auto* const slots = update.slots.defined() ? update.slots.const_data_ptr<std::int64_t>() : nullptr;
  const auto is_event = [&](std::int64_t i) { return static_cast<double>(events[i]) > 0; };
  // Before anything changes; only those that are read.
  for (std::int64_t i = 0; slots != nullptr && i < matrix.rows; ++i) {
    if (!is_event(i)) continue;
    for (std::int64_t k = matrix.begin(i); k < matrix.end(i); ++k)
      TORCH_CHECK_VALUE(slots[k] >= 0 && slots[k] < matrix.connections,
                        "stdp_post: slots must be those of csr_transpose, from 0 to ", matrix.connections - 1,
                        ", but slots[", k, "] is ", slots[k]);
  }
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

template <class W, class C>
void update_typed(const WeightUpdate& update) {
  const at::Tensor& events = update.events;
  if (events.scalar_type() == c10::ScalarType::Bool) return update_rows<W, C>(update, events.const_data_ptr<bool>());
  switch (dtype_of(events.scalar_type())) {
    case DType::f16:
      return update_rows<W, C>(update, events.const_data_ptr<c10::Half>());
    case DType::bf16:
      return update_rows<W, C>(update, events.const_data_ptr<c10::BFloat16>());
    case DType::f32:
      return update_rows<W, C>(update, events.const_data_ptr<float>());
    default:
      return update_rows<W, C>(update, events.const_data_ptr<double>());
  }
}

const std::string limits = ", *, int rows, int cols, float? w_min=None, float? w_max=None) -> ";

TORCH_LIBRARY_FRAGMENT(spikeforge, library) {
  const auto define = [&library](const std::string& schema) {
    library.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
  };
  for (const bool in_place : {false, true}) {
    const std::string weights = in_place ? "_(Tensor(a!) weights" : "(Tensor weights";
    const std::string result = limits + (in_place ? "()" : "Tensor");
    define("stdp_pre" + weights + ", Tensor indices, Tensor indptr, Tensor events, Tensor trace" + result);
    define("stdp_post" + weights + ", Tensor indices, Tensor indptr, Tensor slots, Tensor events, Tensor trace" +
           result);
  }
  define(
      "csr_transpose(Tensor indices, Tensor indptr, *, int rows, int cols) -> (Tensor indices, Tensor indptr, Tensor "
      "slots)");
}

TORCH_LIBRARY_IMPL(spikeforge, CompositeExplicitAutograd, library) {
  library.impl("stdp_pre", TORCH_FN(stdp_pre));
  library.impl("stdp_post", TORCH_FN(stdp_post));
  library.impl("stdp_pre_", TORCH_FN(stdp_pre_));
  library.impl("stdp_post_", TORCH_FN(stdp_post_));
  library.impl("csr_transpose", TORCH_FN(csr_transpose));
}

// Shapes alone: the checks, and what would come out.

void stdp_pre_meta_(const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& indptr,
                    const at::Tensor& events, const at::Tensor& trace, std::int64_t rows, std::int64_t cols,
                    MaybeNumber w_min, MaybeNumber w_max) {
  check_pre(weights, indices, indptr, events, trace, rows, cols, w_min, w_max);
}

void stdp_post_meta_(const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& indptr,
                     const at::Tensor& slots, const at::Tensor& events, const at::Tensor& trace, std::int64_t rows,
                     std::int64_t cols, MaybeNumber w_min, MaybeNumber w_max) {
  check_post(weights, indices, indptr, slots, events, trace, rows, cols, w_min, w_max);
}

at::Tensor stdp_pre_meta(const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& indptr,
                         const at::Tensor& events, const at::Tensor& trace, std::int64_t rows, std::int64_t cols,
                         MaybeNumber w_min, MaybeNumber w_max) {
  check_pre(weights, indices, indptr, events, trace, rows, cols, w_min, w_max);
  return at::empty_like(weights);
}

at::Tensor stdp_post_meta(const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& indptr,
                          const at::Tensor& slots, const at::Tensor& events, const at::Tensor& trace, std::int64_t rows,
                          std::int64_t cols, MaybeNumber w_min, MaybeNumber w_max) {
  check_post(weights, indices, indptr, slots, events, trace, rows, cols, w_min, w_max);
  return at::empty_like(weights);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> csr_transpose_meta(const at::Tensor& indices, const at::Tensor& indptr,
                                                                  std::int64_t rows, std::int64_t cols) {
  check_matrix("csr_transpose", indices, indptr, rows, cols);
  return {at::empty_like(indices), at::empty({cols + 1}, indptr.options()),
          at::empty_symint(indices.sym_sizes(), indices.options().dtype(at::kLong))};
}

TORCH_LIBRARY_IMPL(spikeforge, Meta, library) {
  library.impl("stdp_pre", TORCH_FN(stdp_pre_meta));
  library.impl("stdp_post", TORCH_FN(stdp_post_meta));
  library.impl("stdp_pre_", TORCH_FN(stdp_pre_meta_));
  library.impl("stdp_post_", TORCH_FN(stdp_post_meta_));
  library.impl("csr_transpose", TORCH_FN(csr_transpose_meta));
}

TORCH_LIBRARY_IMPL(spikeforge, Autograd, library) {
  for (const char* const name : {"stdp_pre", "stdp_post", "stdp_pre_", "stdp_post_", "csr_transpose"})
    library.impl(name, torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

jit::EventSpec gpu_update(const WeightUpdate& update) {
  const auto& matrix = update.matrix.rows;
  const auto mean_row =
      static_cast<std::uint64_t>(matrix.rows == 0 ? 1 : std::max<std::int64_t>(1, matrix.connections / matrix.rows));
  return {.kernel = jit::EventKernel::plasticity,
          .weight = dtype_of(update.weights.scalar_type()),
          .entry = entry_type_of(update.events.scalar_type()),
          .values = Values::event,
          .indptr_bytes = static_cast<std::uint8_t>(matrix.wide_indptr ? 8 : 4),
          .sums = jit::EventSums::floats,
          .lanes = static_cast<std::uint8_t>(std::min<std::uint64_t>(32, std::bit_floor(mean_row)))};
}

void update_weights_cpu(const WeightUpdate& update) {
  jit::note_event([&] { return gpu_update(update); });
  switch (dtype_of(update.weights.scalar_type())) {
    case DType::f16:
      return update_typed<c10::Half, float>(update);
    case DType::bf16:
      return update_typed<c10::BFloat16, float>(update);
    case DType::f32:
      return update_typed<float, float>(update);
    default:
      return update_typed<double, double>(update);
  }
}

}  // namespace spikeforge::ops::sparse
