// Products on a GPU: memory and launches of the kernels that csrc/kernels/event/plan.h chooses.
#include "csrc/jit/spec_table.h"
#include "csrc/kernels/event/plan.h"
#include "ops/common/library.h"
#include "ops/common/on_stream.h"
#include "ops/event/delays.h"
#include "ops/event/product.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <limits>

namespace spikeforge::ops::sparse {
namespace {

constexpr std::int64_t barrier_bytes = sizeof(event::GridBarrier);

class Launcher {
 public:
  // `product` describes these tensors, which are contiguous; `weights` may be a replacement. `refused` is the result of
  // verify_on_gpu for the matrix.
  Launcher(const at::Tensor& weights, const HeldRows& held, const at::Tensor& x, const at::Tensor& y,
           const event::Product& product, const unsigned* refused)
      : device_(gpu_of(x)), stream_(static_cast<cudaStream_t>(stream_of(x))), x_(x), y_(y), product_(product) {
    args_ = {.indices = held.rows.indices,
             .indptr = held.rows.indptr,
             .width = held.rows.width,
             .rows = held.rows.rows,
             .cols = held.rows.cols,
             .nnz = held.rows.nnz,
             .weights = weights.const_data_ptr(),
             .n = product.n,
             .batches = product.batches,
             .refused = refused};
    point_at(0);
  }

  void gather() { gather(plan_gather(product_, device_)); }

  // The entries and the sums of one batch.
  void gather_with_gradient(const at::Tensor& entries, const at::Tensor& sums) {
    args_.grad = entries.const_data_ptr();
    args_.sums = sums.mutable_data_ptr();
    gather(plan_gather_with_gradient(product_, device_));
  }

  void scatter() {
    const event::ScatterPlan plan = plan_scatter(product_, device_);
    const bool fixed = plan.sums == event::Sums::fixed;
    const at::Tensor limits = fixed ? at::zeros({2}, x_.options().dtype(at::kLong)) : at::Tensor();
    if (fixed) args_.limits = static_cast<unsigned long long*>(limits.mutable_data_ptr());
    for (const event::Step& step : plan.limits) run(step);

    args_.chunk = plan.chunk;
    args_.rows_at_once = plan.rows_at_once;
    args_.private_from = plan.private_from;
    const std::int64_t results = product_.cols * product_.n;
    for_batches(plan.batches_at_once, [&](std::int64_t, std::int64_t count) {
      args_.batches = count;
      const std::int64_t of_sums = plan.in_place ? 0 : plan.sum_bytes * results * count;
      const std::int64_t of_infinities = fixed ? 4 * results * count : 0;
      const std::int64_t cleared = (barrier_bytes + of_sums + of_infinities + 7) / 8 * 8;
      const at::Tensor workspace = bytes(cleared + event::task_bytes * plan.tasks * count);
      auto* const memory = static_cast<char*>(workspace.mutable_data_ptr());
      clear(memory, cleared);
      if (plan.in_place) clear(args_.y, plan.sum_bytes * results * count);
      char* const sums = memory + barrier_bytes;
      args_.grid_barrier = reinterpret_cast<event::GridBarrier*>(memory);
      args_.sums = plan.in_place ? args_.y : sums;
      args_.infinities = fixed ? reinterpret_cast<float*>(sums + of_sums) : nullptr;
      args_.tasks = reinterpret_cast<event::Task*>(memory + cleared);
      run(plan.scatter);
    });
  }

  // Adds the results to the ring y, which has those of all batches and slots.
  void deliver(const at::Tensor& delays, const at::Tensor& step) {
    point_at_ring(delays, step);
    const event::ScatterPlan plan = plan_delivery(product_, device_);
    const bool fixed = plan.sums == event::Sums::fixed;
    const at::Tensor limits = fixed ? at::zeros({2}, x_.options().dtype(at::kLong)) : at::Tensor();
    if (fixed) args_.limits = static_cast<unsigned long long*>(limits.mutable_data_ptr());
    for (const event::Step& step_of_limits : plan.limits) run(step_of_limits);

    const at::Tensor sums = plan.in_place ? y_ : bytes(plan.sum_bytes * product_.ring).zero_();
    const at::Tensor infinities = at::zeros({fixed ? product_.ring : 0}, x_.options().dtype(at::kFloat));
    auto* const first_sum = static_cast<char*>(sums.mutable_data_ptr());
    auto* const first_infinity = fixed ? infinities.mutable_data_ptr<float>() : nullptr;
    const std::int64_t out = product_.transpose ? product_.cols : product_.rows;
    args_.chunk = plan.chunk;
    args_.rows_at_once = plan.rows_at_once;
    for_batches(plan.batches_at_once, [&](std::int64_t first, std::int64_t count) {
      const at::Tensor workspace = bytes(barrier_bytes + event::task_bytes * plan.tasks * count);
      auto* const memory = static_cast<char*>(workspace.mutable_data_ptr());
      clear(memory, barrier_bytes);
      args_.grid_barrier = reinterpret_cast<event::GridBarrier*>(memory);
      args_.tasks = reinterpret_cast<event::Task*>(memory + barrier_bytes);
      args_.batches = count;
      args_.sums = first_sum + first * out * plan.sum_bytes;
      args_.infinities = fixed ? first_infinity + first * out : nullptr;
      run(plan.scatter, product_.transpose ? 1 : count);
    });
    args_.y = y_.mutable_data_ptr();
    args_.sums = first_sum;
    args_.infinities = first_infinity;
    for (const event::Step& finish : plan.finish) run(finish);
  }

