// delayed_linear on the CPU. A product for each of max_delay + 1 steps would multiply by zeros for the most part: a
// delay of the linear form has two steps. So sequences become rows of features in which a delay is a shift
// (csrc/cpu/delayed_product.h), and the work is that of as many products as a delay has steps, whatever max_delay is.
#include <spikeforge/cpu/delayed_product.h>
#include <spikeforge/ops/common/checks.h>
#include <spikeforge/ops/layer/delayed_linear.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

namespace spikeforge::ops::layers::delayed {
namespace {

constexpr std::int64_t steps_at_once = 8;  // of a delay: those of a wide form are not all kept
constexpr std::int64_t grain = 1 << 16;    // multiplications for each thread at least

std::int64_t up_to_multiple(std::int64_t n, std::int64_t of) { return (n + of - 1) / of * of; }

// Groups of samples, each with rows of its own: a step of a group is at most a vector, so that what a delay reaches
// over is short.
class Layout {
 public:
  explicit Layout(const Call& call)
      : type_(state_type(call.x.scalar_type())),
        vector_(cpu::delayed_kernels().vector_bytes / static_cast<std::int64_t>(c10::elementSize(type_))),
        steps_(call.x.size(0)),
        samples_(c10::multiply_integers(call.x.sizes().slice(1, static_cast<std::size_t>(call.x.dim()) - 2))),
        groups_(std::max<std::int64_t>(1, (samples_ + vector_ - 1) / vector_)),
        lanes_((samples_ + groups_ - 1) / groups_) {}

  std::int64_t groups() const { return groups_; }
  std::int64_t lanes() const { return lanes_; }
  std::int64_t steps() const { return steps_; }
  std::int64_t vector() const { return vector_; }
  c10::ScalarType type() const { return type_; }
  bool empty() const { return steps_ == 0 || samples_ == 0; }

  // Of so many steps, whole vectors.
  std::int64_t length(std::int64_t steps) const { return up_to_multiple(steps * lanes_, vector_); }

  // [groups, features, ...], zero.
  at::Tensor zeros(std::int64_t features, std::int64_t steps) const {
    return at::zeros({groups_, features, length(steps) + vector_}, at::TensorOptions(type_));
  }

  // That, where `count` steps from `step` on are read next: what would be written twice is left open.
  at::Tensor open(std::int64_t features, std::int64_t steps, std::int64_t step, std::int64_t count) const {
    if (groups_ * lanes_ != samples_) return zeros(features, steps);
    at::Tensor rows = at::empty({groups_, features, length(steps) + vector_}, at::TensorOptions(type_));
    rows.narrow(2, 0, step * lanes_).zero_();
    const std::int64_t end = (step + count) * lanes_;
    rows.narrow(2, end, rows.size(2) - end).zero_();
    return rows;
  }

  // The steps of `rows` from `step` on, as `sequence` [steps, *batch, features] has them.
  void read(const at::Tensor& sequence, const at::Tensor& rows, std::int64_t step) const {
    const at::Tensor x = sequence.contiguous();
    each_group(x, rows, step, [&](const cpu::SequenceRows& of, char* to) {
      cpu::delayed_kernels().to_rows(of, dtype_of(x.scalar_type()), x.const_data_ptr(), to);
    });
  }

  // [steps, samples, features] from rows.
  at::Tensor written(const at::Tensor& rows, std::int64_t steps) const {
    at::Tensor sequence = at::empty({steps, samples_, rows.size(1)}, rows.options());
    each_group(sequence, rows, 0, [&](const cpu::SequenceRows& of, const char* from) {
      cpu::delayed_kernels().from_rows(of, dtype_of(type_), from, sequence.mutable_data_ptr());
    });
    return sequence;
  }

  char* at(const at::Tensor& rows, std::int64_t group, std::int64_t step) const {
    return static_cast<char*>(rows.data_ptr()) + (group * rows.stride(0) + step * lanes_) * rows.element_size();
  }

 private:
  template <class F>
  void each_group(const at::Tensor& sequence, const at::Tensor& rows, std::int64_t step, F&& f) const {
    at::parallel_for(0, groups_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t g = begin; g < end; ++g) {
        const std::int64_t first = g * lanes_;
        f(cpu::SequenceRows{.steps = sequence.size(0),
                            .samples = samples_,
                            .features = rows.size(1),
                            .first = first,
                            .count = std::clamp<std::int64_t>(samples_ - first, 0, lanes_),
                            .lanes = lanes_,
                            .stride = rows.stride(1)},
          at(rows, g, step));
      }
    });
  }

