// The distribution of a recurrent layer over the blocks of a GPU, and its use of shared memory: the host chooses it,
// and the kernel is compiled with it. C++17 for the host compiler and NVRTC.
//
// A step's product I = s W consists of m16n8k16 tensor core instructions, with M = neurons, N = samples and K = the
// neurons whose spikes are read: W is operand A, and stays in registers for the whole sequence. Eight samples are a
// tile, an independent recurrence. A cluster of `blocks` blocks has at most `tiles` of them. Each block owns padded /
// blocks neurons; `row` neurons form a row, whose sums over K are shared by `split` warps.
#pragma once

#if defined(__CUDACC__)
#define SPIKEFORGE_ON_BOTH __host__ __device__
#else
#define SPIKEFORGE_ON_BOTH
#endif

namespace spikeforge {
namespace recurrent {

struct Geometry {
  int padded;   // neurons, with the padding of the last block
  int blocks;   // per cluster
  int tiles;    // per cluster, at most
  int row;      // neurons per row: 16 or 32
  int split;    // warps that share a sum: 1, 2 or 4; for rows of 16 neurons, 1 or 2
  int element;  // bytes of an element of the tensors
  int sent;     // 16-bit numbers per value in flight: 1, or 3 for a float32; 0: spikes are bits
  int delay;    // steps from the sending of a result to its use
  int inputs, outputs, states;
  int ahead;         // rows in flight from memory
  int checkpoint;    // backward: steps between saved states
  int history;       // backward: steps that are recomputed at once
  int coefficients;  // backward: coefficients of a neuron's derivative at a step, which replace inputs and states
  int input_rows;    // backward: rows of the ring of inputs, at least checkpoint + ahead; if apart, for two checkpoints
  bool state_gradients;  // backward: true if there are gradients of the state sequences
  bool apart;            // backward: true if additional warps recompute, and pass coefficients to the other warps
  bool by_memory;        // true if values reach the blocks of the cluster through global memory, by one copy for all

  SPIKEFORGE_ON_BOTH constexpr int own() const { return padded / blocks; }
  SPIKEFORGE_ON_BOTH constexpr int threads() const { return own() / row * 32 * split; }
  SPIKEFORGE_ON_BOTH constexpr int block() const { return (apart ? 2 : 1) * threads(); }
  SPIKEFORGE_ON_BOTH constexpr int lane_neurons() const { return row == 16 || split == 4 ? 2 : 4; }
  SPIKEFORGE_ON_BOTH constexpr int lane_samples() const { return split == 1 ? 2 : 1; }
  SPIKEFORGE_ON_BOTH constexpr int lane_values() const { return lane_neurons() * lane_samples(); }
  SPIKEFORGE_ON_BOTH constexpr int values() const {
    return tiles * lane_values() * threads();
  }  // per block and step: 8 x own x tiles

  // The sizes of the parts of shared memory, in order, each a multiple of 16 bytes: the messages of the blocks of a
  // cluster, in two buffers per step of delay; their barriers; sums of warps that share neurons; rows in flight.
  SPIKEFORGE_ON_BOTH constexpr int message_bytes() const {
    return sent == 0 ? padded : sent * 16 * padded;
  }  // per tile
  SPIKEFORGE_ON_BOTH constexpr int messages_bytes() const { return 2 * delay * tiles * message_bytes(); }
  SPIKEFORGE_ON_BOTH constexpr int exchange_bytes() const { return messages_bytes() + 2 * delay * tiles * 8; }
  SPIKEFORGE_ON_BOTH constexpr int partial_bytes() const {
    return tiles * (split - 1) * threads() * lane_neurons() * 4;
  }
  SPIKEFORGE_ON_BOTH constexpr int forward_bytes() const {
    return exchange_bytes() + partial_bytes() + ahead * inputs * values() * element;
  }

  SPIKEFORGE_ON_BOTH constexpr int backward_bytes() const {
    const int of_type = (input_rows * inputs + ahead * outputs) * values() * element;
    const int recomputed = apart ? 2 * history * coefficients : history * states;
    const int of_floats = (recomputed + (2 + (state_gradients ? ahead : 0)) * states) * values() * 4;
    return exchange_bytes() + partial_bytes() + of_type + of_floats;
  }
};

#undef SPIKEFORGE_ON_BOTH

}  // namespace recurrent
}  // namespace spikeforge
