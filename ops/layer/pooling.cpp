#include "csrc/cpu/layer/pooling.h"
#include "csrc/jit/recorder.h"
#include "ops/common/checks.h"
#include "ops/common/layout.h"
#include "ops/common/library.h"
#include "ops/common/vmap_level.h"
#include "ops/layer.h"
#include "ops/layer/batch_norm.h"
#include "ops/layer/pooling.h"
#include "ops/multistep/text_call.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <tuple>

#if defined(SPIKEFORGE_WITH_CUDA)
#include "ops/common/on_stream.h"

#include <c10/cuda/CUDAGuard.h>
#endif

namespace spikeforge::ops::layers {
namespace {

using spikeforge::layers::Images;
using spikeforge::layers::PoolLaunch;
using spikeforge::layers::PoolPass;
using Ints = at::IntArrayRef;
using Divisor = std::optional<std::int64_t>;

constexpr const char *max_pool_op = "max_pool2d", *mean_pool_op = "avg_pool2d";
constexpr const char *with_places_op = "max_pool2d_with_places", *max_backward_op = "max_pool2d_backward",
                     *mean_backward_op = "avg_pool2d_backward",
                     *statistics_backward_op = "max_pool2d_statistics_backward";

SPIKEFORGE_SCHEMAS(library) {
  library.def(
      "max_pool2d(Tensor x, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, "
      "bool ceil_mode=False, *, Tensor? weight=None) -> Tensor");
  library.def(
      "max_pool2d_statistics(Tensor x, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, "
      "*, "
      "Tensor? weight=None) -> (Tensor y, Tensor mean, Tensor var)");
  library.def(
      "avg_pool2d(Tensor x, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, "
      "bool count_include_pad=True, int? divisor_override=None) -> Tensor");
  // `windows` has kernel_size, stride, padding and dilation, with height and width for each.
  library.def(
      "max_pool2d_with_places(Tensor x, int[] windows, bool ceil_mode, Tensor? weight=None) -> (Tensor y, Tensor "
      "which)");
  library.def("max_pool2d_backward(Tensor grad, Tensor which, int[] windows, SymInt height, SymInt width) -> Tensor");
  // Also adds offset + slope (x - mean), with the values of the channel, to the gradient of every element of x.
  library.def(
      "max_pool2d_statistics_backward(Tensor grad, Tensor which, Tensor x, Tensor mean, Tensor offset, Tensor slope, "
      "int[] windows) -> Tensor");
  library.def(
      "avg_pool2d_backward(Tensor grad, int[] windows, bool count_include_pad, int? divisor_override, SymInt height, "
      "SymInt width) -> Tensor");
}

constexpr std::int64_t most = std::int64_t{1} << 30;  // limit of a height, a stride, and a dilated window

// Returns height and width, or `otherwise` if none is given.
std::array<std::int64_t, 2> pair(const char* op, const char* name, Ints given, std::array<std::int64_t, 2> otherwise) {
  TORCH_CHECK_VALUE(given.size() <= 2, op, ": ", name, " must be one number, or two, but is ", given);
  if (given.empty()) return otherwise;
  return {given.front(), given.back()};
}

// ---- memory formats of images ----

// [..., C, H, W] is processed as [images, H, W, channels]: with all channels if x is channels-last, otherwise as images
// of one channel.
bool is_channels_last(const at::Tensor& x) { return !x.is_contiguous() && x.movedim(-3, -1).is_contiguous(); }

at::Tensor in_order(const at::Tensor& x, bool channels_last) {
  return channels_last ? x.movedim(-3, -1).contiguous().movedim(-1, -3) : x.contiguous();
}

// Allocates images with x's leading sizes and channels.
at::Tensor empty_images(const at::Tensor& x, bool channels_last, const c10::SymInt& height, const c10::SymInt& width,
                        const at::TensorOptions& options) {
  std::vector<c10::SymInt> sizes = x.sym_sizes().vec();
  const std::size_t c = sizes.size() - 3;
  if (!channels_last) {
    sizes[c + 1] = height, sizes[c + 2] = width;
    return at::empty_symint(sizes, options);
  }
  const c10::SymInt channels = sizes[c];
  sizes[c] = height, sizes[c + 1] = width, sizes[c + 2] = channels;
  return at::empty_symint(sizes, options).movedim(-1, -3);
}

at::TensorOptions options_of(const at::Tensor& x) { return x.options().memory_format(std::nullopt); }

// ---- calls ----

struct PoolCall {
  const char* op;
  Windows windows;
  bool is_mean;
  MeanOptions mean = {};
};

spikeforge::layers::Pool pool_of(const PoolCall& call) {
  const auto window = [&](std::size_t d) {
    const auto number = [](std::int64_t n) { return static_cast<int>(n); };
    return spikeforge::layers::Window{number(call.windows.size[d]), number(call.windows.stride[d]),
                                      number(call.windows.padding[d]), number(call.windows.dilation[d])};
  };
  return {.down = window(0),
          .across = window(1),
          .is_mean = call.is_mean,
          .divisor = static_cast<double>(call.mean.divisor.value_or(0)),
          .counts_padding = call.mean.counts_padding};
}

// Selects the tensor with x's sizes and the one with y's. Throws ValueError for too large ones.
Images images_of(const char* op, const at::Tensor& x, const at::Tensor& y, bool channels_last) {
  TORCH_CHECK_VALUE(x.size(-2) <= most && x.size(-1) <= most, op, ": an image must have at most ", most,
                    " rows and columns, but the shape is ", x.sizes());
  const std::int64_t channels = channels_last ? x.size(-3) : 1;
  const std::int64_t count = y.numel() / (y.size(-2) * y.size(-1) * channels);
  return {count, x.size(-2), x.size(-1), channels, y.size(-2), y.size(-1)};
}

using Run = void(const PoolLaunch& launch, const at::Tensor& beside);

void run_cpu(const PoolLaunch& launch, const at::Tensor& /*beside*/) {
  jit::note_by_arch([&](const jit::Device&, const jit::Want& want) { want(source_of(launch)); });
  const Images& images = launch.images;
  const bool is_forward = launch.pass == PoolPass::forward;
  const std::int64_t rows = images.count * (is_forward ? images.out_height : images.height);
  const std::int64_t length = cpu::longest_row(images);
  const std::int64_t places = launch.pool.down.size * launch.pool.across.size;
  const std::int64_t grain = std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, length * places));
  at::parallel_for(0, rows, grain, [&](std::int64_t first, std::int64_t last) {
    std::vector<double> scratch(static_cast<std::size_t>(3 * length));
    const auto& kernels = cpu::pooling_kernels();
    (is_forward ? kernels.forward : kernels.backward)(launch, first, last, scratch.data());
  });
}

