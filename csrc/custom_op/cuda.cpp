#include "csrc/custom_op/internal/call_of_user.h"
#include "csrc/custom_op/internal/cuda_kernels.h"
#include "csrc/custom_op/internal/operator.h"

#ifdef SPIKEFORGE_WITH_CUDA
#include "ops/common/on_stream.h"

#include <c10/cuda/CUDAGuard.h>
#endif
#include <ATen/ops/empty.h>

#include <utility>

namespace spikeforge::custom_op {

void call_on_cuda(const DispatchedCall& call) {
  const Operator& op = *call.op;
  if (op.definition.cuda.index() == 0 && op.definition.cpu_for_missing_devices)
    return op.run_on_cpu_by_copies(call.stack);
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.definition.cuda.index() != 0, op.name,
      " has a kernel for the CPU only: define it with one for CUDA (cuda), or call it with CPU tensors");
#ifdef SPIKEFORGE_WITH_CUDA
  const at::Tensor& leader = op.prepare(call.stack);
  const c10::cuda::CUDAGuard guard(leader.device());
  const Arguments in = op.arguments(op.values(call.stack));
  if (const auto* const compute = std::get_if<Compute>(&op.definition.cuda)) {
    TensorVector results = call_of_user(op.name, "its function", [&] { return (*compute)(in); });
    op.check_results("its function", results);
    return op.replace(call.stack, std::move(results));
  }
  TensorVector out = op.allocate(in, leader);
  if (const auto* const function = std::get_if<Kernel>(&op.definition.cuda))
    call_of_user(op.name, "its CUDA function", [&] { (*function)(out, in); });
  else
    op.cuda_kernels()->launch(in, out, ops::gpu_of(leader), ops::stream_of(leader));
  op.replace(call.stack, std::move(out));
#else
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.name, ": this spikeforge was built with a torch for the CPU only");
#endif
}

void Operator::compile(const std::string& arch, const torch::jit::Stack& stack) const {
  TORCH_CHECK_VALUE(cuda_kernels_ != nullptr, name, ": it has no CUDA source to compile");
  torch::jit::Stack shapes_only(stack);
  for (std::size_t i = 0; i < shapes_only.size(); ++i)
    shapes_only[i] = exchanged(kinds[i], shapes_only[i], [](const at::Tensor& t) {
      return t.defined() ? t.to(at::TensorOptions(c10::kMeta)) : t;
    });
  const Arguments in = arguments(shapes_only);
  check_dtypes(shapes_only);
  cuda_kernels_->compile(in, allocate(in, at::empty({0}, at::TensorOptions(c10::kMeta))), arch);
}

}  // namespace spikeforge::custom_op
