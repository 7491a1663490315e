#include "csrc/cpu/event/kernels.h"
#include "csrc/cpu/event/plastic.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/layer/channel_statistics.h"
#include "csrc/cpu/layer/delayed_product.h"
#include "csrc/cpu/layer/pooling.h"
#include "csrc/cpu/layer/spike_bits.h"
#include "csrc/cpu/loihi/products.h"
#include "csrc/cpu/network/poisson_input.h"
#include "csrc/cpu/recurrent/feedback.h"
#include "csrc/cpu/recurrent/fired_product.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace spikeforge::cpu {
namespace {

struct Choice {
  const char* name;
  Loops loops;
  const LoihiProducts* loihi;
  const EventKernels* event;
  const ChannelStatistics* statistics;
  const SpikeBits* bits;
  const PoolingKernels* pooling;
  const PoissonKernels* poisson;
  ChooseFeedback choose_feedback;
  const FiredKernels* fired;
  const DelayedKernels* delayed;
  const PlasticKernels* plastic;
};

enum Level { level_default, level_avx2, level_avx512 };

// Returns the widest instruction set that the user allows.
Level allowed() {
  const char* wanted = std::getenv("SPIKEFORGE_CPU_CAPABILITY");
  const std::string_view name = wanted == nullptr ? "" : wanted;
  if (name == "default") return level_default;
  if (name == "avx2") return level_avx2;
  if (name != "" && name != "avx512")
    std::fprintf(
        stderr,
        "spikeforge: SPIKEFORGE_CPU_CAPABILITY=%s is not default, avx2 or avx512; using the widest supported set\n",
        wanted);
  return level_avx512;
}

#define SPIKEFORGE_CHOICE(set)                                                                                 \
  Choice {                                                                                                     \
#set, {predefined_loop_##set, traced_loop_##set, loihi_loop_##set }, &loihi_products_##set(),              \
           &event_kernels_##set(), &channel_statistics_##set(), &spike_bits_##set(), &pooling_kernels_##set(), \
           &poisson_kernels_##set(), choose_feedback_##set, &fired_kernels_##set(), &delayed_kernels_##set(),  \
           &plastic_kernels_##set()                                                                            \
  }

Choice choose() {
  [[maybe_unused]] const Level level = allowed();
#if SPIKEFORGE_CPU_VARIANTS == 3
  // Every processor with AVX2 has F16C; not every compiler supports that name.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
  if (avx512 && level >= level_avx512) return SPIKEFORGE_CHOICE(avx512);
  if (avx2 && level >= level_avx2) return SPIKEFORGE_CHOICE(avx2);
#endif
  return SPIKEFORGE_CHOICE(default);
}

#undef SPIKEFORGE_CHOICE

const Choice& choice() {
  static const Choice chosen = choose();
  return chosen;
}

}  // namespace

const Loops& loops() { return choice().loops; }
const LoihiProducts& loihi_products() { return *choice().loihi; }
const EventKernels& event_kernels() { return *choice().event; }
const ChannelStatistics& channel_statistics() { return *choice().statistics; }
const SpikeBits& spike_bits() { return *choice().bits; }
const PoolingKernels& pooling_kernels() { return *choice().pooling; }
const PoissonKernels& poisson_kernels() { return *choice().poisson; }
void choose_feedback(DType type, Feedback& feedback) { choice().choose_feedback(type, feedback); }
const FiredKernels& fired_kernels() { return *choice().fired; }
const DelayedKernels& delayed_kernels() { return *choice().delayed; }
const PlasticKernels& plastic_kernels() { return *choice().plastic; }
const char* capability() { return choice().name; }

}  // namespace spikeforge::cpu
