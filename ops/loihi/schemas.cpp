// The schemas of the public and the lowered operators. A neuron has three overloads: scalars; a tensor of biases and
// scalars; and tensors, where None is the default. Scalars have the type Scalar, because int accepts a 0-dimensional
// tensor and loses its gradient.

#include <string>
#include "ops/common/library.h"

namespace spikeforge::ops {
namespace {

struct Form {
  const char* suffix;
  const char* state;  // the state in addition to u and v
  const char* numbers;
};

constexpr Form forms[] = {
    {"", nullptr, ""},
    {"_reset", "phase", "int reset_interval=1, int reset_offset=0, "},
    {"_refractory", "wait", "int refractory_period=1, "},
};

enum class Overload { numbers, bias, tensors };
constexpr const char* suffixes[] = {"", ".bias", ".tensor"};

std::string neuron(bool ternary, const Form& form, Overload overload) {
  const bool tensors = overload == Overload::tensors;
  const std::string state = form.state != nullptr ? form.state : "";
  const auto param = [tensors](const std::string& name, const std::string& number) {
    return tensors ? "Tensor? " + name + "=None, " : "Scalar " + name + "=" + number + ", ";
  };
  return std::string(ternary ? "loihi_ternary_lif" : "loihi_lif") + form.suffix +
         suffixes[static_cast<std::size_t>(overload)] + "(Tensor x, Tensor? u=None, Tensor? v=None, " +
         (state.empty() ? "" : "Tensor? " + state + "=None, ") + "*, " + param("du", "0") + param("dv", "0") +
         (overload == Overload::bias ? "Tensor bias_mant, " : param("bias_mant", "0")) + param("bias_exp", "0") +
         (ternary ? param("vth_hi", "10") + param("vth_lo", "-10") : param("vth", "10")) + form.numbers +
         "bool store_states=False, Tensor? lengths=None, Tensor? start=None, str surrogate=\"sigmoid\", float[] "
         "surrogate_args=[], bool detach_reset=False) -> (Tensor spikes, Tensor u, Tensor v" +
         (state.empty() ? "" : ", Tensor " + state) + ")";
}

const std::string arrival = "int weight_exp=0, int num_message_bits=0) -> (Tensor y, Tensor buffer)";

SPIKEFORGE_SCHEMAS(library) {
  for (const bool ternary : {false, true})
    for (const Form& form : forms)
      for (const Overload overload : {Overload::numbers, Overload::bias, Overload::tensors})
        library.def(neuron(ternary, form, overload));
  library.def(
      "loihi_forward(Tensor x, Tensor?[] states, Tensor?[] params, int[] numbers, *, bool ternary, str form, bool "
      "store_states, Tensor? lengths=None, Tensor? start=None) -> Tensor[]");

  library.def("loihi_prepare_weights(Tensor weight, *, int num_weight_bits=8, str? sign_mode=None) -> Tensor");
  library.def(
      "loihi_fake_quantize(Tensor weight, *, int num_weight_bits=8, str? sign_mode=None, bool truncate=False) -> "
      "Tensor");
  library.def("loihi_dense(Tensor x, Tensor weight, Tensor? buffer=None, *, int delay=1, " + arrival);
  library.def(
      "loihi_sparse(Tensor x, Tensor crow_indices, Tensor col_indices, Tensor values, Tensor? buffer=None, *, int "
      "delay=1, " +
      arrival);
  library.def("loihi_delay_dense(Tensor x, Tensor weight, Tensor delays, Tensor? buffer=None, *, int max_delay, " +
              arrival);
  library.def(
      "loihi_conv(Tensor x, Tensor weight, Tensor? buffer=None, *, int[2] stride=1, int[2] padding=0, int[2] "
      "dilation=1, "
      "int groups=1, int delay=1, " +
      arrival);
  // [rows, in] x [out, in] -> [rows, out], exact modulo 2^32.
  library.def("loihi_product(Tensor x, Tensor weight, int num_message_bits) -> Tensor");
  library.def(
      "loihi_sparse_product(Tensor x, Tensor crow_indices, Tensor col_indices, Tensor values, int num_message_bits) -> "
      "Tensor");
  // The same for floating-point tensors of integer values, shifted by weight_exp and wrapped around at `bits`.
  // Differentiable.
  library.def("loihi_float_product(Tensor x, Tensor weight, int num_message_bits, int weight_exp, int bits) -> Tensor");
  library.def(
      "loihi_float_sparse_product(Tensor x, Tensor crow_indices, Tensor col_indices, Tensor values, int "
      "num_message_bits, int weight_exp, int bits) -> Tensor");

  // These read the weights on the host, so they cannot be in a compiled graph.
  library.def(
      "loihi_quantize(Tensor weight, Tensor? bias=None, *, float tau=2., bool decay_input=True, float v_threshold=1., "
      "float input_scale=1., int largest_message=1, int num_weight_bits=8) -> (Tensor weights, Tensor bias_mant, int "
      "bias_exp, int weight_exp, int dv, int vth, float scale, float weight_error, float bias_error, float "
      "threshold_error, float decay_error)",
      {});
  library.def(
      "loihi_optimize_weight_bits(Tensor weight, *, str? sign_mode=None) -> (Tensor weights, int num_weight_bits, int "
      "weight_exp)",
      {});
  library.def("lava_neuron(str name) -> str", {});
  library.def("loihi_neuron(str name, *, str surrogate=\"sigmoid\", float[] surrogate_args=[]) -> str", {});
}

}  // namespace
}  // namespace spikeforge::ops