#if defined(SPIKEFORGE_WITH_CUDA)
constexpr std::int64_t most_of_an_image = std::int64_t{1} << 31;

void run_cuda(const PoolLaunch& launch, const at::Tensor& beside) {
  const Images& images = launch.images;
  const spikeforge::layers::Pool& pool = launch.pool;
  TORCH_CHECK_VALUE(
      (images.height + pool.down.padding) * (images.width + pool.across.padding) < most_of_an_image / images.channels,
      "pooling on a GPU: an image, with its padding, must have fewer than 2^31 numbers, but has shape [",
      images.channels, ", ", images.height, ", ", images.width, "]");
  const c10::cuda::OptionalCUDAGuard guard(beside.device());
  spikeforge::layers::launch_pooling(launch, gpu_of(beside), stream_of(beside));
}
#endif

// Throws TypeError and ValueError unless there is one value for each channel of x.
void check_numbers(const char* op, const char* name, const at::Tensor& numbers, const at::Tensor& x) {
  const Leader leader{op, "x", x};
  TORCH_CHECK_VALUE(numbers.dim() == 1 && numbers.sym_size(0) == x.sym_size(-3), op, ": ", name, " must have shape [",
                    x.sym_size(-3), "], one number for each channel, but has ", numbers.sym_sizes());
  check_type(leader, name, numbers);
  check_device(leader, name, numbers);
}

// Converts values per channel to the form for kernels.
at::Tensor as_read(const at::Tensor& numbers, const at::Tensor& x) {
  return numbers.to(state_type(x.scalar_type())).contiguous();
}

// The additional gradient of x from its statistics, for maxima with statistics.
struct OfStatistics {
  const at::Tensor &x, &mean, &offset, &slope;
};

