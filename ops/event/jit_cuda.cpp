#include "csrc/jit/spec_table.h"
#include "ops/common/library.h"
#include "ops/common/on_stream.h"
#include "ops/event/jit_delays.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

namespace spikeforge::ops::sparse {
namespace {

constexpr std::int64_t jit_block = 256;
constexpr std::int64_t jit_blocks_a_multiprocessor = 16;
constexpr std::int64_t most_jit_batches = 65535;

at::Tensor largest(const at::Tensor& t) {
  const at::Tensor size = t.to(at::kDouble).abs();
  return at::where(size.isfinite(), size, at::zeros({}, size.options())).max();
}

// Returns the limits of weights and entries for fixed-point sums, on the device.
at::Tensor limits_of(const JitCall& call) {
  at::Tensor weight = largest(call.weights);
  if (call.draw.distribution == Distribution::normal)
    weight = largest(call.weights.select(0, 0)).add(largest(call.weights.select(0, 1)), largest_normal);
  const at::Tensor entry = call.options.values == Values::event ? at::ones({}, weight.options()) : largest(call.x);
  return at::stack({weight, entry});
}

// Launches the kernels of a call with contiguous tensors.
class JitLauncher {
 public:
  JitLauncher(const JitCall& call, const at::Tensor& y)
      : device_(gpu_of(call.x)),
        stream_(stream_of(call.x)),
        call_(call),
        y_(y),
        vectors_(vectors_of(call.x, call.options.matrix)) {
    args_.matrix = random_rows(call);
    args_.product = {.rows = args_.matrix.rows,
                     .cols = args_.matrix.cols,
                     .nnz = args_.matrix.rows,  // the maximum in a column
                     .weights = call.weights.const_data_ptr(),
                     .n = vectors_.n};
    spec_ = gpu_jit(call, args_.matrix);
  }

  void gather() {
    for_batches(
        [&](std::int64_t, std::int64_t count) { launch(spec_, args_, args_.product.rows * spec_.lanes, count); });
  }

  void scatter() {
    event::ProductArguments& product = args_.product;
    const bool fixed = spec_.sums == event::Sums::fixed;
    const at::Tensor limits = fixed ? limits_of(call_) : at::Tensor();
    if (fixed) product.limits = static_cast<unsigned long long*>(limits.mutable_data_ptr());
    const std::int64_t results = product.cols * vectors_.n;
    const std::int64_t size = event::size_of_sum(spec_.sums, spec_.weight);
    for_batches([&](std::int64_t, std::int64_t count) {
      const at::Tensor sums = at::zeros({size * results * count}, y_.options().dtype(at::kByte));
      const at::Tensor infinities = at::zeros({fixed ? results * count : 0}, y_.options().dtype(at::kFloat));
      product.sums = sums.mutable_data_ptr();
      product.infinities = fixed ? infinities.mutable_data_ptr<float>() : nullptr;
      product.batches = count;
      launch(spec_, args_, product.rows * args_.matrix.pieces, count);
      launch(gpu_jit_finish(spec_), product, results * count, 1);
    });
  }

