// Deprecated: use <spikeforge/ops/loihi.h>. This header will be removed in the release after the next one.
#pragma once

#include "ops/loihi.h"
