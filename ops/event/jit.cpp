// jit_csrmv and jit_csrmm: products of a random matrix that is never stored.
//
// Every entry of the [rows, cols] matrix is a connection with probability `prob`; `seed` says which matrix it is, the
// same on every device, in both orders, for mv and mm, and for every law and type of the weights:
//   law        weights
//   constant   [1]   w
//   uniform    [2]   from low to high
//   normal     [2]   mean and standard deviation
// Weights get their gradient. `values` says what an entry x of `events` is: "event" (1 where true, or x > 0; NaN is
// none), "graded" (x where x > 0) or "number" (x). Shapes, `transpose`, `deterministic` and the result are as of
// event_csrmv and event_csrmm. How connections are drawn: csrc/event/random_rows.h.
#include <spikeforge/ops/event/jit.h>
#include <spikeforge/ops/common/checks.h>
#include <spikeforge/ops/common/layout.h>

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

namespace spikeforge::ops::sparse {
namespace {

constexpr std::string_view laws[] = {"constant", "uniform", "normal"};

// So many connections a piece of a row has, on average: enough to make up for its beginning.
constexpr double connections_a_piece = 32;
constexpr std::int64_t widest_piece = 1 << 20;

template <bool matrix>
at::Tensor jit(const at::Tensor& weights, const at::Tensor& events, c10::SymInt rows, c10::SymInt cols, double prob,
               std::int64_t seed, c10::string_view law, bool transpose, c10::string_view values, bool deterministic) {
  const auto [form, draw] =
      parse_jit(std::move(rows), std::move(cols), prob, seed, law, transpose, matrix, values, deterministic);
  return call_jit(weights, events, form, draw);
}

TORCH_LIBRARY_FRAGMENT(spikeforge, library) {
  const std::string size = ", *, SymInt rows, SymInt cols, float prob, int seed, str law";
  for (const std::string name : {"jit_csrmv", "jit_csrmm"})
    library.def((name + "(Tensor weights, Tensor events" + size +
                 "=\"constant\", bool transpose=False, str values=\"event\", bool deterministic=False) -> Tensor")
                    .c_str(),
                {at::Tag::pt2_compliant_tag});
  library.def(("jit_product(Tensor weights, Tensor x" + size +
               ", bool transpose, bool matrix, str values, bool deterministic) -> Tensor")
                  .c_str(),
              {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(spikeforge, CompositeImplicitAutograd, library) {
  library.impl("jit_csrmv", TORCH_FN(jit<false>));
  library.impl("jit_csrmm", TORCH_FN(jit<true>));
}

}  // namespace

Law parse_law(const char* op, std::string_view name) {
  for (int i = 0; i < 3; ++i)
    if (name == laws[i]) return static_cast<Law>(i);
  TORCH_CHECK_VALUE(false, op, R"(: law must be "constant", "uniform" or "normal", but is ")", name, "\"");
}

std::string_view name_of(Law law) { return laws[static_cast<int>(law)]; }

JitCall parse_jit(c10::SymInt rows, c10::SymInt cols, double prob, std::int64_t seed, std::string_view law,
                  bool transpose, bool matrix, std::string_view values, bool deterministic) {
  const char* const op = jit_name(matrix);
  return {{std::move(rows), std::move(cols), transpose, matrix, parse_values(values, op), deterministic},
          {prob, seed, parse_law(op, law)}};
}

const char* jit_name(bool matrix) { return matrix ? "jit_csrmm" : "jit_csrmv"; }

void check_draw(const char* op, const at::Tensor& weights, const c10::SymInt& rows, const c10::SymInt& cols,
                const Draw& draw) {
  TORCH_CHECK_TYPE(weights.layout() == c10::kStrided && is_supported(weights.scalar_type()), op,
                   ": weights must be a dense float16, bfloat16, float32 or float64 tensor, but is ", weights.layout(),
                   " ", weights.scalar_type());
  const int count = draw.law == Law::constant ? 1 : 2;
  TORCH_CHECK_VALUE(weights.dim() == 1 && weights.sym_size(0) == count, op, ": weights must have shape [", count,
                    "] under the law \"", name_of(draw.law), "\", but has ", weights.sym_sizes());
  check_size(op, rows, cols);
  TORCH_CHECK_VALUE(draw.prob >= 0 && draw.prob <= 1, op, ": prob must be from 0 to 1, but is ", draw.prob);
}

void check_jit(const at::Tensor& weights, const at::Tensor& x, const Form& form, const Draw& draw) {
  const char* const op = jit_name(form.matrix);
  check_draw(op, weights, form.rows, form.cols, draw);
  check_entries(op, "events", x, form);
  TORCH_CHECK_VALUE(x.device() == weights.device(), op, ": events must be on ", weights.device(),
                    ", the device of weights, but is on ", x.device());
}

RandomRows random_rows(const Draw& draw, std::int64_t rows, std::int64_t cols) {
  const auto wanted = std::min(static_cast<double>(widest_piece), std::ceil(connections_a_piece / draw.prob));
  const auto width = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(wanted)));
  return {.seed = spikeforge::event::mixed(static_cast<std::uint64_t>(draw.seed)),
          .rows = rows,
          .cols = cols,
          .width = width,
          .pieces = (cols + width - 1) / width,
          .columns_a_bit = static_cast<float>(-std::log(2.0) / std::log1p(-draw.prob))};
}

jit::EventJitSpec gpu_jit(const at::Tensor& weights, const at::Tensor& x, const Form& form, const Draw& draw,
                              const RandomRows& matrix) {
  jit::EventJitSpec spec{.product = {.weight = dtype_of(weights.scalar_type()),
                                         .entry = entry_type_of(x.scalar_type()),
                                         .values = form.values,
                                         .shared = draw.law == Law::constant,
                                         .sums = jit::EventSums::floats,
                                         .transpose = form.transpose},
                             .law = draw.law};
  if (form.transpose) {
    spec.product.sums = jit::sums_by_columns(form.values, spec.product.shared, is_deterministic(form));
  } else {
    spec.product.lanes = static_cast<std::uint8_t>(
        std::bit_floor(static_cast<std::uint64_t>(std::clamp<std::int64_t>(matrix.pieces, 1, 32))));
    spec.product.columns = vectors_of(x, form.matrix).n == 1 ? 1 : 4;
  }
  return spec;
}

jit::EventSpec gpu_jit_finish(const jit::EventJitSpec& spec) {
  jit::EventSpec finish = spec.product;
  finish.kernel = jit::EventKernel::finish;
  finish.transpose = false;
  return finish;
}

at::Tensor call_jit(const at::Tensor& weights, const at::Tensor& x, const Form& form, const Draw& draw) {
  static const auto op = find_operator<JitSchema>("spikeforge::jit_product");
  return op.call(weights, x, form.rows, form.cols, draw.prob, draw.seed, name_of(draw.law), form.transpose, form.matrix,
                 name_of(form.values), form.deterministic);
}

}  // namespace spikeforge::ops::sparse