  void weight_gradient(const at::Tensor& grad) {
    args_.grad = grad.const_data_ptr();
    run(plan_weight_gradient(product_, device_));
  }

 private:
  void gather(const event::GatherPlan& plan) {
    const at::Tensor bits = bytes(4 * plan.words * product_.batches);
    args_.words = plan.words;
    args_.long_row = plan.long_row;
    for_batches(plan.batches_at_once, [&](std::int64_t first, std::int64_t count) {
      args_.bits = static_cast<unsigned*>(bits.mutable_data_ptr()) + first * plan.words;
      for (const event::Step& step : plan.steps) run(step, count);
    });
  }

  at::Tensor bytes(std::int64_t count) const { return at::empty({count}, x_.options().dtype(at::kByte)); }

  void clear(void* memory, std::int64_t count) const {
    C10_CUDA_CHECK(cudaMemsetAsync(memory, 0, static_cast<std::size_t>(count), stream_));
  }

  template <class F> void for_batches(std::int64_t most, F&& f) {
    for (std::int64_t first = 0; first < product_.batches; first += most) {
      point_at(first);
      f(first, std::min(most, product_.batches - first));
    }
  }

  void point_at_ring(const at::Tensor& delays, const at::Tensor& step) {
    args_.delays = delays.const_data_ptr();
    args_.delay_bytes = delays.element_size();
    args_.ring_slots = y_.size(0);
    args_.slot_size = y_.numel() / y_.size(0);
    if (step.is_cpu())
      args_.now = *step.const_data_ptr<std::int64_t>();
    else
      args_.step = static_cast<const event::Int*>(step.const_data_ptr());
  }

  void point_at(std::int64_t batch) {
    const std::int64_t in = product_.transpose ? product_.rows : product_.cols;
    const std::int64_t out = product_.transpose ? product_.cols : product_.rows;
    args_.x = static_cast<const char*>(x_.const_data_ptr()) + batch * in * product_.n * x_.element_size();
    args_.y = static_cast<char*>(y_.mutable_data_ptr()) + batch * out * product_.n * y_.element_size();
  }

  void run(const event::Step& step, std::int64_t batches = 1) const {
    constexpr std::int64_t default_limit = 32 << 10;  // in addition to a kernel's static memory
    const jit::LoadedKernel& kernel = jit::SpecTable<event::KernelSpec>::of(device_).get(step.spec, device_);
    const auto blocks = static_cast<unsigned>(step.blocks);
    const auto threads = static_cast<unsigned>(step.threads);
    const auto shared_bytes = static_cast<unsigned>(step.shared_bytes);
    // The limit is not shared_bytes, because another thread may be about to launch the same kernel with more.
    if (step.shared_bytes > default_limit)
      kernel.allow_shared(static_cast<int>(step.most_shared_bytes), x_.get_device());
    if (step.together)
      kernel.launch_together(blocks, threads, shared_bytes, stream_, &args_);
    else
      kernel.launch({blocks, static_cast<unsigned>(batches), 1}, threads, shared_bytes, stream_, &args_, sizeof args_);
  }

