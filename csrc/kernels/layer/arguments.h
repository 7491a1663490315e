// Arguments of the kernels of layers around neurons, shared by the host and the device: C++17 for the host compiler and
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
  unsigned char* which;  // for maxima: the place of each in its window; null if it is not requested
  int height, width, out_height, out_width;
  long long channels;
  unsigned items;
  Divisor down, across, lanes;
  double divisor;  // of means; 0: how many places there are
  bool counts_padding;
  // For maxima before a normalisation: numbers per channel in the compute type.
  const void* weight;  // by which x will be multiplied: if it is negative, the minimum is pooled
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
// neighbouring numbers, one per sample; a delay is a shift of the row, and an entry has `taps` coefficients, for as
// many consecutive steps:
//   add    rows[r, j] += sum over c, n of coefficients[r, c, n] in[c, j + shifts[r, c] + n lanes]
//   sums   out[r, c, n] = sum over j of rows[r, j] in[c, j + shifts[r, c] + n lanes]
// A strip is a number of consecutive steps of a sample; a sample has strips / lanes of them.
struct DelayedArguments {
  const int* shifts;         // [rows_count, columns]
  const void* coefficients;  // [rows_count, columns, taps]; of sums null
  const void* in;            // values of a strip after the last step are read, and not used
  void* rows;
  void* out;  // of sums
  long long in_stride;
  long long in_of_row;  // stride of in[0, 0] per row: not 0 if each row has a single column, its own
  long long rows_stride;
  int rows_count, columns, steps, lanes;
  unsigned strips;
  unsigned row_blocks;  // row blocks of all rows
  int rows_at_once;     // of a block: a power of two, `delayed_warps` at most
};

constexpr int delayed_warps = 16;  // of a block

// The distribution over blocks of neurons whose channels repeat: rows of one period each, which has all channels, each
// with `inner` neighbours. A tile is processed by a block at once: in `down` rows the neurons of `across` neighbouring
// threads. `strips` tiles are beside each other, `depth` below each other. A block processes `each` tiles, down a strip
// and on in the next; those of one strip are a run.
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

// The same with one block per multiprocessor, and a ring of tiles in its shared memory: a strip is shared by `members`
// blocks, each of which processes every members-th tile of it. With more strips than blocks, a block has several and
// shares none.
struct RingTiles {
  int rows, period, inner, channels;
  int across, down, strips, members;
  int strips_apart;    // from a strip of a block to its next
  int each;            // tiles that a block takes of a strip, at most
  int units;           // strips that a block takes part in, at most
  int local_channels;  // of a strip, at most
  int sharers;         // threads that share the sum of one
  int kept = 0;        // tiles of a block, before the last in its ring, that the cache has room for
  int streams = 1;     // whether it gives up all others first
  int has_totals;      // whether one block adds up the parts of a channel for the others
  int own_channels;    // of a strip, for which a member does so: neighbours
  int own_beside;      // what a warp takes of those at once: a power of two
  int unused = 0;      // whole words
  // To divide by: some of these, a strip's neurons beside each other, those of a channel among them, and the rows that
  // all members take at once.
  Divisor by_inner{}, by_across{}, by_members{}, by_local_channels{}, by_width{}, by_span{}, by_rows{};
};

// Arguments of a normalisation by the statistics of its own input, after the loop's arguments. Numbers per channel have
// the compute type; `partial` is [blocks, runs, sums, slots], or in a ring [strips, members, local channels, sums] and
// [channels, sums].
template <class Tiles> struct NormaliseArguments {
  Tiles tiles;
  long long samples[3];  // elements of x, of the first channel; of the others they lie `inner` further each
  double share;          // of an element in its channel: 1 / how many there are
  double eps;
  const void* weight;  // null: 1
  const void* bias;    // null: 0
  void* partial;
  void *mean, *var, *center, *rstd, *scale, *shift;  // center is mean once more
  void *running_mean, *running_var;                  // in a ring; null: there are none
  long long* batches;                                // how many calls moved them
  double momentum;                                   // below 0: one by the number of calls
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
