// The lowered operator loihi_forward, beneath loihi_lif, loihi_ternary_lif and their forms.
#include "csrc/kernels/multistep/loihi_cells.h"
#include "ops/common/library.h"
#include "ops/loihi/connections.h"
#include "ops/loihi/neuron_call.h"
#include "ops/multistep/samples.h"

#include <ATen/core/List.h>
#include <c10/util/Exception.h>

#include <limits>
#include <optional>
#include <string_view>
#include <vector>

namespace spikeforge::ops {

using LoihiTensors = c10::List<std::optional<at::Tensor>>;

void check_thresholds(const LoihiCell& cell, const LoihiTensors& params, c10::ArrayRef<std::int64_t> numbers) {
  using Ternary = Loihi<true, LoihiForm::plain>;
  const auto is_tensor = [&](std::size_t j) {
    const std::optional<at::Tensor> given = params.get(j);
    return given.has_value() && given->defined();
  };
  if (!cell.ternary || is_tensor(Ternary::vth) || is_tensor(Ternary::vth_lo)) return;
  const std::int64_t high = numbers[Ternary::vth], low = numbers[Ternary::vth_lo];
  TORCH_CHECK_VALUE(low <= high, cell.name, ": vth_lo must not be above vth_hi, but is ", low, ", and vth_hi is ",
                    high);
}

namespace {

LoihiForm parse_form(std::string_view name) {
  for (const LoihiForm form : {LoihiForm::plain, LoihiForm::reset, LoihiForm::refractory})
    if (name == name_of(form)) return form;
  TORCH_CHECK_VALUE(false, "loihi_forward: form must be plain, reset or refractory, but is ", name);
}

Tensors undefined_for_none(const LoihiTensors& list) {
  Tensors tensors;
  for (const std::optional<at::Tensor> t : list) tensors.push_back(t.value_or(at::Tensor()));
  return tensors;
}

// Refuses tensors with a value out of range. Reads those on the CPU, and no others.
void check_values(const MultistepCall& call) {
  constexpr std::int64_t most_state = std::int64_t{1} << 23;  // of u and v
  const Cell& cell = *call.cell;
  for (std::size_t s = 0; s < cell.states.size(); ++s)
    if (call.state(s).defined()) {
      const bool counts = s == 2;
      check_elements(cell.name.c_str(), cell.states[s].c_str(), call.state(s), counts ? 0 : -most_state,
                     counts ? std::numeric_limits<std::int32_t>::max() : most_state);
    }
  for (std::size_t j = 0; j < cell.params.size(); ++j)
    if (call.param(j).defined())
      check_elements(cell.name.c_str(), cell.params[j].name.c_str(), call.param(j), cell.params[j].least,
                     cell.params[j].most);
}

// A kernel for the dispatcher. None is a state of 0, or a parameter that is a number. `reads` where there are values.
template <MultistepResults (*forward)(const MultistepCall&, bool save), bool reads>
std::vector<at::Tensor> loihi_forward(const at::Tensor& x, const LoihiTensors& states, const LoihiTensors& params,
                                      at::IntArrayRef numbers, bool ternary, std::string_view form, bool store_states,
                                      const std::optional<at::Tensor>& lengths,
                                      const std::optional<at::Tensor>& start) {
  const LoihiCell& cell = loihi_cell(ternary, parse_form(form));
  TORCH_CHECK_VALUE(states.size() == cell.states.size(), cell.name, ": states must have ", cell.states.size(),
                    " entries, but has ", states.size());
  TORCH_CHECK_VALUE(params.size() == cell.params.size() && numbers.size() == cell.params.size(), cell.name,
                    ": params and numbers must have ", cell.params.size(), " entries, but have ", params.size(),
                    " and ", numbers.size());
  const Tensors given_states = undefined_for_none(states), given_params = undefined_for_none(params);
  const c10::SmallVector<double, 8> doubles(numbers.begin(), numbers.end());
  MultistepCall call;
  call.cell = &cell;
  call.inputs = x;
  call.states = given_states;
  call.params = given_params;
  call.numbers = doubles;
  call.store_states = store_states;
  set_samples(call, lengths, start);
  check_arguments(call);  // what is wrong with shapes and types comes first
  check_thresholds(cell, params, numbers);
  if constexpr (reads) check_values(call);
  MultistepResults results = forward(call, /*save=*/false);
  std::vector<at::Tensor> all{std::move(results.outputs[0])};
  for (at::Tensor& state : results.states) all.push_back(std::move(state));
  return all;
}

SPIKEFORGE_KERNELS(CPU, library) { library.impl("loihi_forward", TORCH_FN((loihi_forward<forward_cpu, true>))); }
SPIKEFORGE_KERNELS(Meta, library) { library.impl("loihi_forward", TORCH_FN((loihi_forward<forward_meta, false>))); }
#if defined(SPIKEFORGE_WITH_CUDA)
SPIKEFORGE_KERNELS(CUDA, library) { library.impl("loihi_forward", TORCH_FN((loihi_forward<forward_cuda, true>))); }
#endif

}  // namespace
}  // namespace spikeforge::ops
