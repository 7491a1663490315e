// Arguments of the event kernels, shared by the host and the device: C++17 for the host compiler and NVRTC.
#pragma once

namespace spikeforge {
namespace event {

using Int = long long;

// The contribution of an entry x of the vector:
//   event    1 if x is true, or x > 0; nothing otherwise, NaN included
//   graded   x if x > 0; nothing otherwise
//   number   x
enum class Values : unsigned char { event, graded, number };

// The representation of a sum by columns: cuda/event/scatter.cuh.
enum class Sums : unsigned char { counts, floats, fixed };

// How many steps later what goes through a connection arrives: at once; all of it after the same number of steps; after
// a number of its own, kept in a byte or an int, or drawn.
enum class Delays : unsigned char { none, one, bytes, words, drawn };

// The distribution of the weights of a random matrix:
//   constant   weights [1]: w
//   uniform    weights [2]: low + (high - low) u
//   normal     weights [2]: mean + deviation z
enum class Distribution : unsigned char { constant, uniform, normal };

// Counters that the blocks of one scatter share. All 0 before it begins, and so are the sums.
struct GridBarrier {
  unsigned long long state;  // arrivals in the lowest bits, and above them the number of listed tasks
  unsigned long long nnz;    // of the listed tasks together
};

// Nonzeros first, first + 1, ... of a row, which is counted over all batches.
struct Task {
  Int first, row;
  int count;
};

struct ProductArguments {
  const int* indices = nullptr;
  const void* indptr = nullptr;  // [rows + 1], of int or Int; null where every row has `width` nonzeros
  Int width = 0, rows = 0, cols = 0, nnz = 0;
  const void* weights = nullptr;
  const void* x = nullptr;  // [batches, length, n], contiguous; by rows the batch is blockIdx.y
  void* y = nullptr;
  void* sums = nullptr;         // [batches, out, n]; y itself where it is large and sums need no change to be results
  float* infinities = nullptr;  // of the fixed sums, which have none: [batches, out, n]
  unsigned long long* limits = nullptr;  // bits of the largest finite |weight| and |entry|, as doubles
  unsigned* bits = nullptr;              // [batches, words]
  GridBarrier* grid_barrier = nullptr;
  Task* tasks = nullptr;
  const void* grad = nullptr;  // of weight_gradient
  const Int* slots = nullptr;  // of plasticity: where the weight of a nonzero is, or null
  Int n = 0, words = 0, batches = 0;
  Int long_row = 0;            // by rows: a row with more nonzeros is not summed by a group of lanes
  Int chunk = 0;               // nonzeros of a task, at most: a power of two
  Int rows_at_once = 0;        // rows that a block reads at once, at most its number of threads
  Int private_from = 0;        // listed nonzeros from which a block's sums are its own
  double least = 0, most = 0;  // of plasticity
  // Null, or a flag: if it is not 0, an index of the matrix is out of range, and kernels do not read the matrix.
  const unsigned* refused = nullptr;
  // With delays y is a ring in the compute type, to which results are added: [slots, all batches, out]. Sums that
  // arrive at step t are in slot t % slots.
  const void* delays = nullptr;  // [nnz], or one
  const Int* step = nullptr;     // on the device, or null: `now`
  Int now = 0, ring_slots = 0;
  Int slot_size = 0;    // elements of a slot
  Int delay_bytes = 0;  // of a delay that all share
};

// The matrix of `product` is read; its indices may be Int, and its delays have this many bytes. Blocks are counted in
// `refused`[1].
struct CheckArguments {
  ProductArguments product;
  Int delays;
  unsigned* refused;
  unsigned* answer;  // in the host's memory: 0 until all is read, then an Answer
};

enum class Answer : unsigned { none, right, wrong };

// A matrix that is drawn: random_rows.h.
struct RandomRows {
  unsigned long long seed;
  Int rows, cols;
  Int width;   // columns of a piece
  Int pieces;  // of a row
  float columns_a_bit;
};

// Random delays, in whole steps:
//   constant   first
//   uniform    from first to second, inclusive
//   normal     mean first, standard deviation second: rounded, and clipped to [0, most]
struct RandomDelays {
  float first, second;
  int most;
  Distribution distribution;
};

// The members of `product` that do not describe a stored matrix are read.
struct JitArguments {
  ProductArguments product;
  RandomRows matrix;
  RandomDelays delays;
};

struct LinearArguments {
  const void* x;  // [batches, in], or packed int32 [batches, words]
  const void* weight;
  const void* bias;  // in the type of weight, or null
  void* y;           // [batches, out]
  void* parts;       // [splits, batches, out] in the compute type, or null where there is one split
  Int in, out, words, batches, first_batch;
};

constexpr int inputs_at_once = 1024;  // of event_linear, in a block

static_assert(sizeof(Int) == 8 && sizeof(void*) == 8, "host and device agree on a word");
static_assert(sizeof(GridBarrier) == 2 * 8, "no padding");
static_assert(sizeof(Task) == 3 * 8, "padded to a word");
static_assert(sizeof(ProductArguments) == 33 * 8, "words without padding");
static_assert(sizeof(CheckArguments) == sizeof(ProductArguments) + 3 * 8, "words without padding");
static_assert(sizeof(RandomRows) == 6 * 8, "padded to a word");
static_assert(sizeof(RandomDelays) == 2 * 8, "padded to a word");
static_assert(sizeof(JitArguments) == sizeof(ProductArguments) + sizeof(RandomRows) + sizeof(RandomDelays),
              "words without padding");
static_assert(sizeof(LinearArguments) == 10 * 8, "words without padding");

}  // namespace event
}  // namespace spikeforge
