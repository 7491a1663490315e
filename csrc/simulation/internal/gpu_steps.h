// Steps of a network on a GPU: one cooperative kernel walks over many of them (cuda/network/network.cuh), so that a
// step costs what its dependencies cost.
#pragma once

#include "csrc/kernels/network/launch.h"
#include "csrc/simulation/internal/gpu_exchange.h"
#include "csrc/simulation/internal/gpu_streams.h"
#include "csrc/simulation/internal/group_call.h"
#include "csrc/simulation/internal/running.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace spikeforge::simulation {

class GpuSteps {
 public:
  // Null where operators have to step the network: on other devices, where sums are to be deterministic, and where the
  // kernel does not take it (kernels/network/launch.h).
  static std::unique_ptr<GpuSteps> make(Running& running);

  // Records into `fired`, bool [`steps`, neurons] or undefined, and into rows from `row` on of `states`. Spikes between
  // ranks or areas are exchanged after every block and at the end.
  void run(std::int64_t steps, const at::Tensor& fired, std::int64_t row);

  // Repeats steps whose spikes exceeded the lists between ranks: `keep` is called before them, and `goes_back` after
  // them, which returns true if they are to be repeated. Throws c10::Error if a rank has ended.
  void keep();
  bool goes_back();

  // Steps that are as fast as any; others are where they are no multiple of these.
  std::int64_t at_once() const;

  // Sets the tensors into which `run` records states: [rows, neurons of the probe] each.
  void record(const std::vector<Probe>& probes, const std::vector<at::Tensor>& states);

 private:
  explicit GpuSteps(Running& running);

  void make_groups();
  void make_drives();
  bool plan();
  void walk(std::int64_t steps, const at::Tensor& fired, std::int64_t row);
  void run_blocks(std::int64_t steps, const at::Tensor& fired, std::int64_t row);
  bool repeats() const;

  Running& running_;
  std::deque<GroupCall> calls_;
  std::vector<kernels::NetworkGroup> groups_;
  std::vector<at::Tensor> rate_tables_;  // what drives point to
  at::Tensor lists_, counts_, probes_, numbers_;
  kernels::NetworkLaunch launch_;
  kernels::NetworkPlan plan_;
  const jit::LoadedKernel* kernel_ = nullptr;
  // How spikes go between ranks or areas; at most one of them is there.
  std::unique_ptr<PeerExchange> peers_;
  std::unique_ptr<GpuExchange> exchange_;
  // Short blocks are replays of a graph of many.
  std::unique_ptr<LaunchGraph> graph_;
  at::Tensor fired_in_graph_;  // bool [steps, neurons]
  std::vector<at::Tensor> kept_;
};

}  // namespace spikeforge::simulation
