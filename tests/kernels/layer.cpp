#include <spikeforge/kernels/layer/pooling.h>
#include <spikeforge/kernels/layer/spike_bits.h>

#include <vector>

#include "catch.h"
#include "compiles.h"

namespace spikeforge::tests {
namespace {

using namespace layers;

std::vector<jit::KernelSource> sources(bool usual) {
  constexpr Window two{2, 2, 0, 1}, three{3, 2, 1, 1}, overlapping{3, 1, 1, 1}, seven{7, 2, 3, 1}, large{15, 15, 0, 1};
  std::vector<jit::KernelSource> list;
  for (const DType type : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    if (usual && type != DType::f16) continue;
    for (const Window& window : {two, three, overlapping, seven, large})
      for (const std::int64_t channels : {1, 2, 64})
        for (const bool is_mean : {false, true})
          for (const PoolPass pass : {PoolPass::forward, PoolPass::backward}) {
            if (usual && (channels == 2 || is_mean || window.size > 3)) continue;
            list.push_back(source_of(PoolLaunch{
                .pool = {.down = window, .across = window, .is_mean = is_mean},
                .images =
                    {.count = 64, .height = 112, .width = 112, .channels = channels, .out_height = 56, .out_width = 56},
                .type = type,
                .pass = pass}));
          }
    for (const int bits : {1, 4})
      for (const std::uintptr_t address : {0, 8})
        for (const BitsPass pass : {BitsPass::pack, BitsPass::unpack})
          list.push_back(source_of(BitsLaunch{.pass = pass,
                                              .type = type,
                                              .bits = bits,
                                              .count = 1000,
                                              .from = reinterpret_cast<const void*>(address),
                                              .to = reinterpret_cast<void*>(address)}));
  }
  return list;
}

void check_all(const std::string& arch, bool usual) {
  for (const jit::KernelSource& source : sources(usual)) check_compiles(arch, source, /*most_spilled=*/0);
}

}  // namespace

TEST_CASE("usual kernels of pooling and of bits compile for sm_90 without spills") { check_all("sm_90", true); }

TEST_CASE("kernels of pooling and of bits compile for sm_80 without spills", "[long]") { check_all("sm_80", false); }
TEST_CASE("kernels of pooling and of bits compile for sm_90 without spills", "[long]") { check_all("sm_90", false); }
TEST_CASE("kernels of pooling and of bits compile for sm_100 without spills", "[long]") { check_all("sm_100", false); }
TEST_CASE("kernels of pooling and of bits compile for sm_120 without spills", "[long]") { check_all("sm_120", false); }

}  // namespace spikeforge::tests
