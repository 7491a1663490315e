// Products on a GPU: which kernels run, and how wide.
#include <spikeforge/ops/event/product.h>
#include <spikeforge/ops/neuron/layout.h>
#include <spikeforge/ops/neuron/on_stream.h>
#include <spikeforge/runtime/event_spec.h>
#include <spikeforge/runtime/spec_table.h>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace spikeforge::ops::sparse {
namespace {

using runtime::EventArguments;
using runtime::EventKernel;
using runtime::EventSpec;
using runtime::EventSums;

// What a measurement may vary: SPIKEFORGE_EVENT_SCHEDULE="lanes=32,unroll=8,...", read at every call. 0: as chosen
// here.
struct Schedule {
  std::int64_t lanes = 0;          // threads a row, by rows
  std::int64_t unroll = 0;         // indices that a thread has on their way
  std::int64_t block = 0;          // threads of a block, by rows
  std::int64_t blocks = 0;         // blocks a multiprocessor, by rows
  std::int64_t scatter_block = 0;  // the same, by columns
  std::int64_t scatter_blocks = 0;
  std::int64_t chunk = 0;            // connections a task
  std::int64_t private_from = -1;    // connections from which blocks have sums of their own, in multiples of cols
  std::int64_t private_allowed = 1;  // whether the kernel is compiled with that way at all
};

Schedule schedule() {
  Schedule result;
  const char* const text = std::getenv("SPIKEFORGE_EVENT_SCHEDULE");
  if (text == nullptr) return result;
  struct Field {
    std::string_view name;
    std::int64_t Schedule::*value;
  };
  constexpr Field fields[] = {{"lanes", &Schedule::lanes},
                              {"unroll", &Schedule::unroll},
                              {"block", &Schedule::block},
                              {"blocks", &Schedule::blocks},
                              {"scatter_block", &Schedule::scatter_block},
                              {"scatter_blocks", &Schedule::scatter_blocks},
                              {"chunk", &Schedule::chunk},
                              {"private_from", &Schedule::private_from},
                              {"private_allowed", &Schedule::private_allowed}};
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) continue;
    for (const Field& field : fields)
      if (item.substr(0, equals) == field.name)
        std::from_chars(item.data() + equals + 1, item.data() + item.size(), result.*field.value);
  }
  return result;
}

std::int64_t or_default(std::int64_t given, std::int64_t value) { return given > 0 ? given : value; }

constexpr std::int64_t static_shared_bytes = 48 << 10;  // that a kernel may have without asking
constexpr std::int64_t most_grid_y = 65535;
constexpr std::int64_t most_workspace = std::int64_t{1} << 28;  // bytes that batches side by side may take

std::int64_t power_of_two(std::int64_t at_most) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(1, at_most))));
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t most_shared_bytes(const at::Tensor& t) {
  int bytes = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, t.get_device()));
  return bytes;
}

class Launcher {
 public:
  Launcher(const at::Tensor& weights, const HeldRows& held, const at::Tensor& x, const Form& form)
      : device_(gpu_of(x)),
        stream_(stream_of(x)),
        index_(x.get_device()),
        in_(vectors_of(x, form.matrix)),
        most_shared_bytes_(most_shared_bytes(x)) {
    spec_.weight = dtype_of(weights.scalar_type());
    spec_.entry = entry_type_of(x.scalar_type());
    spec_.values = form.values;
    spec_.shared = weights.numel() == 1;
    spec_.indptr_bytes = held.rows.indptr == nullptr ? 0 : held.rows.wide_indptr ? 8 : 4;
    spec_.transpose = form.transpose;
    args_ = {.indices = held.rows.indices,
             .indptr = held.rows.indptr,
             .width = held.rows.width,
             .rows = held.rows.rows,
             .cols = held.rows.cols,
             .connections = held.rows.connections,
             .weights = weights.const_data_ptr(),
             .n = in_.n,
             .batches = in_.batches};
    mean_row_ = held.rows.rows == 0 ? 0 : held.rows.connections / held.rows.rows;
  }

