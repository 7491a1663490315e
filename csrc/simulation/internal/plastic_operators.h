// A step of plastic connections by operators, on any device. Nothing waits for a GPU, so that steps can
// be captured in a CUDA graph.
//
// A line is a presynaptic neuron at one of the delays. Operators treat it as a separate neuron with contiguous
// connections, whose spikes and traces are delayed by that number of steps.
#pragma once

#include "ops/event.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace spikeforge::simulation {

class PlasticConnections;

class PlasticOperators {
 public:
  // With `deterministic`, arriving sums have the same bits in every run on a GPU too. The rule must then send weights.
  PlasticOperators(PlasticConnections& connections, bool deterministic);
  PlasticOperators(const PlasticOperators&) = delete;
  PlasticOperators& operator=(const PlasticOperators&) = delete;

  // Applies the spikes that arrive in this step, a 0-dimensional int64, and adds their sent values to `arriving`
  // [columns].
  void arrive(const at::Tensor& step, const at::Tensor& arriving);
  // Applies the neurons whose entry of `spikes` [neurons] is above 0; then signals and "each step".
  void fire(const at::Tensor& step, const at::Tensor& spikes);
  // Updates decaying states to this step.
  void refresh(const at::Tensor& step);

 private:
  void make_lines();
  void advance_traces(const at::Tensor& emitted);
  at::Tensor steps_ago(const at::Tensor& ring, const at::Tensor& step) const;
  std::vector<at::Tensor> traces(const std::vector<at::Tensor>& rings, const at::Tensor& step) const;
  std::vector<at::Tensor> states() const;
  std::vector<std::optional<at::Tensor>> signals() const;
  at::Tensor run(const std::string& rule, const std::vector<at::Tensor>& traces, const at::Tensor& pre,
                 const at::Tensor& post, PlasticOptions options) const;
  at::Tensor sums_of(const at::Tensor& pre, const at::Tensor& step) const;

  PlasticConnections& connections_;
  const bool deterministic_;
  std::string before_, arrival_, after_;  // the texts of the rule's parts
  bool has_more_ = false;                 // true if the last part is not empty
  at::Tensor delays_;                     // int64, the distinct delays
  Connections lines_, unconnected_;       // of all presynaptic neurons; one without connections
  ByColumns columns_, no_columns_;
  at::Tensor no_line_, no_column_, nobody_;  // bool: nothing fires
};

}  // namespace spikeforge::simulation
