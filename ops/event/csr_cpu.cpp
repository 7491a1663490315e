// Products on the CPU: entries are prepared once per call, then every thread processes an equal share of nonzeros.
//
// By rows (A e) a thread owns its results. By columns (e A) every thread adds to private sums, which are then added in
// the order of the threads: the same number of threads gives the same bits. With a single weight for all, whose sums
// are integers, any number of threads does.
#include "csrc/kernels/event/note.h"
#include "ops/common/library.h"
#include "ops/event/prepared.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace spikeforge::ops::sparse {
namespace {

using event::Weights;

// The maximum number of vectors that are read together: 32 float32 entries are two cache lines.
constexpr std::int64_t most_together = 32;
// The cost of an access to a cache line of sums by columns, which is the same for 1 to 16 vectors.
constexpr std::int64_t cost_of_a_line = 4;

class Product {
 public:
  Product(const at::Tensor& weights, const Rows& matrix, const at::Tensor& x, const at::Tensor& y,
          const Options& options)
      : matrix_(matrix),
        x_(x),
        in_(vectors_of(x, options.matrix)),
        out_(vectors_of(y, options.matrix)),
        y_(static_cast<char*>(y.mutable_data_ptr())),
        weights_{weights.const_data_ptr(), dtype_of(weights.scalar_type()), weights.numel() == 1},
        values_(options.values),
        transpose_(options.transpose) {}

  void compute() {
    if (weights_.type == DType::f64)
      run_in<double>();
    else
      run_in<float>();
  }

 private:
  template <class C> void run_in() {
    if (in_.count() == 1)
      transpose_ ? scatter<C>() : gather<C>();
    else
      transpose_ ? scatter_tiles<C>() : gather_tiles<C>();
  }

  char* y_of(std::int64_t vector) const {
    return y_ + out_.offset(vector) * static_cast<std::int64_t>(size_of(weights_.type));
  }

  // Returns the offsets of the results of the vectors in a tile.
  std::vector<std::int64_t> y_offsets(std::int64_t first, std::int64_t n) const {
    std::vector<std::int64_t> offsets(static_cast<std::size_t>(n));
    for (std::int64_t v = 0; v < n; ++v) offsets[static_cast<std::size_t>(v)] = out_.offset(first + v);
    return offsets;
  }

  template <class C> void gather() {
    const bool events = values_ == Values::event;
    const Bits bits = events ? pack(x_, in_, 0) : Bits();
    const Contributions<C> entries(x_, in_, values_, 0, events ? 0 : 1);
    const cpu::Prepared x{values_, bits.data(), entries.data()};
    for_rows(matrix_, 1, [&](std::int64_t begin, std::int64_t end) {
      kernels_.gather(matrix_, weights_, x, begin, end, y_, out_.stride());
    });
  }

  template <class C> void scatter() {
    const bool events = values_ == Values::event;
    const Bits bits = events ? pack(x_, in_, 0) : Bits();
    const std::vector<C> entries = events ? std::vector<C>() : contributions<C>(x_, in_, values_, 0, 1);
    const Active active = events ? active_rows(matrix_, bits) : active_rows(matrix_, entries, values_);
    const cpu::Prepared x{values_, bits.data(), entries.data()};
    const std::int64_t part_bytes = bytes_of_sums<C>();
    // The number of parts is limited, because the sums of all parts are added at the end.
    const std::int64_t parts =
        std::min(parts_for(active.total), 1 + 4 * active.total / std::max<std::int64_t>(1, matrix_.cols));
    const at::Tensor sums = at::empty({parts * part_bytes}, at::kByte);
    auto* const base = sums.mutable_data_ptr<std::uint8_t>();
    at::parallel_for(0, parts, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t part = first; part < last; ++part) {
        std::memset(base + part * part_bytes, 0, static_cast<std::size_t>(part_bytes));
        kernels_.scatter(matrix_, weights_, x, active.share(part, parts), base + part * part_bytes);
      }
    });
    at::parallel_for(0, matrix_.cols, least_share, [&](std::int64_t begin, std::int64_t end) {
      kernels_.finish(weights_, values_, base, parts, part_bytes, begin, end, y_, out_.stride());
    });
  }

  template <class C> std::int64_t bytes_of_sums() const {
    const std::size_t each = weights_.homogeneous && values_ == Values::event ? sizeof(std::uint32_t) : sizeof(C);
    return (matrix_.cols * static_cast<std::int64_t>(each) + 63) / 64 * 64;
  }

  template <class C> void gather_tiles() {
    for (std::int64_t first = 0; first < in_.count(); first += most_together) {
      const std::int64_t n = std::min(most_together, in_.count() - first);
      const Contributions<C> entries(x_, in_, values_, first, n);
      const std::vector<std::int64_t> offsets = y_offsets(first, n);
      for_rows(matrix_, n, [&](std::int64_t begin, std::int64_t end) {
        C sums[most_together];
        kernels_.gather_many(matrix_, weights_, values_, entries.data(), n, begin, end, sums, y_, out_.stride(),
                             offsets.data());
      });
    }
  }

  // Every thread processes different vectors, so no sums are shared.
  template <class C> void scatter_tiles() {
    const std::int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
    const std::int64_t width = std::clamp<std::int64_t>((in_.count() + threads - 1) / threads, 1, most_together);
    const std::int64_t tiles = (in_.count() + width - 1) / width;
    at::parallel_for(0, tiles, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t tile = first; tile < last; ++tile)
        scatter_tile<C>(tile * width, std::min(width, in_.count() - tile * width));
    });
  }

  template <class C> void scatter_tile(std::int64_t first, std::int64_t n) {
    const std::vector<C> entries = contributions<C>(x_, in_, values_, first, n);
    std::int64_t all = 0;
    std::int64_t rows = 0;
    for (std::int64_t i = 0; i < matrix_.rows; ++i) {
      const C* const entry = entries.data() + i * n;
      const auto active = n - std::count(entry, entry + n, C(0));
      all += active;
      rows += active > 0 ? 1 : 0;
    }
    if (values_ == Values::number || all > rows * cost_of_a_line) {
      std::vector<C> sums(static_cast<std::size_t>(matrix_.cols * n));
      const std::vector<std::int64_t> offsets = y_offsets(first, n);
      kernels_.scatter_many(matrix_, weights_, values_, entries.data(), n, sums.data(), y_, out_.stride(),
                            offsets.data());
      return;
    }
    // With few events, only the active rows of each vector are processed.
    const std::int64_t bytes = bytes_of_sums<C>();
    std::vector<std::uint64_t> sums(static_cast<std::size_t>(bytes / 8));
    std::vector<C> own(static_cast<std::size_t>(matrix_.rows));
    for (std::int64_t v = 0; v < n; ++v) {
      for (std::int64_t i = 0; i < matrix_.rows; ++i)
        own[static_cast<std::size_t>(i)] = entries[static_cast<std::size_t>(i * n + v)];
      const Active active = active_rows(matrix_, own, values_);
      std::fill(sums.begin(), sums.end(), 0);
      kernels_.scatter(matrix_, weights_, {values_, nullptr, own.data()}, active.share(0, 1), sums.data());
      kernels_.finish(weights_, values_, sums.data(), 1, bytes, 0, matrix_.cols, y_of(first + v), out_.stride());
    }
  }

  const cpu::EventKernels& kernels_ = cpu::event_kernels();
  const Rows& matrix_;
  const at::Tensor& x_;
  Vectors in_, out_;
  char* y_;
  Weights weights_;
  Values values_;
  bool transpose_;
};

