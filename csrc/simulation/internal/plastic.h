// A plastic projection of a running network: its connections, the states and traces of its rule, and its part of a step
// on the CPU. plastic_operators.h implements a step by operators, on any device.
//
// A spike of step s reaches a connection of delay d in step s + d, and the connection reads the traces of the
// presynaptic neuron with the same delay: those of step t - d in step t. The traces are therefore stored in a ring
// of all steps that a connection may still read. Presynaptic traces lag the network by the shortest delay d: step t
// updates them with the spikes of step t - d.
#pragma once

#include "csrc/simulation/internal/description.h"
#include "ops/common/plastic.h"
#include "ops/connect.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace spikeforge::simulation {

class PlasticOperators;

class PlasticConnections {
 public:
  // Draws the connections of a network with this number of columns, or of a copy.
  PlasticConnections(const DescribedPlastic& described, const Description& description, std::int64_t columns,
                     std::int64_t seed);
  PlasticConnections(const PlasticConnections&) = delete;
  PlasticConnections& operator=(const PlasticConnections&) = delete;
  ~PlasticConnections();

  // Created at the first call.
  PlasticOperators& operators();

  // Applies the spikes that arrive in this step, and adds their sent values to `columns`, the slot of the step.
  void arrive(std::int64_t step, void* columns);
  // Applies the neurons that fired in this step, in ascending order; then signals and "each step". The neurons of the
  // copy are those from `first` on.
  void fire(std::int64_t step, const std::vector<std::int64_t>& fired, std::int64_t first);

  // Sets a signal for the following steps. Undefined: the signal is absent.
  void set_signal(std::size_t number, const at::Tensor& value);

  // Returns the connections and states after the last step, without a copy. Rows are sources and columns targets, both
  // from 0.
  Learned learned(std::int64_t step);
  const graph::Synapse& synapse() const { return rule_.synapse(); }

  // True if the states have their original memory: callers may write into them, but must not resize them.
  bool are_there() const;

  // Returns the tensors that change in a step, without a copy. After a write to them, call `loaded` before `arrive`.
  std::vector<at::Tensor> changing() const;
  void loaded();

 private:
  friend class PlasticOperators;

  void connect(const Description& description, std::int64_t columns, std::int64_t seed);
  void sort_by_delay();
  void describe_to_cpu();
  void make_memory();
  ops::plastic::Memory memory(std::int64_t step) const;
  void advance_traces(std::int64_t emitted);

  std::int64_t slots() const { return longest_ - shortest_ + 1; }

  DescribedPlastic described_;
  const ops::plastic::BoundRule rule_;
  const std::int64_t rows_, cols_, first_column_;
  const at::ScalarType dtype_;
  const bool on_cpu_, deterministic_;

  Connectivity matrix_;
  at::Tensor by_columns_, columns_begin_, slots_of_;  // the matrix by columns
  std::vector<std::int64_t> delays_;                  // the distinct delays, in ascending order
  std::int64_t shortest_ = 1, longest_ = 1;
  ops::plastic::Matrix plain_;

  std::vector<at::Tensor> states_;          // [connections] each
  at::Tensor last_;                         // int32 [connections]; undefined if no state decays
  std::vector<at::Tensor> before_, after_;  // of each trace, before and after its neuron's spike: [slots, rows] for
                                            // presynaptic traces; for postsynaptic traces only after_, [cols]
  at::Tensor history_;                      // bool [longest + 1, rows]: spikes of the last steps
  std::vector<std::vector<std::int32_t>> lists_;  // the same as lists
  std::vector<at::Tensor> signals_;               // on a GPU [cols] each, at addresses that graphs use
  std::vector<bool> comes_;                       // on the CPU
  std::vector<std::int64_t> offsets_;             // by delay: the offset of the traces that its connections read
  ops::plastic::Segments segments_;
  std::vector<std::int32_t> fired_columns_;
  std::optional<ops::plastic::Step> step_;
  std::unique_ptr<PlasticOperators> operators_;
};

}  // namespace spikeforge::simulation
