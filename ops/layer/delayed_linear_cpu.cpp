// delayed_linear on the CPU: rows in groups of samples, whose products are computed by
// csrc/cpu/layer/delayed_product.h.
#include "csrc/cpu/layer/delayed_product.h"
#include "csrc/jit/recorder.h"
#include "csrc/kernels/layer/delayed_product.h"
#include "ops/layer/delayed_linear.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

namespace spikeforge::ops::layers::delayed {
namespace {

using spikeforge::layers::DelayedKernel;
using spikeforge::layers::DelayedPass;

constexpr std::int64_t grain = 1 << 16;  // the minimum number of multiplications per thread

std::int64_t up_to_multiple(std::int64_t n, std::int64_t of) { return (n + of - 1) / of * of; }

// The nonzero steps of rows, listed if they are few enough that skipping the other steps is faster, mostly for spikes.
class Listed {
 public:
  // Lists rows of `steps` steps, each a vector; with 0 steps nothing is listed.
  Listed(const at::Tensor& rows, std::int64_t steps, c10::ScalarType type) : stride_(steps + 1) {
    if (steps == 0 || steps > most_steps) return;
    const std::int64_t count = rows.size(0) * rows.size(1);
    steps_.resize(static_cast<std::size_t>(count * stride_));
    counts_.resize(static_cast<std::size_t>(count));
    at::parallel_for(0, count, std::max<std::int64_t>(1, grain / stride_), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto* const row =
            static_cast<const char*>(rows.const_data_ptr()) + i * rows.stride(1) * rows.element_size();
        counts_[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(
            cpu::delayed_kernels().list(dtype_of(type), row, steps, steps_.data() + i * stride_));
      }
    });
    few_ = std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0}) * 2 < count * steps;
  }

  void tell(cpu::DelayedSums& sums, std::int64_t row) const {
    if (!few_) return;
    sums.steps = steps_.data() + row * stride_;
    sums.steps_stride = stride_;
    sums.step_counts = counts_.data() + row;
  }

 private:
  static constexpr std::int64_t most_steps = 1 << 16;

  std::int64_t stride_;
  std::vector<std::uint16_t> steps_;
  std::vector<std::int32_t> counts_;
  bool few_ = false;
};

// Groups of samples with separate rows: a step of a group is at most one vector, so that delays span little memory.
class CpuRows final : public Rows {
 public:
  explicit CpuRows(const Call& call)
      : Rows(call),
        vector_(cpu::delayed_kernels().vector_bytes / static_cast<std::int64_t>(c10::elementSize(type()))),
        groups_(std::max<std::int64_t>(1, (samples() + vector_ - 1) / vector_)),
        lanes_((samples() + groups_ - 1) / groups_) {}

  std::int64_t lanes() const override { return lanes_; }

  at::Tensor zeros(std::int64_t features, std::int64_t steps) const override {
    return at::zeros({groups_, features, length(steps) + vector_}, options());
  }

  at::Tensor open(std::int64_t features, std::int64_t steps, std::int64_t step, std::int64_t count) const override {
    if (groups_ * lanes_ != samples()) return zeros(features, steps);
    at::Tensor rows = at::empty({groups_, features, length(steps) + vector_}, options());
    rows.narrow(2, 0, step * lanes_).zero_();
    const std::int64_t end = (step + count) * lanes_;
    rows.narrow(2, end, rows.size(2) - end).zero_();
    return rows;
  }

  void read(const at::Tensor& sequence, const at::Tensor& rows, std::int64_t step) const override {
    const at::Tensor x = sequence.contiguous();
    each_group(x, rows, step, [&](const cpu::SequenceRows& of, char* to) {
      cpu::delayed_kernels().to_rows(of, dtype_of(x.scalar_type()), x.const_data_ptr(), to);
    });
  }

  at::Tensor written(const at::Tensor& rows, std::int64_t steps) const override {
    at::Tensor sequence = at::empty({steps, samples(), rows.size(1)}, rows.options());
    each_group(sequence, rows, 0, [&](const cpu::SequenceRows& of, const char* from) {
      cpu::delayed_kernels().from_rows(of, dtype_of(type()), from, sequence.mutable_data_ptr());
    });
    return sequence;
  }