  void gather(const at::Tensor& x, const at::Tensor& y) {
    const bool bits = spec_.values == Values::event && in_.n == 1;
    const std::int64_t words = divide_up(args_.cols, 32);
    const at::Tensor bits_of = bits ? at::empty({in_.batches * words}, x.options().dtype(at::kInt)) : at::Tensor();
    for_batches(most_grid_y, [&](std::int64_t first, std::int64_t count) {
      point_at(x, y, first);
      if (bits)
        gather_bits(count, words, bits_of.mutable_data_ptr<std::int32_t>() + first * words);
      else
        gather_entries(count);
    });
  }

  void scatter(const at::Tensor& x, const at::Tensor& y, bool deterministic) {
    args_.chunk = or_default(schedule_.chunk, chunk_);
    args_.task_capacity = args_.rows + args_.connections / args_.chunk + 1;
    const bool counts = spec_.shared && spec_.values == Values::event;
    spec_.sums = counts ? EventSums::counts : deterministic ? EventSums::fixed : EventSums::floats;
    const bool in_place =
        spec_.sums == EventSums::floats && !spec_.shared && spec_.weight == compute_type(spec_.weight);
    const std::int64_t results = args_.cols * args_.n;
    const std::int64_t segments = divide_up(args_.rows, runtime::rows_of_segment);
    const std::int64_t size = sum_bytes();
    const bool fixed = spec_.sums == EventSums::fixed;
    const std::int64_t each =
        8 * args_.task_capacity + 16 * segments + (in_place ? 0 : size * results) + (fixed ? 4 * results : 0) + 48;

    const auto bytes = [&](std::int64_t n) { return at::empty({n}, x.options().dtype(at::kByte)); };
    const at::Tensor limits = fixed ? at::zeros({2}, x.options().dtype(at::kLong)) : at::Tensor();
    if (fixed) {
      point_at(x, y, 0);
      args_.limits = limits.mutable_data_ptr();
      run(EventKernel::limits, grid(args_.connections, 256, 4), 256, 0, 1);
    }
    for_batches(std::clamp<std::int64_t>(most_workspace / each, 1, most_grid_y), [&](std::int64_t first,
                                                                                     std::int64_t count) {
      point_at(x, y, first);
      const at::Tensor tasks = bytes(8 * args_.task_capacity * count);
      const at::Tensor of_segments = bytes(16 * segments * count);
      const at::Tensor sums = in_place ? at::Tensor() : bytes(size * results * count);
      const at::Tensor infinities = fixed ? bytes(4 * results * count) : at::Tensor();
      args_.tasks = tasks.mutable_data_ptr();
      args_.segments = of_segments.mutable_data_ptr();
      args_.sums = in_place ? args_.y : sums.mutable_data_ptr();
      args_.infinities = fixed ? infinities.mutable_data_ptr() : nullptr;
      run(EventKernel::compact, std::max(segments, std::min(divide_up(results, 1024), by_blocks(1))), 1024, 0, count);
      scatter_tasks(count, results * size);
      if (!in_place) run(EventKernel::finish, grid(results, 256, 8), 256, 0, count);
    });
  }

  void weight_gradient(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& result) {
    point_at(x, result, 0);
    args_.grad = grad.const_data_ptr();
    spec_.lanes = static_cast<std::uint8_t>(std::min<std::int64_t>(32, power_of_two(mean_row_)));
    run(EventKernel::weight_gradient, grid(args_.rows * spec_.lanes, 256, 8), 256, 0, 1);
  }

 private:
  static constexpr std::int64_t chunk_ = 256;
  // From so many connections a column of every multiprocessor's own sums pays for itself.
  static constexpr std::int64_t private_from_ = 32;

  std::int64_t by_blocks(std::int64_t each) const { return each * device_.multiprocessors; }
  std::int64_t grid(std::int64_t threads, std::int64_t block, std::int64_t each) const {
    return std::clamp<std::int64_t>(divide_up(threads, block), 1, by_blocks(each));
  }

  std::int64_t sum_bytes() const {
    if (spec_.sums == EventSums::counts) return 4;
    if (spec_.sums == EventSums::fixed) return 8;
    return static_cast<std::int64_t>(size_of(compute_type(spec_.weight)));
  }

  template <class F>
  void for_batches(std::int64_t most, F&& f) {
    for (std::int64_t first = 0; first < in_.batches; first += most) f(first, std::min(most, in_.batches - first));
  }

