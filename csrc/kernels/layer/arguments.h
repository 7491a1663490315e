// Arguments of the kernels of layers around neurons, shared by the host and the device: C++17 for the host compiler and
// NVRTC.
#pragma once

namespace spikeforge {
namespace layers {

// A window of pooling along one dimension: window i begins at stride * i - padding, and has `size` places, `dilation`
// apart.
struct Window {
  int size, stride, padding, dilation;
};

// Computes n / divisor for 0 <= n < 2^31 without a division (Granlund and Montgomery 1994, figure 4.1).
struct Divisor {
  unsigned divisor, factor, shift;
};

// Images [count, height, width, channels] and the results of their windows, [count, out_height, out_width, channels].
// `items` threads, indexed as [count, down, across, lanes], process several of them each.
struct PoolArguments {
  const void* from;
  void* to;
  unsigned char* which;  // for maxima: the place of each in its window; null if not requested
  int height, width, out_height, out_width;
  long long channels;
  unsigned items;
  Divisor down, across, lanes;
  double divisor;  // for means; 0: the number of places
  bool counts_padding;
  // For maxima before a normalisation: one value per channel, in the compute type.
  const void* weight;  // the factor of the normalisation: if it is negative, the minimum is pooled
  // In the backward pass, x has an additional gradient from the statistics: offset + slope (x - mean).
  const void *x, *mean, *offset, *slope;
  unsigned cycle;  // the number of channels, by which consecutive plain images cycle,
  unsigned first;  // and the channel of the first image
};

// Packs `count` numbers into bits. The byte `valid` becomes 0 if a number cannot be represented.
struct BitsArguments {
  const void* from;
  void* to;
  unsigned char* valid;
  long long count;
};

// Products of a matrix whose entries have a delay each. A sequence has a row for each feature; a step of it is `lanes`
// neighbouring numbers, one per sample; a delay is a shift of the row, and an entry has `taps` coefficients, for
// `taps` consecutive steps:
//   add    rows[r, j] += sum over c, n of coefficients[r, c, n] in[c, j + shifts[r, c] + n lanes]
//   sums   out[r, c, n] = sum over j of rows[r, j] in[c, j + shifts[r, c] + n lanes]
// A strip is a number of consecutive steps of a sample; a sample has strips / lanes of them.
struct DelayedArguments {
  const int* shifts;         // [rows_count, columns]
  const void* coefficients;  // [rows_count, columns, taps]; null for sums
  const void* in;            // values of a strip after the last step are read, and not used
  void* rows;
  void* out;  // for sums
  long long in_stride;
  long long in_of_row;  // stride of in[0, 0] per row: not 0 if each row has a single, separate column
  long long rows_stride;
  int rows_count, columns, steps, lanes;
  unsigned strips;
  unsigned row_blocks;  // row blocks of all rows
  int rows_at_once;     // per block: a power of two, `delayed_warps` at most
};

constexpr int delayed_warps = 16;  // per block

// The distribution over blocks of neurons whose channels repeat. A row is one period, which has all channels, each with
// `inner` neighbours. A block processes a tile at once: `down` rows of the neurons of `across` neighbouring threads.
// There are `strips` columns of tiles, with `depth` tiles each. A block processes `each` consecutive tiles, down a
// strip and continuing in the next; its tiles in one strip are a run.
struct ChannelTiles {
  int rows, period, inner, channels;
  int across, down, strips, depth;
  int each;
  int runs;             // the maximum per block
  int blocks_of_strip;  // the maximum number of blocks with a run in a strip
  int slots;            // the maximum number of channels of a strip
  int parts;            // threads that share a slot's sum: a power of two
  int own_channels;     // the maximum, if a block sums its channels; 0: it sums a share of all channels
};

// The same with one block per multiprocessor, and a ring of tiles in its shared memory. `members` blocks share a strip,
// and each processes every members-th tile of it. If there are more strips than blocks, a block has several strips and
// shares none.
struct RingTiles {
  int rows, period, inner, channels;
  int across, down, strips, members;
  int strips_apart;    // the distance from a strip of a block to its next
  int each;            // the maximum number of tiles of a strip per block
  int units;           // the maximum number of strips per block
  int local_channels;  // the maximum per strip
  int sharers;         // threads that share the sum of one channel
  int kept = 0;        // tiles of a block, before the last in its ring, that fit the cache
  int streams = 1;     // 1 if other tiles are evicted from the cache first
  int has_totals;      // 1 if one block adds up the parts of a channel for the others
  int own_channels;    // neighbouring channels of a strip that one member adds up
  int own_beside;      // the number of them that a warp processes at once: a power of two
  int unused = 0;      // padding to a multiple of 8 bytes
  // Divisors: some of the above, the width of a strip in neurons, the part of it in one channel, and the rows that all
  // members process at once.
  Divisor by_inner{}, by_across{}, by_members{}, by_local_channels{}, by_width{}, by_span{}, by_rows{};
};

// Arguments of a normalisation by the statistics of its input, after the loop's arguments. Values per channel have the
// compute type; `partial` is [blocks, runs, sums, slots], or in a ring [strips, members, local channels, sums] and
// [channels, sums].
template <class Tiles> struct NormaliseArguments {
  Tiles tiles;
  long long samples[3];  // offsets in x of elements of the first channel; each further channel adds `inner`
  double share;          // 1 / the number of elements per channel
  double eps;
  const void* weight;  // null: 1
  const void* bias;    // null: 0
  void* partial;
  void *mean, *var, *center, *rstd, *scale, *shift;  // center is a copy of mean
  void *running_mean, *running_var;                  // only with a ring; null: there are none
  long long* batches;                                // the number of calls that updated them
  double momentum;                                   // negative: 1 / the number of calls
};

// Arguments of its gradient, after the arguments of both loops.
template <class Tiles> struct NormaliseGradArguments {
  Tiles tiles;
  double share;
  const void *rstd, *scale;
  const void *grad_mean, *grad_var;  // null: 0
  void* partial;
  void *grad_weight, *grad_bias;
  void *offset, *slope;  // of graph::Layer's with_statistics
};

}  // namespace layers
}  // namespace spikeforge
