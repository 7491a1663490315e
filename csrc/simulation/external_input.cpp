#include "csrc/simulation/internal/external_input.h"

#include <ATen/ops/_unique.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/tensor.h>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <utility>

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

// Returns whole numbers on the CPU, contiguous.
at::Tensor on_cpu(const at::Tensor& numbers) { return numbers.to(c10::kCPU, at::kLong).contiguous(); }

std::span<const std::int64_t> span_of(const at::Tensor& numbers) {
  return {numbers.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(numbers.numel())};
}

void check_indices(const StepInput& input, const char* what, const at::Tensor& t, std::int64_t end) {
  TORCH_CHECK_TYPE(t.defined() && t.dim() == 1 && at::isIntegralType(t.scalar_type(), /*includeBool=*/false),
                   name_of(input), " must have whole numbers of ", what, ", in a tensor [events]");
  const at::Tensor numbers = on_cpu(t);
  for (const std::int64_t number : span_of(numbers))
    TORCH_CHECK_VALUE(number >= 0 && number < end, name_of(input), " must have ", what, " from 0 to ", end - 1,
                      ", but one is ", number);
}

bool are_distinct(const at::Tensor& numbers) {
  const std::span<const std::int64_t> all = span_of(numbers);
  if (std::ranges::adjacent_find(all, std::ranges::greater_equal()) == all.end()) return true;
  std::vector<std::int64_t> sorted(all.begin(), all.end());
  std::ranges::sort(sorted);
  return std::ranges::adjacent_find(sorted) == sorted.end();
}

}  // namespace

