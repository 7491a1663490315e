// A step of plastic connections on a GPU, the base of plastic_step.
#pragma once

#include "csrc/kernels/event/plastic.h"
#include "ops/common/plastic.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace spikeforge::ops::sparse {

// The arguments shared by a GPU's kernels.
struct GpuStep {
  const plastic::BoundRule& rule;
  event::PlasticArguments args;
  DType weight{};
  const event::Rows& rows;
  const event::Rows* columns;
  const std::int64_t* slots;
  at::Tensor pre, post;           // bool
  std::vector<at::Tensor> comes;  // bool, 0-dimensional; undefined: the signal is absent
  bool sends, refresh;
};

// Calls `part` for each part of a step that the call needs, in order.
template <class Part>
void for_parts(const plastic::Rule& rule, const std::vector<bool>& signals, bool sends, bool refresh, Part&& part) {
  using event::PlasticPart;
  const auto if_there = [&](PlasticPart which, std::size_t signal = 0) {
    if (has_part(rule.synapse, which, signal)) part(which, signal);
  };
  if (refresh) return if_there(PlasticPart::refresh);
  if_there(PlasticPart::fired);
  if_there(sends ? PlasticPart::sending_pre : PlasticPart::pre);
  if_there(PlasticPart::pre_traces);
  if_there(PlasticPart::post);
  if_there(PlasticPart::post_traces);
  for (std::size_t i = 0; i < signals.size(); ++i)
    if (signals[i]) if_there(PlasticPart::signal, i);
  if_there(PlasticPart::each_step);
}

// Launches the kernels on the current stream of the device of `weights`.
void launch_plastic(const GpuStep& step, const at::Tensor& weights);

}  // namespace spikeforge::ops::sparse
