// Products on the CPU: what is read once a call is prepared once, then every thread takes an equal share of nonzeros.
//
// By rows (A e) a thread owns its results. By columns (e A) every thread adds to sums of its own, which are then added
// up in the order of the threads: the same number of threads gives the same bits, and with one weight for all, where
// sums are whole numbers, any number does.
#include <spikeforge/cpu/event_kernels.h>
#include <spikeforge/kernels/event/note.h>
#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/event/product.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace spikeforge::ops::sparse {
namespace {

using event::Rows;
using event::Weights;

// A thread that does less than this is not worth waking.
constexpr std::int64_t least_share = 1 << 14;
// Vectors that are read together: entries of 32 in float32 are two cache lines.
constexpr std::int64_t most_together = 32;
// A sum by columns costs a cache line, whether one vector or 16 are in it; so does a vector instruction.
constexpr std::int64_t cost_of_a_line = 4;

// ---- what a vector contributes ----

bool is_event(Truth x) { return x > 0; }
bool is_event(float x) { return x > 0; }
bool is_event(double x) { return x > 0; }

// Up to 32 events as a word, without branches.
template <class T>
std::uint32_t pack_word(const T* x, std::int64_t stride, std::int64_t n) {
  std::uint32_t word = 0;
  for (std::int64_t b = 0; b < n; ++b) word |= static_cast<std::uint32_t>(is_event(x[b * stride])) << b;
  return word;
}

// 32 that lie side by side: as bytes of 0 and 1, eight of which a product moves into one.
template <class T>
std::uint32_t pack_word(const T* x) {
  std::uint8_t bytes[32];
  for (int b = 0; b < 32; ++b) bytes[b] = is_event(x[b]) ? 1 : 0;
  std::uint32_t word = 0;
  for (int part = 0; part < 4; ++part) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, bytes + 8 * part, 8);
    word |= static_cast<std::uint32_t>(eight * 0x0102040810204080U >> 56) << 8 * part;
  }
  return word;
}

using Bits = std::vector<std::uint32_t>;

Bits pack(const at::Tensor& x, const Vectors& vectors, std::int64_t v) {
  Bits bits(static_cast<std::size_t>((vectors.length + 31) / 32));
  with_entries(x, [&](const auto* entries) {
    const auto* const from = entries + vectors.offset(v);
    const std::int64_t stride = vectors.stride();
    for (std::size_t w = 0; w < bits.size(); ++w) {
      const std::int64_t first = static_cast<std::int64_t>(w) * 32;
      const std::int64_t n = std::min<std::int64_t>(32, vectors.length - first);
      if (stride == 1 && n == 32)
        bits[w] = pack_word(from + first);
      else
        bits[w] = pack_word(from + first * stride, stride, n);
    }
  });
  return bits;
}

template <class C, class T>
C contribution(T x, Values values) {
  if (values == Values::number) return static_cast<C>(x);
  if (!is_event(x)) return C(0);
  return values == Values::event ? C(1) : static_cast<C>(x);
}

// Vectors [first, first + n) as [length, n] in the compute type.
template <class C>
std::vector<C> contributions(const at::Tensor& x, const Vectors& vectors, Values values, std::int64_t first,
                             std::int64_t n) {
  std::vector<C> entries(static_cast<std::size_t>(vectors.length * n));
  for (std::int64_t v = 0; v < n; ++v)
    with_entries(x, [&](const auto* begin) {
      const auto* const from = begin + vectors.offset(first + v);
      for (std::int64_t i = 0; i < vectors.length; ++i)
        entries[static_cast<std::size_t>(i * n + v)] = contribution<C>(from[i * vectors.stride()], values);
    });
  return entries;
}

// The rows that contribute, with how many nonzeros come before each.
struct Active {
  std::vector<std::int32_t> rows;
  std::vector<std::int64_t> starts;

  explicit Active(std::int64_t expected) {
    rows.reserve(static_cast<std::size_t>(expected));
    starts.reserve(static_cast<std::size_t>(expected) + 1);
  }

