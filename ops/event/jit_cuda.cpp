#include <spikeforge/ops/event/jit.h>
#include <spikeforge/ops/common/layout.h>
#include <spikeforge/ops/common/on_stream.h>
#include <spikeforge/kernels/event/jit_spec.h>
#include <spikeforge/jit/spec_table.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <algorithm>

namespace spikeforge::ops::sparse {
namespace {

using jit::EventJitSpec;
using jit::EventSpec;
using jit::EventSums;

constexpr std::int64_t jit_block = 256;
constexpr std::int64_t jit_blocks_a_multiprocessor = 16;
constexpr std::int64_t most_jit_batches = 65535;

at::Tensor largest(const at::Tensor& t) {
  const at::Tensor size = t.to(at::kDouble).abs();
  return at::where(size.isfinite(), size, at::zeros({}, size.options())).max();
}

// Of a weight and of an entry, as the fixed sums want them; stays on the device.
at::Tensor limits_of(const at::Tensor& weights, const at::Tensor& x, const Form& form, const Draw& draw) {
  at::Tensor weight = largest(weights);
  if (draw.law == Law::normal)
    weight = largest(weights.select(0, 0)).add(largest(weights.select(0, 1)), spikeforge::event::largest_normal);
  const at::Tensor entry = form.values == Values::event ? at::ones({}, weight.options()) : largest(x);
  return at::stack({weight, entry});
}

class JitLauncher {
 public:
  JitLauncher(const at::Tensor& weights, const at::Tensor& x, const Form& form, const Draw& draw,
              const RandomRows& matrix)
      : device_(gpu_of(x)),
        stream_(stream_of(x)),
        vectors_(vectors_of(x, form.matrix)),
        spec_(gpu_jit(weights, x, form, draw, matrix)) {
    args_.matrix = matrix;
    args_.product = {.rows = matrix.rows,
                     .cols = matrix.cols,
                     .connections = matrix.rows,  // that a column has at most
                     .weights = weights.const_data_ptr(),
                     .n = vectors_.n};
  }

  void gather(const at::Tensor& x, const at::Tensor& y) {
    for_batches(x, y, [&](std::int64_t count) {
      launch(jit::SpecTable<EventJitSpec>::of(device_).get(spec_, device_), args_,
             args_.product.rows * spec_.product.lanes, count);
    });
  }

  void scatter(const at::Tensor& weights, const at::Tensor& x, const at::Tensor& y, const Form& form,
               const Draw& draw) {
    const bool fixed = spec_.product.sums == EventSums::fixed;
    const at::Tensor limits = fixed ? limits_of(weights, x, form, draw) : at::Tensor();
    if (fixed) args_.product.limits = limits.mutable_data_ptr();
    const std::int64_t results = args_.product.cols * vectors_.n;
    const std::int64_t size = jit::size_of_sum(spec_.product.sums, spec_.product.weight);
    for_batches(x, y, [&](std::int64_t count) {
      const at::Tensor sums = at::zeros({size * results * count}, x.options().dtype(at::kByte));
      const at::Tensor infinities = at::zeros({fixed ? results * count : 0}, x.options().dtype(at::kFloat));
      args_.product.sums = sums.mutable_data_ptr();
      args_.product.infinities = fixed ? infinities.mutable_data_ptr() : nullptr;
      args_.product.batches = count;
      launch(jit::SpecTable<EventJitSpec>::of(device_).get(spec_, device_), args_,
             args_.product.rows * args_.matrix.pieces, count);
      launch(jit::SpecTable<EventSpec>::of(device_).get(gpu_jit_finish(spec_), device_), args_.product,
             results * count, 1);
    });
  }

 private:
  template <class F>
  void for_batches(const at::Tensor& x, const at::Tensor& y, F&& f) {
    const std::int64_t out = spec_.product.transpose ? args_.product.cols : args_.product.rows;
    for (std::int64_t first = 0; first < vectors_.batches; first += most_jit_batches) {
      args_.product.x =
          static_cast<const char*>(x.const_data_ptr()) + first * vectors_.length * vectors_.n * x.element_size();
      args_.product.y = static_cast<char*>(y.mutable_data_ptr()) + first * out * vectors_.n * y.element_size();
      f(std::min(most_jit_batches, vectors_.batches - first));
    }
  }

  template <class Arguments>
  void launch(const jit::LoadedKernel& kernel, const Arguments& args, std::int64_t threads, std::int64_t batches) {
    const std::int64_t blocks = std::clamp<std::int64_t>((threads + jit_block - 1) / jit_block, 1,
                                                         jit_blocks_a_multiprocessor * device_.multiprocessors);
    kernel.launch({static_cast<unsigned>(blocks), static_cast<unsigned>(batches), 1}, jit_block, 0, stream_, &args,
                  sizeof args);
  }

  const jit::Device& device_;
  void* stream_;
  Vectors vectors_;
  EventJitSpec spec_;
  jit::EventJitArguments args_{};
};

at::Tensor jit_product_cuda(const at::Tensor& weights, const at::Tensor& x, std::int64_t rows, std::int64_t cols,
                            double prob, std::int64_t seed, c10::string_view law, bool transpose, bool matrix,
                            c10::string_view values, bool deterministic) {
  const auto [form, draw] = parse_jit(rows, cols, prob, seed, law, transpose, matrix, values, deterministic);
  check_jit(weights, x, form, draw);
  const c10::cuda::OptionalCUDAGuard guard(x.device());
  const c10::SymDimVector sizes = result_sizes(x, form);
  if (prob == 0 || rows == 0 || cols == 0 || x.numel() == 0) return at::zeros_symint(sizes, weights.options());
  const at::Tensor dense_weights = weights.contiguous();
  const at::Tensor dense_x = x.contiguous();
  at::Tensor y = at::empty_symint(sizes, weights.options());
  JitLauncher launcher(dense_weights, dense_x, form, draw, random_rows(draw, rows, cols));
  if (transpose)
    launcher.scatter(dense_weights, dense_x, y, form, draw);
  else
    launcher.gather(dense_x, y);
  return y;
}

TORCH_LIBRARY_IMPL(spikeforge, CUDA, library) { library.impl("jit_product", TORCH_FN(jit_product_cuda)); }

}  // namespace
}  // namespace spikeforge::ops::sparse
