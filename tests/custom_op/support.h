// Shared by the tests of custom operators: small operators, unique names, and error messages.
#pragma once

#include "csrc/custom_op/custom_op.h"
#include "csrc/jit/errors.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace spikeforge::test {

using custom_op::Arguments;
using custom_op::CudaKernel;
using custom_op::Result;
using custom_op::Tensors;
using TensorVector = std::vector<at::Tensor>;

inline std::vector<Result> like_x(const Arguments& in) { return {in.like("x")}; }

inline constexpr const char* scaled_cuda = R"(
extern "C" __global__ void scaled(Array<const x_t> x, double factor, Array<y_t> y) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < x.numel) y[i] = convert<y_t>(static_cast<float>(factor) * convert<float>(x[i]));
}
)";

// y = factor x, without a gradient.
inline CustomOp scaled(const std::string& name) {
  CustomOp op("test_custom::" + name + "(Tensor x, float factor=2.0) -> Tensor y");
  op.shapes(like_x)
      .cpu([](Tensors out, const Arguments& in) { out[0].copy_(in.tensor("x") * in.number("factor")); })
      .cuda({.source = scaled_cuda, .entry = "scaled"});
  return op;
}

inline bool is_registered(const std::string& name) {
  return c10::Dispatcher::singleton().findSchema({"test_custom::" + name, ""}).has_value();
}

inline TensorVector call(const std::string& name, std::vector<c10::IValue> arguments) {
  c10::Dispatcher::singleton().findSchemaOrThrow(("test_custom::" + name).c_str(), "").callBoxed(arguments);
  TensorVector results;
  for (const c10::IValue& value : arguments) results.push_back(value.toTensor());
  return results;
}

inline bool has_nvrtc() {
  static const bool has = [] {
    try {
      scaled("probe").registered().compile("sm_90", {at::ones({1})});
      return true;
    } catch (const jit::NvrtcNotFound&) {
      return false;
    }
  }();
  return has;
}

}  // namespace spikeforge::test

#define REQUIRE_NVRTC_OR_SKIP() \
  if (!spikeforge::test::has_nvrtc()) SPIKEFORGE_SKIP("this machine has no NVRTC; pip install nvidia-cuda-nvrtc")

// SPIKEFORGE_REQUIRE_CUDA=1 makes it a failure.
#define REQUIRE_CUDA_OR_SKIP()                                                                               \
  if (!at::hasCUDA()) {                                                                                      \
    const char* const needed = std::getenv("SPIKEFORGE_REQUIRE_CUDA");                                       \
    if (needed != nullptr && std::string(needed) == "1") FAIL("no CUDA GPU, but SPIKEFORGE_REQUIRE_CUDA=1"); \
    SPIKEFORGE_SKIP("no CUDA GPU on this machine");                                                          \
  }
