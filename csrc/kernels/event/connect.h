// The kernels that draw networks.
#pragma once

#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/event/connection_rules.h"

namespace spikeforge::event {

struct ConnectSpec {
  ConnectStep step;
  NumberType type;  // of the stage `numbers`; f16 for the other stages

  bool operator==(const ConnectSpec&) const = default;
};

ConnectSpec spec_of(ConnectStep step, NumberType type);
jit::KernelSource print_source(const ConnectSpec& spec);

// Launches a stage on a stream of the device, whose context is current. Throws the errors of KernelCache.
void launch_connect_step(ConnectStep step, const ConnectArguments& args, const jit::Device& device, void* stream);

}  // namespace spikeforge::event
