#include "csrc/simulation/internal/external_input.h"

#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>

namespace spikeforge::simulation {
namespace {

std::string name_of(const StepInput& input) {
  return "simulate: the input of " + input.population.name + (input.into.empty() ? "" : ", " + input.into + ",");
}

void check_numbers(const StepInput& input) {
  const at::Tensor& t = input.values;
  TORCH_CHECK_TYPE(t.defined() && t.layout() == at::kStrided && !t.is_meta() && !t.is_complex(), name_of(input),
                   " must be real numbers in a dense tensor");
}

// Returns the smallest and the largest number, or 0 and -1 without numbers.
std::pair<std::int64_t, std::int64_t> range_of(const at::Tensor& numbers) {
  if (numbers.numel() == 0) return {0, -1};
  return {numbers.min().item<std::int64_t>(), numbers.max().item<std::int64_t>()};
}

void check_indices(const StepInput& input, const char* what, const at::Tensor& t, std::int64_t end) {
  TORCH_CHECK_TYPE(t.defined() && t.dim() == 1 && at::isIntegralType(t.scalar_type(), /*includeBool=*/false),
                   name_of(input), " must have whole numbers of ", what, ", in a tensor [events]");
  const auto [least, most] = range_of(t);
  TORCH_CHECK_VALUE(least >= 0 && most < end, name_of(input), " must have ", what, " from 0 to ", end - 1,
                    ", but one is ", least < 0 ? least : most);
}

}  // namespace

ExternalInput::ExternalInput(const NetworkState& state, std::int64_t steps, const std::vector<StepInput>& inputs) {
  std::vector<StepInput> dense, events;
  for (const StepInput& input : inputs) {
    check_numbers(input);
    if (!input.steps.defined()) {
      const std::int64_t sizes[] = {steps, input.population.size()};
      TORCH_CHECK_VALUE(input.values.sizes() == c10::IntArrayRef(sizes), name_of(input), " must have shape ",
                        c10::IntArrayRef(sizes), ", steps and neurons, but has ", input.values.sizes());
      dense.push_back(input);
      continue;
    }
    check_indices(input, "steps", input.steps, steps);
    check_indices(input, "neurons", input.neurons, input.population.size());
    const std::int64_t count = input.steps.numel();
    TORCH_CHECK_VALUE(input.neurons.numel() == count && (input.values.dim() == 0 || input.values.numel() == count),
                      name_of(input), " must have as many steps as neurons and weights, but has ", count, ", ",
                      input.neurons.numel(), " and ", input.values.numel());
    events.push_back(input);
  }
  add_dense(state, dense);
  add_events(state, steps, events);
}

void ExternalInput::add_dense(const NetworkState& state, const std::vector<StepInput>& inputs) {
  std::vector<OwnColumns> own;
  std::int64_t last = 0;
  first_ = state.columns;
  for (const StepInput& input : inputs) {
    own.push_back(state.own_columns(input.population, input.into));
    first_ = std::min(first_, own.back().begin);
    last = std::max(last, own.back().end);
  }
  if (first_ >= last) return;
  const auto part = [&](std::size_t i) {
    return inputs[i].values.detach().narrow(1, own[i].first, own[i].end - own[i].begin);
  };
  if (inputs.size() == 1) {
    dense_ = part(0).to(state.options()).contiguous();
    return;
  }
  dense_ = at::zeros({inputs[0].values.size(0), last - first_}, state.options());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    dense_.slice(1, own[i].begin - first_, own[i].end - first_).add_(part(i).to(state.options()));
}

void ExternalInput::add_events(const NetworkState& state, std::int64_t steps, const std::vector<StepInput>& inputs) {
  if (inputs.empty()) return;
  std::vector<at::Tensor> places, values;  // a place is step * columns + column
  for (const StepInput& input : inputs) {
    const OwnColumns own = state.own_columns(input.population, input.into);
    const at::Tensor neurons = input.neurons.to(c10::kCPU, at::kLong).sub(own.first);
    const at::Tensor is_own = neurons.ge(0).logical_and_(neurons.lt(own.end - own.begin));
    const at::Tensor place = input.steps.to(c10::kCPU, at::kLong).mul(state.columns).add_(neurons).add_(own.begin);
    places.push_back(place.masked_select(is_own));
    values.push_back(
        input.values.detach().to(state.options().device(c10::kCPU)).expand({neurons.numel()}).masked_select(is_own));
  }
  const at::Tensor all = at::cat(places), order = at::argsort(all, /*stable=*/true, 0, false);
  columns_ = all.index_select(0, order).remainder(std::max<std::int64_t>(state.columns, 1));
  values_ = at::cat(values).index_select(0, order).to(state.device);
  const at::Tensor counts =
      at::bincount(all.floor_divide(std::max<std::int64_t>(state.columns, 1)), {}, steps).cumsum(0);
  starts_.assign(1, 0);
  const auto* const ends = counts.const_data_ptr<std::int64_t>();
  starts_.insert(starts_.end(), ends, ends + steps);
}

template <class T> void ExternalInput::add(std::int64_t step, std::int64_t first, std::int64_t last, T* to) const {
  if (dense_.defined()) {
    const std::int64_t width = dense_.size(1);
    const T* const row = dense_.const_data_ptr<T>() + step * width;
    const std::int64_t begin = std::max(first, first_), end = std::min(last, first_ + width);
    for (std::int64_t c = begin; c < end; ++c) to[c - first] += row[c - first_];
  }
  if (!columns_.defined()) return;
  const auto* const columns = columns_.const_data_ptr<std::int64_t>();
  const T* const values = values_.const_data_ptr<T>();
  const auto at = static_cast<std::size_t>(step);
  const auto* const end = columns + starts_[at + 1];
  for (const auto* c = std::lower_bound(columns + starts_[at], end, first); c != end && *c < last; ++c)
    to[*c - first] += values[c - columns];
}
template void ExternalInput::add(std::int64_t step, std::int64_t first, std::int64_t last, float* to) const;
template void ExternalInput::add(std::int64_t step, std::int64_t first, std::int64_t last, double* to) const;

std::pair<at::Tensor, std::int64_t> ExternalInput::rows(std::int64_t first, std::int64_t count) const {
  const at::Tensor dense = dense_.defined() ? dense_.slice(0, first, first + count) : dense_;
  if (!columns_.defined()) return {dense, first_};
  const std::int64_t begin = starts_[static_cast<std::size_t>(first)],
                     end = starts_[static_cast<std::size_t>(first + count)];
  if (begin == end) return {dense, first_};
  const at::Tensor columns = columns_.slice(0, begin, end);
  auto [least, most] = range_of(columns);
  if (dense.defined()) {
    least = std::min(least, first_);
    most = std::max(most, first_ + dense.size(1) - 1);
  }
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 0; step < count; ++step) {
    const auto at = static_cast<std::size_t>(first + step);
    steps.insert(steps.end(), static_cast<std::size_t>(starts_[at + 1] - starts_[at]), step);
  }
  const std::int64_t width = most - least + 1;
  at::Tensor rows = at::zeros({count, width}, values_.options());
  if (dense.defined()) rows.slice(1, first_ - least, first_ - least + dense.size(1)).copy_(dense);
  const at::Tensor places = at::tensor(steps, at::kLong).mul_(width).add_(columns).sub_(least);
  rows.view({-1}).index_put_({places.to(rows.device())}, values_.slice(0, begin, end), /*accumulate=*/true);
  return {rows, least};
}

}  // namespace spikeforge::simulation
