#include "ops/event/connect_drawing.h"
#include "csrc/jit/recorder.h"
#include "csrc/kernels/event/connect.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#if defined(SPIKEFORGE_WITH_CUDA)
#include "ops/common/on_stream.h"

#include <c10/cuda/CUDAGuard.h>
#endif

namespace spikeforge::ops::sparse {

namespace {

using event::ConnectArguments;
using event::ConnectStep;
using event::NumberType;

NumberType number_type(c10::ScalarType type) {
  switch (type) {
    case at::kHalf: return NumberType::f16;
    case at::kBFloat16: return NumberType::bf16;
    case at::kFloat: return NumberType::f32;
    case at::kDouble: return NumberType::f64;
    case at::kByte: return NumberType::u8;
    default: return NumberType::i32;
  }
}

event::Law law_of(const NumberLaw& law) {
  const auto kind = law.law == "uniform"     ? event::LawKind::uniform
                    : law.law == "normal"    ? event::LawKind::normal
                    : law.law == "lognormal" ? event::LawKind::lognormal
                                             : event::LawKind::constant;
  return {law.first, law.second, law.low, law.high, kind, law.redraw ? 1 : 0};
}

template <class T> T* at_address(const at::Tensor& t) {
  return t.defined() ? static_cast<T*>(t.mutable_data_ptr()) : nullptr;
}

}  // namespace

Drawing::Drawing(const Projection& p, std::size_t number, std::int64_t seed, std::int64_t rows,
                 at::TensorOptions options)
    : p_(p), rule_(parse_rule("connect: ", p.rule)), options_(options.dtype(at::kInt)) {
  const std::int64_t own = first_own_column(p, rows);
  by_rows_ = {.seed = static_cast<unsigned long long>(seed),
              .projection = static_cast<unsigned>(number),
              .without_own = p.autapses ? 0 : 1,
              .count = size_of(p.sources),
              .width = size_of(p.targets),
              .own = p.sources.begin + own - p.targets.begin,
              .places_a_bit = 0,
              .first = static_cast<int>(p.targets.begin)};
  if (rule_ == ConnectionRule::fixed_probability)
    by_rows_.places_a_bit = static_cast<float>(std::log(2.0) / std::abs(std::log1p(-p.amount)));  // also inf for -0
  degree_ = static_cast<std::int64_t>(p.amount);
}

at::Tensor Drawing::counts() const {
  const std::int64_t n = by_rows_.count;
  switch (rule_) {
    case ConnectionRule::all_to_all: return without_own(at::full({n}, by_rows_.width, options_));
    case ConnectionRule::one_to_one:
      return p_.autapses || by_rows_.own != 0 ? at::full({n}, 1, options_) : at::zeros({n}, options_);
    case ConnectionRule::fixed_out_degree: return at::full({n}, degree_, options_);
    case ConnectionRule::arrays: return at::bincount(p_.source_indices, {}, n).to(at::kInt);
    default: break;
  }
  at::Tensor counts = at::zeros({n}, options_);
  ConnectArguments args{.lines = by_rows_, .total = degree_, .counted = at_address<int>(counts)};
  if (rule_ == ConnectionRule::fixed_in_degree) {
    const at::Tensor sources = sources_of_targets();
    args.total = sources.numel();
    args.drawn = at_address<int>(sources);
    run(ConnectStep::count_rows, args);
  } else {
    run(rule_ == ConnectionRule::fixed_total ? ConnectStep::count_lines : ConnectStep::count_places, args);
  }
  return counts;
}

void Drawing::fill_indices(const at::Tensor& indices, const at::Tensor& starts, const at::Tensor& counts) const {
  ConnectArguments args{.lines = by_rows_,
                        .starts = at_address<event::Place>(starts),
                        .counts = at_address<int>(counts),
                        .indices = at_address<int>(indices),
                        .rule = rule_of_places()};
  if (rule_ != ConnectionRule::fixed_in_degree) return run(ConnectStep::draw, args);
  const at::Tensor sources = sources_of_targets();
  const at::Tensor placed = at::zeros_like(counts);
  args.counted = at_address<int>(placed);
  args.drawn = at_address<int>(sources);
  args.total = sources.numel();
  args.degree = static_cast<int>(degree_);
  if (args.total != 0) run(ConnectStep::place_rows, args);
  run(ConnectStep::sort, args);
}

void Drawing::fill_numbers(const at::Tensor& numbers, const NumberLaw& law, int of, const at::Tensor& starts,
                           const at::Tensor& counts) const {
  run(ConnectStep::numbers, {.lines = by_rows_,
                             .law = law_of(law),
                             .starts = at_address<event::Place>(starts),
                             .counts = at_address<int>(counts),
                             .numbers = numbers.mutable_data_ptr(),
                             .type = number_type(numbers.scalar_type()),
                             .of = of});
}

at::Tensor Drawing::slots(const at::Tensor& starts, const at::Tensor& counts) const {
  if (options_.device().is_cpu()) {
    at::Tensor slots = at::empty({p_.source_indices.numel()}, options_.dtype(at::kLong)), next = starts.clone();
    AT_DISPATCH_INDEX_TYPES(p_.source_indices.scalar_type(), "slots", [&] {
      const at::Tensor sources = p_.source_indices.contiguous();
      auto* const after = next.mutable_data_ptr<std::int64_t>();
      const auto* const source = sources.const_data_ptr<index_t>();
      auto* const slot = slots.mutable_data_ptr<std::int64_t>();
      for (std::int64_t i = 0; i < sources.numel(); ++i) slot[i] = after[source[i]]++;
    });
    return slots;
  }
  const at::Tensor order = at::argsort(p_.source_indices, /*stable=*/true, /*dim=*/0);
  const at::Tensor row = p_.source_indices.index_select(0, order);
  const at::Tensor before = counts.cumsum(0, at::kLong).sub_(counts);
  const at::Tensor sorted = at::arange(row.size(0), row.options().dtype(at::kLong))
                                .sub_(before.index_select(0, row))
                                .add_(starts.index_select(0, row));
  at::Tensor slots = at::empty_like(sorted);
  return slots.index_copy_(0, order, sorted);
}

event::PlaceRule Drawing::rule_of_places() const {
  switch (rule_) {
    case ConnectionRule::all_to_all: return event::PlaceRule::all;
    case ConnectionRule::one_to_one: return event::PlaceRule::one;
    case ConnectionRule::fixed_probability: return event::PlaceRule::probable;
    default: return p_.multapses ? event::PlaceRule::drawn : event::PlaceRule::distinct;
  }
}

at::Tensor Drawing::without_own(at::Tensor counts) const {
  if (by_rows_.without_own == 0) return counts;
  const std::int64_t begin = std::clamp<std::int64_t>(-by_rows_.own, 0, by_rows_.count);
  const std::int64_t end = std::clamp<std::int64_t>(by_rows_.width - by_rows_.own, begin, by_rows_.count);
  counts.slice(0, begin, end).sub_(1);
  return counts;
}

at::Tensor Drawing::sources_of_targets() const {
  event::Lines by_columns = by_rows_;
  by_columns.count = by_rows_.width;
  by_columns.width = by_rows_.count;
  by_columns.own = -by_rows_.own;
  by_columns.first = 0;
  at::Tensor sources = at::empty({by_columns.count * degree_}, options_);
  const at::Tensor starts = at::arange(by_columns.count, options_.dtype(at::kLong)).mul_(degree_);
  const at::Tensor counts = at::full({by_columns.count}, degree_, options_);
  run(ConnectStep::draw, {.lines = by_columns,
                          .starts = at_address<event::Place>(starts),
                          .counts = at_address<int>(counts),
                          .indices = at_address<int>(sources),
                          .rule = rule_of_places()});
  return sources;
}

void Drawing::run(ConnectStep step, const ConnectArguments& args) const {
  if (args.lines.count == 0) return;
  jit::note_by_arch(
      [&](const jit::Device&, const jit::Want& want) { want(event::print_source(event::spec_of(step, args.type))); });
#if defined(SPIKEFORGE_WITH_CUDA)
  if (options_.device().is_cuda()) {
    const at::Tensor beside = at::empty({0}, options_);
    const c10::cuda::OptionalCUDAGuard guard(beside.device());
    return event::launch_connect_step(step, args, gpu_of(beside), stream_of(beside));
  }
#endif
  connect_cpu(step, args);
}

}  // namespace spikeforge::ops::sparse
