#include "csrc/kernels/recurrent/clusters.h"
#include "csrc/jit/spec_table.h"
#include "csrc/kernels/recurrent/schedule.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

namespace spikeforge::kernels {
namespace {

constexpr unsigned probe_threads = 128;

int ask(const jit::Device& device, int blocks, int bytes) {
  const int index = jit::Driver::get().device();
  const jit::LoadedKernel& probe = jit::KernelCache::get().get(print_cluster_probe(), jit::name_of_arch(device));
  probe.allow_shared(most_shared_bytes(device), index);
  probe.allow_large_clusters(index);
  return probe.most_clusters(static_cast<unsigned>(blocks), probe_threads, static_cast<unsigned>(bytes));
}

}  // namespace

int most_clusters(const jit::Device& device, int blocks, int bytes) {
  static std::mutex mutex;
  static auto& known = *new std::map<std::tuple<int, int, int>, int>;  // of a device's index, blocks and bytes
  const std::scoped_lock lock(mutex);
  const std::tuple key(jit::Driver::get().device(), blocks, bytes);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known[key] = ask(device, blocks, bytes);
}

int usual_clusters(const jit::Device& device, int blocks, int bytes) {
  // An H200 of 132 multiprocessors: 30 of 4, 15 of 8, 7 of 16.
  constexpr int of = 132;
  const int there = blocks <= 2 ? 66 : blocks == 4 ? 30 : blocks == 8 ? 15 : 7;
  const int together = std::max(most_shared_bytes(device) / std::max(bytes, 1), 1);
  return std::max(there * together * device.multiprocessors / of, 1);
}

jit::KernelSource print_cluster_probe() {
  return {.name = "cluster_probe",
          .entry = "spikeforge_cluster_probe",
          .text = R"(  // Never launched: the driver is queried for the number of resident clusters of its blocks.
extern "C" __global__ void __launch_bounds__(128) spikeforge_cluster_probe(int* out) {
  extern __shared__ int memory[];
  memory[threadIdx.x] = out[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = memory[127 - threadIdx.x];
}
)"};
}

}  // namespace spikeforge::kernels