  const jit::Device& device_;
  cudaStream_t stream_;
  const at::Tensor& x_;
  const at::Tensor& y_;
  event::Product product_;
  event::ProductArguments args_{};
};

// Returns the word that makes kernels exit if the matrix is illegal, or null. Results are then NaN, or 0.
template <class Call> const unsigned* verified(const char* op, const Call& call, const at::Tensor& y) {
  if (call.options.unchecked) return nullptr;
  const unsigned* const refused = verify_on_gpu(stored_matrix(op, call));
  if (refused != nullptr) y.fill_(std::numeric_limits<double>::quiet_NaN());
  return refused;
}

at::Tensor product_cuda(const ProductCall& call) {
  check_product(call);
  const c10::cuda::OptionalCUDAGuard guard(call.x.device());
  const HeldRows held = hold_rows(call);
  const at::Tensor weights = call.weights.contiguous();
  const at::Tensor x = call.x.contiguous();
  at::Tensor y = at::empty(C10_AS_INTARRAYREF_SLOW(result_sizes(x, call.options)), weights.options());
  if (y.numel() == 0) return y;
  if (held.rows.nnz == 0) return y.zero_();
  Launcher launcher(weights, held, x, y, gpu_product(weights, held.rows, x, call.options),
                    verified(call.name(), call, y));
  if (call.options.transpose)
    launcher.scatter();
  else
    launcher.gather();
  return y;
}

at::Tensor weight_grad_cuda(const WeightGradCall& call) {
  check_weight_grad(call);
  const c10::cuda::OptionalCUDAGuard guard(call.x.device());
  const HeldRows held = hold_rows(call);
  at::Tensor result = at::empty(call.indices.sizes(), call.grad.options());
  if (result.numel() == 0) return result;
  const at::Tensor x = call.x.contiguous();
  const at::Tensor grad = call.grad.contiguous();
  Launcher(grad, held, x, result, gpu_product(grad, held.rows, x, call.options),
           verified("csr_weight_grad", call, result))
      .weight_gradient(grad);
  return result;
}

SPIKEFORGE_KERNELS(CUDA, library) {
  library.impl("csr_product", TORCH_FN(product_kernel<product_cuda>));
  library.impl("csr_weight_grad", TORCH_FN(weight_grad_kernel<weight_grad_cuda>));
}

}  // namespace

at::Tensor product_and_weight_grad_cuda(const CsrMatrix& matrix, const at::Tensor& x, const at::Tensor& e,
                                        const at::Tensor& sums) {
  const auto& [weights, indices, indptr, rows, cols, values, unchecked] = matrix;
  const std::optional<at::Tensor> begins = indptr;
  const ProductCall call{weights,
                         indices,
                         begins,
                         x,
                         {.rows = rows, .cols = cols, .matrix = true, .values = values, .unchecked = unchecked}};
  check_product(call);
  const c10::cuda::OptionalCUDAGuard guard(x.device());
  const HeldRows held = hold_rows(call);
  const at::Tensor y = at::empty({rows, x.size(1)}, weights.options());
  if (held.rows.nnz == 0) return y.zero_();
  const at::Tensor entries = e.contiguous(), dense = x.contiguous();
  Launcher(weights, held, dense, y, gpu_product(weights, held.rows, dense, call.options),
           verified(call.name(), call, y))
      .gather_with_gradient(entries, sums);
  return y;
}

void deliver_cuda(const DeliverCall& call) {
  const auto& [weights, indices, indptr, x, options] = call.product;
  const c10::cuda::OptionalCUDAGuard guard(x.device());
  const HeldRows held = hold_rows(call.product);
  if (held.rows.nnz == 0 || call.buffer.numel() == 0 || x.numel() == 0) return;
  const at::Tensor delays = call.delays.contiguous();
  const unsigned* const refused = options.unchecked ? nullptr : verify_on_gpu(stored_matrix(call));
  Launcher(weights, held, x, call.buffer, gpu_delivery(call, held.rows), refused).deliver(delays, call.step);
}

void take_cuda(const at::Tensor& buffer, const at::Tensor& step, const at::Tensor& arrivals) {
  if (arrivals.numel() == 0) return;
  const c10::cuda::OptionalCUDAGuard guard(buffer.device());
  const jit::Device& device = gpu_of(buffer);
  const event::ProductArguments args{.y = arrivals.mutable_data_ptr(),
                                     .sums = buffer.mutable_data_ptr(),
                                     .step = static_cast<const event::Int*>(step.const_data_ptr()),
                                     .ring_slots = buffer.size(0),
                                     .slot_size = arrivals.numel()};
  constexpr std::int64_t block = 256;
  const std::int64_t blocks =
      std::clamp<std::int64_t>((args.slot_size + block - 1) / block, 1, std::int64_t{8} * device.multiprocessors);
  jit::SpecTable<event::KernelSpec>::of(device)
      .get(event::take_of(dtype_of(buffer.scalar_type())), device)
      .launch({static_cast<unsigned>(blocks), 1, 1}, block, 0, stream_of(buffer), &args, sizeof args);
}

}  // namespace spikeforge::ops::sparse
