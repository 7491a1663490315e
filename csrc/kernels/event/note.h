// Records the kernels of a call while a pack is recorded. Called by every call on the CPU.
#pragma once

#include "csrc/jit/recorder.h"
#include "csrc/kernels/event/spec.h"

namespace spikeforge::event {

// specs_on(device) returns the KernelSpecs of a call. It is called once per architecture: no spec depends on the number
// of multiprocessors (kernels_of in plan.h; other launches have one kernel on every device).
template <class Specs> void note_kernels(const Specs& specs_on) {
  jit::note_by_arch([&](const jit::Device& device, const jit::Want& want) {
    for (const KernelSpec& spec : specs_on(device)) want(print_source(spec));
  });
}

}  // namespace spikeforge::event