at::Tensor product_cpu(const ProductCall& call) {
  check_product(call);
  const HeldRows held = hold_rows(call);
  const char* const name = call.name();
  check_indptr(name, held.rows);
  const StoredMatrix stored = stored_matrix(name, call);
  if (!call.options.unchecked) verify(stored);
  const at::Tensor weights = call.weights.contiguous();
  const at::Tensor x = call.x.contiguous();
  at::Tensor y = at::empty(C10_AS_INTARRAYREF_SLOW(result_sizes(x, call.options)), weights.options());
  if (y.numel() == 0) return y;
  event::note_kernels([&](const jit::Device& device) {
    std::vector<event::KernelSpec> specs = kernels_of(gpu_product(weights, held.rows, x, call.options), device);
    if (!specs.empty() && !call.options.unchecked) specs.push_back(check_kernel(stored));
    return specs;
  });
  Product(weights, held.rows, x, y, call.options).compute();
  return y;
}

// ---- the weights' gradient ----

template <class C>
void weight_gradient(const Rows& matrix, const at::Tensor& x, const at::Tensor& grad, const Options& options, C* to) {
  const Vectors in = vectors_of(x, options.matrix);
  const Vectors out = vectors_of(grad, options.matrix);
  for (std::int64_t first = 0; first < in.count(); first += most_together) {
    const std::int64_t n = std::min(most_together, in.count() - first);
    const Contributions<C> entries(x, in, options.values, first, n), upstream(grad, out, Values::number, first, n);
    for_rows(matrix, n, [&](std::int64_t begin, std::int64_t end) {
      cpu::event_kernels().weight_gradient(matrix, dtype_of(c10::CppTypeToScalarType<C>::value), options.values,
                                           options.transpose, entries.data(), upstream.data(), n, begin, end, to);
    });
  }
}

}  // namespace

void add_weight_grad_cpu(const WeightGradCall& call, const at::Tensor& sums) {
  check_weight_grad(call);
  const HeldRows held = hold_rows(call);
  check_indptr("csr_weight_grad", held.rows);
  const StoredMatrix stored = stored_matrix("csr_weight_grad", call);
  if (!call.options.unchecked) verify(stored);
  const at::Tensor x = call.x.contiguous();
  const at::Tensor grad = call.grad.contiguous();
  event::note_kernels([&](const jit::Device& device) {
    std::vector specs = {plan_weight_gradient(gpu_product(grad, held.rows, x, call.options), device).spec};
    if (!call.options.unchecked) specs.push_back(check_kernel(stored));
    return specs;
  });
  if (sums.scalar_type() == c10::ScalarType::Double)
    weight_gradient(held.rows, x, grad, call.options, sums.mutable_data_ptr<double>());
  else
    weight_gradient(held.rows, x, grad, call.options, sums.mutable_data_ptr<float>());
}

namespace {

at::Tensor weight_grad_cpu(const WeightGradCall& call) {
  const c10::ScalarType type = call.grad.scalar_type();
  const at::Tensor sums = at::zeros(call.indices.sizes(), call.grad.options().dtype(state_type(type)));
  add_weight_grad_cpu(call, sums);
  return sums.to(type);
}

SPIKEFORGE_KERNELS(CPU, library) {
  library.impl("csr_product", TORCH_FN(product_kernel<product_cpu>));
  library.impl("csr_weight_grad", TORCH_FN(weight_grad_kernel<weight_grad_cpu>));
}

}  // namespace

}  // namespace spikeforge::ops::sparse
