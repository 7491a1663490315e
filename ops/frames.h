// Frames of the events of cameras and of spike trains: the C++ interface of torch.ops.spikeforge.event_frames
// (docs/data.md).
#pragma once

#include "csrc/base/export.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace spikeforge {

// A batch of samples with any number of events each. Columns are of integer types, [events]; sample b has the events
// offsets[b], ..., offsets[b + 1] - 1.
struct Events {
  at::Tensor t, x;                             // time in ticks of any clock, and column on the sensor
  std::optional<at::Tensor> y = std::nullopt;  // row; nullopt: 0
  std::optional<at::Tensor> p = std::nullopt;  // polarity, 0 or -1 for off and 1 for on; nullopt: 0
  at::Tensor offsets = {};                     // int64 [B + 1]
};

struct FrameOptions {
  std::array<std::int64_t, 3> size = {2, 1, 1};  // channels (1 or 2), height and width of the sensor
  std::int64_t steps = 1;
  std::optional<std::int64_t> window = std::nullopt;  // ticks of a step, or its events; nullopt: equal shares
  std::optional<at::Tensor> start = std::nullopt;     // int64 [B]: time of step 0; nullopt: that of the first event
  std::string_view bins = "time";                     // or "count"
  std::string_view values = "count";                  // or "binary", "normalised", "bits", "voxel", "surface"
  double tau = 1;                                     // of surfaces, in ticks
  std::optional<std::array<std::int64_t, 2>> crop = std::nullopt;  // height and width of the window that is kept
  std::optional<at::Tensor> origin = std::nullopt;  // int64 [B, 2]: the window's first row and column; nullopt: centred
  std::optional<at::Tensor> flip = std::nullopt;    // bool [B, 2]: upside down, and left to right
  std::int64_t downsample = 1;                      // pixels per side that become one
  std::optional<at::Tensor> ignored = std::nullopt;    // bool [H, W] or [B, H, W]: pixels whose events are skipped
  std::optional<at::Tensor> keep = std::nullopt;       // bool [events]: false skips an event
  std::optional<at::ScalarType> dtype = std::nullopt;  // floating point; nullopt: torch's default type
};

// Returns [steps, B, channels, height, width], or for "bits" int32 [steps, B, channels, height, ceil(width / 32)] as
// pack_events does. An event that is not on the sensor, or before the first one of its sample unless `start` is given,
// throws ValueError; on a GPU, which is not synchronised, a later call throws it.
SPIKEFORGE_API at::Tensor event_frames(const Events& events, const FrameOptions& options);

}  // namespace spikeforge
