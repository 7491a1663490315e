// Notes the kernels of an event product where a pack is recorded: what every call on the CPU does.
#pragma once

#include <spikeforge/jit/recorder.h>
#include <spikeforge/kernels/event/jit_spec.h>
#include <spikeforge/kernels/event/linear_spec.h>
#include <spikeforge/kernels/event/plan.h>

namespace spikeforge::jit {

inline void want_kernels(const EventSpec& spec, const Device&, const Want& want) { want(print_source(spec)); }
inline void want_kernels(const EventJitSpec& spec, const Device&, const Want& want) { want(print_source(spec)); }
inline void want_kernels(const EventLinearSpec& spec, const Device&, const Want& want) { want(print_source(spec)); }
inline void want_kernels(const EventProduct& product, const Device& device, const Want& want) {
  if (product.connections == 0) return;
  for (const EventSpec& spec : kernels_of(product, device)) want(print_source(spec));
}
inline void want_kernels(const EventWeightGradient& gradient, const Device& device, const Want& want) {
  want(print_source(plan_weight_gradient(gradient.product, device).spec));
}

// make() gives a spec or a product, which costs something to make.
template <class Make>
void note_event(const Make& make) {
  note_by_arch([&](const Device& device, const Want& want) { want_kernels(make(), device, want); });
}

}  // namespace spikeforge::jit
