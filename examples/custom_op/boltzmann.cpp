// The share of a channel's gates that are open at the voltage v: an element-wise operator, written as a lambda. Its
// kernels and its gradient are generated from the lambda.
#include <spikeforge/custom_op/elementwise.h>

namespace {

using spikeforge::graph::Value;

spikeforge::CustomOp boltzmann() {
  return spikeforge::elementwise("mine::boltzmann(Tensor v, Tensor v_half, float slope=5.0) -> Tensor",
                                 [](Value v, Value v_half, Value slope) { return sigmoid((v - v_half) / slope); });
}

}  // namespace

SPIKEFORGE_OPERATORS() { return {boltzmann()}; }
