// Kernel packs: what a program compiles for the GPU at its first calls, compiled before and kept in a file.
//
//   spikeforge::record_kernels({"sm_80", "sm_90"});
//   ... run the network on the CPU, with the sizes, types and gradients that it will have on the GPU ...
//   spikeforge::write_kernel_pack("kernels.pack");            // needs NVRTC, and no GPU
//
// and in the program that is deployed, before its first call, or by SPIKEFORGE_KERNEL_PACK=kernels.pack:
//
//   spikeforge::load_kernel_pack("kernels.pack");             // needs no NVRTC
//
// From Python: torch.ops.spikeforge.record_kernels, write_kernel_pack and load_kernel_pack. The tool spikeforge-pack
// does it for TorchScript models and for the predefined neurons. A pack has the kernels of every operator that was
// called: neurons (predefined, written as text or lambda, Loihi's), event products, plasticity, and operators that
// users register. It belongs to the build of the library that wrote it.
#pragma once

#include "csrc/base/export.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace spikeforge {

// From here on, all calls of this process on the CPU note which kernels they would run on each of these architectures
// ("sm_90"). Throws for a name that is no architecture. A second call forgets what the first one noted.
SPIKEFORGE_API void record_kernels(const std::vector<std::string>& archs);

// Adds to what is noted the most usual calls of predefined neurons: parameters as numbers (PLIF: w learned), hard
// reset, surrogates sigmoid and atan, float32, float16 and bfloat16, inference and training, 2^9 to 2^22 neurons, 1 to
// 1024 steps. `neurons` are names of operators; none: all. Throws for another name, and where nothing is recorded.
SPIKEFORGE_API void record_predefined_kernels(const std::vector<std::string>& neurons = {});

// Ends the recording, compiles what was noted on all cores (or takes it from the cache on disk), and writes it. Returns
// the number of kernels. Throws where nothing was recorded, where NVRTC is not there, or the file cannot be written;
// what stood there then stays. progress(done, of) comes from one thread at a time.
SPIKEFORGE_API std::int64_t write_kernel_pack(const std::string& path,
                                              const std::function<void(std::size_t, std::size_t)>& progress = {});

// Loads a pack, whose kernels then take precedence over those on disk and over NVRTC. Returns their number. Throws for
// a file that cannot be read, is damaged, or was written by another build of the library.
SPIKEFORGE_API std::int64_t load_kernel_pack(const std::string& path);

}  // namespace spikeforge
