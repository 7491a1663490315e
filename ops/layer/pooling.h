// Maxima and means over windows of images, lowered: docs/layers.md has the public operators.
#pragma once

#include "csrc/kernels/layer/pooling.h"

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace spikeforge::ops::layers {

// The windows of a call, in the form of the lowered operators: size, stride, padding and dilation, each vertical and
// horizontal.
struct Windows {
  static constexpr std::size_t numbers = 8;

  std::array<std::int64_t, 2> size, stride, padding, dilation;

  std::vector<std::int64_t> list() const;
  // Throws ValueError for illegal windows; `op` begins the message.
  static Windows of(const char* op, at::IntArrayRef list);
};

// The divisor of a mean.
struct MeanOptions {
  bool counts_padding = true;
  std::optional<std::int64_t> divisor = std::nullopt;
};

// Returns the windows of a public call. Throws ValueError.
Windows windows_of(const char* op, at::IntArrayRef kernel_size, at::IntArrayRef stride, at::IntArrayRef padding,
                   at::IntArrayRef dilation);

// Throws TypeError and ValueError unless x is [..., C, H, W].
void check_images(const char* op, const char* name, const at::Tensor& x);

// Return the number of windows along a dimension (0 vertical, 1 horizontal) of that size. The second throws ValueError
// if there is none.
c10::SymInt window_count(const Windows& windows, std::size_t dim, const c10::SymInt& size, bool ceil_mode);
c10::SymInt out_size(const char* op, const Windows& windows, std::size_t dim, const c10::SymInt& size, bool ceil_mode);

// Throws ValueError unless the windows fit into x's images.
void check_windows_fit(const char* op, const Windows& windows, const at::Tensor& x, bool ceil_mode);

// ---- calls through the dispatcher ----

// `weight` [C] is that of a normalisation after the maximum. If it is below 0, the minimum is returned, which becomes
// the maximum.

using MaybeTensor = std::optional<at::Tensor>;

at::Tensor call_max_pool(const at::Tensor& x, const Windows& windows, bool ceil_mode,
                         const MaybeTensor& weight = std::nullopt);

struct Maxima {
  at::Tensor y;
  at::Tensor which;  // uint8, with y's sizes and memory order: the index of each maximum in its window
};
Maxima call_max_pool_with_places(const at::Tensor& x, const Windows& windows, bool ceil_mode,
                                 const MaybeTensor& weight = std::nullopt);
at::Tensor call_max_pool_backward(const at::Tensor& grad, const at::Tensor& which, const Windows& windows,
                                  const c10::SymInt& height, const c10::SymInt& width);
// The same plus the contribution of the statistics, offset + slope (x - mean), with one value per channel.
at::Tensor call_statistics_backward(const at::Tensor& grad, const at::Tensor& which, const at::Tensor& x,
                                    const at::Tensor& mean, const at::Tensor& offset, const at::Tensor& slope,
                                    const Windows& windows);
at::Tensor call_mean_pool(const at::Tensor& x, const Windows& windows, bool ceil_mode, const MeanOptions& options);
at::Tensor call_mean_pool_backward(const at::Tensor& grad, const Windows& windows, const MeanOptions& options,
                                   const c10::SymInt& height, const c10::SymInt& width);

// Returns the channel dimension of [..., C, H, W], counted from the front.
inline std::int64_t channels_of_images(const at::Tensor& x) { return x.dim() - 3; }

// ---- maxima and the statistics of their input ----

inline constexpr const char* pooled_statistics_op = "max_pool2d_statistics";

using PooledStatistics = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // y, mean, var

// Returns the windows of a call. Throws TypeError and ValueError.
Windows check_pooled_statistics(const at::Tensor& x, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                                at::IntArrayRef padding, bool ceil_mode, const MaybeTensor& weight);
// Calls the operator through the dispatcher.
PooledStatistics pooled_statistics(const at::Tensor& x, const Windows& windows, bool ceil_mode,
                                   const MaybeTensor& weight);

// The transpose of call_max_pool_backward: returns the elements of x at the positions of the maxima.
at::Tensor at_places(const at::Tensor& x, const at::Tensor& which, const Windows& windows);

}  // namespace spikeforge::ops::layers
