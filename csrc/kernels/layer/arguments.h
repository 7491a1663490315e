// What the host hands to the kernels of layers around neurons, and both of them read: C++17 for the host compiler and
// NVRTC.
#pragma once

namespace spikeforge {
namespace layers {

// A window of pooling along one dimension: it begins stride * i - padding, and has `size` places, `dilation` apart.
struct Window {
  int size, stride, padding, dilation;
};

// n / divisor for 0 <= n < 2^31, without a division (Granlund and Montgomery 1994, figure 4.1).
struct Divisor {
  unsigned divisor, factor, shift;
};

// Images [count, height, width, channels] and what their windows give, [count, out_height, out_width, channels]. A
// thread takes some of them: `items` threads, numbered as [count, down, across, lanes].
struct PoolArguments {
  const void* from;
  void* to;
  unsigned char* which;  // of maxima: the place in its window that each is from; null where nobody asks
  int height, width, out_height, out_width;
  long long channels;
  unsigned items;
  Divisor down, across, lanes;
  double divisor;  // of means; 0: how many places there are
  bool counts_padding;
};

// `count` numbers, bits each, and a byte that becomes 0 where one of them is none that `bits` can hold.
struct BitsArguments {
  const void* from;
  void* to;
  unsigned char* valid;
  long long count;
};

// How blocks share neurons whose channels repeat: they are rows of a period of neurons each, which is the channels, of
// `inner` neighbours each. A tile is what a block takes at once: of `down` rows what `across` threads beside each other
// own. `strips` tiles lie beside each other, `depth` below each other. A block takes `each` tiles, down a strip and on
// in the next; those of one strip are a run.
struct ChannelTiles {
  int rows, period, inner, channels;
  int across, down, strips, depth;
  int each;
  int runs;             // of a block, at most
  int blocks_of_strip;  // that have a run in it, at most
  int slots;            // channels of a strip, at most
  int parts;            // threads that share a slot's sum: a power of two
  int own_channels;     // at most, where each block adds up the sums of its channels; 0: of a share of all channels
};

// Of a normalisation by statistics of its own input, behind the loop's arguments. Numbers of channels are of the
// compute type; `partial` is [blocks, runs, sums, slots].
struct NormaliseArguments {
  ChannelTiles tiles;
  long long samples[3];  // elements of x, of the first channel; of the others they lie `inner` further each
  double share;          // of an element in its channel: 1 / how many there are
  double eps;
  const void* weight;  // null: 1
  const void* bias;    // null: 0
  void* partial;
  void *mean, *var, *center, *rstd, *scale, *shift;  // center is mean once more
};

// Of its gradient, behind the arguments of both loops.
struct NormaliseGradArguments {
  ChannelTiles tiles;
  double share;
  const void *rstd, *scale;
  const void *grad_mean, *grad_var;  // null: 0
  void* partial;
  void *grad_weight, *grad_bias;
  void *offset, *slope;  // of graph::Layer's with_statistics
};

}  // namespace layers
}  // namespace spikeforge
