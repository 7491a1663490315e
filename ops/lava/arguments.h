// One call of the lowered operator loihi_forward, beneath loihi_lif, loihi_ternary_lif and their forms.
#pragma once

#include <spikeforge/ops/neuron/layout.h>
#include <spikeforge/runtime/loihi_launch.h>

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace spikeforge::ops {

using LoihiTensors = c10::List<std::optional<at::Tensor>>;

struct LoihiArguments {
  at::Tensor x;
  LoihiTensors states;                  // None: 0
  LoihiTensors params;                  // None: the number
  c10::ArrayRef<std::int64_t> numbers;  // in the order of the parameters
  bool ternary = false;
  LoihiForm form{};
  bool store_states = false;
};

// The allowed range of a parameter: the width of its field in the hardware.
struct LoihiParam {
  const char* name;
  std::int64_t least, most;
};

struct LoihiDescription {
  const char* name;  // of the operator
  std::span<const char* const> states;
  std::span<const LoihiParam> params;
};
const LoihiDescription& describe(bool ternary, LoihiForm form);

// Throws ValueError for any other name than plain, reset and refractory.
LoihiForm parse_form(std::string_view name);
const char* name_of(LoihiForm form);

// What every device does alike: checks, in the order of the arguments; allocation; the plain description that kernels
// take. Int is c10::SymInt where a graph is traced.
template <class Int>
struct LoihiPreparation {
  at::Tensor x;  // with dense steps
  Layout<Int> layout;
};
template <class Int = std::int64_t>
LoihiPreparation<Int> prepare(const LoihiArguments& args);

// Spikes, then states.
template <class Int>
std::vector<at::Tensor> allocate(const LoihiArguments& args, const LoihiPreparation<Int>& prepared);

// Reads the memory of arguments and results; what it cannot read in place goes into `copies`.
LoihiLaunch describe_launch(const LoihiArguments& args, const LoihiPreparation<std::int64_t>& prepared,
                            const std::vector<at::Tensor>& results, Copies& copies);

// Refuses tensors with a value out of range. Reads those on the CPU, and no others.
void check_values(const LoihiArguments& args);

// A kernel for the dispatcher from a function of a call's arguments.
template <std::vector<at::Tensor> (*forward)(const LoihiArguments&)>
std::vector<at::Tensor> loihi_kernel(const at::Tensor& x, const LoihiTensors& states, const LoihiTensors& params,
                                     at::IntArrayRef numbers, bool ternary, std::string_view form, bool store_states) {
  return forward({x, states, params, numbers, ternary, parse_form(form), store_states});
}

}  // namespace spikeforge::ops
