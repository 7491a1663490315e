// The library's version. It is defined only here; CMakeLists.txt reads this file.
#pragma once

#define SPIKEFORGE_VERSION_MAJOR 0
#define SPIKEFORGE_VERSION_MINOR 2
#define SPIKEFORGE_VERSION_PATCH 0

// For comparisons: #if SPIKEFORGE_VERSION >= SPIKEFORGE_MAKE_VERSION(0, 2, 0)
#define SPIKEFORGE_MAKE_VERSION(major, minor, patch) ((major)*1000000 + (minor)*1000 + (patch))
#define SPIKEFORGE_VERSION \
  SPIKEFORGE_MAKE_VERSION(SPIKEFORGE_VERSION_MAJOR, SPIKEFORGE_VERSION_MINOR, SPIKEFORGE_VERSION_PATCH)