// With a null `run`, no values are computed, for meta tensors.
template <Run* run>
Maxima forward(const PoolCall& call, const at::Tensor& given, bool ceil_mode, bool with_places,
               const MaybeTensor& of_channels = std::nullopt) {
  check_images(call.op, "x", given);
  if (of_channels) check_numbers(call.op, "weight", *of_channels, given);
  const bool channels_last = is_channels_last(given);
  const c10::SymInt height = out_size(call.op, call.windows, 0, given.sym_size(-2), ceil_mode);
  const c10::SymInt width = out_size(call.op, call.windows, 1, given.sym_size(-1), ceil_mode);
  Maxima result{empty_images(given, channels_last, height, width, options_of(given)), at::Tensor()};
  if (with_places) result.which = empty_images(given, channels_last, height, width, options_of(given).dtype(at::kByte));
  if constexpr (run != nullptr) {
    if (given.numel() == 0) return result;
    const at::Tensor x = in_order(given, channels_last);
    const at::Tensor weight = of_channels ? as_read(*of_channels, x) : at::Tensor();
    run({.pool = pool_of(call),
         .images = images_of(call.op, x, result.y, channels_last),
         .type = dtype_of(x.scalar_type()),
         .pass = PoolPass::forward,
         .from = x.const_data_ptr(),
         .to = result.y.mutable_data_ptr(),
         .which = with_places ? result.which.template mutable_data_ptr<std::uint8_t>() : nullptr,
         .normalised = {.weight = weight.defined() ? weight.const_data_ptr() : nullptr,
                        .cycle = channels_last ? 1 : x.size(-3)}},
        x);
  }
  return result;
}

// For means, `which` is undefined.
template <Run* run>
at::Tensor backward(const PoolCall& call, const at::Tensor& given, const at::Tensor& which, const c10::SymInt& height,
                    const c10::SymInt& width, const OfStatistics* statistics = nullptr) {
  check_images(call.op, "grad", given);
  TORCH_CHECK_VALUE(height > 0 && width > 0, call.op, ": height and width must be positive, but are ", height, " and ",
                    width);
  const std::array<c10::SymInt, 2> sizes{height, width};
  for (const std::size_t d : {0, 1}) {
    const c10::SymInt count = given.sym_size(static_cast<std::int64_t>(d) - 2);
    TORCH_CHECK_VALUE(count > 0 && (count == window_count(call.windows, d, sizes[d], false) ||
                                    count == window_count(call.windows, d, sizes[d], true)),
                      call.op, ": grad must have the shape of the pooling of an image of ", height, " x ", width,
                      ", but has shape ", given.sym_sizes());
  }
  TORCH_CHECK_TYPE(call.is_mean || which.defined(), call.op, ": which must be a tensor, but is undefined");
  if (which.defined()) {
    TORCH_CHECK_TYPE(which.scalar_type() == at::kByte, call.op, ": which must be uint8, but is ", which.scalar_type());
    check_dense(call.op, "which", which);
    TORCH_CHECK_VALUE(which.sym_sizes() == given.sym_sizes(), call.op, ": which must have shape ", given.sym_sizes(),
                      ", that of grad, but has ", which.sym_sizes());
    check_device({call.op, "grad", given}, "which", which);
  }
  const bool channels_last = is_channels_last(which.defined() ? which : given);
  at::Tensor result = empty_images(given, channels_last, height, width, options_of(given));
  if constexpr (run != nullptr) {
    if (given.numel() == 0) return result.zero_();
    const at::Tensor grad = in_order(given, channels_last);
    const at::Tensor places = which.defined() ? in_order(which, channels_last) : which;
    PoolLaunch::Normalised normalised;
    at::Tensor x, mean, offset, slope;
    if (statistics != nullptr) {
      x = in_order(statistics->x, channels_last);
      mean = as_read(statistics->mean, x), offset = as_read(statistics->offset, x);
      slope = as_read(statistics->slope, x);
      normalised = {.x = x.const_data_ptr(),
                    .mean = mean.const_data_ptr(),
                    .offset = offset.const_data_ptr(),
                    .slope = slope.const_data_ptr(),
                    .cycle = channels_last ? 1 : x.size(-3)};
    }
    run({.pool = pool_of(call),
         .images = images_of(call.op, result, grad, channels_last),
         .type = dtype_of(grad.scalar_type()),
         .pass = PoolPass::backward,
         .from = grad.const_data_ptr(),
         .to = result.mutable_data_ptr(),
         // It is only read.
         .which = places.defined() ? const_cast<std::uint8_t*>(places.const_data_ptr<std::uint8_t>()) : nullptr,
         .normalised = normalised},
        grad);
  }
  return result;
}

// ---- kernels of the operators ----