  c10::ScalarType type_;
  std::int64_t vector_, steps_, samples_, groups_, lanes_;
};

// Some steps of each delay, in the order of time.
struct Taps {
  at::Tensor shifts;        // int32 [rows, columns] or [features]
  at::Tensor coefficients;  // [..., taps]

  std::int64_t count() const { return coefficients.size(-1); }
};

// The steps from number `first` of each delay on, `at_once` at most. The latest is the shortest delay: k descends.
class TapsOf {
 public:
  TapsOf(const Call& call, const Layout& layout, std::int64_t first)
      : call_(call),
        layout_(layout),
        count_(std::min(steps_at_once, call.spread.steps() - first)),
        shortest_(call.spread.first() + static_cast<double>(first)) {}

  std::int64_t count() const { return count_; }
  at::Tensor k(std::int64_t tap) const { return shortest_ + static_cast<double>(count_ - 1 - tap); }

  // y from x, whose rows begin max_delay steps before.
  Taps forward(const at::Tensor& factor) const {
    std::vector<at::Tensor> list;
    for (std::int64_t tap = 0; tap < count_; ++tap) list.push_back(times(factor, k(tap)));
    return {shifts(static_cast<double>(call_.max_delay) - k(0)), at::stack(list, -1)};
  }

  // The gradient of x from that of y, whose rows begin max_delay steps before.
  Taps backward(const at::Tensor& factor) const {
    std::vector<at::Tensor> list;
    for (std::int64_t tap = count_ - 1; tap >= 0; --tap) list.push_back(turned(times(factor, k(tap))));
    return {shifts(turned(shortest_)), at::stack(list, -1)};
  }

 private:
  at::Tensor times(const at::Tensor& factor, const at::Tensor& k) const {
    const at::Tensor value = call_.spread.value(k);
    return factor.defined() ? value * factor : value;
  }
  static at::Tensor turned(const at::Tensor& t) { return t.dim() == 2 ? t.t() : t; }
  at::Tensor shifts(const at::Tensor& steps) const { return (steps * layout_.lanes()).to(at::kInt).contiguous(); }

  const Call& call_;
  const Layout& layout_;
  std::int64_t count_;
  at::Tensor shortest_;
};

template <class F>
void each_taps(const Call& call, const Layout& layout, F&& f) {
  for (std::int64_t first = 0; first < call.spread.steps(); first += steps_at_once) f(TapsOf(call, layout, first));
}

cpu::DelayedProduct described(const Taps& taps, const Layout& layout, std::int64_t max_delay) {
  const bool of_matrix = taps.shifts.dim() == 2;
  cpu::DelayedProduct p;
  p.rows = of_matrix ? taps.shifts.size(0) : 1;
  p.columns = of_matrix ? taps.shifts.size(1) : 1;
  p.taps = taps.count();
  p.lanes = layout.lanes();
  p.reach = (max_delay + 1) * layout.lanes();
  p.shifts = taps.shifts.const_data_ptr<std::int32_t>();
  p.coefficients = taps.coefficients.const_data_ptr();
  return p;
}

// The product of feature i alone, where a feature has a delay.
cpu::DelayedProduct of_feature(cpu::DelayedProduct p, std::int64_t i, std::int64_t element) {
  p.shifts += i;
  p.coefficients = static_cast<const char*>(p.coefficients) + i * p.taps * element;
  p.in = static_cast<const char*>(p.in) + i * p.in_stride * element;
  p.out = static_cast<char*>(p.out) + i * p.out_stride * element;
  return p;
}