ExternalInput::ExternalInput(const NetworkState& state, std::int64_t steps, const std::vector<StepInput>& inputs)
    : copies_(state.copies), copy_columns_(state.copy_columns), device_(state.device) {
  std::vector<StepInput> dense, events;
  for (const StepInput& input : inputs) {
    check_numbers(input);
    if (!input.steps.defined()) {
      if (input.neurons.defined()) check_indices(input, "neurons", input.neurons, input.population.size());
      const std::int64_t neurons = input.neurons.defined() ? input.neurons.numel() : input.population.size();
      const std::int64_t sizes[] = {steps, neurons}, of_copies[] = {steps, copies_, neurons};
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

// Sets dense_ and its columns. A single input of a population or of distinct neurons is not copied, except that neurons
// of a network on the CPU are sorted.
void ExternalInput::add_dense(const NetworkState& state, const std::vector<StepInput>& inputs) {
  struct Own {
    at::Tensor columns, values;  // [columns], [steps, copies or 1, columns]
    std::int64_t first = 0;      // of consecutive columns, which are not listed
  };
  std::vector<Own> all;
  for (const StepInput& input : inputs) {
    const OwnColumns own = state.own_columns(input.population, input.into);
    const at::Tensor values = input.values.detach().resolve_neg();
    if (!input.neurons.defined()) {
      if (own.end > own.begin)
        all.push_back({{}, values.narrow(2, own.first, own.end - own.begin).to(state.options()), own.begin});
      continue;
    }
    const at::Tensor numbers = on_cpu(input.neurons);
    std::vector<std::pair<std::int64_t, std::int64_t>> chosen;  // columns, and their places in the values
    for (std::int64_t place = 0; const std::int64_t neuron : span_of(numbers)) {
      if (neuron >= own.first && neuron - own.first < own.end - own.begin)
        chosen.emplace_back(neuron - own.first + own.begin, place);
      ++place;
    }
    if (chosen.empty()) continue;
    if (device_.is_cpu()) std::ranges::sort(chosen);
    at::Tensor columns = at::empty({std::ssize(chosen)}, at::kLong), places = at::empty_like(columns);
    bool are_all = std::ssize(chosen) == numbers.numel();
    for (std::int64_t i = 0; const auto& [column, place] : chosen) {
      columns.mutable_data_ptr<std::int64_t>()[i] = column;
      places.mutable_data_ptr<std::int64_t>()[i] = place;
      are_all &= place == i;
      ++i;
    }
    const at::Tensor of_own = are_all ? values : values.index_select(2, places.to(values.device()));
    all.push_back({columns, of_own.to(state.options()), 0});
  }
  if (all.empty()) return;
  const Own& one = all[0];
  if (all.size() == 1 && (!one.columns.defined() || are_distinct(one.columns))) {
    first_ = one.first;
    listed_ = one.columns;
    dense_ = one.values.expand({-1, copies_, -1}).contiguous();
    return;
  }
  const bool are_ranges = std::ranges::none_of(all, [](const Own& own) { return own.columns.defined(); });
  if (are_ranges) {  // one range with zeros between them, which needs no indices
    std::int64_t last = 0;
    first_ = one.first;
    for (const Own& own : all) {
      first_ = std::min(first_, own.first);
      last = std::max(last, own.first + own.values.size(2));
    }
    dense_ = at::zeros({one.values.size(0), copies_, last - first_}, state.options());
    for (const Own& own : all)
      dense_.slice(2, own.first - first_, own.first - first_ + own.values.size(2)).add_(own.values);
    return;
  }
  std::vector<at::Tensor> columns;
  columns.reserve(all.size());
  for (const Own& own : all)
    columns.push_back(own.columns.defined() ? own.columns
                                            : at::arange(own.first, own.first + own.values.size(2), at::kLong));
  listed_ = std::get<0>(at::_unique(at::cat(columns)));
  dense_ = at::zeros({one.values.size(0), copies_, listed_.numel()}, state.options());
  for (std::size_t i = 0; i < all.size(); ++i)
    dense_.index_add_(2, at::searchsorted(listed_, columns[i]).to(device_), all[i].values.expand({-1, copies_, -1}));
}

void ExternalInput::add_events(const NetworkState& state, std::int64_t steps, const std::vector<StepInput>& inputs) {
  if (inputs.empty()) return;
  std::vector<at::Tensor> places, values;  // a place is step * columns + column
  for (const StepInput& input : inputs) {
    const OwnColumns own = state.own_columns(input.population, input.into);
    const at::Tensor neurons = on_cpu(input.neurons).sub(own.first);
    const at::Tensor is_own = neurons.ge(0).logical_and_(neurons.lt(own.end - own.begin));
    const at::Tensor copies =
        input.copies.defined() ? on_cpu(input.copies) : at::arange(copies_, at::kLong).unsqueeze(1);
    const at::Tensor place =
        on_cpu(input.steps).mul(state.columns).add_(neurons).add_(own.begin).add(copies.mul(state.copy_columns));
    const at::Tensor numbers = input.values.detach().resolve_neg().to(state.options().device(c10::kCPU));
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
    const std::int64_t before = copy * copy_columns_, range = before + first_;
    const std::int64_t begin = std::max(first, range), end = std::min(last, range + width);
    if (listed_.defined()) {
      const auto* const listed = listed_.const_data_ptr<std::int64_t>();
      const auto* const stop = listed + width;
      for (const auto* c = std::lower_bound(listed, stop, first - before); c != stop && before + *c < last; ++c)
        to[before + *c - first] += row[c - listed];
    } else {
      for (std::int64_t c = begin; c < end; ++c) to[c - first] += row[c - range];
    }
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
  if (!has_events() && !listed_.defined()) return with_input_ = {first_, dense_.size(2)};
  at::Tensor of_dense;
  if (dense_.defined()) {
    const at::Tensor of_copy =
        listed_.defined() ? listed_ : at::arange(first_, first_ + dense_.size(2), at::TensorOptions(at::kLong));
    of_dense = of_copies(of_copy);
  }
  if (!has_events()) {
    with_input_.listed = of_dense;
    return with_input_;
  }
  with_input_.listed = std::get<0>(at::_unique(of_dense.defined() ? at::cat({columns_, of_dense}) : columns_));
  places_ = at::searchsorted(with_input_.listed, columns_);
  if (of_dense.defined()) places_of_dense_ = at::searchsorted(with_input_.listed, of_dense).to(device_);
  return with_input_;
}

// Returns the same columns of all copies.
at::Tensor ExternalInput::of_copies(const at::Tensor& columns) const {
  if (copies_ == 1) return columns;
  return at::arange(copies_, columns.options()).mul_(copy_columns_).unsqueeze(1).add(columns).flatten();
}

at::Tensor ExternalInput::indices() const {
  const InputColumns& all = columns();
  if (all.listed.defined()) return all.listed.to(device_);
  return of_copies(at::arange(all.first, all.first + all.width, at::TensorOptions(at::kLong).device(device_)));
}

at::Tensor ExternalInput::rows(std::int64_t first, std::int64_t count) const {
  at::Tensor dense = dense_.defined() ? dense_.slice(0, first, first + count).flatten(1) : dense_;
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
