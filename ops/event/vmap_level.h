// A level of torch.vmap as the products see it: the mapped dimension is the first one.
#pragma once

#include <spikeforge/ops/common/vmap_level.h>

#include <ATen/ops/stack.h>

#include <cstdint>
#include <vector>

namespace spikeforge::ops::sparse {

class Level : public VmapLevel {
 public:
  at::Tensor first(const at::Tensor& t) const {
    const auto* const batched = of(t);
    return batched ? batched->value().movedim(batched->bdim(), 0) : t;
  }
  at::Tensor one(const at::Tensor& t, std::int64_t i) const { return maps(t) ? first(t).select(0, i) : t; }

  at::Tensor mapped(const at::Tensor& t) const { return VmapLevel::mapped(t, 0); }

  template <class F>
  at::Tensor each(F&& f) const {
    std::vector<at::Tensor> results;
    const std::int64_t count = size().guard_int(__FILE__, __LINE__);
    for (std::int64_t i = 0; i < count; ++i) results.push_back(f(i));
    return mapped(at::stack(results));
  }
};

}  // namespace spikeforge::ops::sparse
