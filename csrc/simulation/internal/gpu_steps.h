// Steps of a network on a GPU: one cooperative kernel runs many of them (cuda/network/network.cuh), so that the time of
// a step is that of its dependencies.
#pragma once

#include "csrc/kernels/network/launch.h"
#include "csrc/simulation/internal/call_guard.h"
#include "csrc/simulation/internal/engine.h"
#include "csrc/simulation/internal/gpu_exchange.h"
#include "csrc/simulation/internal/gpu_streams.h"
#include "csrc/simulation/internal/group_call.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace spikeforge::simulation {

class GpuSteps final : public Engine {
 public:
  // Returns null if operators have to step the network: on other devices, for deterministic sums, and for networks that
  // the kernel does not support (kernels/network/launch.h).
  static std::unique_ptr<GpuSteps> make(NetworkState& state, CallGuard& guard);

  Spikes run(const Steps& steps, bool spikes, const RecordedStates& states) override;
  void step(const Steps& steps, const at::Tensor& fired) override;

 private:
  template <class Place, class Listed> void run_launches(const Steps& steps, const Place& fired, const Listed& listed);
  void set_input(const ExternalInput& input, std::int64_t first, std::int64_t count);
  GpuSteps(NetworkState& state, CallGuard& guard);

  // Records spikes into `fired`, bits, bool [`steps`, neurons] or undefined, and into rows from `row` on of the
  // recorded states. Spikes between ranks or areas are exchanged after every block and at the end.
  void launch(std::int64_t steps, const at::Tensor& fired, std::int64_t row);

  // Repeats steps whose spikes exceeded the lists between ranks: `keep` is called before them, and `goes_back` after
  // them, which returns true if they are to be repeated. Throws c10::Error if a rank has ended.
  void keep();
  bool goes_back();

  // Returns the number of steps that run fastest in one launch; other numbers should be multiples of it.
  std::int64_t at_once() const;
  std::int64_t steps_of_a_launch() const;
  at::Tensor spikes_of_steps(std::int64_t steps) const;

  // Sets the tensors into which `launch` records states: [rows, neurons of the probe] each.
  void record(const std::vector<Probe>& probes, const std::vector<at::Tensor>& states);

  void make_groups();
  void make_drives();
  bool plan();
  bool may_skip() const;
  void wake(bool has_new_input);
  void count_stepped();
  void walk(std::int64_t steps, const at::Tensor& fired, std::int64_t row);
  void run_blocks(std::int64_t steps, const at::Tensor& fired, std::int64_t row);
  bool repeats() const;

  NetworkState& state_;
  CallGuard& guard_;
  std::deque<GroupCall> calls_;
  std::vector<kernels::NetworkGroup> groups_;
  std::vector<at::Tensor> rate_tables_;  // memory that drives point to
  at::Tensor lists_, counts_, probes_, numbers_;
  at::Tensor input_, places_;  // of the caller, and the places of columns in it
  InputColumns columns_of_input_;
  bool had_input_ = false;           // in the last launch, for the same columns
  std::int64_t first_of_input_ = 0;  // the step of the call for the first row of input_
  kernels::NetworkLaunch launch_;
  // A kernel that steps all neurons, and one that skips those that rest, if the network allows it. Loaded at first use.
  struct Kernel {
    kernels::NetworkPlan plan;
    const jit::LoadedKernel* loaded = nullptr;
  };
  Kernel all_, awake_;
  const Kernel* last_ = nullptr;             // of the last launch
  at::Tensor until_, until_base_, stepped_;  // network::Arguments; undefined if no kernel skips neurons
  std::uint64_t version_ = 0;                // of the states that until_ describes
  std::int64_t steps_without_skips_ = 0;     // that follow, because most neurons were awake
  std::int64_t rounds_ = 0;                  // that added to stepped_
  // The exchange of spikes between ranks or areas; at most one of these is not null.
  std::unique_ptr<PeerExchange> peers_;
  std::unique_ptr<GpuExchange> exchange_;
  // Several short blocks run as one replay of a graph.
  std::unique_ptr<LaunchGraph> graph_;
  at::Tensor fired_in_graph_;
  std::vector<at::Tensor> kept_;
};

}  // namespace spikeforge::simulation
