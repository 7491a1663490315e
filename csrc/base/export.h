#pragma once
// What the library shows to the outside; everything else is hidden.
#define SPIKEFORGE_API __attribute__((visibility("default")))
