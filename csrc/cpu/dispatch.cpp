#include <spikeforge/cpu/kernels.h>

#include <cstdlib>
#include <string_view>

namespace spikeforge::cpu {
namespace {

struct Choice {
  const char* name;
  const Kernels* kernels;
};

bool allowed(std::string_view set) {
  static const char* wanted = std::getenv("SPIKEFORGE_CPU_CAPABILITY");
  return wanted == nullptr || std::string_view(wanted) == set;
}

Choice choose() {
#if SPIKEFORGE_CPU_VARIANTS == 3
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
  // Every processor with AVX2 has F16C, which not every compiler knows by that name.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx512 && avx2 && allowed("avx512")) return {"avx512", &kernels_avx512()};
  if (avx2 && allowed("avx2")) return {"avx2", &kernels_avx2()};
#endif
  return {"default", &kernels_default()};
}

const Choice& choice() {
  static const Choice chosen = choose();
  return chosen;
}

}  // namespace

const Kernels& kernels() { return *choice().kernels; }
const char* capability() { return choice().name; }

}  // namespace spikeforge::cpu
