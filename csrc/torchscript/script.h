// The former place of <spikeforge/nn/script.h>; it goes with the next release but one.
#pragma once

#include "csrc/nn/script.h"
