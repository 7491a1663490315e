// One multistep call as plain data: what an operator hands to the CPU loop or to a GPU kernel once every check is done.
#pragma once

#include <spikeforge/neuron/surrogate.h>
#include <spikeforge/neuron/surrogate_kind.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace spikeforge {

enum class NeuronKind : std::uint8_t {
#define SPIKEFORGE_NEURON(name, Struct, header) name,
#include <spikeforge/neuron/neurons.def>
#undef SPIKEFORGE_NEURON
};

enum class DType : std::uint8_t { f16, bf16, f32, f64, i32 };

constexpr std::size_t size_of(DType type) {
  return type == DType::f64 ? 8 : type == DType::f32 || type == DType::i32 ? 4 : 2;
}

// Half types keep their state, and do their arithmetic, in float32.
constexpr DType compute_type(DType type) { return type == DType::f16 || type == DType::bf16 ? DType::f32 : type; }

struct NeuronOptions {
  bool hard_reset = true;     // V = v_reset where it fired; else V = H - v_threshold * S
  bool detach_reset = false;  // no gradient through S in the reset
  bool spiking = true;        // else Θ is replaced by the surrogate's primitive
  bool decay_input = true;    // LIF and PLIF: X is divided by tau

  bool operator==(const NeuronOptions&) const = default;
};

constexpr int max_states = 2;
constexpr int max_params = 10;

// A [T, N] sequence; strides in elements. The time stride may be 0; the neuron stride is 1, or 0 for one element a row.
struct SequenceView {
  const void* data = nullptr;
  std::int64_t time_stride = 0;
  std::int64_t neuron_stride = 1;
};

// The initial state of every neuron, or null: the cell's own.
struct StateView {
  const void* data = nullptr;
  DType type = DType::f32;
};

// The value of neuron i is data[(i / inner) % count]; without data, the number.
struct ParamView {
  const void* data = nullptr;
  DType type = DType::f32;
  double number = 0;
  std::int64_t inner = 1;
  std::int64_t count = 1;
};

struct MultistepLaunch {
  NeuronKind neuron{};
  int n_states = 1;
  int n_params = 0;
  NeuronOptions options;
  SurrogateKind surrogate{};
  std::array<double, max_surrogate_args> surrogate_args{};
  DType type{};  // of x, of the spikes and of their gradients
  std::int64_t steps = 0;
  std::int64_t neurons = 0;
  std::int64_t checkpoint_length = 1;
  bool store_states = false;  // sequences of states, [T, N], rather than the last ones

  SequenceView x;
  std::array<StateView, max_states> initial;
  std::array<ParamView, max_params> params;
};

struct ForwardLaunch : MultistepLaunch {
  void* spikes = nullptr;
  std::array<void*, max_states> states{};
  void* checkpoints = nullptr;  // null: not saved
};

// Gradients that autograd did not define, and results that nobody asked for, are null.
struct BackwardLaunch : MultistepLaunch {
  SequenceView grad_spikes;
  std::array<SequenceView, max_states> grad_states;
  const void* checkpoints = nullptr;
  bool any_grad_param = false;  // whether a parameter's is wanted
  void* grad_x = nullptr;
  std::array<void*, max_states> grad_initial{};
  std::array<void*, max_params> grad_params{};  // one value a neuron in the compute type (GPU: see shared_by_warps)
};

}  // namespace spikeforge