void check_divisor(const char* op, const Divisor& divisor) {
  TORCH_CHECK_VALUE(!divisor || *divisor != 0, op, ": divisor_override must not be 0");
}

template <Run* run>
at::Tensor max_pool(const at::Tensor& x, Ints kernel_size, Ints stride, Ints padding, Ints dilation, bool ceil_mode,
                    const MaybeTensor& weight) {
  const Windows windows = windows_of(max_pool_op, kernel_size, stride, padding, dilation);
  return forward<run>({max_pool_op, windows, false}, x, ceil_mode, false, weight).y;
}

template <Run* run>
std::tuple<at::Tensor, at::Tensor> max_pool_with_places(const at::Tensor& x, Ints list, bool ceil_mode,
                                                        const MaybeTensor& weight) {
  Maxima maxima = forward<run>({with_places_op, Windows::of(with_places_op, list), false}, x, ceil_mode, true, weight);
  return {std::move(maxima.y), std::move(maxima.which)};
}

template <Run* run>
at::Tensor max_pool_backward(const at::Tensor& grad, const at::Tensor& which, Ints list, c10::SymInt height,
                             c10::SymInt width) {
  return backward<run>({max_backward_op, Windows::of(max_backward_op, list), false}, grad, which, height, width);
}

template <Run* run>
at::Tensor statistics_backward(const at::Tensor& grad, const at::Tensor& which, const at::Tensor& x,
                               const at::Tensor& mean, const at::Tensor& offset, const at::Tensor& slope, Ints list) {
  constexpr const char* op = statistics_backward_op;
  check_images(op, "x", x);
  check_same_type({op, "x", x}, "grad", grad);
  TORCH_CHECK_VALUE(grad.device() == x.device() && grad.dim() == x.dim() &&
                        grad.sym_sizes().slice(0, grad.dim() - 2) == x.sym_sizes().slice(0, x.dim() - 2),
                    op, ": grad must have the device and the leading dimensions of x, ", x.sym_sizes(), ", but has ",
                    grad.sym_sizes(), " on ", grad.device());
  for (const auto& [name, numbers] :
       {std::pair("mean", &mean), std::pair("offset", &offset), std::pair("slope", &slope)})
    check_numbers(op, name, *numbers, x);
  const OfStatistics statistics{x, mean, offset, slope};
  return backward<run>({op, Windows::of(op, list), false}, grad, which, x.sym_size(-2), x.sym_size(-1), &statistics);
}

template <Run* run>
at::Tensor mean_pool(const at::Tensor& x, Ints kernel_size, Ints stride, Ints padding, bool ceil_mode,
                     bool counts_padding, Divisor divisor) {
  check_divisor(mean_pool_op, divisor);
  const Windows windows = windows_of(mean_pool_op, kernel_size, stride, padding, {});
  return forward<run>({mean_pool_op, windows, true, {counts_padding, divisor}}, x, ceil_mode, false).y;
}

template <Run* run>
at::Tensor mean_pool_backward(const at::Tensor& grad, Ints list, bool counts_padding, Divisor divisor,
                              c10::SymInt height, c10::SymInt width) {
  check_divisor(mean_backward_op, divisor);
  const Windows windows = Windows::of(mean_backward_op, list);
  return backward<run>({mean_backward_op, windows, true, {counts_padding, divisor}}, grad, {}, height, width);
}

template <Run* run> void register_all(torch::Library& library) {
  library.impl(max_pool_op, TORCH_FN(max_pool<run>));
  library.impl(mean_pool_op, TORCH_FN(mean_pool<run>));
  library.impl(with_places_op, TORCH_FN(max_pool_with_places<run>));
  library.impl(max_backward_op, TORCH_FN(max_pool_backward<run>));
  library.impl(mean_backward_op, TORCH_FN(mean_pool_backward<run>));
  library.impl(statistics_backward_op, TORCH_FN(statistics_backward<run>));
}

SPIKEFORGE_KERNELS(CPU, library) { register_all<run_cpu>(library); }
SPIKEFORGE_KERNELS(Meta, library) { register_all<nullptr>(library); }
#if defined(SPIKEFORGE_WITH_CUDA)
SPIKEFORGE_KERNELS(CUDA, library) { register_all<run_cuda>(library); }
#endif

// ---- calls through the dispatcher ----

