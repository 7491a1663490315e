// All structs of neurons.def, by their kind.
#pragma once

#include "csrc/neuron/adaptive_lif.h"
#include "csrc/neuron/eif.h"
#include "csrc/neuron/if.h"
#include "csrc/neuron/izhikevich.h"
#include "csrc/neuron/lif.h"
#include "csrc/neuron/neuron_kind.h"
#include "csrc/neuron/plif.h"
#include "csrc/neuron/qif.h"

namespace spikeforge {

// NeuronStruct<NeuronKind::lif>::type<F, Options> is LIF<F, Options>.
template <NeuronKind kind> struct NeuronStruct;

// `places` are the values of a struct's enum Param for the parameters of its row.
#define SPIKEFORGE_PLACE(name) static_cast<int>(Neuron::name),
#define SPIKEFORGE_PARAM(name, default_value, legal) SPIKEFORGE_PLACE(name)
#define SPIKEFORGE_V_RESET(default_value) SPIKEFORGE_PLACE(v_reset)
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params)                                         \
  template <> struct NeuronStruct<NeuronKind::name> {                                                            \
    template <class F, class Options> using type = Struct<F, Options>;                                           \
    template <class Neuron> static constexpr int places[] = {SPIKEFORGE_EACH(SPIKEFORGE_PLACE, tensors) params}; \
  };
#include "csrc/neuron/neurons.def"
#undef SPIKEFORGE_PLACE

}  // namespace spikeforge
