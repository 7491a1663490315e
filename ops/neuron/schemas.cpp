// The operators' public contract, and that of the lowered operators beneath them.
#include <spikeforge/ops/neuron/arguments.h>

#include <torch/library.h>

#include <string>

namespace spikeforge::ops {
namespace {

const std::string common =
    "bool detach_reset=False, str surrogate=\"sigmoid\", float[] surrogate_args=[], bool spiking=True, bool "
    "store_v=False)";
const std::string v_result = " -> (Tensor spikes, Tensor v)";
const std::string v_w_result = " -> (Tensor spikes, Tensor v, Tensor w)";

// In the overloads of tensors None is the default, but for v_reset, where it is soft reset and has to be said.
const std::string public_schemas[] = {
    "integrate_and_fire(Tensor x, Tensor? v=None, *, Scalar v_threshold=1., Scalar? v_reset=0., " + common + v_result,
    "integrate_and_fire.tensor(Tensor x, Tensor? v=None, *, Tensor? v_threshold=None, Tensor? v_reset, " + common +
        v_result,

    "lif(Tensor x, Tensor? v=None, *, Scalar tau=2., bool decay_input=True, Scalar v_threshold=1., Scalar? "
    "v_reset=0., " +
        common + v_result,
    "lif.tensor(Tensor x, Tensor? v=None, *, Tensor? tau=None, bool decay_input=True, Tensor? v_threshold=None, "
    "Tensor? v_reset, " +
        common + v_result,

    "plif(Tensor x, Tensor w, Tensor? v=None, *, bool decay_input=True, Scalar v_threshold=1., Scalar? v_reset=0., " +
        common + v_result,
    "plif.tensor(Tensor x, Tensor w, Tensor? v=None, *, bool decay_input=True, Tensor? v_threshold=None, Tensor? "
    "v_reset, " +
        common + v_result,

    "qif(Tensor x, Tensor? v=None, *, Scalar tau=2., Scalar v_c=0.8, Scalar a0=1., Scalar v_threshold=1., Scalar "
    "v_rest=0., "
    "Scalar? v_reset=-0.1, " +
        common + v_result,
    "qif.tensor(Tensor x, Tensor? v=None, *, Tensor? tau=None, Tensor? v_c=None, Tensor? a0=None, Tensor? "
    "v_threshold=None, "
    "Tensor? v_rest=None, Tensor? v_reset, " +
        common + v_result,

    "eif(Tensor x, Tensor? v=None, *, Scalar tau=2., Scalar delta_t=1., Scalar theta_rh=0.8, Scalar v_threshold=1., "
    "Scalar v_rest=0., "
    "Scalar? v_reset=-0.1, " +
        common + v_result,
    "eif.tensor(Tensor x, Tensor? v=None, *, Tensor? tau=None, Tensor? delta_t=None, Tensor? theta_rh=None, Tensor? "
    "v_threshold=None, "
    "Tensor? v_rest=None, Tensor? v_reset, " +
        common + v_result,

    "izhikevich(Tensor x, Tensor? v=None, Tensor? w=None, *, Scalar tau=2., Scalar v_c=0.8, Scalar a0=1., Scalar "
    "v_threshold=1., "
    "Scalar v_rest=-0.1, Scalar w_rest=0., Scalar? v_reset=0., Scalar tau_w=2., Scalar a=0., Scalar b=0., " +
        common + v_w_result,
    "izhikevich.tensor(Tensor x, Tensor? v=None, Tensor? w=None, *, Tensor? tau=None, Tensor? v_c=None, Tensor? "
    "a0=None, "
    "Tensor? v_threshold=None, Tensor? v_rest=None, Tensor? w_rest=None, Tensor? v_reset, Tensor? tau_w=None, Tensor? "
    "a=None, "
    "Tensor? b=None, " +
        common + v_w_result,
};

// <neuron>_forward and <neuron>_backward. params has one entry for each parameter in the order of describe(), None
// where it is the number in `numbers`. needs_grad is over x, the states and the parameters; the result has one tensor
// for each true entry.
struct Lowered {
  std::string forward, backward;
};

Lowered lowered_schemas(const NeuronDescription& neuron, bool decay_input) {
  std::string given, results, grads;
  for (const std::string state : neuron.states) {
    given += "Tensor? " + state + ", ";
    results += "Tensor " + state + ", ";
    grads += "Tensor? grad_" + state + ", ";
  }
  const std::string options =
      std::string(decay_input ? "bool decay_input, " : "") +
      "bool hard_reset, bool detach_reset, str surrogate, float[] surrogate_args, bool spiking, bool store_v, ";
  const std::string name = neuron.name;
  return {name + "_forward(Tensor x, " + given + "Tensor?[] params, float[] numbers, *, " + options +
              "bool save) -> (Tensor spikes, " + results + "Tensor checkpoints)",
          name + "_backward(Tensor? grad_spikes, " + grads + "Tensor x, " + given +
              "Tensor checkpoints, Tensor?[] params, float[] numbers, *, " + options +
              "bool[] needs_grad) -> Tensor[]"};
}

TORCH_LIBRARY(spikeforge, library) {
  const auto define = [&library](const std::string& schema) {
    library.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
  };
  for (const std::string& schema : public_schemas) define(schema);
  for (const NeuronKind kind : all_neurons) {
    const Lowered schemas = lowered_schemas(describe(kind), has_decay_input(kind));
    define(schemas.forward);
    define(schemas.backward);
  }
}

}  // namespace
}  // namespace spikeforge::ops