  void add(const Rows& matrix, std::int64_t row) {
    rows.push_back(static_cast<std::int32_t>(row));
    starts.push_back(total);
    total += matrix.end(row) - matrix.begin(row);
  }
  cpu::Share share(std::int64_t part, std::int64_t parts) const {
    const auto until = [&](std::int64_t p) { return total / parts * p + std::min(p, total % parts); };
    return {rows.data(), starts.data(), static_cast<std::int64_t>(rows.size()), until(part), until(part + 1)};
  }
  void finish() { starts.push_back(total); }

  std::int64_t total = 0;
};

Active active_rows(const Rows& matrix, const Bits& bits) {
  std::int64_t count = 0;
  for (const std::uint32_t word : bits) count += __builtin_popcount(word);
  Active active(count);
  for (std::size_t w = 0; w < bits.size(); ++w)
    for (std::uint32_t word = bits[w]; word != 0; word &= word - 1)
      active.add(matrix, static_cast<std::int64_t>(w) * 32 + __builtin_ctz(word));
  active.finish();
  return active;
}

template <class C>
Active active_rows(const Rows& matrix, const std::vector<C>& entries, Values values) {
  Active active(matrix.rows);
  for (std::int64_t i = 0; i < matrix.rows; ++i)
    if (values == Values::number || entries[static_cast<std::size_t>(i)] != 0) active.add(matrix, i);
  active.finish();
  return active;
}

// ---- one product ----

std::int64_t parts_for(std::int64_t work) {
  return std::clamp<std::int64_t>(work / least_share, 1, at::in_parallel_region() ? 1 : at::get_num_threads());
}

// Calls f(begin, end) for ranges of rows with equal shares of nonzeros.
template <class F>
void for_rows(const Rows& matrix, std::int64_t vectors, F&& f) {
  const std::int64_t parts = parts_for((matrix.nnz + matrix.rows) * vectors);
  const auto boundary = [&](std::int64_t part) {
    if (part == parts) return matrix.rows;
    // Rows count too: empty ones are work as well.
    const std::int64_t wanted = (matrix.nnz + matrix.rows) / parts * part;
    std::int64_t low = 0;
    std::int64_t high = matrix.rows;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (matrix.begin(middle) - matrix.begin(0) + middle < wanted)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  };
  at::parallel_for(0, parts, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first; part < last; ++part) {
      const std::int64_t begin = boundary(part);
      const std::int64_t end = std::max(begin, boundary(part + 1));
      if (begin < end) f(begin, end);
    }
  });
}

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

  void run() {
    if (weights_.type == DType::f64)
      run_in<double>();
    else
      run_in<float>();
  }

 private:
  template <class C>
  void run_in() {
    if (in_.count() == 1)
      transpose_ ? scatter<C>() : gather<C>();
    else
      transpose_ ? scatter_tiles<C>() : gather_tiles<C>();
  }

  char* y_of(std::int64_t vector) const {
    return y_ + out_.offset(vector) * static_cast<std::int64_t>(size_of(weights_.type));
  }

  // The y of vectors in one tile are a way from the first one's.
  std::vector<std::int64_t> y_offsets(std::int64_t first, std::int64_t n) const {
    std::vector<std::int64_t> offsets(static_cast<std::size_t>(n));
    for (std::int64_t v = 0; v < n; ++v) offsets[static_cast<std::size_t>(v)] = out_.offset(first + v);
    return offsets;
  }

  template <class C>
  void gather() {
    const bool events = values_ == Values::event;
    const Bits bits = events ? pack(x_, in_, 0) : Bits();
    const std::vector<C> entries = events ? std::vector<C>() : contributions<C>(x_, in_, values_, 0, 1);
    const cpu::Prepared x{values_, bits.data(), entries.data()};
    for_rows(matrix_, 1, [&](std::int64_t begin, std::int64_t end) {
      kernels_.gather(matrix_, weights_, x, begin, end, y_, out_.stride());
    });
  }

  template <class C>
  void scatter() {
    const bool events = values_ == Values::event;
    const Bits bits = events ? pack(x_, in_, 0) : Bits();
    const std::vector<C> entries = events ? std::vector<C>() : contributions<C>(x_, in_, values_, 0, 1);
    const Active active = events ? active_rows(matrix_, bits) : active_rows(matrix_, entries, values_);
    const cpu::Prepared x{values_, bits.data(), entries.data()};
    const std::int64_t part_bytes = bytes_of_sums<C>();
    // Sums of all parts are added up at the end: more parts than that pays for are not made.
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

  template <class C>
  std::int64_t bytes_of_sums() const {
    const std::size_t each = weights_.homogeneous && values_ == Values::event ? sizeof(std::uint32_t) : sizeof(C);
    return (matrix_.cols * static_cast<std::int64_t>(each) + 63) / 64 * 64;
  }

  template <class C>
  void gather_tiles() {
    for (std::int64_t first = 0; first < in_.count(); first += most_together) {
      const std::int64_t n = std::min(most_together, in_.count() - first);
      const std::vector<C> entries = contributions<C>(x_, in_, values_, first, n);
      const std::vector<std::int64_t> offsets = y_offsets(first, n);
      for_rows(matrix_, n, [&](std::int64_t begin, std::int64_t end) {
        C sums[most_together];
        kernels_.gather_many(matrix_, weights_, values_, entries.data(), n, begin, end, sums, y_, out_.stride(),
                             offsets.data());
      });
    }
  }

  // Every thread takes vectors of its own, so no sums are shared.
  template <class C>
  void scatter_tiles() {
    const std::int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
    const std::int64_t width = std::clamp<std::int64_t>((in_.count() + threads - 1) / threads, 1, most_together);
    const std::int64_t tiles = (in_.count() + width - 1) / width;
    at::parallel_for(0, tiles, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t tile = first; tile < last; ++tile)
        scatter_tile<C>(tile * width, std::min(width, in_.count() - tile * width));
    });
  }

  template <class C>
  void scatter_tile(std::int64_t first, std::int64_t n) {
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
    // Few events: each vector's own rows alone.
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
  Product(weights, held.rows, x, y, call.options).run();
  return y;
}