const auto& max_pool_handle() {
  static const auto handle = find_operator<decltype(max_pool<nullptr>)>("spikeforge::max_pool2d");
  return handle;
}
const auto& mean_pool_handle() {
  static const auto handle = find_operator<decltype(mean_pool<nullptr>)>("spikeforge::avg_pool2d");
  return handle;
}

PooledStatistics statistics(const at::Tensor& x, Ints kernel_size, Ints stride, Ints padding, bool ceil_mode,
                            const MaybeTensor& weight) {
  return pooled_statistics(x, check_pooled_statistics(x, kernel_size, stride, padding, ceil_mode, weight), ceil_mode,
                           weight);
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) { library.impl(pooled_statistics_op, TORCH_FN(statistics)); }

// ---- torch.vmap: the mapped dimension is an additional leading dimension ----

// Negates x where the weight is below 0, so that maxima replace minima, for maps with different weights.
at::Tensor turned(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor below = beside(weight < 0, x, channels_of_images(x));
  return at::where(below, -x, x);
}

at::Tensor max_pool_batched(const at::Tensor& x, Ints kernel_size, Ints stride, Ints padding, Ints dilation,
                            bool ceil_mode, const MaybeTensor& weight) {
  const Windows windows = windows_of(max_pool_op, kernel_size, stride, padding, dilation);
  const auto maxima = [&](const at::Tensor& of) {
    const VmapLevel level(of);
    return level.mapped(call_max_pool(level.first(of), windows, ceil_mode));
  };
  return weight ? turned(maxima(turned(x, *weight)), *weight) : maxima(x);
}

at::Tensor mean_pool_batched(const at::Tensor& x, Ints kernel_size, Ints stride, Ints padding, bool ceil_mode,
                             bool counts_padding, Divisor divisor) {
  const VmapLevel level(x);
  return level.mapped(
      mean_pool_handle().call(level.first(x), kernel_size, stride, padding, ceil_mode, counts_padding, divisor));
}

std::tuple<at::Tensor, at::Tensor> with_places_batched(const at::Tensor& x, Ints list, bool ceil_mode,
                                                       const MaybeTensor& weight) {
  const Windows windows = Windows::of(with_places_op, list);
  const auto maxima = [&](const at::Tensor& of) {
    const VmapLevel level(of);
    const Maxima found = call_max_pool_with_places(level.first(of), windows, ceil_mode);
    return Maxima{level.mapped(found.y), level.mapped(found.which)};
  };
  if (!weight) {
    const Maxima found = maxima(x);
    return {found.y, found.which};
  }
  const Maxima found = maxima(turned(x, *weight));
  return {turned(found.y, *weight), found.which};
}

at::Tensor statistics_backward_batched(const at::Tensor& grad, const at::Tensor& which, const at::Tensor& x,
                                       const at::Tensor& mean, const at::Tensor& offset, const at::Tensor& slope,
                                       Ints list) {
  const at::Tensor of_maxima =
      call_max_pool_backward(grad, which, Windows::of(statistics_backward_op, list), x.sym_size(-2), x.sym_size(-1));
  const auto of = [&](const at::Tensor& numbers) { return beside(numbers, x, channels_of_images(x)); };
  return (of_maxima + of(offset) + of(slope) * (x - of(mean))).to(x.scalar_type());
}

at::Tensor max_backward_batched(const at::Tensor& grad, const at::Tensor& which, Ints list, c10::SymInt height,
                                c10::SymInt width) {
  const VmapLevel level(grad, which);
  return level.mapped(call_max_pool_backward(level.folded(grad, 0), level.folded(which, 0),
                                             Windows::of(max_backward_op, list), height, width));
}

at::Tensor mean_backward_batched(const at::Tensor& grad, Ints list, bool counts_padding, Divisor divisor,
                                 c10::SymInt height, c10::SymInt width) {
  const VmapLevel level(grad);
  return level.mapped(call_mean_pool_backward(level.first(grad), Windows::of(mean_backward_op, list),
                                              {counts_padding, divisor}, height, width));
}

SPIKEFORGE_KERNELS(FuncTorchBatched, library) {
  library.impl(max_pool_op, TORCH_FN(max_pool_batched));
  library.impl(mean_pool_op, TORCH_FN(mean_pool_batched));
  library.impl(with_places_op, TORCH_FN(with_places_batched));
  library.impl(max_backward_op, TORCH_FN(max_backward_batched));
  library.impl(mean_backward_op, TORCH_FN(mean_backward_batched));
  library.impl(pooled_statistics_op, TORCH_FN(statistics));
  library.impl(statistics_backward_op, TORCH_FN(statistics_backward_batched));
}

}  // namespace