// Adds to the rows `out` of so many steps what `taps` make of the rows `in` from `step` on.
void add(const Taps& taps, const Layout& layout, std::int64_t max_delay, const at::Tensor& in, std::int64_t step,
         const at::Tensor& out, std::int64_t steps) {
  const auto& kernels = cpu::delayed_kernels();
  const DType type = dtype_of(layout.type());
  const bool of_matrix = taps.shifts.dim() == 2;
  const auto product = [&](std::int64_t group) {
    cpu::DelayedProduct p = described(taps, layout, max_delay);
    p.in = layout.at(in, group, step);
    p.in_stride = in.stride(1);
    p.out = layout.at(out, group, 0);
    p.out_stride = out.stride(1);
    return p;
  };
  const std::int64_t length = layout.length(steps);
  if (!of_matrix) {
    const std::int64_t features = out.size(1);
    at::parallel_for(
        0, layout.groups() * features, std::max<std::int64_t>(1, grain / std::max<std::int64_t>(1, length)),
        [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i)
            kernels.add(of_feature(product(i / features), i % features, in.element_size()), type, 0, 1, 0, length);
        });
    return;
  }
  // Tiles of a group, and where they are too few for all threads, blocks of rows of them.
  const std::int64_t tile = cpu::delayed_tile * layout.vector(), tiles = (length + tile - 1) / tile;
  const std::int64_t rows = out.size(1), work = layout.groups() * tiles;
  const std::int64_t blocks =
      std::clamp<std::int64_t>(4 * at::get_num_threads() / work, 1, std::max<std::int64_t>(1, rows / 8));
  const std::int64_t each = (rows + blocks - 1) / blocks;
  at::parallel_for(0, work * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t block = i % blocks, at = i / blocks % tiles * tile;
      kernels.add(product(i / blocks / tiles), type, block * each, std::min(rows, (block + 1) * each), at,
                  std::min(length, at + tile));
    }
  });
}