// ---- the weights' gradient ----

template <class C>
void weight_gradient(const Rows& matrix, const at::Tensor& x, const at::Tensor& grad, const Options& options, C* to) {
  const Vectors in = vectors_of(x, options.matrix);
  const Vectors out = vectors_of(grad, options.matrix);
  for (std::int64_t first = 0; first < in.count(); first += most_together) {
    const std::int64_t n = std::min(most_together, in.count() - first);
    const std::vector<C> entries = contributions<C>(x, in, options.values, first, n);
    const std::vector<C> upstream = contributions<C>(grad, out, Values::number, first, n);
    for_rows(matrix, n, [&](std::int64_t begin, std::int64_t end) {
      cpu::event_kernels().weight_gradient(matrix, dtype_of(c10::CppTypeToScalarType<C>::value), options.values,
                                           options.transpose, entries.data(), upstream.data(), n, begin, end, to);
    });
  }
}

at::Tensor weight_grad_cpu(const WeightGradCall& call) {
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
  const DType compute = compute_type(dtype_of(grad.scalar_type()));
  const at::Tensor result = at::zeros(call.indices.sizes(), grad.options().dtype(scalar_type_of(compute)));
  if (compute == DType::f64)
    weight_gradient(held.rows, x, grad, call.options, result.mutable_data_ptr<double>());
  else
    weight_gradient(held.rows, x, grad, call.options, result.mutable_data_ptr<float>());
  return result.to(grad.scalar_type());
}

SPIKEFORGE_KERNELS(CPU, library) {
  library.impl("csr_product", TORCH_FN(product_kernel<product_cpu>));
  library.impl("csr_weight_grad", TORCH_FN(weight_grad_kernel<weight_grad_cpu>));
}

}  // namespace
}  // namespace spikeforge::ops::sparse