Windows windows_of(const char* op, Ints kernel_size, Ints stride, Ints padding, Ints dilation) {
  TORCH_CHECK_VALUE(!kernel_size.empty(), op, ": kernel_size must be one number, or two, but is empty");
  const auto size = pair(op, "kernel_size", kernel_size, {1, 1});
  const Windows windows{size, pair(op, "stride", stride, size), pair(op, "padding", padding, {0, 0}),
                        pair(op, "dilation", dilation, {1, 1})};
  return Windows::of(op, windows.list());
}

void check_windows_fit(const char* op, const Windows& windows, const at::Tensor& x, bool ceil_mode) {
  for (const std::size_t d : {0, 1})
    (void)out_size(op, windows, d, x.sym_size(static_cast<std::int64_t>(d) - 2), ceil_mode);
}

Windows check_pooled_statistics(const at::Tensor& x, Ints kernel_size, Ints stride, Ints padding, bool ceil_mode,
                                const MaybeTensor& weight) {
  constexpr const char* op = pooled_statistics_op;
  check_images(op, "x", x);
  TORCH_CHECK_VALUE(x.dim() >= 4, op, ": x must be [T, ..., C, H, W], but has shape ", x.sym_sizes());
  Windows windows = windows_of(op, kernel_size, stride, padding, {});
  check_windows_fit(op, windows, x, ceil_mode);
  if (weight) check_numbers(op, "weight", *weight, x);
  const auto numbers = x.sym_numel().maybe_as_int(), channels = x.sym_size(-3).maybe_as_int();
  TORCH_CHECK_VALUE(!numbers || !channels || *numbers == 0 || *numbers / *channels > 1, op,
                    ": statistics need more than one number for each channel, but x has shape ", x.sym_sizes());
  return windows;
}

PooledStatistics pooled_statistics(const at::Tensor& x, const Windows& windows, bool ceil_mode,
                                   const MaybeTensor& weight) {
  at::Tensor y = call_max_pool(x, windows, ceil_mode, weight);
  auto [mean, var] = statistics_of_input(x, channels_of_images(x));
  return {std::move(y), std::move(mean), std::move(var)};
}

c10::SymInt window_count(const Windows& windows, std::size_t dim, const c10::SymInt& size, bool ceil_mode) {
  const std::int64_t stride = windows.stride[dim], padding = windows.padding[dim];
  const c10::SymInt room =
      size + (2 * padding - windows.dilation[dim] * (windows.size[dim] - 1) - 1 + (ceil_mode ? stride - 1 : 0));
  if (room < 0) return 0;
  c10::SymInt count = room / stride + 1;
  // The last window must begin within the image, or in the padding before it.
  if (ceil_mode && (count - 1) * stride >= size + padding) count = count - 1;
  return count;
}

c10::SymInt out_size(const char* op, const Windows& windows, std::size_t dim, const c10::SymInt& size, bool ceil_mode) {
  c10::SymInt count = window_count(windows, dim, size, ceil_mode);
  TORCH_CHECK_VALUE(count > 0, op, ": a window of ", windows.dilation[dim] * (windows.size[dim] - 1) + 1,
                    " must fit into an image of ", size, " with padding ", windows.padding[dim]);
  return count;
}

void check_images(const char* op, const char* name, const at::Tensor& x) {
  check_floating(op, name, x);
  check_dense(op, name, x);
  TORCH_CHECK_VALUE(x.dim() >= 3, op, ": ", name, " must be [..., C, H, W], but has shape ", x.sym_sizes());
}

std::vector<std::int64_t> Windows::list() const {
  return {size[0], size[1], stride[0], stride[1], padding[0], padding[1], dilation[0], dilation[1]};
}

