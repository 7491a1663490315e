// The CUDA source of an operator, compiled for the dtypes of calls.
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
  // Keeps references to both. Throws ValueError for arguments that a CUDA kernel does not support.
  CudaKernels(const CudaKernel& kernel, const Operator& op);

  // Compiles for a GPU such as "sm_90" and the dtypes of these tensors, into the caches; needs no GPU. Throws
  // CompileError, and TypeError for a dtype that kernels do not support.
  void compile(const Arguments& in, Tensors out, const std::string& arch) const;

  // Adds the kernel to the kernel pack that is being recorded, if any. Throws like compile().
  void note(const Arguments& in, Tensors out) const;

  // Launches the kernel on the current device. The first call with these dtypes compiles it; later calls cost a look-up
  // without a lock.
  void launch(const Arguments& in, Tensors out, const jit::Device& device, void* stream) const;

 private:
  template <class Use> decltype(auto) with_source(const Arguments& in, Tensors out, Use&& use) const;

  const CudaKernel& kernel_;
  const Operator& op_;
  mutable PublishedMap<std::string, const jit::LoadedKernel, std::hash<std::string>> loaded_;
};

}  // namespace spikeforge::custom_op
