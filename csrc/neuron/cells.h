// All structs of neurons.def.
#pragma once

#include <spikeforge/neuron/adaptive_lif.h>
#include <spikeforge/neuron/eif.h>
#include <spikeforge/neuron/if.h>
#include <spikeforge/neuron/izhikevich.h>
#include <spikeforge/neuron/lif.h>
#include <spikeforge/neuron/plif.h>
#include <spikeforge/neuron/qif.h>