Windows Windows::of(const char* op, at::IntArrayRef list) {
  TORCH_CHECK_VALUE(list.size() == numbers, op,
                    ": windows must be kernel_size, stride, padding and dilation, two numbers each, but are ", list);
  const Windows windows{{list[0], list[1]}, {list[2], list[3]}, {list[4], list[5]}, {list[6], list[7]}};
  for (const std::size_t d : {0, 1}) {
    const std::int64_t size = windows.size[d], padding = windows.padding[d];
    TORCH_CHECK_VALUE(size > 0 && size <= most, op, ": kernel_size must be positive, but is ", Ints(windows.size));
    TORCH_CHECK_VALUE(windows.stride[d] > 0 && windows.stride[d] <= most / 8, op,
                      ": stride must be positive, and at most ", most / 8, ", but is ", Ints(windows.stride));
    TORCH_CHECK_VALUE(windows.dilation[d] > 0 && windows.dilation[d] <= most / size, op,
                      ": dilation must be positive, and the window no wider than ", most, ", but is ",
                      Ints(windows.dilation));
    TORCH_CHECK_VALUE(padding >= 0 && padding <= size / 2, op,
                      ": padding must be at least 0 and at most half of kernel_size ", Ints(windows.size), ", but is ",
                      Ints(windows.padding));
  }
  constexpr std::int64_t places = spikeforge::layers::most_places;
  TORCH_CHECK_VALUE(windows.size[0] <= places / windows.size[1], op, ": a window may have at most ", places,
                    " elements, but kernel_size is ", Ints(windows.size), "; use torch's operator");
  return windows;
}

at::Tensor call_max_pool(const at::Tensor& x, const Windows& windows, bool ceil_mode, const MaybeTensor& weight) {
  return max_pool_handle().call(x, windows.size, windows.stride, windows.padding, windows.dilation, ceil_mode, weight);
}

Maxima call_max_pool_with_places(const at::Tensor& x, const Windows& windows, bool ceil_mode,
                                 const MaybeTensor& weight) {
  static const auto handle =
      find_operator<decltype(max_pool_with_places<nullptr>)>("spikeforge::max_pool2d_with_places");
  auto [y, which] = handle.call(x, windows.list(), ceil_mode, weight);
  return {std::move(y), std::move(which)};
}

at::Tensor call_statistics_backward(const at::Tensor& grad, const at::Tensor& which, const at::Tensor& x,
                                    const at::Tensor& mean, const at::Tensor& offset, const at::Tensor& slope,
                                    const Windows& windows) {
  static const auto handle =
      find_operator<decltype(statistics_backward<nullptr>)>("spikeforge::max_pool2d_statistics_backward");
  return handle.call(grad, which, x, mean, offset, slope, windows.list());
}

at::Tensor call_max_pool_backward(const at::Tensor& grad, const at::Tensor& which, const Windows& windows,
                                  const c10::SymInt& height, const c10::SymInt& width) {
  static const auto handle = find_operator<decltype(max_pool_backward<nullptr>)>("spikeforge::max_pool2d_backward");
  return handle.call(grad, which, windows.list(), height, width);
}

at::Tensor call_mean_pool(const at::Tensor& x, const Windows& windows, bool ceil_mode, const MeanOptions& options) {
  return mean_pool_handle().call(x, windows.size, windows.stride, windows.padding, ceil_mode, options.counts_padding,
                                 options.divisor);
}

at::Tensor call_mean_pool_backward(const at::Tensor& grad, const Windows& windows, const MeanOptions& options,
                                   const c10::SymInt& height, const c10::SymInt& width) {
  static const auto handle = find_operator<decltype(mean_pool_backward<nullptr>)>("spikeforge::avg_pool2d_backward");
  return handle.call(grad, windows.list(), options.counts_padding, options.divisor, height, width);
}

}  // namespace spikeforge::ops::layers

namespace spikeforge {

at::Tensor max_pool2d(const at::Tensor& x, const MaxPool2d& options) {
  return ops::layers::max_pool_handle().call(x, options.kernel_size, options.stride, options.padding, options.dilation,
                                             options.ceil_mode, options.weight);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> max_pool2d_statistics(const at::Tensor& x, const MaxPool2d& options) {
  static const auto handle = ops::find_operator<decltype(ops::layers::statistics)>("spikeforge::max_pool2d_statistics");
  for (const std::int64_t dilation : options.dilation)
    TORCH_CHECK_VALUE(dilation == 1, "max_pool2d_statistics: dilation must be 1, but is ", dilation);
  return handle.call(x, options.kernel_size, options.stride, options.padding, options.ceil_mode, options.weight);
}

at::Tensor avg_pool2d(const at::Tensor& x, const AvgPool2d& options) {
  return ops::layers::mean_pool_handle().call(x, options.kernel_size, options.stride, options.padding,
                                              options.ceil_mode, options.count_include_pad, options.divisor_override);
}

}  // namespace spikeforge