  // Adds the results to the ring y.
  void deliver(const JitDeliverCall& call) {
    event::ProductArguments& product = args_.product;
    const std::vector<event::KernelSpec> specs = gpu_jit_delivery(call, args_.matrix);
    spec_ = specs[0];
    args_.delays = random_delays(call);
    product.nnz = std::max(product.rows, product.cols);  // the maximum that arrives in one element
    product.ring_slots = y_.size(0);
    product.slot_size = y_.numel() / y_.size(0);
    if (call.step.is_cpu())
      product.now = *call.step.const_data_ptr<std::int64_t>();
    else
      product.step = static_cast<const event::Int*>(call.step.const_data_ptr());
    const bool direct = spec_.sums == event::Sums::floats, fixed = spec_.sums == event::Sums::fixed;
    const at::Tensor limits = fixed ? limits_of(call_) : at::Tensor();
    if (fixed) product.limits = static_cast<unsigned long long*>(limits.mutable_data_ptr());
    const std::int64_t size = event::size_of_sum(spec_.sums, spec_.weight);
    const at::Tensor sums = direct ? y_ : at::zeros({size * y_.numel()}, y_.options().dtype(at::kByte));
    const at::Tensor infinities = at::zeros({fixed ? y_.numel() : 0}, y_.options().dtype(at::kFloat));
    auto* const first_sum = static_cast<char*>(sums.mutable_data_ptr());
    const std::int64_t out = spec_.transpose ? product.cols : product.rows;
    for_batches([&](std::int64_t first, std::int64_t count) {
      product.sums = first_sum + first * out * size;
      product.infinities = fixed ? infinities.mutable_data_ptr<float>() + first * out : nullptr;
      launch(spec_, args_, product.rows * (spec_.transpose ? args_.matrix.pieces : spec_.lanes), count);
    });
    product.y = y_.mutable_data_ptr();
    product.sums = first_sum;
    product.infinities = fixed ? infinities.mutable_data_ptr<float>() : nullptr;
    if (!direct) launch(specs[1], product, y_.numel(), 1);
  }

 private:
  template <class F> void for_batches(F&& f) {
    const at::Tensor& x = call_.x;
    const std::int64_t out = spec_.transpose ? args_.product.cols : args_.product.rows;
    for (std::int64_t first = 0; first < vectors_.batches; first += most_jit_batches) {
      args_.product.x =
          static_cast<const char*>(x.const_data_ptr()) + first * vectors_.length * vectors_.n * x.element_size();
      args_.product.y = static_cast<char*>(y_.mutable_data_ptr()) + first * out * vectors_.n * y_.element_size();
      f(first, std::min(most_jit_batches, vectors_.batches - first));
    }
  }

  template <class Arguments>
  void launch(const event::KernelSpec& spec, const Arguments& args, std::int64_t threads, std::int64_t batches) {
    const std::int64_t blocks = std::clamp<std::int64_t>((threads + jit_block - 1) / jit_block, 1,
                                                         jit_blocks_a_multiprocessor * device_.multiprocessors);
    jit::SpecTable<event::KernelSpec>::of(device_)
        .get(spec, device_)
        .launch({static_cast<unsigned>(blocks), static_cast<unsigned>(batches), 1}, jit_block, 0, stream_, &args,
                sizeof args);
  }

  const jit::Device& device_;
  void* stream_;
  const JitCall& call_;
  const at::Tensor& y_;
  Vectors vectors_;
  event::KernelSpec spec_;
  event::JitArguments args_{};
};

at::Tensor jit_product_cuda(const JitCall& call) {
  check_jit(jit_name(call.options.matrix), call);
  const c10::cuda::OptionalCUDAGuard guard(call.x.device());
  const c10::SymDimVector sizes = result_sizes(call.x, call.options);
  if (is_empty(call)) return at::zeros_symint(sizes, call.weights.options());
  const at::Tensor weights = call.weights.contiguous();
  const at::Tensor x = call.x.contiguous();
  const JitCall dense{weights, x, call.options, call.draw};
  at::Tensor y = at::empty_symint(sizes, weights.options());
  JitLauncher launcher(dense, y);
  if (call.options.transpose)
    launcher.scatter();
  else
    launcher.gather();
  return y;
}

SPIKEFORGE_KERNELS(CUDA, library) { library.impl("jit_product", TORCH_FN(jit_kernel<jit_product_cuda>)); }

}  // namespace

void jit_deliver_cuda(const JitDeliverCall& call) {
  const c10::cuda::OptionalCUDAGuard guard(call.buffer.device());
  JitLauncher(call.product, call.buffer).deliver(call);
}

}  // namespace spikeforge::ops::sparse
