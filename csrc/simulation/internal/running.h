// The tensors of a built network, and its step by operators, on any device. cpu_steps.h has the faster steps on the
// CPU.
#pragma once

#include "csrc/simulation/internal/description.h"
#include "csrc/simulation/internal/host_exchange.h"
#include "csrc/simulation/internal/notices.h"
#include "csrc/simulation/internal/partition.h"
#include "csrc/simulation/internal/plastic.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace spikeforge::simulation {

class CpuSteps;
class GpuSteps;

// Neighbouring populations of the same neuron, which are stepped together: own neurons begin, ..., end - 1.
struct Group {
  std::int64_t begin = 0, end = 0;
  std::int64_t whole_begin = 0, whole_end = 0;  // neurons of the whole network
  Neuron neuron;
  std::shared_ptr<const TracedCell> cell;
  std::vector<at::Tensor> states;  // [end - begin] each; never reallocated
  std::vector<at::Tensor> params;  // the same, or 0-dimensional
  std::optional<at::Tensor> seed;  // of a neuron that draws random numbers

  std::int64_t size() const { return end - begin; }
};

// The neurons of this rank that one call steps: first, ..., first + size - 1 of a group. Neuron `first` draws the
// random numbers of neuron `drawn` of the whole group.
struct GroupPart {
  std::int64_t first = 0, size = 0, drawn = 0;
};

// Poisson input of columns, at most one per column: overlapping drives are in different layers. A random number depends
// on column, step and seed.
struct PoissonLayer {
  at::Tensor rates, weights;  // [columns]; 0 without input
  at::Tensor seed;
};

// A recorded state: indices of own neurons within the group, on the network's device. `places`, on the CPU, are their
// positions among the requested neurons; no rank has more than `most`.
struct Probe {
  const Group* group = nullptr;
  std::size_t state = 0;
  at::Tensor neurons, places;
  std::int64_t requested = 0, most = 0;
};

// Tensors for the states that a call records: `own` for own neurons, [steps, neurons of the probe], and `whole`,
// [steps, requested neurons]. They are the same tensors if there are no other ranks. All are allocated before the first
// step.
struct RecordedStates {
  std::vector<Probe> probes;
  std::vector<at::Tensor> own, whole;
};

// A tensor that changes in a step. `places` are the indices of its last dimension's elements in the whole network;
// undefined if all ranks have the same tensor.
struct Changing {
  at::Tensor tensor, places;
  std::int64_t whole = 0;
};

// Throws ValueError unless `given` has a tensor for each probe, contiguous [steps, neurons] with these options, for own
// neurons or for all requested ones.
void check_recorded(const char* name, at::TensorList given, const std::vector<Probe>& probes, bool own,
                    std::int64_t steps, const at::TensorOptions& options);

