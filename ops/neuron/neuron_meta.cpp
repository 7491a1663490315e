// Shapes, types and layouts alone, for FakeTensor, torch.compile and torch.export.
#include <spikeforge/ops/neuron/lowered.h>
#include <spikeforge/ops/neuron/prepare.h>

namespace spikeforge::ops {
namespace {

ForwardResults forward_meta(const NeuronArguments& args, bool save) {
  return allocate_forward(args, prepare<c10::SymInt>(args), save);
}

std::vector<at::Tensor> backward_meta(const BackwardArguments& args) {
  const auto prepared = prepare<c10::SymInt>(args);
  check_backward(args, prepared);
  BackwardResults results = allocate_backward(args, prepared);
  allocate_grad_params(args, prepared, results);
  return reduce_and_list(args, results);
}

TORCH_LIBRARY_IMPL(spikeforge, Meta, library) { register_lowered<forward_meta, backward_meta>(library); }

}  // namespace
}  // namespace spikeforge::ops
