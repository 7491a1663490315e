#include "csrc/kernels/layer/delayed_product.h"
#include "ops/common/checks.h"
#include "ops/layer/delayed_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <vector>

namespace spikeforge::ops::layers::delayed {
namespace {

// The maximum number of stored steps per delay.
constexpr std::int64_t steps_at_once = spikeforge::layers::most_delayed_taps;

// The steps of each delay from index `first` on, at most steps_at_once. Later input steps have shorter delays, so k
// descends.
class TapsOf {
 public:
  TapsOf(const Call& call, const Rows& rows, std::int64_t first)
      : call_(call),
        rows_(rows),
        first_(first),
        count_(std::min(steps_at_once, call.spread.steps() - first)),
        shortest_(call.spread.first() + static_cast<double>(first)) {}

  std::int64_t count() const { return count_; }
  at::Tensor value(std::int64_t tap) const { return call_.spread.own_value(step_of(tap)); }
  at::Tensor slope(std::int64_t tap) const { return call_.spread.own_slope(step_of(tap)); }

  // Returns the taps for y from x, whose rows begin max_delay steps earlier.
  Taps forward(const at::Tensor& factor) const {
    std::vector<at::Tensor> list;
    for (std::int64_t tap = 0; tap < count_; ++tap) list.push_back(times(factor, tap));
    return {shifts(static_cast<double>(call_.max_delay - count_ + 1) - shortest_), at::stack(list, -1)};
  }

  // Returns the taps for the gradient of x from that of y, whose rows begin max_delay steps earlier.
  Taps backward(const at::Tensor& factor) const {
    std::vector<at::Tensor> list;
    for (std::int64_t tap = count_ - 1; tap >= 0; --tap) list.push_back(turned(times(factor, tap)));
    return {shifts(turned(shortest_)), at::stack(list, -1)};
  }

 private:
  std::int64_t step_of(std::int64_t tap) const { return first_ + count_ - 1 - tap; }
  at::Tensor times(const at::Tensor& factor, std::int64_t tap) const {
    return factor.defined() ? value(tap) * factor : value(tap);
  }
  static at::Tensor turned(const at::Tensor& t) { return t.dim() == 2 ? t.t() : t; }
  at::Tensor shifts(const at::Tensor& steps) const { return (steps * rows_.lanes()).to(at::kInt).contiguous(); }

  const Call& call_;
  const Rows& rows_;
  std::int64_t first_, count_;
  at::Tensor shortest_;
};

template <class F> void each_taps(const Call& call, const Rows& rows, F&& f) {
  for (std::int64_t first = 0; first < call.spread.steps(); first += steps_at_once) f(TapsOf(call, rows, first));
}

// Returns rows of the previous steps and x.
at::Tensor rows_with_past(const Call& call, const Rows& rows) {
  const std::int64_t steps = call.max_delay + rows.steps(), first = call.past ? 0 : call.max_delay;
  at::Tensor all = rows.open(call.x.size(-1), steps, first, steps - first);
  if (call.past) rows.read(*call.past, all, 0);
  rows.read(call.x, all, call.max_delay);
  return all;
}

// Returns x, spread by one delay for each input: [groups, I, steps * lanes].
at::Tensor spread_rows(const Call& call, const Rows& rows, const at::Tensor& all) {
  const at::Tensor spread = rows.zeros(call.x.size(-1), rows.steps());
  each_taps(call, rows, [&](const TapsOf& taps) { rows.add(taps.forward({}), all, 0, spread, rows.steps()); });
  return spread.narrow(2, 0, rows.steps() * rows.lanes());
}

}  // namespace

Rows::Rows(const Call& call)
    : options_(call.x.options().dtype(state_type(call.x.scalar_type()))),
      steps_(call.x.size(0)),
      samples_(c10::multiply_integers(call.x.sizes().slice(1, static_cast<std::size_t>(call.x.dim()) - 2))),
      max_delay_(call.max_delay) {}

at::Tensor forward_by_rows(const Call& call, Rows& rows) {
  const std::int64_t out_features = call.weight.size(0);
  if (rows.empty() || call.x.size(-1) == 0)
    return at::zeros(
        {c10::multiply_integers(call.x.sizes().slice(0, static_cast<std::size_t>(call.x.dim()) - 1)), out_features},
        rows.options());
  const at::Tensor weight = call.weight.to(rows.type());
  const at::Tensor all = rows_with_past(call, rows);
  if (call.of_inputs()) return rows.written(rows.product(weight, spread_rows(call, rows, all)), rows.steps());
  const at::Tensor y = rows.zeros(out_features, rows.steps());
  each_taps(call, rows, [&](const TapsOf& taps) { rows.add(taps.forward(weight), all, 0, y, rows.steps()); });
  return rows.written(y, rows.steps());
}

Gradients backward_by_rows(const Call& call, Rows& rows, const at::Tensor& grad, const Wanted& wanted) {
  const std::int64_t steps = rows.steps(), most = call.max_delay;
  const auto zeros = [&](const at::Tensor& like) { return at::zeros(like.sizes(), rows.options()); };
  Gradients gradients{{}, zeros(call.weight), zeros(call.delay), {}};
  if (rows.empty() || call.weight.numel() == 0) {
    gradients.x = zeros(call.x);
    if (call.past) gradients.past = zeros(*call.past);
    return gradients;
  }

  const at::Tensor weight = call.weight.to(rows.type());
  at::Tensor upstream = rows.open(grad.size(-1), 2 * most + steps, most, steps);  // zero before and after it
  rows.read(grad, upstream, most);
  at::Tensor all, factor = weight;
  if (wanted.weight || wanted.delay) all = rows_with_past(call, rows);
  if (call.of_inputs()) {
    const at::Tensor g = upstream.narrow(2, most * rows.lanes(), steps * rows.lanes());
    if (wanted.weight) gradients.weight = rows.product(g, spread_rows(call, rows, all).transpose(1, 2)).sum(0);
    const at::Tensor of_spread = rows.product(weight.t(), g);
    upstream = rows.zeros(call.x.size(-1), 2 * most + steps);
    upstream.narrow(2, most * rows.lanes(), steps * rows.lanes()).copy_(of_spread);
    factor = at::Tensor();
  }

  const std::int64_t from = wanted.past ? 0 : most;
  at::Tensor grad_all;
  if (wanted.x || wanted.past) grad_all = rows.zeros(call.x.size(-1), most + steps - from);
  each_taps(call, rows, [&](const TapsOf& taps) {
    if (grad_all.defined()) rows.add(taps.backward(factor), upstream, from, grad_all, most + steps - from);
    if (!all.defined()) return;
    const at::Tensor products = rows.sums(taps.forward({}), upstream, all);
    for (std::int64_t tap = 0; tap < taps.count(); ++tap) {
      const at::Tensor product = products.select(-1, tap);
      if (wanted.weight && !call.of_inputs()) gradients.weight.addcmul_(taps.value(tap), product);
      if (!wanted.delay) continue;
      const at::Tensor slope = taps.slope(tap);
      gradients.delay.addcmul_(factor.defined() ? slope * factor : slope, product);
    }
  });
  if (!grad_all.defined()) return gradients;
  const at::Tensor sequence = rows.written(grad_all, most + steps - from);
  gradients.x = sequence.narrow(0, most - from, steps).reshape(call.x.sizes());
  if (wanted.past) gradients.past = sequence.narrow(0, 0, most).reshape(call.past->sizes());
  return gradients;
}

}  // namespace spikeforge::ops::layers::delayed
