#include "csrc/simulation/internal/external_input.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/unique_dim.h>
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

ExternalInput::ExternalInput(const NetworkState& state, std::int64_t steps, const std::vector<StepInput>& inputs)
    : copies_(state.copies), copy_columns_(state.copy_columns), device_(state.device) {
  std::vector<StepInput> dense, events;
  for (const StepInput& input : inputs) {
    check_numbers(input);
    if (!input.steps.defined()) {
      const std::int64_t sizes[] = {steps, input.population.size()};
      const std::int64_t of_copies[] = {steps, copies_, input.population.size()};
      const bool has_copies = copies_ > 1 && input.values.sizes() == c10::IntArrayRef(of_copies);
      TORCH_CHECK_VALUE(
          has_copies || input.values.sizes() == c10::IntArrayRef(sizes), name_of(input), " must have shape ",
          c10::IntArrayRef(sizes), ", steps and neurons, ",
          copies_ > 1 ? c10::str("or ", c10::IntArrayRef(of_copies), ", steps, copies and neurons, ") : "", "but has ",
          input.values.sizes());
      dense.push_back(input);
      if (!has_copies) dense.back().values = input.values.unsqueeze(1);
      continue;
    }
    check_indices(input, "steps", input.steps, steps);
    check_indices(input, "neurons", input.neurons, input.population.size());
    const std::int64_t count = input.steps.numel();
    TORCH_CHECK_VALUE(input.neurons.numel() == count && (input.values.dim() == 0 || input.values.numel() == count),
                      name_of(input), " must have as many steps as neurons and weights, but has ", count, ", ",
                      input.neurons.numel(), " and ", input.values.numel());
    if (input.copies.defined()) {
      check_indices(input, "copies", input.copies, copies_);
      TORCH_CHECK_VALUE(input.copies.numel() == count, name_of(input), " must have as many steps as copies, but has ",
                        count, " and ", input.copies.numel());
    }
    events.push_back(input);
  }
  add_dense(state, dense);
  add_events(state, steps, events);
}

void ExternalInput::add_dense(const NetworkState& state, const std::vector<StepInput>& inputs) {
  std::vector<OwnColumns> own;
  std::int64_t last = 0;
  first_ = state.copy_columns;
  for (const StepInput& input : inputs) {
    own.push_back(state.own_columns(input.population, input.into));
    first_ = std::min(first_, own.back().begin);
    last = std::max(last, own.back().end);
  }
  if (first_ >= last) return;
  const auto part = [&](std::size_t i) {
    return inputs[i].values.detach().narrow(2, own[i].first, own[i].end - own[i].begin);
  };
  if (inputs.size() == 1) {
    dense_ = part(0).to(state.options()).expand({-1, copies_, -1}).contiguous();
    return;
  }
  dense_ = at::zeros({inputs[0].values.size(0), copies_, last - first_}, state.options());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    dense_.slice(2, own[i].begin - first_, own[i].end - first_).add_(part(i).to(state.options()));
}

void ExternalInput::add_events(const NetworkState& state, std::int64_t steps, const std::vector<StepInput>& inputs) {
  if (inputs.empty()) return;
  std::vector<at::Tensor> places, values;  // a place is step * columns + column
  for (const StepInput& input : inputs) {
    const OwnColumns own = state.own_columns(input.population, input.into);
    const at::Tensor neurons = input.neurons.to(c10::kCPU, at::kLong).sub(own.first);
    const at::Tensor is_own = neurons.ge(0).logical_and_(neurons.lt(own.end - own.begin));
    const at::Tensor copies =
        input.copies.defined() ? input.copies.to(c10::kCPU, at::kLong) : at::arange(copies_, at::kLong).unsqueeze(1);
    const at::Tensor place = input.steps.to(c10::kCPU, at::kLong)
                                 .mul(state.columns)
                                 .add_(neurons)
                                 .add_(own.begin)
                                 .add(copies.mul(state.copy_columns));
    const at::Tensor numbers = input.values.detach().to(state.options().device(c10::kCPU));
    places.push_back(place.masked_select(is_own));
    values.push_back(numbers.expand(place.sizes()).masked_select(is_own.expand(place.sizes())));
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
    const std::int64_t copy = copies_ == 1 ? 0 : first / copy_columns_, width = dense_.size(2);
    const T* const row = dense_.const_data_ptr<T>() + (step * copies_ + copy) * width;
    const std::int64_t range = copy * copy_columns_ + first_;
    const std::int64_t begin = std::max(first, range), end = std::min(last, range + width);
    for (std::int64_t c = begin; c < end; ++c) to[c - first] += row[c - range];
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

bool InputColumns::operator==(const InputColumns& other) const {
  const bool same_list =
      listed.defined() ? other.listed.defined() && listed.equal(other.listed) : !other.listed.defined();
  return first == other.first && width == other.width && same_list;
}

const InputColumns& ExternalInput::columns() const {
  if (with_input_.listed.defined() || with_input_.width > 0) return with_input_;
  if (!has_events()) return with_input_ = {first_, dense_.size(2)};
  at::Tensor all = columns_;
  at::Tensor of_dense;
  if (dense_.defined()) {
    of_dense = indices_of_range(first_, dense_.size(2), c10::kCPU);
    all = at::cat({all, of_dense});
  }
  with_input_.listed = std::get<0>(at::unique_dim(all, 0));
  places_ = at::searchsorted(with_input_.listed, columns_);
  if (dense_.defined()) places_of_dense_ = at::searchsorted(with_input_.listed, of_dense).to(device_);
  return with_input_;
}

at::Tensor ExternalInput::indices_of_range(std::int64_t first, std::int64_t width, c10::Device device) const {
  const auto options = at::TensorOptions(at::kLong).device(device);
  const at::Tensor range = at::arange(first, first + width, options);
  return at::arange(copies_, options).mul_(copy_columns_).unsqueeze(1).add(range).flatten();
}

at::Tensor ExternalInput::indices() const {
  const InputColumns& all = columns();
  return all.listed.defined() ? all.listed.to(device_) : indices_of_range(all.first, all.width, device_);
}

at::Tensor ExternalInput::rows(std::int64_t first, std::int64_t count) const {
  const at::Tensor dense = dense_.defined() ? dense_.slice(0, first, first + count).flatten(1) : dense_;
  const InputColumns& all = columns();
  if (!has_events()) return dense;
  const std::int64_t width = all.listed.numel();
  at::Tensor rows = at::zeros({count, width}, values_.options());
  if (dense.defined()) rows.index_copy_(1, places_of_dense_, dense);
  const std::int64_t begin = starts_[static_cast<std::size_t>(first)],
                     end = starts_[static_cast<std::size_t>(first + count)];
  std::vector<std::int64_t> of_steps;
  for (std::int64_t step = 0; step < count; ++step) {
    const auto at = static_cast<std::size_t>(first + step);
    of_steps.insert(of_steps.end(), static_cast<std::size_t>(starts_[at + 1] - starts_[at]), step * width);
  }
  const at::Tensor places = at::tensor(of_steps, at::kLong).add_(places_.slice(0, begin, end));
  rows.view({-1}).index_put_({places.to(device_)}, values_.slice(0, begin, end), /*accumulate=*/true);
  return rows;
}

}  // namespace spikeforge::simulation
