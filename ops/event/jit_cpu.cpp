// Products of a random matrix on the CPU. By rows a thread owns its results; by columns every thread adds to private
// sums, which are then added in the order of the threads. With delays a thread owns pieces of all rows instead, so that
// it adds directly to the ring.
#include "csrc/kernels/event/note.h"
#include "ops/common/library.h"
#include "ops/event/jit_delays.h"

#include <ATen/Parallel.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

namespace spikeforge::ops::sparse {
namespace {

using event::Connection;
using event::for_each_connection;
using event::weight_of;

// The minimum number of connections that a thread draws.
constexpr double least_work = 1 << 13;

// Returns the values of entries in the type of the sums; 0 without an event.
at::Tensor entries_of(const at::Tensor& x, Values values, c10::ScalarType type) {
  if (values == Values::number) return x.to(type).contiguous();
  const at::Tensor active = x.gt(0);
  if (values == Values::event) return active.to(type).contiguous();
  return at::where(active, x.to(type), at::zeros({}, x.options().dtype(type))).contiguous();
}

// Sums of weights times entries; for a constant distribution, sums of entries only.
template <Distribution distribution, class Sum> struct Random {
  RandomRows matrix;
  Sum first, second;  // the parameters of the weights
  bool numbers;       // if false, entries of 0 contribute 0, even for infinite or NaN weights
  std::int64_t n;

  void add(Sum* to, const Sum* entries, float drawn) const {
    if constexpr (distribution == Distribution::constant) {
      for (std::int64_t c = 0; c < n; ++c) to[c] += entries[c];
    } else {
      const Sum weight = weight_of<distribution>(first, second, drawn);
      for (std::int64_t c = 0; c < n; ++c)
        if (numbers || entries[c] != 0) to[c] += weight * entries[c];
    }
  }

  // Computes y [rows, n] from x [cols, n].
  void gather(const Sum* x, Sum* y, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t piece = 0; piece < matrix.pieces; ++piece)
        for_each_connection<distribution>(matrix, row, piece,
                                          [&](const Connection& c) { add(y + row * n, x + c.column * n, c.drawn); });
  }

  // Computes y [cols, n] from x [rows, n].
  void scatter(const Sum* x, Sum* y, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row) {
      const Sum* const entries = x + row * n;
      if (!numbers && std::all_of(entries, entries + n, [](Sum e) { return e == 0; })) continue;
      for (std::int64_t piece = 0; piece < matrix.pieces; ++piece)
        for_each_connection<distribution>(matrix, row, piece,
                                          [&](const Connection& c) { add(y + c.column * n, entries, c.drawn); });
    }
  }
};

template <Distribution distribution, class Sum> at::Tensor sums_of(const JitCall& call, const RandomRows& matrix) {
  const Options& options = call.options;
  const auto type = c10::CppTypeToScalarType<Sum>::value;
  const at::Tensor numbers = call.weights.to(type).contiguous();
  const auto* const w = numbers.const_data_ptr<Sum>();
  const Vectors vectors = vectors_of(call.x, options.matrix);
  const Random<distribution, Sum> random{matrix, w[0], distribution == Distribution::constant ? Sum(0) : w[1],
                                         options.values == Values::number, vectors.n};
  const at::Tensor entries = entries_of(call.x, options.values, type);
  const auto* const from = entries.const_data_ptr<Sum>();

  const std::int64_t rows = matrix.rows;
  const std::int64_t out = options.transpose ? matrix.cols : rows;
  const double work =
      static_cast<double>(rows) * static_cast<double>(matrix.cols) * call.draw.prob + static_cast<double>(rows);
  const std::int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const std::int64_t parts =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(std::min(work / least_work, 1e6)), 1, threads);
  const auto boundary = [&](std::int64_t part) { return rows / parts * part + std::min(part, rows % parts); };
  const std::int64_t copies = options.transpose ? parts : 1;
  const at::Tensor sums = at::zeros({copies, vectors.batches, out * vectors.n}, entries.options());
  auto* const to = sums.mutable_data_ptr<Sum>();
  at::parallel_for(0, parts, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first; part < last; ++part)
      for (std::int64_t b = 0; b < vectors.batches; ++b) {
        const Sum* const x_of = from + b * vectors.length * vectors.n;
        if (options.transpose)
          random.scatter(x_of, to + (part * vectors.batches + b) * out * vectors.n, boundary(part), boundary(part + 1));
        else
          random.gather(x_of, to + b * out * vectors.n, boundary(part), boundary(part + 1));
      }
  });
  return copies == 1 ? sums.select(0, 0) : sums.sum(0);
}

template <class Sum> at::Tensor sums_of(const JitCall& call, const RandomRows& matrix) {
  switch (call.draw.distribution) {
    case Distribution::constant: return sums_of<Distribution::constant, Sum>(call, matrix);
    case Distribution::uniform: return sums_of<Distribution::uniform, Sum>(call, matrix);
    default: return sums_of<Distribution::normal, Sum>(call, matrix);
  }
}

