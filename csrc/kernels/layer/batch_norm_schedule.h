// How a layer of batch norm and a neuron runs on a GPU: threads, tiles and their distribution over blocks.
#pragma once

#include "csrc/jit/device.h"
#include "csrc/kernels/layer/arguments.h"
#include "csrc/kernels/layer/batch_norm.h"
#include "csrc/kernels/multistep/schedule.h"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace spikeforge::layers {

// The parameter with the layer's channels.
inline const ParamView& shift_of(const Launch& run) { return run.params.back(); }
// Neurons after which the channels are the same again.
inline std::int64_t period_of(const Launch& run) { return shift_of(run).inner * shift_of(run).count; }
inline const BackwardLaunch& first_loop(const BatchNormBackward& layer) { return layer.sums; }
inline const ForwardLaunch& first_loop(const BatchNormForward& layer) { return layer.run; }

// Threads of a block, and of how many tiles the rows lie in shared memory at any time: 0, where none do.
struct Block {
  std::uint16_t threads = 256;
  std::uint8_t slots = 0;
  std::uint8_t ahead = 0;  // tiles in flight while one is computed
  std::uint8_t steps = 1;  // of a sequence there, a power of two
  std::uint8_t team = 1;   // neighbouring threads that copy their rows together
  bool is_exact = false;   // whether sequences have as many
  bool keeps = false;      // backward: x's gradient, until the statistics' part is known

  bool operator==(const Block&) const = default;
};

// How both passes of a layer run.
struct LayerSchedule {
  kernels::Schedule loop;
  Block block;
  std::optional<RingTiles> ring;  // where the block has slots
};

// One schedule for both loops of a backward pass: a thread has the same neurons in both.
LayerSchedule schedule_of(const BatchNormForward& layer, const jit::Device& device);
LayerSchedule schedule_of(const BatchNormBackward& layer, const jit::Device& device);

// The kinds of rows of a tile that the first pass reads.
std::size_t kinds_of_rows(const BatchNormForward& layer);
std::size_t kinds_of_rows(const BatchNormBackward& layer);

// For a schedule without a ring: the tiles of at most `blocks` blocks.
ChannelTiles channel_tiles_of(const BatchNormForward& layer, int width, std::int64_t blocks);
ChannelTiles channel_tiles_of(const BatchNormBackward& layer, int width, std::int64_t blocks);

unsigned blocks_of(const ChannelTiles& tiles);
unsigned blocks_of(const RingTiles& tiles);

}  // namespace spikeforge::layers