  void point_at(const at::Tensor& x, const at::Tensor& y, std::int64_t batch) {
    const std::int64_t out = spec_.transpose ? args_.cols : args_.rows;
    args_.x = static_cast<const char*>(x.const_data_ptr()) + batch * in_.length * in_.n * x.element_size();
    args_.y = static_cast<char*>(y.mutable_data_ptr()) + batch * out * in_.n * y.element_size();
  }

  void gather_bits(std::int64_t batches, std::int64_t words, std::int32_t* bits) {
    args_.bits = bits;
    args_.words = words;
    run(EventKernel::pack, grid(words * 32, 256, 8), 256, 0, batches);
    // A thread has about four connections of a mean row at once.
    spec_.lanes = static_cast<std::uint8_t>(
        or_default(schedule_.lanes, std::clamp<std::int64_t>(power_of_two(mean_row_ / 4), 1, 32)));
    spec_.unroll = static_cast<std::uint8_t>(or_default(schedule_.unroll, 4));
    spec_.in_shared = words * 4 <= static_shared_bytes;
    const std::int64_t block = or_default(schedule_.block, 512);
    run(EventKernel::gather_bits, grid(args_.rows * spec_.lanes, block, or_default(schedule_.blocks, 4)), block,
        spec_.in_shared ? words * 4 : 0, batches);
    spec_.in_shared = false;
  }

  void gather_entries(std::int64_t batches) {
    constexpr std::int64_t long_row = 4096;
    spec_.columns =
        static_cast<std::uint8_t>(std::min<std::int64_t>(32, std::bit_ceil(static_cast<std::uint64_t>(args_.n))));
    const std::int64_t block = or_default(schedule_.block, 256);
    const std::int64_t blocks = or_default(schedule_.blocks, 8);
    spec_.unroll = static_cast<std::uint8_t>(or_default(schedule_.unroll, 4));
    if (args_.n == 1 && mean_row_ >= long_row && args_.rows < by_blocks(16)) {
      run(EventKernel::gather_by_blocks, grid(args_.rows * block, block, blocks), block, 0, batches);
      return;
    }
    spec_.lanes = static_cast<std::uint8_t>(or_default(
        schedule_.lanes, std::clamp<std::int64_t>(power_of_two(mean_row_ / 4) * spec_.columns, spec_.columns, 32)));
    const std::int64_t tiles = divide_up(args_.n, spec_.columns);
    run(EventKernel::gather, grid(args_.rows * tiles * spec_.lanes, block, blocks), block, 0, batches);
  }

  void scatter_tasks(std::int64_t batches, std::int64_t own_bytes) {
    spec_.columns =
        static_cast<std::uint8_t>(std::min<std::int64_t>(32, std::bit_ceil(static_cast<std::uint64_t>(args_.n))));
    spec_.unroll = static_cast<std::uint8_t>(or_default(schedule_.unroll, 4));
    spec_.in_shared = spec_.sums != EventSums::fixed && batches == 1 && schedule_.private_allowed != 0 &&
                      own_bytes <= most_shared_bytes_;
    args_.private_from = schedule_.private_from >= 0 ? schedule_.private_from * args_.cols * args_.n
                                                     : private_from_ * args_.cols * args_.n;
    const std::int64_t block = std::min<std::int64_t>(or_default(schedule_.scatter_block, spec_.in_shared ? 1024 : 256),
                                                      spec_.in_shared ? 1024 : 512);
    const std::int64_t most = or_default(schedule_.scatter_blocks, spec_.in_shared ? 1 : 8);
    const std::int64_t tasks = args_.rows + args_.connections / args_.chunk;
    run(EventKernel::scatter, grid(tasks * 32, block, most), block, spec_.in_shared ? own_bytes : 0, batches);
    spec_.in_shared = false;
  }

  void run(EventKernel kernel, std::int64_t blocks, std::int64_t block, std::int64_t shared_bytes,
           std::int64_t batches) {
    if (blocks == 0 || batches == 0) return;
    spec_.kernel = kernel;
    const runtime::LoadedKernel& loaded = runtime::SpecTable<EventSpec>::of(device_).get(canonical(spec_), device_);
    if (shared_bytes > static_shared_bytes) loaded.allow_shared(static_cast<int>(shared_bytes), index_);
    loaded.launch({static_cast<unsigned>(blocks), static_cast<unsigned>(batches), 1}, static_cast<unsigned>(block),
                  static_cast<unsigned>(shared_bytes), stream_, &args_, sizeof args_);
  }

