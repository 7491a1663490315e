// Folds torch.vmap's dimension into the shape of a step, and unfolds it.
#pragma once

#include "ops/common/vmap_level.h"
#include "ops/multistep/multistep.h"

#include <c10/core/SymIntArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace spikeforge::ops {

// The dimension at which the shape of the step begins.
constexpr std::int64_t in_step = 0, in_sequence = 1, in_checkpoints = 2;

using Folded = c10::SmallVector<at::Tensor, 10>;

// The tensors of a call, in lists to which a call can point.
struct CallTensors {
  Folded inputs, states, params;
  at::Tensor lengths, start;

  void set(MultistepCall& call) const {
    call.inputs = inputs;
    call.states = states;
    call.params = params;
    call.lengths = lengths;
    call.start = start;
  }
};

// The innermost torch.vmap of a multistep call, whose mapped dimensions become one more dimension of neurons.
class FoldingLevel : public VmapLevel {
 public:
  explicit FoldingLevel(const MultistepCall& call) {
    for (const at::TensorList list : {call.inputs, call.states, call.params}) find(list);
    find(call.lengths);
    find(call.start);
  }

  void find(at::TensorList list) {
    for (const at::Tensor& t : list)
      if (t.defined()) VmapLevel::find(t);
  }

  using VmapLevel::folded;
  Folded folded(at::TensorList list, std::int64_t place) const {
    Folded result;
    for (const at::Tensor& t : list) result.push_back(folded(t, place));
    return result;
  }

  // Aligns a mapped parameter with the last dimensions of a step of `rank` dimensions. A parameter that is not mapped
  // broadcasts unchanged, unless each map needs a separate gradient (`always`).
  at::Tensor folded_param(const at::Tensor& t, std::int64_t rank, bool always) const {
    if (!t.defined() || (!maps(t) && !always)) return t;
    at::Tensor param = folded(t, 0);
    while (param.dim() < 1 + rank) param = param.unsqueeze(1);
    return param;
  }

  // Folds lengths or starts of samples, with one element in the mapped dimension if they are the same for all maps.
  at::Tensor folded_samples(const at::Tensor& t, std::int64_t place) const {
    return t.defined() && !maps(t) ? t.unsqueeze(place) : folded(t, place);
  }

  // Removes the dimensions that were added for alignment from the gradient of a parameter of `dims` dimensions.
  static at::Tensor without_alignment(at::Tensor grad, std::int64_t dims) {
    while (grad.dim() > 1 + dims) grad = grad.squeeze(1);
    return grad;
  }

  // always(j): true if parameter j gets a dimension for the maps in any case.
  template <class Always> CallTensors folded(const MultistepCall& call, const Always& always) const {
    CallTensors tensors{folded(call.inputs, in_sequence),
                        folded(call.states, in_step),
                        {},
                        folded_samples(call.lengths, in_step),
                        folded_samples(call.start, in_sequence)};
    const std::int64_t rank = call.inputs.empty() || call.inputs[0].dim() == 0 ? 0 : call.inputs[0].dim() - 1;
    for (std::size_t j = 0; j < call.params.size(); ++j)
      tensors.params.push_back(folded_param(call.params[j], rank, always(j)));
    return tensors;
  }

  Tensors all_mapped(Tensors results, std::int64_t place) const {
    for (at::Tensor& t : results) t = mapped(t, place);
    return results;
  }

  // The listed gradients of a call, from those of the folded call.
  Tensors mapped_gradients(const BackwardCall& call, Tensors gradients) const {
    const std::size_t inputs = call.inputs.size(), first_param = inputs + call.cell->states.size();
    auto* next = gradients.begin();
    for (std::size_t i = 0; i < call.needs_grad.size(); ++i) {
      if (!call.needs_grad[i]) continue;
      at::Tensor& grad = *next++;
      if (i >= first_param) grad = without_alignment(grad, call.params[i - first_param].dim());
      grad = mapped(grad, i < inputs ? in_sequence : in_step);
    }
    return gradients;
  }
};

}  // namespace spikeforge::ops
