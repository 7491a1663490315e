// One multistep call as plain data: what an operator passes to the CPU's loop or to a GPU kernel once every check is
// done. Lists have one entry for each input, state, parameter or output of the cell; what they point to is the
// caller's.
#pragma once

#include "csrc/base/views.h"
#include "csrc/jit/device.h"
#include "csrc/kernels/multistep/cell.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace spikeforge {

// The generator state of a cell that draws random numbers. The draws of neuron i in memory use the index of its place
// in the shape, whatever the layout: with a fast and a slow part of i, which are swapped in memory,
//   i / (fast slow) * (fast slow) + i % fast * slow + i / fast % slow.
struct DrawsView {
  const std::int64_t* seed = nullptr;  // on the device; null: the number
  std::int64_t seed_number = 0;
  const std::int64_t* offset = nullptr;  // of the first step
  std::int64_t offset_number = 0;
  std::int64_t fast = 1, slow = 1;
  std::int64_t first = 0;  // is added to all indices: of neurons that are a part of more
};

struct Launch {
  const Cell* cell = nullptr;
  CellForm form;
  SurrogateArgs surrogate_args{};
  DType type{};  // of inputs, outputs and their gradients; states and arithmetic are in compute_type(type)
  std::int64_t steps = 0;
  std::int64_t neurons = 0;
  std::int64_t checkpoint_length = 1;
  bool store_states = false;  // sequences of states, [T, N], rather than the last ones

  std::span<const SequenceView> inputs;  // [T, N]
  std::span<const StateView> initial;    // null: the cell's own
  std::span<const ParamView> params;

  // A neuron's steps end with its sample: after the end nothing is read, and results are zero. Before a step at which
  // the sample restarts, its states are reset to the cell's own initial values.
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

// The first output once more, as bits: number i of [T, N] in bits i * bits and on of all bytes together. Rows are whole
// bytes.
struct PackedOutput {
  std::uint8_t bits = 0;            // bits per number: 1 for 0 and 1, 4 for 0 to 15; 0: no bits are written
  std::uint8_t* numbers = nullptr;  // [T N bits / 8]
  std::uint8_t* valid = nullptr;    // becomes 0 where a number is none that there are bits for

  // True if the bits of this number of neurons fill whole bytes.
  static bool has_whole_bytes(std::int64_t neurons, std::int64_t bits) { return neurons * bits % 8 == 0; }
};

struct ForwardLaunch : Launch {
  std::span<void* const> outputs;  // [T, N]
  std::span<void* const> states;   // [N], or [T, N]
  void* checkpoints = nullptr;     // [(T - 1) / checkpoint_length, states, N]; null: not saved
  PackedOutput packed;
  GradientsToCome to_come;  // read only if the kernel has to be compiled, never by a hot call
  bool scan = false;        // the states are affine in themselves, and may be rounded as a scan over time rounds them
};

// Gradients that autograd did not define, and results that are not wanted, are null.
struct BackwardLaunch : Launch {
  std::span<const SequenceView> grad_outputs;
  std::span<const SequenceView> grad_states;  // of the stored sequences, or of the last states
  const void* checkpoints = nullptr;
  bool any_grad_input = false, any_grad_param = false;  // whether one is wanted
  std::span<void* const> grad_inputs;                   // [T, N]
  std::span<void* const> grad_initial;                  // [N], of the type of the initial state
  // One value a neuron in the compute type. GPU: for each of those that are taken at once (neurons_at_once of
  // schedule.h); of a parameter that shared_by_warps, one a warp.
  std::span<void* const> grad_params;
};

namespace kernels {

// Allocates device memory for the communication of blocks, valid until the stream has passed the launch.
using Allocate = std::function<void*(std::size_t bytes)>;

// From a launch to a running kernel: chooses a schedule, finds the kernel for the spec, launches it. The device must be
// current, and the stream, a cudaStream_t, one of its own. Nothing is waited for.
void launch_multistep(const ForwardLaunch& launch, const jit::Device& device, void* stream, const Allocate& allocate);
void launch_multistep(const BackwardLaunch& launch, const jit::Device& device, void* stream, const Allocate& allocate);

// Notes the kernels that a launch on a GPU would need, where a pack is recorded: what every call on the CPU does.
void note(const ForwardLaunch& launch);
void note(const BackwardLaunch& launch);

}  // namespace kernels
}  // namespace spikeforge
