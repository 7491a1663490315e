// Steps of a network on a GPU: one cooperative kernel walks over many of them (cuda/network.cuh), so that a step costs
// what its dependencies cost.
#pragma once

#include <spikeforge/kernels/network/launch.h>
#include <spikeforge/simulation/internal/group_call.h>
#include <spikeforge/simulation/internal/running.h>

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

  // Records into `fired`, bool [at least `steps`, neurons] or undefined, and into rows from `row` on of `states`.
  void run(std::int64_t steps, const at::Tensor& fired, std::int64_t row);

  // What `run` records of states from here on: [rows, neurons of the probe] each.
  void record(const std::vector<Probe>& probes, const std::vector<at::Tensor>& states);

 private:
  explicit GpuSteps(Running& running);

  void make_groups();
  void make_drives();
  bool plan();

  Running& running_;
  std::deque<GroupCall> calls_;
  std::vector<kernels::NetworkGroup> groups_;
  std::vector<at::Tensor> rate_tables_;  // what drives point to
  at::Tensor lists_, counts_, probes_;
  kernels::NetworkLaunch launch_;
  kernels::NetworkPlan plan_;
  const jit::LoadedKernel* kernel_ = nullptr;
};

}  // namespace spikeforge::simulation
