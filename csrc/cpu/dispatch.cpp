#include <spikeforge/cpu/event_kernels.h>
#include <spikeforge/cpu/kernels.h>
#include <spikeforge/cpu/loihi_kernels.h>
#include <spikeforge/cpu/traced_kernels.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace spikeforge::cpu {
namespace {

struct Choice {
  const char* name;
  const Kernels* kernels;
  const TracedKernels* traced;
  const LoihiKernels* loihi;
  const EventKernels* event;
};

enum Level { level_default, level_avx2, level_avx512 };

// The widest set that the user allows.
Level allowed() {
  const char* wanted = std::getenv("SPIKEFORGE_CPU_CAPABILITY");
  const std::string_view name = wanted == nullptr ? "" : wanted;
  if (name == "default") return level_default;
  if (name == "avx2") return level_avx2;
  if (name != "" && name != "avx512")
    std::fprintf(
        stderr,
        "spikeforge: SPIKEFORGE_CPU_CAPABILITY=%s is none of default, avx2, avx512; using the widest there is\n",
        wanted);
  return level_avx512;
}

Choice choose() {
  [[maybe_unused]] const Level level = allowed();
#if SPIKEFORGE_CPU_VARIANTS == 3
  // Every processor with AVX2 has F16C, which not every compiler knows by that name.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
  if (avx512 && level >= level_avx512)
    return {"avx512", &kernels_avx512(), &traced_kernels_avx512(), &loihi_kernels_avx512(), &event_kernels_avx512()};
  if (avx2 && level >= level_avx2)
    return {"avx2", &kernels_avx2(), &traced_kernels_avx2(), &loihi_kernels_avx2(), &event_kernels_avx2()};
#endif
  return {"default", &kernels_default(), &traced_kernels_default(), &loihi_kernels_default(), &event_kernels_default()};
}

const Choice& choice() {
  static const Choice chosen = choose();
  return chosen;
}

}  // namespace

const Kernels& kernels() { return *choice().kernels; }
const TracedKernels& traced_kernels() { return *choice().traced; }
const LoihiKernels& loihi_kernels() { return *choice().loihi; }
const EventKernels& event_kernels() { return *choice().event; }
const char* capability() { return choice().name; }

}  // namespace spikeforge::cpu