  // Choices that a kernel does not read are brought to one value, so that they do not multiply kernels.
  static EventSpec canonical(EventSpec spec) {
    const EventKernel kernel = spec.kernel;
    const bool by_rows =
        kernel == EventKernel::gather_bits || kernel == EventKernel::gather || kernel == EventKernel::gather_by_blocks;
    if (kernel == EventKernel::pack || kernel == EventKernel::compact) {
      spec.weight = spec.sums == EventSums::floats ? compute_type(spec.weight) : DType::f32;
      spec.shared = false;
    }
    if (kernel == EventKernel::pack) spec.indptr_bytes = 0;
    if (kernel == EventKernel::gather_bits) spec.entry = event::EntryType::boolean;
    if (by_rows || kernel == EventKernel::pack) spec.sums = {};
    if (kernel != EventKernel::gather_bits && kernel != EventKernel::gather && kernel != EventKernel::weight_gradient)
      spec.lanes = 32;
    if (kernel != EventKernel::gather && kernel != EventKernel::scatter) spec.columns = 1;
    if (!by_rows && kernel != EventKernel::scatter) spec.unroll = 4;
    if (kernel != EventKernel::gather_bits && kernel != EventKernel::scatter) spec.in_shared = false;
    if (kernel != EventKernel::weight_gradient) spec.transpose = false;
    return spec;
  }

  const runtime::Device& device_;
  void* stream_;
  int index_;
  Vectors in_;
  std::int64_t most_shared_bytes_;
  Schedule schedule_ = schedule();
  EventSpec spec_;
  EventArguments args_{};
  std::int64_t mean_row_ = 0;
};

at::Tensor product_cuda(const at::Tensor& weights, const at::Tensor& indices, const std::optional<at::Tensor>& indptr,
                        const at::Tensor& x, std::int64_t rows, std::int64_t cols, bool transpose, bool matrix,
                        c10::string_view values, bool deterministic) {
  const Form form{rows, cols, transpose, matrix, parse_values(values), deterministic};
  check_product(weights, indices, indptr, x, form);
  const c10::cuda::OptionalCUDAGuard guard(x.device());
  const HeldRows held = hold_rows(indices, indptr, rows, cols);
  const at::Tensor dense_weights = weights.contiguous();
  const at::Tensor dense_x = x.contiguous();
  at::Tensor y = at::empty(C10_AS_INTARRAYREF_SLOW(result_sizes(x, form)), weights.options());
  if (y.numel() == 0) return y;
  if (held.rows.connections == 0) return y.zero_();
  Launcher launcher(dense_weights, held, dense_x, form);
  if (transpose) {
    launcher.scatter(dense_x, y, deterministic || at::globalContext().deterministicAlgorithms());
  } else {
    launcher.gather(dense_x, y);
  }
  return y;
}

at::Tensor weight_grad_cuda(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& indices,
                            const std::optional<at::Tensor>& indptr, std::int64_t rows, std::int64_t cols,
                            bool transpose, bool matrix, c10::string_view values) {
  const Form form{rows, cols, transpose, matrix, parse_values(values), false};
  check_weight_grad(x, grad, indices, indptr, form);
  const c10::cuda::OptionalCUDAGuard guard(x.device());
  const HeldRows held = hold_rows(indices, indptr, rows, cols);
  at::Tensor result = at::empty(indices.sizes(), grad.options());
  if (result.numel() == 0) return result;
  const at::Tensor dense_x = x.contiguous();
  const at::Tensor dense_grad = grad.contiguous();
  Launcher launcher(dense_grad, held, dense_x, form);
  launcher.weight_gradient(dense_x, dense_grad, result);
  return result;
}

TORCH_LIBRARY_IMPL(spikeforge, CUDA, library) {
  library.impl("csr_product", TORCH_FN(product_cuda));
  library.impl("csr_weight_grad", TORCH_FN(weight_grad_cuda));
}

}  // namespace
}  // namespace spikeforge::ops::sparse
