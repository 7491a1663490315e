// One step of a trace that spikes increase and that decays, as in plasticity rules: two results and two scalars. The
// vjp and the jvp are functions of torch's operators.
#include <spikeforge/custom_op/custom_op.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <vector>

namespace {

using spikeforge::custom_op::Arguments;
using spikeforge::custom_op::Result;
using spikeforge::custom_op::Tensors;

double decay_of(const Arguments& in) { return std::exp(-in.number("dt") / in.number("tau")); }

template <class T> void step_of(Tensors out, const Arguments& in) {
  const T decay = static_cast<T>(decay_of(in));
  const T* const trace = in.tensor("trace").const_data_ptr<T>();
  const T* const spikes = in.tensor("spikes").const_data_ptr<T>();
  T* const next = out[0].mutable_data_ptr<T>();
  T* const change = out[1].mutable_data_ptr<T>();
  at::parallel_for(0, out[0].numel(), 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      next[i] = decay * trace[i] + spikes[i];
      change[i] = next[i] - trace[i];
    }
  });
}

void step_cpu(Tensors out, const Arguments& in) {
  in.dtype("trace") == at::kDouble ? step_of<double>(out, in) : step_of<float>(out, in);
}

constexpr const char* step_cuda = R"(
extern "C" __global__ void synaptic_trace(Array<const trace_t> trace, Array<const spikes_t> spikes, double tau,
                                          double dt, Array<next_t> next, Array<change_t> change) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= trace.numel) return;
  const next_t decay = exp(-dt / tau);
  next[i] = decay * trace[i] + spikes[i];
  change[i] = next[i] - trace[i];
}
)";

// next = decay * trace + spikes, change = next - trace.
std::vector<at::Tensor> vjp(const Arguments& in, Tensors grads) {
  const at::Tensor both = grads[0] + grads[1];
  return {both * decay_of(in) - grads[1], both};
}

std::vector<at::Tensor> jvp(const Arguments& in, Tensors tangents) {
  const at::Tensor next = tangents[0] * decay_of(in) + tangents[1];
  return {next, next - tangents[0]};
}

spikeforge::CustomOp synaptic_trace() {
  spikeforge::CustomOp op(
      "mine::synaptic_trace(Tensor trace, Tensor spikes, float tau, float dt=1.0) -> (Tensor next, Tensor change)");
  op.shapes([](const Arguments& in) {
      return std::vector<Result>{in.like("trace"), in.like("trace")};
    })
      .dtypes("trace", {at::kFloat, at::kDouble})
      .cpu(step_cpu)
      .cuda({.source = step_cuda, .entry = "synaptic_trace"})
      .vjp(vjp)
      .jvp(jvp);
  return op;
}

}  // namespace

SPIKEFORGE_OPERATORS() { return {synaptic_trace()}; }
