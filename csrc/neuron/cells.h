// All structs of neurons.def.
#pragma once

#include "csrc/neuron/adaptive_lif.h"
#include "csrc/neuron/eif.h"
#include "csrc/neuron/if.h"
#include "csrc/neuron/izhikevich.h"
#include "csrc/neuron/lif.h"
#include "csrc/neuron/plif.h"
#include "csrc/neuron/qif.h"