// The steps of rows in which something is, where these are so few that products with the others are worth leaving out:
// those of spikes, mostly.
class Listed {
 public:
  Listed(const at::Tensor& rows, const Layout& layout, std::int64_t steps) : stride_(steps + 1) {
    if (layout.lanes() != layout.vector() || steps > most_steps) return;
    const std::int64_t count = rows.size(0) * rows.size(1);
    steps_.resize(static_cast<std::size_t>(count * stride_));
    counts_.resize(static_cast<std::size_t>(count));
    at::parallel_for(0, count, std::max<std::int64_t>(1, grain / stride_), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto* const row =
            static_cast<const char*>(rows.const_data_ptr()) + i * rows.stride(1) * rows.element_size();
        counts_[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(
            cpu::delayed_kernels().list(dtype_of(layout.type()), row, steps, steps_.data() + i * stride_));
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

// Of each coefficient the sum of products of `of`, from its step max_delay on, with the rows `in`.
at::Tensor sums(const Taps& taps, const Layout& layout, std::int64_t max_delay, const at::Tensor& of,
                const at::Tensor& in, const Listed& listed) {
  at::Tensor sums = at::zeros(taps.coefficients.sizes(), taps.coefficients.options());
  const auto& kernels = cpu::delayed_kernels();
  const DType type = dtype_of(layout.type());
  const bool of_matrix = taps.shifts.dim() == 2;
  const std::int64_t rows = taps.shifts.size(0);
  at::parallel_for(0, rows, of_matrix ? 4 : 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t group = 0; group < layout.groups(); ++group) {
      cpu::DelayedSums s;
      s.product = described(taps, layout, max_delay);
      s.product.in = layout.at(in, group, 0);
      s.product.in_stride = in.stride(1);
      s.of = layout.at(of, group, max_delay);
      s.of_stride = of.stride(1);
      s.length = layout.length(layout.steps());
      s.sums = sums.mutable_data_ptr();
      listed.tell(s, group * in.size(1));
      if (of_matrix) {
        kernels.sums(s, type, begin, end);
        continue;
      }
      for (std::int64_t i = begin; i < end; ++i) {
        cpu::DelayedSums one = s;
        one.product = of_feature(s.product, i, in.element_size());
        one.of = static_cast<const char*>(s.of) + i * s.of_stride * of.element_size();
        one.sums = static_cast<char*>(s.sums) + i * s.product.taps * in.element_size();
        listed.tell(one, group * in.size(1) + i);
        kernels.sums(one, type, 0, 1);
      }
    }
  });
  return sums;
}

// The steps before x, and x.
at::Tensor rows_with_past(const Call& call, const Layout& layout) {
  const std::int64_t steps = call.max_delay + layout.steps(), first = call.past ? 0 : call.max_delay;
  at::Tensor rows = layout.open(call.x.size(-1), steps, first, steps - first);
  if (call.past) layout.read(*call.past, rows, 0);
  layout.read(call.x, rows, call.max_delay);
  return rows;
}

// x spread by a delay for each input: [groups, I, steps * lanes].
at::Tensor spread_rows(const Call& call, const Layout& layout, const at::Tensor& all) {
  const at::Tensor spread = layout.zeros(call.x.size(-1), layout.steps());
  each_taps(call, layout,
            [&](const TapsOf& taps) { add(taps.forward({}), layout, call.max_delay, all, 0, spread, layout.steps()); });
  return spread.narrow(2, 0, layout.steps() * layout.lanes());
}

}  // namespace

at::Tensor forward_cpu(const Call& call) {
  const Layout layout(call);
  const std::int64_t out_features = call.weight.size(0);
  if (layout.empty() || call.x.size(-1) == 0)
    return at::zeros(
        {c10::multiply_integers(call.x.sizes().slice(0, static_cast<std::size_t>(call.x.dim()) - 1)), out_features},
        at::TensorOptions(layout.type()));
  const at::Tensor weight = call.weight.to(layout.type());
  const at::Tensor all = rows_with_past(call, layout);
  if (call.of_inputs()) return layout.written(at::matmul(weight, spread_rows(call, layout, all)), layout.steps());
  const at::Tensor y = layout.zeros(out_features, layout.steps());
  each_taps(call, layout,
            [&](const TapsOf& taps) { add(taps.forward(weight), layout, call.max_delay, all, 0, y, layout.steps()); });
  return layout.written(y, layout.steps());
}

Gradients backward_cpu(const Call& call, const at::Tensor& grad, const Wanted& wanted) {
  if (call.of_inputs() && call.spread.steps() <= 2) {
    // So few products cost less than to keep what x was spread to, and leave out steps in which nothing comes.
    Call whole = call;
    whole.delay = call.delay.expand(call.weight.sizes());
    whole.spread = call.spread.expanded(call.weight.sizes());
    Gradients gradients = backward_cpu(whole, grad, wanted);
    gradients.delay = gradients.delay.sum(0);
    return gradients;
  }
  const Layout layout(call);
  const std::int64_t steps = layout.steps(), most = call.max_delay;
  const auto zeros = [&](const at::Tensor& like) { return at::zeros(like.sizes(), at::TensorOptions(layout.type())); };
  Gradients gradients{zeros(call.x), zeros(call.weight), zeros(call.delay), {}};
  if (call.past) gradients.past = zeros(*call.past);
  if (layout.empty() || call.weight.numel() == 0) return gradients;

  const at::Tensor weight = call.weight.to(layout.type());
  at::Tensor upstream = layout.open(grad.size(-1), 2 * most + steps, most, steps);  // zero before and behind it
  layout.read(grad, upstream, most);
  at::Tensor all, factor = weight;
  if (wanted.weight || wanted.delay) all = rows_with_past(call, layout);
  if (call.of_inputs()) {
    const at::Tensor g = upstream.narrow(2, most * layout.lanes(), steps * layout.lanes());
    if (wanted.weight) gradients.weight = at::bmm(g, spread_rows(call, layout, all).transpose(1, 2)).sum(0);
    const at::Tensor of_spread = at::matmul(weight.t(), g);
    upstream = layout.zeros(call.x.size(-1), 2 * most + steps);
    upstream.narrow(2, most * layout.lanes(), steps * layout.lanes()).copy_(of_spread);
    factor = at::Tensor();
  }

  std::optional<Listed> listed;
  if (all.defined()) listed.emplace(all, layout, most + steps);
  const std::int64_t from = wanted.past ? 0 : most;
  at::Tensor grad_all;
  if (wanted.x || wanted.past) grad_all = layout.zeros(call.x.size(-1), most + steps - from);
  each_taps(call, layout, [&](const TapsOf& taps) {
    if (grad_all.defined()) add(taps.backward(factor), layout, most, upstream, from, grad_all, most + steps - from);
    if (!all.defined()) return;
    const at::Tensor products = sums(taps.forward({}), layout, most, upstream, all, *listed);
    for (std::int64_t tap = 0; tap < taps.count(); ++tap) {
      const at::Tensor k = taps.k(tap), product = products.select(-1, tap);
      if (wanted.weight && !call.of_inputs()) gradients.weight.addcmul_(call.spread.value(k), product);
      if (!wanted.delay) continue;
      const at::Tensor slope = call.spread.slope(k);
      gradients.delay.addcmul_(factor.defined() ? slope * factor : slope, product);
    }
  });
  if (!grad_all.defined()) return gradients;
  const at::Tensor sequence = layout.written(grad_all, most + steps - from);
  gradients.x = sequence.narrow(0, most - from, steps).reshape(call.x.sizes());
  if (wanted.past) gradients.past = sequence.narrow(0, 0, most).reshape(call.past->sizes());
  return gradients;
}

}  // namespace spikeforge::ops::layers::delayed