class Running {
 public:
  // Draws the connections. `number` identifies the network on all ranks.
  Running(const Description& description, std::int64_t number);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  // The first rows are own neurons, for connections within areas and on a single rank. If there are connections between
  // areas or ranks, rows for all neurons follow, and a row without connections.
  const Connectivity& matrix() const { return matrix_; }
  Connectivity connectivity() const;
  const Partition& partition() const { return partition_; }
  Ranks* ranks() const { return ranks_.get(); }  // null for one process
  const std::shared_ptr<Ranks>& shared_by() const { return ranks_; }
  std::int64_t number() const { return number_; }
  bool is_shared() const { return exchange_.has_value(); }
  Exchange& exchange() { return *exchange_; }
  // The number of steps between two exchanges of spikes among ranks or areas; 0 without exchanges.
  std::int64_t block() const { return block_; }
  at::TensorOptions options() const { return buffer_.options(); }
  std::int64_t size() const { return size_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t step() const { return step_.item<std::int64_t>(); }

  // Throws ValueError for a population, a state or a neuron that does not exist.
  Probe probe(const StateProbe& requested) const;

  // Throws c10::Error if a failure within a step left the tensors in an inconsistent state.
  void check_is_whole() const;
  bool is_whole() const { return is_whole_; }

  // Prepares a call of `steps` steps: allocates the recorded states that are not given, and throws if the network
  // cannot run the steps: ValueError if a tensor does not fit, or if the weights, whose address kernels and graphs use,
  // were resized; c10::Error if other ranks do not run the same steps. If `own` is false, other calls run the steps.
  RecordedStates begin(std::int64_t steps, const std::vector<StateProbe>& recorded, bool own = true,
                       std::optional<std::vector<at::Tensor>> into = {});

  // Calls f, which runs steps that `begin` prepared. If it throws, the other ranks receive a message, and the network
  // is in the middle of a step unless set_between_steps(true) was called last.
  template <class F> auto take_steps(F&& f) {
    is_between_steps_ = true;
    others_throw_too_ = false;
    awaited_ = 0;
    if (exchange_) exchange_->expect(0, 0);
    try {
      return f();
    } catch (...) {
      fail();
      throw;
    }
  }
  void set_between_steps(bool is) { is_between_steps_ = is; }
  // Marks the end of a step. The other ranks are only guaranteed to be at the same step after the last step of a call.
  void end_step(bool is_last) { is_between_steps_ = is_last || ranks_ == nullptr; }
  bool is_between_steps() const { return is_between_steps_; }

  // Returns the values of all ranks at the beginning of a call (notices.h), or those of this process without ranks.
  std::vector<Numbers> gather_notices(Topic topic, const std::function<Numbers()>& prepare);
  void join(Topic topic, std::int64_t most, const at::Tensor& whole, const at::Tensor& own, const at::Tensor& places);

  // Returns and sets the tensors that change in a step; the second is the number of steps so far. Loading a state makes
  // a failed network usable again.
  std::vector<at::Tensor> state();
  void load_state(at::TensorList state);
  // The changing tensors of this rank, in the order of `state`.
  std::vector<at::Tensor> own_state() const;

  // Sets the number of steps by operators that follow: the other ranks wait for the spikes of each.
  void expect(std::int64_t steps) { awaited_ = ranks_ != nullptr && device_.is_cpu() ? steps : 0; }
  // Runs one step by operators. Returns its spikes, which are valid until the next step. It does not synchronise, and
  // can be captured in a CUDA graph after it has run once.
  const at::Tensor& advance();

  // The plastic connections. On the CPU, arrive() is called before a step, and fire() after it.
  std::deque<PlasticConnections>& plastic() { return plastic_; }
  void arrive(std::int64_t step);
  void fire(std::int64_t step, const std::vector<std::int64_t>& fired);

  // Returns the steps on the CPU, created at the first call.
  CpuSteps& cpu_steps();
  // Returns the steps on a GPU, created at the first call, or null if operators run the steps.
  GpuSteps* gpu_steps();

 private:
  friend class CpuSteps;
  friend class GpuSteps;

  void fail() noexcept;
  void set_not_whole() noexcept;  // called while the exception that is the reason is handled
  void check_is_whole(Topic topic);
  void send_unsent_failure(Topic topic);
  bool send_failed_spikes() noexcept;
  void check_weights() const;
  void forget_exchanges();
  void make_groups(const Description& description);
  void connect(const Description& description);
  void make_drives(const Description& description);
  void make_current(const Description& description);
  void connect_part(const Description& description, const std::vector<Projection>& projections);
  struct Extent;
  void make_rings(const Description& description, const Extent& own, const Extent& all);
  std::vector<Changing> changing() const;
  std::int64_t most_of_a_rank(const StateProbe& requested) const;
  std::vector<GroupPart> parts_of(const Group& group) const;
  void deliver_by_operators();
  at::Tensor gather_spikes(const at::Tensor& own);
  at::Tensor joined_spikes(const at::Tensor& own);
  void make_whole_drives();
  at::Tensor driven(const at::Tensor& arriving);

  const Partition partition_;
  const std::shared_ptr<Ranks> ranks_;
  const std::int64_t number_;
  bool is_whole_ = true, is_between_steps_ = true;
  std::string why_not_whole_;
  bool others_throw_too_ = false;
  Failure unsent_failure_{};  // the failure of this rank, for its next message
  std::int64_t awaited_ = 0;  // steps by operators for whose spikes the other ranks wait
  std::optional<Exchange> exchange_;
  std::int64_t block_ = 0;
  int doublings_ = 0;  // for the entry that accounts for the weights of other ranks (deliver_by_operators)
  const std::vector<Population> populations_;
  const bool deterministic_;
  const c10::Device device_;
  const std::int64_t size_ = 0, inputs_ = 1, columns_ = 0;
  std::vector<Group> groups_;
  std::vector<std::size_t> group_of_;  // the group of each population
  const Neuron poisson_;
  std::vector<PoissonLayer> drives_, whole_drives_;  // the second for the columns of all ranks, for operators
  at::Tensor own_columns_;                           // their indices in the columns of all ranks
  Connectivity matrix_;
  at::Tensor near_;  // int32 [size], on a GPU: the number of connections of delay 1 at the front of a row
  std::deque<PlasticConnections> plastic_;
  const void* weights_at_ = nullptr;
  at::Tensor buffer_;   // [slots, columns]: values in flight
  at::Tensor between_;  // the same between areas, if there are also connections within areas; else undefined
  at::Tensor step_;     // int64, 0-dimensional, on the device
  at::Tensor spikes_;   // [size], of the last step
  at::Tensor current_;  // [columns]; undefined if there is none
  std::unique_ptr<CpuSteps> cpu_steps_;
  std::optional<std::unique_ptr<GpuSteps>> gpu_steps_;  // set at the first use; null if operators run the steps
};

}  // namespace spikeforge::simulation
