#include <spikeforge/ops/neuron/layout.h>

#include <ATen/ops/empty_strided.h>

#include <algorithm>

namespace spikeforge::ops {
namespace {

// Dimensions of more than one element, from the fastest in memory to the slowest.
c10::SmallVector<int, 5> memory_order(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  c10::SmallVector<int, 5> order;
  for (int d = static_cast<int>(sizes.size()) - 1; d >= 0; --d)
    if (sizes[d] != 1) order.push_back(d);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return strides[a] < strides[b]; });
  return order;
}

bool is_dense(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  c10::SymInt expected = 1;
  for (const int d : memory_order(sizes, strides)) {
    if (strides[d] != expected) return false;
    expected = expected * sizes[d];
  }
  return true;
}

bool same_strides(c10::SymIntArrayRef sizes, c10::SymIntArrayRef a, c10::SymIntArrayRef b) {
  for (std::size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1 && a[d] != b[d]) return false;
  return true;
}

bool all_zero(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  for (std::size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1 && strides[d] != 0) return false;
  return true;
}

SymSizes contiguous_strides(const SymSizes& sizes) {
  SymSizes strides(sizes.size(), 1);
  for (std::size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
  return strides;
}

SymSizes prepend(const c10::SymInt& first, const SymSizes& rest) {
  SymSizes result{first};
  result.append(rest.begin(), rest.end());
  return result;
}

at::Tensor copy_into(at::Tensor target, const at::Tensor& source) {
  target.copy_(source);
  return target;
}

// The parameter spread over all neurons, in their order.
ParamView view_expanded(const at::Tensor& param, const Layout& layout, at::Tensor& kept) {
  kept = copy_into(layout.empty_step(param.options()), param);
  return {.data = kept.const_data_ptr(), .type = dtype_of(param.scalar_type()), .inner = 1, .count = kept.numel()};
}

}  // namespace

at::Tensor Layout::empty_sequence(const at::TensorOptions& options) const {
  return at::empty_strided_symint(prepend(steps, sizes), prepend(neurons, strides), options);
}

at::Tensor Layout::empty_step(const at::TensorOptions& options) const {
  return at::empty_strided_symint(sizes, strides, options);
}

at::Tensor Layout::empty_checkpoints(const c10::SymInt& count, std::int64_t n_states,
                                     const at::TensorOptions& options) const {
  return at::empty_strided_symint(prepend(count, prepend(n_states, sizes)),
                                  prepend(neurons * n_states, prepend(neurons, strides)), options);
}

at::Tensor with_dense_steps(const at::Tensor& x) {
  return is_dense(x.sym_sizes().slice(1), x.sym_strides().slice(1)) ? x : x.contiguous();
}

Layout layout_of(const at::Tensor& x) {
  Layout layout;
  const c10::SymIntArrayRef sizes = x.sym_sizes();
  layout.steps = sizes[0];
  layout.sizes.append(sizes.begin() + 1, sizes.end());
  layout.neurons = 1;
  for (const c10::SymInt& size : layout.sizes) layout.neurons = layout.neurons * size;
  const c10::SymIntArrayRef strides = x.sym_strides().slice(1);
  if (is_dense(layout.sizes, strides)) {
    layout.strides.append(strides.begin(), strides.end());
  } else {
    // An empty x keeps its strides, whatever is done to it; its states still need a layout.
    layout.strides = contiguous_strides(layout.sizes);
  }
  return layout;
}

at::Tensor step_in_layout(const at::Tensor& step, const Layout& layout) {
  if (same_strides(layout.sizes, step.sym_strides(), layout.strides)) return step;
  return copy_into(layout.empty_step(step.options()), step);
}

at::Tensor checkpoints_in_layout(const at::Tensor& checkpoints, const Layout& layout) {
  const std::int64_t n_states = checkpoints.size(1);
  const SymSizes wanted = prepend(layout.neurons * n_states, prepend(layout.neurons, layout.strides));
  if (same_strides(checkpoints.sym_sizes(), checkpoints.sym_strides(), wanted)) return checkpoints;
  return copy_into(layout.empty_checkpoints(checkpoints.sym_size(0), n_states, checkpoints.options()), checkpoints);
}

SequenceView view_sequence(const at::Tensor& sequence, const Layout& layout, at::Tensor& kept) {
  const c10::SymIntArrayRef strides = sequence.sym_strides().slice(1);
  const bool one_element = layout.neurons > 1 && all_zero(layout.sizes, strides);
  const bool in_place = one_element || same_strides(layout.sizes, strides, layout.strides);
  kept = in_place ? sequence : copy_into(layout.empty_sequence(sequence.options()), sequence);
  return {.data = kept.const_data_ptr(), .time_stride = kept.stride(0), .neuron_stride = one_element ? 0 : 1};
}

SequenceView view_step(const at::Tensor& step, const Layout& layout, at::Tensor& kept) {
  return view_sequence(step.unsqueeze(0), layout, kept);
}

ParamView view_param(const at::Tensor& param, const Layout& layout, at::Tensor& kept) {
  const std::int64_t missing = static_cast<std::int64_t>(layout.sizes.size()) - param.dim();
  std::int64_t inner = 1;
  std::int64_t count = 1;
  bool ended = false;  // the run of varying dimensions
  for (const int d : memory_order(layout.sizes, layout.strides)) {
    const bool varies = d >= missing && param.size(d - missing) != 1;
    if (!varies) {
      if (count == 1) inner *= layout.sizes[d].expect_int();
      ended = count > 1;
      continue;
    }
    // Another run, or an order of its own: rare enough for a copy.
    if (ended || (param.stride(d - missing) != count)) return view_expanded(param, layout, kept);
    count *= param.size(d - missing);
  }
  kept = param;
  return {.data = kept.const_data_ptr(), .type = dtype_of(param.scalar_type()), .inner = inner, .count = count};
}

DType dtype_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Half:
      return DType::f16;
    case c10::ScalarType::BFloat16:
      return DType::bf16;
    case c10::ScalarType::Float:
      return DType::f32;
    default:
      return DType::f64;
  }
}

c10::ScalarType scalar_type_of(DType type) {
  switch (type) {
    case DType::f16:
      return c10::ScalarType::Half;
    case DType::bf16:
      return c10::ScalarType::BFloat16;
    case DType::f32:
      return c10::ScalarType::Float;
    default:
      return c10::ScalarType::Double;
  }
}

}  // namespace spikeforge::ops
