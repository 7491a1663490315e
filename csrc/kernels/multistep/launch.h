// One multistep call as plain data, which an operator passes to the CPU's loop or to a GPU kernel after all checks.
// Lists have one entry for each input, state, parameter or output of the cell. The caller owns the memory to which they
// point.
#pragma once

#include "csrc/base/views.h"
#include "csrc/jit/device.h"
#include "csrc/kernels/multistep/cell.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace spikeforge {

// The generator state of a cell that draws random numbers. The draws of neuron i in memory use the index of the neuron
// in the shape, for any memory layout: with a fast and a slow part of i, which are swapped in memory,
//   i / (fast slow) * (fast slow) + i % fast * slow + i / fast % slow.
struct DrawsView {
  const std::int64_t* seed = nullptr;  // on the device; null: seed_number applies
  std::int64_t seed_number = 0;
  const std::int64_t* offset = nullptr;  // of the first step, or null
  std::int64_t offset_number = 0;
  std::int64_t fast = 1, slow = 1;
  std::int64_t first = 0;  // added to all indices, if the neurons are a part of a larger set
};

struct Launch {
  const Cell* cell = nullptr;
  CellForm form;
  SurrogateArgs surrogate_args{};
  DType type{};  // of inputs, outputs and their gradients; states and arithmetic are in compute_type(type)
  std::int64_t steps = 0;
  std::int64_t neurons = 0;
  std::int64_t checkpoint_length = 1;
  bool store_states = false;  // true to store sequences of states, [T, N], instead of the last ones

  std::span<const SequenceView> inputs;  // [T, N]
  std::span<const StateView> initial;    // null: the initial state of the cell
  std::span<const ParamView> params;

  // A neuron's steps end with its sample: after the end, nothing is read, and results are zero. Before a step at which
  // the sample restarts, the states are reset to the initial values of the cell.
  LengthsView lengths;
  StartView start;

  DrawsView draws;

  bool has_samples() const { return lengths.data != nullptr || start.data != nullptr; }
};

// The gradients that a backward pass will compute: inputs, then states, then parameters.
struct GradientsToCome {
  bool (*is_wanted)(const void* call, std::size_t argument) = nullptr;  // null: there will be no backward pass
  const void* call = nullptr;
};

// The first output as bits, in addition: number i of [T, N] is in bits i * bits to (i + 1) * bits - 1 of the byte
// array. Rows are whole bytes.
struct PackedOutput {
  std::uint8_t bits = 0;            // bits per number: 1 for 0 and 1, 4 for 0 to 15; 0: no bits are written
  std::uint8_t* numbers = nullptr;  // [T N bits / 8]
  std::uint8_t* valid = nullptr;    // set to 0 if a number cannot be represented

  // True if the bits of `neurons` neurons fill whole bytes.
  static bool has_whole_bytes(std::int64_t neurons, std::int64_t bits) { return neurons * bits % 8 == 0; }
};

struct ForwardLaunch : Launch {
  std::span<void* const> outputs;  // [T, N]
  std::span<void* const> states;   // [N], or [T, N]
  void* checkpoints = nullptr;     // [(T - 1) / checkpoint_length, states, N]; null: not saved
  PackedOutput packed;
  GradientsToCome to_come;  // read only if the kernel has to be compiled
  bool scan = false;        // the next states are affine in the states, and a scan over time may round them differently
};

// Undefined gradients, and results that are not wanted, are null.
struct BackwardLaunch : Launch {
  std::span<const SequenceView> grad_outputs;
  std::span<const SequenceView> grad_states;  // of the stored sequences, or of the last states
  const void* checkpoints = nullptr;
  bool any_grad_input = false, any_grad_param = false;  // true if one is wanted
  std::span<void* const> grad_inputs;                   // [T, N]
  std::span<void* const> grad_initial;                  // [N], in the type of the initial state
  // One value per neuron in the compute type. On a GPU: per neuron of one turn (neurons_at_once of schedule.h), or one
  // value per warp for a parameter that is shared_by_warps.
  std::span<void* const> grad_params;
};

namespace kernels {

// Allocates device memory for the communication of blocks, valid until the stream has passed the launch.
using Allocate = std::function<void*(std::size_t bytes)>;

// Chooses a schedule, finds the kernel for the spec, and launches it asynchronously. The device must be current, and
// the stream, a cudaStream_t, must belong to it.
void launch_multistep(const ForwardLaunch& launch, const jit::Device& device, void* stream, const Allocate& allocate);
void launch_multistep(const BackwardLaunch& launch, const jit::Device& device, void* stream, const Allocate& allocate);

// Records the kernels that a launch on a GPU would need, while a pack is recorded. Called by every call on the CPU.
void note(const ForwardLaunch& launch);
void note(const BackwardLaunch& launch);

}  // namespace kernels
}  // namespace spikeforge