  void add(const Taps& taps, const at::Tensor& in, std::int64_t step, const at::Tensor& out,
           std::int64_t steps) const override {
    note(DelayedPass::add, taps);
    const auto& kernels = cpu::delayed_kernels();
    const DType dtype = dtype_of(type());
    const auto product = [&](std::int64_t group) {
      cpu::DelayedProduct p = described(taps);
      p.in = at(in, group, step);
      p.in_stride = in.stride(1);
      p.out = at(out, group, 0);
      p.out_stride = out.stride(1);
      return p;
    };
    const std::int64_t length = this->length(steps);
    if (!taps.of_matrix()) {
      const std::int64_t features = out.size(1);
      at::parallel_for(0, groups_ * features, std::max<std::int64_t>(1, grain / std::max<std::int64_t>(1, length)),
                       [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t i = begin; i < end; ++i)
                           kernels.add(of_feature(product(i / features), i % features, in.element_size()), dtype, 0, 1,
                                       0, length);
                       });
      return;
    }
    // The work is divided into tiles of a group, and if they are too few for all threads, also into blocks of rows.
    const std::int64_t tile = cpu::delayed_tile * vector_, tiles = (length + tile - 1) / tile;
    const std::int64_t rows = out.size(1), work = groups_ * tiles;
    const std::int64_t blocks =
        std::clamp<std::int64_t>(4 * at::get_num_threads() / work, 1, std::max<std::int64_t>(1, rows / 8));
    const std::int64_t each = (rows + blocks - 1) / blocks;
    at::parallel_for(0, work * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t block = i % blocks, begin_of_tile = i / blocks % tiles * tile;
        kernels.add(product(i / blocks / tiles), dtype, block * each, std::min(rows, (block + 1) * each), begin_of_tile,
                    std::min(length, begin_of_tile + tile));
      }
    });
  }

  at::Tensor sums(const Taps& taps, const at::Tensor& of, const at::Tensor& in) override {
    note(DelayedPass::sums, taps);
    if (!listed_) listed_.emplace(in, lanes_ == vector_ ? max_delay() + steps() : 0, type());
    at::Tensor sums = at::zeros(taps.coefficients.sizes(), taps.coefficients.options());
    const auto& kernels = cpu::delayed_kernels();
    const DType dtype = dtype_of(type());
    const std::int64_t rows = taps.shifts.size(0);
    at::parallel_for(0, rows, taps.of_matrix() ? 4 : 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t group = 0; group < groups_; ++group) {
        cpu::DelayedSums s;
        s.product = described(taps);
        s.product.in = at(in, group, 0);
        s.product.in_stride = in.stride(1);
        s.of = at(of, group, max_delay());
        s.of_stride = of.stride(1);
        s.length = length(steps());
        s.sums = sums.mutable_data_ptr();
        listed_->tell(s, group * in.size(1));
        if (taps.of_matrix()) {
          kernels.sums(s, dtype, begin, end);
          continue;
        }
        for (std::int64_t i = begin; i < end; ++i) {
          cpu::DelayedSums one = s;
          one.product = of_feature(s.product, i, in.element_size());
          one.of = static_cast<const char*>(s.of) + i * s.of_stride * of.element_size();
          one.sums = static_cast<char*>(s.sums) + i * s.product.taps * in.element_size();
          listed_->tell(one, group * in.size(1) + i);
          kernels.sums(one, dtype, 0, 1);
        }
      }
    });
    return sums;
  }

  at::Tensor product(const at::Tensor& a, const at::Tensor& b) const override { return at::matmul(a, b); }

 private:
  // Records the kernels that a GPU would launch.
  void note(DelayedPass pass, const Taps& taps) const {
    jit::note_by_arch([&](const jit::Device&, const jit::Want& want) {
      want(source_of(DelayedKernel{.pass = pass, .type = dtype_of(type()), .taps = static_cast<int>(taps.count())}));
    });
  }

  // Returns the length of `steps` steps, rounded up to whole vectors.
  std::int64_t length(std::int64_t steps) const { return up_to_multiple(steps * lanes_, vector_); }

  char* at(const at::Tensor& rows, std::int64_t group, std::int64_t step) const {
    return static_cast<char*>(rows.data_ptr()) + (group * rows.stride(0) + step * lanes_) * rows.element_size();
  }

  cpu::DelayedProduct described(const Taps& taps) const {
    cpu::DelayedProduct p;
    p.rows = taps.of_matrix() ? taps.shifts.size(0) : 1;
    p.columns = taps.of_matrix() ? taps.shifts.size(1) : 1;
    p.taps = taps.count();
    p.lanes = lanes_;
    p.reach = (max_delay() + 1) * lanes_;
    p.shifts = taps.shifts.const_data_ptr<std::int32_t>();
    p.coefficients = taps.coefficients.const_data_ptr();
    return p;
  }

  // Returns the product of feature i only, for one delay per feature.
  static cpu::DelayedProduct of_feature(cpu::DelayedProduct p, std::int64_t i, std::int64_t element) {
    p.shifts += i;
    p.coefficients = static_cast<const char*>(p.coefficients) + i * p.taps * element;
    p.in = static_cast<const char*>(p.in) + i * p.in_stride * element;
    p.out = static_cast<char*>(p.out) + i * p.out_stride * element;
    return p;
  }

  template <class F>
  void each_group(const at::Tensor& sequence, const at::Tensor& rows, std::int64_t step, F&& f) const {
    at::parallel_for(0, groups_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t g = begin; g < end; ++g) {
        const std::int64_t first = g * lanes_;
        f(cpu::SequenceRows{.steps = sequence.size(0),
                            .samples = samples(),
                            .features = rows.size(1),
                            .first = first,
                            .count = std::clamp<std::int64_t>(samples() - first, 0, lanes_),
                            .lanes = lanes_,
                            .stride = rows.stride(1)},
          at(rows, g, step));
      }
    });
  }

  std::int64_t vector_, groups_, lanes_;
  std::optional<Listed> listed_;
};

}  // namespace

at::Tensor forward_cpu(const Call& call) {
  CpuRows rows(call);
  return forward_by_rows(call, rows);
}

Gradients backward_cpu(const Call& call, const at::Tensor& grad, const Wanted& wanted) {
  if (call.of_inputs() && call.spread.steps() <= 2) {
    // Few products cost less than saving the spread x, and zero steps can be skipped.
    Call whole = call;
    whole.delay = call.delay.expand(call.weight.sizes());
    whole.spread = call.spread.expanded(call.weight.sizes());
    Gradients gradients = backward_cpu(whole, grad, wanted);
    gradients.delay = gradients.delay.sum(0);
    return gradients;
  }
  CpuRows rows(call);
  return backward_by_rows(call, rows, grad, wanted);
}

}  // namespace spikeforge::ops::layers::delayed
