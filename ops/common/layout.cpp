#include "ops/common/layout.h"
#include "ops/common/result_memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty_strided.h>

#ifdef SPIKEFORGE_WITH_CUDA
#include <ATen/cuda/EmptyTensor.h>
#endif

#include <algorithm>
#include <optional>

namespace spikeforge::ops {
namespace {

template <class Int> using View = c10::ArrayRef<Int>;

template <class Int> View<Int> sizes_of(const at::Tensor& t) {
  if constexpr (std::is_same_v<Int, c10::SymInt>)
    return t.sym_sizes();
  else
    return t.sizes();
}

template <class Int> View<Int> strides_of(const at::Tensor& t) {
  if constexpr (std::is_same_v<Int, c10::SymInt>)
    return t.sym_strides();
  else
    return t.strides();
}

// Allocates through the dispatcher only while a graph is traced: the dispatcher takes longer than the allocation
// itself.
at::Tensor allocate(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides, const at::TensorOptions& options) {
  return at::empty_strided_symint(sizes, strides, options);
}

at::Tensor allocate(at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options) {
  const c10::ScalarType type = c10::typeMetaToScalarType(options.dtype());
#ifdef SPIKEFORGE_WITH_CUDA
  if (options.device().is_cuda())
    return at::Tensor(at::detail::empty_strided_cuda(sizes, strides, type, options.device()));
#endif
  constexpr c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
  return at::Tensor(at::detail::empty_strided_generic(sizes, strides, result_allocator(), cpu, type));
}

// Returns the dimensions of more than one element, from the fastest in memory to the slowest.
template <class Int> c10::SmallVector<int, 6> memory_order(View<Int> sizes, View<Int> strides) {
  c10::SmallVector<int, 6> order;
  for (int d = static_cast<int>(sizes.size()) - 1; d >= 0; --d)
    if (sizes[d] != 1) order.push_back(d);
  // Insertion sort: there are few elements, mostly in order, and std::stable_sort would allocate.
  for (auto next = order.begin(); next != order.end(); ++next)
    std::rotate(std::upper_bound(order.begin(), next, *next, [&](int a, int b) { return strides[a] < strides[b]; }),
                next, next + 1);
  return order;
}

// True if the memory order is that of the shape, the most frequent case. False for an empty step.
bool is_contiguous(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::int64_t expected = 1;
  for (std::size_t d = sizes.size(); d-- > 0; expected *= sizes[d])
    if (sizes[d] != 1 && strides[d] != expected) return false;
  return expected != 0;
}

template <class Int> bool is_dense(View<Int> sizes, View<Int> strides) {
  if constexpr (std::is_same_v<Int, std::int64_t>)
    if (is_contiguous(sizes, strides)) return true;
  Int expected = 1;
  for (const int d : memory_order<Int>(sizes, strides)) {
    if (strides[d] != expected) return false;
    expected = expected * sizes[d];
  }
  return true;
}

bool same_strides(at::IntArrayRef sizes, at::IntArrayRef a, at::IntArrayRef b) {
  for (std::size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1 && a[d] != b[d]) return false;
  return true;
}

bool all_zero(at::IntArrayRef sizes, at::IntArrayRef strides) {
  for (std::size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1 && strides[d] != 0) return false;
  return true;
}

template <class Int> Sizes<Int> contiguous_strides(const Sizes<Int>& sizes) {
  Sizes<Int> strides(sizes.size(), Int(1));
  for (std::size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
  return strides;
}

template <class Int> Sizes<Int> prepend(const Int& first, const Sizes<Int>& rest) {
  Sizes<Int> result{first};
  result.append(rest.begin(), rest.end());
  return result;
}

std::int64_t at_least_one(std::int64_t value) { return std::max<std::int64_t>(value, 1); }
c10::SymInt at_least_one(const c10::SymInt& value) { return value.max(1); }

const at::Tensor& copy_into(at::Tensor target, const at::Tensor& source, Copies& copies) {
  target.copy_(source);
  return copies.emplace_back(std::move(target));
}

// Returns a view of a sequence of rows with these strides, or of a copy.
SequenceView view_rows(const at::Tensor& tensor, std::int64_t time_stride, at::IntArrayRef strides,
                       const PlainLayout& layout, at::Tensor (PlainLayout::*empty)(const at::TensorOptions&) const,
                       Copies& copies) {
  const bool one_element = layout.neurons > 1 && all_zero(layout.sizes, strides);
  if (one_element || same_strides(layout.sizes, strides, layout.strides))
    return {.data = tensor.const_data_ptr(), .time_stride = time_stride, .neuron_stride = one_element ? 0 : 1};
  return {.data = copy_into((layout.*empty)(tensor.options()), tensor, copies).const_data_ptr(),
          .time_stride = layout.neurons};
}

// Returns a view of the parameter, expanded to all neurons in their order.
ParamView view_expanded(const at::Tensor& param, c10::ScalarType type, const PlainLayout& layout, Copies& copies) {
  return {.data = copy_into(layout.empty_step(param.options().dtype(type)), param, copies).const_data_ptr(),
          .type = dtype_of(type),
          .inner = 1,
          .count = layout.neurons};
}

// Returns the view in which the value of neuron i is (i / inner) % count elements after the first, for a tensor with
// these sizes and strides that broadcasts against a step. Returns std::nullopt if the varying dimensions are not
// adjacent, or are in another order.
std::optional<SamplesView> run_of(at::IntArrayRef sizes, at::IntArrayRef strides, const PlainLayout& layout) {
  const std::int64_t missing = static_cast<std::int64_t>(layout.sizes.size() - sizes.size());
  SamplesView view;
  bool ended = false;  // true after the adjacent varying dimensions
  for (const int d : memory_order<std::int64_t>(layout.sizes, layout.strides)) {
    const bool varies = d >= missing && sizes[d - missing] != 1;
    if (!varies) {
      if (view.count == 1) view.inner *= layout.sizes[d];
      ended = view.count > 1;
      continue;
    }
    if (ended || (strides[d - missing] != view.count)) return std::nullopt;
    view.count *= sizes[d - missing];
  }
  return view;
}

// Reduces expanded dimensions to one element.
at::Tensor without_expanded(at::Tensor t, std::int64_t from = 0) {
  for (std::int64_t d = from; d < t.dim(); ++d)
    if (t.stride(d) == 0 && t.size(d) > 1) t = t.narrow(d, 0, 1);
  return t;
}

// Returns the value of a one-element tensor in host memory. item() calls an operator, which takes as long as all other
// work for a parameter.
double number_of(const at::Tensor& t) {
  if (t.is_neg()) return t.item<double>();
  switch (t.scalar_type()) {
    case c10::ScalarType::Float: return *t.const_data_ptr<float>();
    case c10::ScalarType::Double: return *t.const_data_ptr<double>();
    default: return t.item<double>();
  }
}

ParamView view_tensor(const at::Tensor& param, const PlainLayout& layout, Copies& copies) {
  const std::optional<SamplesView> run = run_of(param.sizes(), param.strides(), layout);
  if (!run) return view_expanded(param, param.scalar_type(), layout, copies);  // a rare case, which is copied
  return {
      .data = param.const_data_ptr(), .type = dtype_of(param.scalar_type()), .inner = run->inner, .count = run->count};
}

const unsigned char* bytes_of(const at::Tensor& bools) {
  return static_cast<const unsigned char*>(bools.const_data_ptr());
}

}  // namespace

template <class Int> at::Tensor Layout<Int>::empty_sequence(const at::TensorOptions& options) const {
  return allocate(prepend(steps, sizes), prepend(neurons, strides), options);
}

template <class Int> at::Tensor Layout<Int>::empty_step(const at::TensorOptions& options) const {
  return allocate(sizes, strides, options);
}

template <class Int>
at::Tensor Layout<Int>::empty_checkpoints(const Int& count, std::int64_t n_states,
                                          const at::TensorOptions& options) const {
  return allocate(prepend(count, prepend(Int(n_states), sizes)),
                  prepend(Int(neurons * n_states), prepend(neurons, strides)), options);
}

template <class Int> Int Layout<Int>::checkpoint_count(std::int64_t length) const {
  return (at_least_one(steps) - 1) / length;
}

template <class Int> at::Tensor with_dense_steps(const at::Tensor& x) {
  return is_dense(sizes_of<Int>(x).slice(1), strides_of<Int>(x).slice(1)) ? x : x.contiguous();
}

template <class Int> Layout<Int> layout_of(const at::Tensor& x) {
  Layout<Int> layout;
  const View<Int> sizes = sizes_of<Int>(x);
  layout.steps = sizes[0];
  layout.sizes.append(sizes.begin() + 1, sizes.end());
  layout.neurons = 1;
  for (const Int& size : layout.sizes) layout.neurons = layout.neurons * size;
  const View<Int> strides = strides_of<Int>(x).slice(1);
  if (is_dense<Int>(layout.sizes, strides)) {
    layout.strides.append(strides.begin(), strides.end());
  } else {
    // An empty x may have any strides, but its states need a layout.
    layout.strides = contiguous_strides(layout.sizes);
  }
  return layout;
}

// Starting from the slowest dimension in memory: first dimensions in the order of the shape, then those from j on, then
// those from i up to j.
template <class Int> std::optional<Order<Int>> order_of(const Layout<Int>& layout) {
  auto order = memory_order<Int>(layout.sizes, layout.strides);
  std::reverse(order.begin(), order.end());
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  const auto [in_memory, in_shape] = std::mismatch(order.begin(), order.end(), sorted.begin());
  Order<Int> parts{Int(1), Int(1)};
  if (in_memory == order.end()) return parts;
  const auto j = std::find(in_shape, sorted.end(), *in_memory);
  std::rotate(in_shape, j, sorted.end());
  if (!std::equal(order.begin(), order.end(), sorted.begin())) return std::nullopt;
  // The dimensions before j in the shape are fast in memory.
  const auto moved = order.end() - (j - in_shape);
  for (auto d = in_memory; d != order.end(); ++d) {
    Int& part = d < moved ? parts.slow : parts.fast;
    part = part * layout.sizes[*d];
  }
  return parts;
}

template struct Layout<std::int64_t>;
template struct Layout<c10::SymInt>;
template at::Tensor with_dense_steps<std::int64_t>(const at::Tensor&);
template at::Tensor with_dense_steps<c10::SymInt>(const at::Tensor&);
template Layout<std::int64_t> layout_of(const at::Tensor&);
template Layout<c10::SymInt> layout_of(const at::Tensor&);
template std::optional<Order<std::int64_t>> order_of(const Layout<std::int64_t>&);
template std::optional<Order<c10::SymInt>> order_of(const Layout<c10::SymInt>&);

const void* data_of_step(const at::Tensor& step, const PlainLayout& layout, Copies& copies) {
  if (same_strides(layout.sizes, step.strides(), layout.strides)) return step.const_data_ptr();
  return copy_into(layout.empty_step(step.options()), step, copies).const_data_ptr();
}

const void* data_of_checkpoints(const at::Tensor& checkpoints, const PlainLayout& layout, Copies& copies) {
  const std::int64_t n_states = checkpoints.size(1);
  const Sizes<std::int64_t> wanted = prepend(layout.neurons * n_states, prepend(layout.neurons, layout.strides));
  if (same_strides(checkpoints.sizes(), checkpoints.strides(), wanted)) return checkpoints.const_data_ptr();
  return copy_into(layout.empty_checkpoints(checkpoints.size(0), n_states, checkpoints.options()), checkpoints, copies)
      .const_data_ptr();
}

SequenceView view_sequence(const at::Tensor& sequence, const PlainLayout& layout, Copies& copies) {
  return view_rows(sequence, sequence.stride(0), sequence.strides().slice(1), layout, &PlainLayout::empty_sequence,
                   copies);
}

at::Tensor in_order_of(const at::Tensor& x, const at::Tensor& sequence) {
  Copies copies;
  view_sequence(sequence, layout_of<std::int64_t>(x), copies);
  return copies.empty() ? sequence : copies.back();
}

SequenceView view_step(const at::Tensor& step, const PlainLayout& layout, Copies& copies) {
  return view_rows(step, /*time_stride=*/0, step.strides(), layout, &PlainLayout::empty_step, copies);
}

ParamView view_param(const at::Tensor& param, c10::ScalarType x, c10::ScalarType state, const PlainLayout& layout,
                     Copies& copies) {
  if (param.is_cpu() && param.numel() == 1) return {.number = number_of(param)};
  if (param.scalar_type() != x && param.scalar_type() != state) {
    // A dense tensor keeps its strides when it is converted, and is then viewed in place.
    if (!param.is_non_overlapping_and_dense()) return view_expanded(param, state, layout, copies);
    return view_tensor(copies.emplace_back(param.to(state)), layout, copies);
  }
  return view_tensor(param.is_neg() ? copies.emplace_back(param.resolve_neg()) : param, layout, copies);
}

LengthsView view_lengths(const at::Tensor& given, const PlainLayout& layout, Copies& copies) {
  const at::Tensor lengths = without_expanded(given);
  if (const std::optional<SamplesView> run = run_of(lengths.sizes(), lengths.strides(), layout))
    return {*run, lengths.const_data_ptr<std::int32_t>()};
  const at::Tensor& spread = copy_into(layout.empty_step(lengths.options()), lengths, copies);
  return {{.inner = 1, .count = layout.neurons}, spread.const_data_ptr<std::int32_t>()};
}

StartView view_start(const at::Tensor& given, const PlainLayout& layout, Copies& copies) {
  const at::Tensor start = without_expanded(given, /*from=*/1);
  if (const std::optional<SamplesView> run = run_of(start.sizes().slice(1), start.strides().slice(1), layout))
    return {*run, bytes_of(start), start.stride(0)};
  const at::Tensor& spread = copy_into(layout.empty_sequence(start.options()), start, copies);
  return {{.inner = 1, .count = layout.neurons}, bytes_of(spread), layout.neurons};
}

at::Tensor sum_over_neurons(const at::Tensor& grad, const at::Tensor& param) {
  return at::sum_to(grad, param.sym_sizes()).to(param.options());
}

DType dtype_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Half: return DType::f16;
    case c10::ScalarType::BFloat16: return DType::bf16;
    case c10::ScalarType::Float: return DType::f32;
    case c10::ScalarType::Int: return DType::i32;
    case c10::ScalarType::Double: return DType::f64;
    default: TORCH_INTERNAL_ASSERT(false, "no kernel reads ", type);
  }
}

c10::ScalarType scalar_type_of(DType type) {
  switch (type) {
    case DType::f16: return c10::ScalarType::Half;
    case DType::bf16: return c10::ScalarType::BFloat16;
    case DType::f32: return c10::ScalarType::Float;
    case DType::i32: return c10::ScalarType::Int;
    case DType::f64: return c10::ScalarType::Double;
  }
  TORCH_INTERNAL_ASSERT(false, "no tensor holds this type");
}

}  // namespace spikeforge::ops
