// The CUDA source of an operator, compiled for what calls bring.
#pragma once

#include "csrc/base/published_map.h"
#include "csrc/custom_op/internal/operator.h"
#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"

#include <functional>
#include <string>

namespace spikeforge::custom_op {

class CudaKernels {
 public:
  // Keeps both. Throws ValueError for arguments that a CUDA kernel cannot take.
  CudaKernels(const CudaKernel& kernel, const Operator& op);

  // Compiles for a GPU such as "sm_90" and the dtypes of these tensors, into the caches; needs no GPU. Throws
  // CompileError, and TypeError for a dtype that kernels do not support.
  void compile(const Arguments& in, Tensors out, const std::string& arch) const;

  // For the kernel pack that is being recorded, if one is. Throws as compile does.
  void note(const Arguments& in, Tensors out) const;

  // On the current device. Compiles at the first call with these dtypes; later ones cost a look-up without a lock.
  void launch(const Arguments& in, Tensors out, const jit::Device& device, void* stream) const;

 private:
  template <class Use> decltype(auto) with_source(const Arguments& in, Tensors out, Use&& use) const;

  const CudaKernel& kernel_;
  const Operator& op_;
  mutable PublishedMap<std::string, const jit::LoadedKernel, std::hash<std::string>> loaded_;
};

}  // namespace spikeforge::custom_op
