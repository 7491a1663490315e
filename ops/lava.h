// The former name of <spikeforge/ops/loihi.h>; it goes with the next release but one.
#pragma once

#include "ops/loihi.h"
