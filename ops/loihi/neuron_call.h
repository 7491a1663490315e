// A call of one of Loihi's neurons, in the order of the cell's states and parameters, and its execution.
#pragma once

#include "csrc/kernels/multistep/loihi_cells.h"

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spikeforge::ops {

struct LoihiCall {
  using MaybeTensor = std::optional<at::Tensor>;

  at::Tensor x;
  c10::List<MaybeTensor> states, params;
  std::vector<std::int64_t> numbers;
  bool store_states = false;
  MaybeTensor lengths, start;
  // For a call with floating-point tensors.
  std::string surrogate = "sigmoid";
  std::vector<double> surrogate_args;
  bool detach_reset = false;

  void add(MaybeTensor tensor, std::int64_t number) {
    params.push_back(std::move(tensor));
    numbers.push_back(number);
  }
};

// Throws ValueError if both thresholds of a ternary neuron are numbers, and the lower one is above the upper one.
void check_thresholds(const LoihiCell& cell, const c10::List<std::optional<at::Tensor>>& params,
                      c10::ArrayRef<std::int64_t> numbers);

// Returns the differentiable spikes and states of a call whose x is floating point.
std::vector<at::Tensor> run_differentiably(const LoihiCell& cell, const LoihiCall& call);

// ---- neurons as text (fixed_texts.cpp) ----

// Returns a surrogate in the form of neuron text. Throws ValueError with `op` in the message.
std::string surrogate_text(const char* op, std::string_view name, c10::ArrayRef<double> args);

// Returns a text with the input x and the states and parameters of the cell, except bias_exp: bias_mant is the whole
// bias.
std::string fixed_lif_text(const LoihiCell& cell, const std::string& surrogate, bool detach_reset);

}  // namespace spikeforge::ops