at::Tensor jit_product_cpu(const JitCall& call) {
  check_jit(jit_name(call.options.matrix), call);
  const c10::SymDimVector sizes = result_sizes(call.x, call.options);
  if (is_empty(call)) return at::zeros_symint(sizes, call.weights.options());

  const RandomRows matrix = random_rows(call);
  event::note_kernels([&](const jit::Device&) {
    std::vector<event::KernelSpec> specs = {gpu_jit(call, matrix)};
    if (call.options.transpose) specs.push_back(gpu_jit_finish(specs[0]));
    return specs;
  });
  const bool constant = call.draw.distribution == Distribution::constant;
  const bool counts = constant && call.options.values == Values::event;  // integers, possibly too large for float
  at::Tensor sums = counts || call.weights.scalar_type() == c10::ScalarType::Double ? sums_of<double>(call, matrix)
                                                                                    : sums_of<float>(call, matrix);
  if (constant) {
    const at::Tensor weighted = sums.mul(call.weights.to(sums.scalar_type()));
    // Without a contribution, the result is 0 for any weight.
    sums = call.options.values == Values::number ? weighted : at::where(sums.eq(0), sums, weighted);
  }
  return sums.to(call.weights.scalar_type()).view_symint(sizes);
}

// The contributions to a ring; x and `to` belong to one vector.
template <Distribution distribution, class Sum> struct RandomDelivery {
  RandomRows matrix;
  event::RandomDelays delays;
  const std::int64_t* offsets;  // one per delay
  Sum first, second;
  bool numbers;

  void add(Sum* to, Sum entry, const Connection& c) const {
    if (numbers || entry != 0)
      to[offsets[delay_of(delays, c)]] += weight_of<distribution>(first, second, c.drawn) * entry;
  }
  void gather(const Sum* x, Sum* to, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t piece = 0; piece < matrix.pieces; ++piece)
        for_each_connection<distribution>(matrix, row, piece,
                                          [&](const Connection& c) { add(to + row, x[c.column], c); });
  }
  void scatter(const Sum* x, Sum* to, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = 0; row < matrix.rows; ++row)
      for (std::int64_t piece = begin; piece < end && (numbers || x[row] != 0); ++piece)
        for_each_connection<distribution>(matrix, row, piece,
                                          [&](const Connection& c) { add(to + c.column, x[row], c); });
  }
};

template <Distribution distribution, class Sum> void deliver_drawn(const JitDeliverCall& call) {
  const auto& [w, x, options, draw] = call.product;
  const auto type = c10::CppTypeToScalarType<Sum>::value;
  const at::Tensor numbers = w.to(type), entries = entries_of(x, options.values, type);
  const auto* const weights = numbers.const_data_ptr<Sum>();
  const auto* const from = entries.const_data_ptr<Sum>();
  auto* const to = call.buffer.mutable_data_ptr<Sum>();
  const RandomRows matrix = random_rows(call.product);
  const std::vector<std::int64_t> offsets = slot_offsets(call.buffer, call.step);
  const RandomDelivery<distribution, Sum> delivery{matrix,
                                                   random_delays(call),
                                                   offsets.data(),
                                                   weights[0],
                                                   distribution == Distribution::constant ? Sum(0) : weights[1],
                                                   options.values == Values::number};
  const Vectors vectors = vectors_of(x, false);
  const bool transpose = options.transpose;
  const std::int64_t out = transpose ? matrix.cols : matrix.rows;
  const std::int64_t items = transpose ? matrix.pieces : matrix.rows;
  const double work = static_cast<double>(matrix.rows) * (static_cast<double>(matrix.cols) * draw.prob + 1);
  const auto grain = static_cast<std::int64_t>(least_work * static_cast<double>(items) / work) + 1;
  for (std::int64_t v = 0; v < vectors.batches; ++v)
    at::parallel_for(0, items, grain, [&](std::int64_t begin, std::int64_t end) {
      const Sum* const of_vector = from + v * vectors.length;
      transpose ? delivery.scatter(of_vector, to + v * out, begin, end)
                : delivery.gather(of_vector, to + v * out, begin, end);
    });
}

template <Distribution distribution> void deliver_drawn(const JitDeliverCall& call) {
  if (call.buffer.scalar_type() == c10::ScalarType::Double)
    deliver_drawn<distribution, double>(call);
  else
    deliver_drawn<distribution, float>(call);
}

SPIKEFORGE_KERNELS(CPU, library) { library.impl("jit_product", TORCH_FN(jit_kernel<jit_product_cpu>)); }

}  // namespace

void jit_deliver_cpu(const JitDeliverCall& call) {
  switch (call.product.draw.distribution) {
    case Distribution::constant: return deliver_drawn<Distribution::constant>(call);
    case Distribution::uniform: return deliver_drawn<Distribution::uniform>(call);
    default: return deliver_drawn<Distribution::normal>(call);
  }
}

}  // namespace spikeforge::ops::sparse
