// How the numbers of each channel lie in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

namespace spikeforge::ops::layers {

// x as [rows, channels, inner] in memory, copied if it is stored in neither order.
struct ByChannel {
  at::Tensor x;
  std::int64_t rows, channels, inner;

  // `dim` is counted from the front.
  ByChannel(const at::Tensor& given, std::int64_t dim) : channels(given.size(dim)) {
    const at::Tensor last = given.movedim(dim, -1);
    const bool is_last = last.is_contiguous();
    x = is_last ? last : given.contiguous();
    inner = 1;
    if (!is_last)
      for (std::int64_t d = dim + 1; d < given.dim(); ++d) inner *= given.size(d);
    rows = given.numel() / std::max<std::int64_t>(channels * inner, 1);
  }
};

}  // namespace spikeforge::ops::layers
