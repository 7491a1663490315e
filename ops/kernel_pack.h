// Kernel packs: the kernels that a program would compile for the GPU at its first calls, compiled in advance and stored
// in a file.
//
//   spikeforge::record_kernels({"sm_80", "sm_90"});
//   ... run the network on the CPU, with the sizes, types and gradients that it will have on the GPU ...
//   spikeforge::write_kernel_pack("kernels.pack");            // needs NVRTC, and no GPU
//
// and in the deployed program, before its first call, or with SPIKEFORGE_KERNEL_PACK=kernels.pack:
//
//   spikeforge::load_kernel_pack("kernels.pack");             // needs no NVRTC
//
// From Python: torch.ops.spikeforge.record_kernels, write_kernel_pack and load_kernel_pack. The tool spikeforge-pack
// does it for TorchScript models and for the predefined neurons. A pack contains the kernels of every operator that was
// called: neurons (predefined, written as text or lambda, and Loihi's), event products, plasticity, and operators that
// users register. It can only be loaded by the build of the library that wrote it.
#pragma once

#include "csrc/base/export.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace spikeforge {

// Starts a recording: all later calls of this process on the CPU record the kernels that they would run on each of
// these architectures ("sm_90"). Throws for an unknown architecture. A second call starts a new recording.
SPIKEFORGE_API void record_kernels(const std::vector<std::string>& archs);

// Records the most usual calls of predefined neurons: scalar parameters (PLIF: w learned), hard reset, surrogates
// sigmoid and atan, float32, float16 and bfloat16, inference and training, 2^9 to 2^22 neurons, 1 to 1024 steps.
// `neurons` are names of operators; an empty list means all. Throws for an unknown name, and without a recording.
SPIKEFORGE_API void record_predefined_kernels(const std::vector<std::string>& neurons = {});

// Ends the recording, compiles the recorded kernels on all cores (or reads them from the cache on disk), and writes
// them. Returns the number of kernels. Throws if nothing was recorded, if NVRTC is not available, or if the file cannot
// be written; an existing file then remains. progress(done, of) is called by one thread at a time.
SPIKEFORGE_API std::int64_t write_kernel_pack(const std::string& path,
                                              const std::function<void(std::size_t, std::size_t)>& progress = {});

// Loads a pack, whose kernels then have precedence over the cache on disk and over NVRTC. Returns the number of
// kernels. Throws for a file that cannot be read, is damaged, or was written by another build of the library.
SPIKEFORGE_API std::int64_t load_kernel_pack(const std::string& path);

}  // namespace spikeforge
