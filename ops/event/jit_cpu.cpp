// Products of a random matrix on the CPU. By rows a thread owns its results; by columns every thread adds to sums of
// its own, which are then added up in the order of the threads.
#include <spikeforge/ops/event/jit.h>
#include <spikeforge/ops/common/checks.h>
#include <spikeforge/kernels/event/note.h>

#include <ATen/Parallel.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>

namespace spikeforge::ops::sparse {
namespace {

using spikeforge::event::for_each_connection;
using spikeforge::event::weight_of;

// A thread that draws fewer connections than this is not worth waking.
constexpr double least_work = 1 << 13;

// What entries count, in the type of the sums; 0 where they are nothing.
at::Tensor entries_of(const at::Tensor& x, Values values, c10::ScalarType type) {
  if (values == Values::number) return x.to(type).contiguous();
  const at::Tensor active = x.gt(0);
  if (values == Values::event) return active.to(type).contiguous();
  return at::where(active, x.to(type), at::zeros({}, x.options().dtype(type))).contiguous();
}

// Sums of weights times entries; under the constant law of entries alone.
template <Law law, class Sum>
struct Random {
  RandomRows matrix;
  Sum first, second;  // of the weights
  bool numbers;       // else an entry of 0 is nothing, whatever the weight
  std::int64_t n;

  void add(Sum* to, const Sum* entries, float drawn) const {
    if constexpr (law == Law::constant) {
      for (std::int64_t c = 0; c < n; ++c) to[c] += entries[c];
    } else {
      const Sum weight = weight_of<law>(first, second, drawn);
      for (std::int64_t c = 0; c < n; ++c)
        if (numbers || entries[c] != 0) to[c] += weight * entries[c];
    }
  }

  // x [cols, n] to y [rows, n]
  void gather(const Sum* x, Sum* y, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t piece = 0; piece < matrix.pieces; ++piece)
        for_each_connection<law>(matrix, row, piece,
                                 [&](std::int64_t column, float drawn) { add(y + row * n, x + column * n, drawn); });
  }

  // x [rows, n] to y [cols, n]
  void scatter(const Sum* x, Sum* y, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row) {
      const Sum* const entries = x + row * n;
      if (!numbers && std::all_of(entries, entries + n, [](Sum e) { return e == 0; })) continue;
      for (std::int64_t piece = 0; piece < matrix.pieces; ++piece)
        for_each_connection<law>(matrix, row, piece,
                                 [&](std::int64_t column, float drawn) { add(y + column * n, entries, drawn); });
    }
  }
};

template <Law law, class Sum>
at::Tensor sums_of(const at::Tensor& weights, const at::Tensor& x, const Form& form, const Draw& draw,
                   std::int64_t rows, std::int64_t cols) {
  const auto type = c10::CppTypeToScalarType<Sum>::value;
  const at::Tensor numbers = weights.to(type).contiguous();
  const auto* const w = numbers.const_data_ptr<Sum>();
  const Vectors vectors = vectors_of(x, form.matrix);
  const Random<law, Sum> random{random_rows(draw, rows, cols), w[0], law == Law::constant ? Sum(0) : w[1],
                                form.values == Values::number, vectors.n};
  const at::Tensor entries = entries_of(x, form.values, type);
  const auto* const from = entries.const_data_ptr<Sum>();

  const std::int64_t out = form.transpose ? cols : rows;
  const double work = static_cast<double>(rows) * static_cast<double>(cols) * draw.prob + static_cast<double>(rows);
  const std::int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const std::int64_t parts =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(std::min(work / least_work, 1e6)), 1, threads);
  const auto boundary = [&](std::int64_t part) { return rows / parts * part + std::min(part, rows % parts); };
  const std::int64_t copies = form.transpose ? parts : 1;
  const at::Tensor sums = at::zeros({copies, vectors.batches, out * vectors.n}, entries.options());
  auto* const to = sums.mutable_data_ptr<Sum>();
  at::parallel_for(0, parts, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first; part < last; ++part)
      for (std::int64_t b = 0; b < vectors.batches; ++b) {
        const Sum* const x_of = from + b * vectors.length * vectors.n;
        if (form.transpose)
          random.scatter(x_of, to + (part * vectors.batches + b) * out * vectors.n, boundary(part), boundary(part + 1));
        else
          random.gather(x_of, to + b * out * vectors.n, boundary(part), boundary(part + 1));
      }
  });
  return copies == 1 ? sums.select(0, 0) : sums.sum(0);
}

at::Tensor jit_product_cpu(const at::Tensor& weights, const at::Tensor& x, std::int64_t rows, std::int64_t cols,
                           double prob, std::int64_t seed, c10::string_view law, bool transpose, bool matrix,
                           c10::string_view values, bool deterministic) {
  const JitCall call = parse_jit(rows, cols, prob, seed, law, transpose, matrix, values, deterministic);
  const Form& form = call.form;
  const Draw& draw = call.draw;
  check_jit(weights, x, form, draw);
  const c10::SymDimVector sizes = result_sizes(x, form);
  if (prob == 0 || rows == 0 || cols == 0 || x.numel() == 0) return at::zeros_symint(sizes, weights.options());

  const auto on_gpu = [&] { return gpu_jit(weights, x, form, draw, random_rows(draw, rows, cols)); };
  jit::note_event(on_gpu);
  if (transpose) jit::note_event([&] { return gpu_jit_finish(on_gpu()); });
  const c10::ScalarType compute = state_type(weights.scalar_type());
  const bool counts = draw.law == Law::constant && form.values == Values::event;  // whole numbers, beyond a float's
  at::Tensor sums;
  with_law(draw.law, [&](auto which) {
    constexpr Law which_law = decltype(which)::value;
    sums = counts || compute == c10::ScalarType::Double ? sums_of<which_law, double>(weights, x, form, draw, rows, cols)
                                                        : sums_of<which_law, float>(weights, x, form, draw, rows, cols);
  });
  if (draw.law == Law::constant) {
    const at::Tensor weighted = sums.mul(weights.to(sums.scalar_type()));
    // Where nothing contributed the result is 0, whatever the weight.
    sums = form.values == Values::number ? weighted : at::where(sums.eq(0), sums, weighted);
  }
  return sums.to(weights.scalar_type()).view_symint(sizes);
}

TORCH_LIBRARY_IMPL(spikeforge, CPU, library) { library.impl("jit_product", TORCH_FN(jit_product_cpu)); }

}  // namespace
}  // namespace spikeforge::ops::sparse
