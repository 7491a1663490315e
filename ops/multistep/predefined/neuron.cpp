// The C++ functions of the predefined neurons.
#include "ops/neuron.h"
#include "ops/multistep/predefined/public_call.h"

namespace spikeforge {
namespace ops {
namespace {

void check_defined(const char* op, const char* name, const at::Tensor& t) {
  TORCH_CHECK_VALUE(t.defined(), op, ": ", name, " is an undefined tensor");
}

void add(PublicCall& call, const char* op, const char* name, const Param& param) {
  if (!param.is_tensor()) return call.add(param.number());
  check_defined(op, name, param.tensor());
  call.add(param.tensor());
}

void add(PublicCall& call, const char* op, const char* name, const std::optional<Param>& v_reset) {
  v_reset ? add(call, op, name, *v_reset) : call.soft_reset();
}

template <NeuronKind kind, class Arguments> SpikesAndStates<kind> run(PublicCall& call, const Arguments& a) {
  MultistepResults results = call_from_cpp(
      call.finish(a.detach_reset, a.surrogate, a.surrogate_args, a.spiking, a.store_v, /*bits=*/0, a.lengths, a.start));
  return [&]<std::size_t... s>(std::index_sequence<s...>) {
    return SpikesAndStates<kind>(std::move(results.outputs[0]), std::move(results.states[s])...);
  }
  (std::make_index_sequence<state_count(kind)>{});
}

}  // namespace
}  // namespace ops

#define SPIKEFORGE_STATE_ARGUMENT(name) const MaybeTensor &name,
#define SPIKEFORGE_TENSOR_ARGUMENT(name) const at::Tensor &name,
#define SPIKEFORGE_ADD_STATE(name) call.add_state(name);
#define SPIKEFORGE_ADD_TENSOR(name)    \
  ops::check_defined(op, #name, name); \
  call.add(name);
#define SPIKEFORGE_PARAM(name, default_value, legal) ops::add(call, op, #name, arguments.name);
#define SPIKEFORGE_V_RESET(default_value) ops::add(call, op, "v_reset", arguments.v_reset);
#define SPIKEFORGE_DECAY_INPUT() call.add(arguments.decay_input);
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params)                                             \
  SpikesAndStates<NeuronKind::name> name(const at::Tensor& x, SPIKEFORGE_EACH(SPIKEFORGE_TENSOR_ARGUMENT, tensors)   \
                                                                  SPIKEFORGE_EACH(SPIKEFORGE_STATE_ARGUMENT, states) \
                                                                      const Struct##Arguments& arguments) {          \
    constexpr const char* op = #name;                                                                                \
    ops::check_defined(op, "x", x);                                                                                  \
    ops::PublicCall call(NeuronKind::name, x);                                                                       \
    SPIKEFORGE_EACH(SPIKEFORGE_ADD_STATE, states)                                                                    \
    SPIKEFORGE_EACH(SPIKEFORGE_ADD_TENSOR, tensors)                                                                  \
    params return ops::run<NeuronKind::name>(call, arguments);                                                       \
  }
#include "csrc/neuron/neurons.def"

}  // namespace spikeforge
