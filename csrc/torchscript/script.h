// Deprecated: use <spikeforge/nn/script.h>. This header will be removed in the release after the next one.
#pragma once

#include "csrc/nn/script.h"
