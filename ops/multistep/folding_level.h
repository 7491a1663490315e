// How torch.vmap's dimension is folded into the shape of a step, and unfolded again.
#pragma once

#include "ops/common/vmap_level.h"
#include "ops/multistep/multistep.h"

#include <c10/core/SymIntArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace spikeforge::ops {

// The position of the step's shape.
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

  // With the mapped dimension at `place`, also where it is the same for all of it.
  at::Tensor folded(const at::Tensor& t, std::int64_t place) const {
    if (!t.defined()) return t;
    if (const auto* const batched = of(t)) return batched->value().movedim(batched->bdim(), place);
    c10::SymDimVector sizes(t.sym_sizes().begin(), t.sym_sizes().end());
    sizes.insert(sizes.begin() + place, size());
    return t.unsqueeze(place).expand_symint(sizes);
  }
  Folded folded(at::TensorList list, std::int64_t place) const {
    Folded result;
    for (const at::Tensor& t : list) result.push_back(folded(t, place));
    return result;
  }

  // A parameter aligns with the last dimensions of a step of `rank` dimensions. One that is not mapped broadcasts as it
  // is, unless each map is to have its own gradient.
  at::Tensor folded_param(const at::Tensor& t, std::int64_t rank, bool always) const {
    if (!t.defined() || (!maps(t) && !always)) return t;
    at::Tensor param = folded(t, 0);
    while (param.dim() < 1 + rank) param = param.unsqueeze(1);
    return param;
  }

  // Lengths or starts of samples: of one element there where they are the same for all maps.
  at::Tensor folded_samples(const at::Tensor& t, std::int64_t place) const {
    return t.defined() && !maps(t) ? t.unsqueeze(place) : folded(t, place);
  }

  // The gradient of one of `dims` dimensions, without those that aligned it.
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
