// delayed_linear on a GPU: rows of all samples, whose products are computed by cuda/layer/delayed_product.cuh.
#include "csrc/kernels/layer/delayed_product.h"
#include "ops/common/on_stream.h"
#include "ops/layer/delayed_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>

#include <limits>

namespace spikeforge::ops::layers::delayed {
namespace {

using spikeforge::layers::DelayedLaunch;

// There is one group, and rows have no padding after their last step: the last row is followed by space for the reads
// of strips.
class CudaRows final : public Rows {
 public:
  explicit CudaRows(const Call& call) : Rows(call), x_type_(call.x.scalar_type()) {
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    TORCH_CHECK_VALUE(samples() <= most / (max_delay() + 1),
                      "delayed_linear on a GPU: the samples of a step, times max_delay + 1, must be at most ", most,
                      ", but there are ", samples(), ", and max_delay is ", max_delay());
  }

  std::int64_t lanes() const override { return samples(); }

  at::Tensor zeros(std::int64_t features, std::int64_t steps) const override {
    return in_rows(at::zeros({numbers(features, steps)}, options()), features, steps);
  }

  at::Tensor open(std::int64_t features, std::int64_t steps, std::int64_t step, std::int64_t count) const override {
    at::Tensor rows = in_rows(at::empty({numbers(features, steps)}, options()), features, steps);
    at::Tensor before = rows.narrow(2, 0, step * lanes());
    at::Tensor behind = rows.narrow(2, (step + count) * lanes(), (steps - step - count) * lanes());
    for (at::Tensor* part : {&before, &behind})
      if (part->numel() > 0) part->zero_();
    return rows;
  }

  void read(const at::Tensor& sequence, const at::Tensor& rows, std::int64_t step) const override {
    const std::int64_t steps = sequence.size(0), features = rows.size(1);
    in_steps(rows, step, steps).copy_(sequence.reshape({steps, lanes(), features}).permute({2, 0, 1}));
  }

  at::Tensor written(const at::Tensor& rows, std::int64_t steps) const override {
    at::Tensor sequence = at::empty({steps, lanes(), rows.size(1)}, options().dtype(x_type_));
    sequence.copy_(in_steps(rows, 0, steps).permute({1, 2, 0}));
    return sequence;
  }

  void add(const Taps& taps, const at::Tensor& in, std::int64_t step, const at::Tensor& out,
           std::int64_t steps) const override {
    run({.kernel = {.pass = spikeforge::layers::DelayedPass::add},
         .steps = steps,
         .in = at_step(in, step),
         .rows = at_step(out, 0),
         .rows_stride = out.stride(1)},
        taps, in);
  }

  at::Tensor sums(const Taps& taps, const at::Tensor& of, const at::Tensor& in) override {
    at::Tensor sums = at::empty(taps.coefficients.sizes(), options());
    run({.kernel = {.pass = spikeforge::layers::DelayedPass::sums},
         .steps = steps(),
         .in = at_step(in, 0),
         .rows = at_step(of, max_delay()),
         .rows_stride = of.stride(1),
         .out = sums.mutable_data_ptr()},
        taps, in);
    return sums;
  }

  // Multiplies in x's type, which is faster on a GPU.
  at::Tensor product(const at::Tensor& a, const at::Tensor& b) const override {
    const auto matrix = [&](const at::Tensor& t) { return (t.dim() == 3 ? t.select(0, 0) : t).to(x_type_); };
    return at::mm(matrix(a), matrix(b)).to(type()).unsqueeze(0);
  }

 private:
  std::int64_t numbers(std::int64_t features, std::int64_t steps) const {
    return features * steps * lanes() + spikeforge::layers::delayed_margin(dtype_of(type()), lanes());
  }

  // Views memory as rows, [1, features, steps * lanes].
  at::Tensor in_rows(const at::Tensor& memory, std::int64_t features, std::int64_t steps) const {
    const std::int64_t length = steps * lanes();
    return memory.narrow(0, 0, features * length).view({1, features, length});
  }

  // Returns some steps of rows, [features, steps, lanes].
  at::Tensor in_steps(const at::Tensor& rows, std::int64_t step, std::int64_t steps) const {
    return rows.select(0, 0).narrow(1, step * lanes(), steps * lanes()).view({rows.size(1), steps, lanes()});
  }

  void* at_step(const at::Tensor& rows, std::int64_t step) const {
    return static_cast<char*>(rows.data_ptr()) + step * lanes() * rows.element_size();
  }

  // Shared by add and sums. With one delay per feature, each feature is the row of its own column.
  void run(DelayedLaunch call, const Taps& taps, const at::Tensor& in) const {
    const bool of_matrix = taps.of_matrix();
    const at::Tensor coefficients = taps.coefficients.contiguous();
    call.kernel.type = dtype_of(type());
    call.kernel.taps = static_cast<int>(taps.count());
    call.rows_count = taps.shifts.size(0);
    call.columns = of_matrix ? taps.shifts.size(1) : 1;
    call.lanes = lanes();
    call.shifts = taps.shifts.const_data_ptr<std::int32_t>();
    call.coefficients = coefficients.const_data_ptr();
    call.in_stride = in.stride(1);
    call.in_of_row = of_matrix ? 0 : in.stride(1);
    if (call.rows_count == 0 || call.columns == 0) return;
    TORCH_CHECK_VALUE(can_launch(call), "delayed_linear on a GPU: ", call.steps, " steps of ", call.lanes,
                      " samples, with ", call.rows_count, " x ", call.columns, " delays, exceed the size of a grid");
    launch_delayed_product(call, gpu_of(in), stream_of(in));
  }

  c10::ScalarType x_type_;
};

}  // namespace

at::Tensor forward_cuda(const Call& call) {
  const c10::cuda::OptionalCUDAGuard guard(call.x.device());
  CudaRows rows(call);
  return forward_by_rows(call, rows);
}

Gradients backward_cuda(const Call& call, const at::Tensor& grad, const Wanted& wanted) {
  const c10::cuda::OptionalCUDAGuard guard(call.x.device());
  CudaRows rows(call);
  return backward_by_rows(call, rows, grad, wanted);
}

}  // namespace spikeforge::ops::layers::delayed
