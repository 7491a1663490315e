// Shapes, types and layouts alone, for FakeTensor, torch.compile and torch.export.
#include <spikeforge/ops/lava/arguments.h>

#include <torch/library.h>

namespace spikeforge::ops {
namespace {

std::vector<at::Tensor> forward_meta(const LoihiArguments& args) { return allocate(args, prepare<c10::SymInt>(args)); }

TORCH_LIBRARY_IMPL(spikeforge, Meta, library) { library.impl("loihi_forward", TORCH_FN(loihi_kernel<forward_meta>)); }

}  // namespace
}  // namespace spikeforge::ops
