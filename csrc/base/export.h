#pragma once
// Marks the exported symbols of the library; all others are hidden.
#define SPIKEFORGE_API __attribute__((visibility("default")))
