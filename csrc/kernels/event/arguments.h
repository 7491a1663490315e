// Arguments of the event kernels, shared by the host and the device: C++17 for the host compiler and NVRTC.
#pragma once

namespace spikeforge {
namespace event {

using Int = long long;

// The contribution of an entry x of the vector:
//   event    1 if x is true, or x > 0; nothing otherwise, including NaN
//   graded   x if x > 0; nothing otherwise
//   number   x
enum class Values : unsigned char { event, graded, number };

// The representation of a sum by columns (cuda/event/scatter.cuh).
enum class Sums : unsigned char { counts, floats, fixed };

// The delays of connections: none; one number of steps for all connections; or a separate number for each connection,
// stored in a byte or an int, or drawn.
enum class Delays : unsigned char { none, one, bytes, words, drawn };

// The distribution of the weights of a random matrix:
//   constant   weights [1]: w
//   uniform    weights [2]: low + (high - low) u
//   normal     weights [2]: mean + deviation z
enum class Distribution : unsigned char { constant, uniform, normal };

// Counters that the blocks of one scatter share. The counters and the sums are 0 before the scatter begins.
struct GridBarrier {
  unsigned long long state;  // arrivals in the low bits, the number of listed tasks in the high bits
  unsigned long long nnz;    // the nonzeros of all listed tasks
};

// `count` nonzeros of a row, starting with `first`. Rows are counted over all batches.
struct Task {
  Int first, row;
  int count;
};

struct ProductArguments {
  const int* indices = nullptr;
  const void* indptr = nullptr;  // [rows + 1], of int or Int; null if every row has `width` nonzeros
  Int width = 0, rows = 0, cols = 0, nnz = 0;
  const void* weights = nullptr;
  const void* x = nullptr;  // [batches, length, n], contiguous; by rows, the batch is blockIdx.y
  void* y = nullptr;
  void* sums = nullptr;         // [batches, out, n]; y itself if it is large and sums need no conversion to be results
  float* infinities = nullptr;  // for fixed sums, which have none: [batches, out, n]
  unsigned long long* limits = nullptr;  // bits of the largest finite |weight| and |entry|, as doubles
  unsigned* bits = nullptr;              // [batches, words]
  GridBarrier* grid_barrier = nullptr;
  Task* tasks = nullptr;
  const void* grad = nullptr;  // for weight_gradient
  const Int* slots = nullptr;  // for plasticity: the index of the weight of each nonzero, or null
  Int n = 0, words = 0, batches = 0;
  Int long_row = 0;            // by rows: a row with more nonzeros is not summed by a group of lanes
  Int chunk = 0;               // nonzeros of a task, at most: a power of two
  Int rows_at_once = 0;        // rows that a block reads at once, at most its number of threads
  Int private_from = 0;        // listed nonzeros from which a block uses private sums
  double least = 0, most = 0;  // for plasticity
  // Null, or a flag that is not 0 if an index of the matrix is out of range. Kernels then do not read the matrix.
  const unsigned* refused = nullptr;
  // With delays, y is a ring in the compute type, to which results are added: [slots, all batches, out]. Sums that
  // arrive at step t are in slot t % slots.
  const void* delays = nullptr;  // [nnz], or one element
  const Int* step = nullptr;     // on the device, or null: `now`
  Int now = 0, ring_slots = 0;
  Int slot_size = 0;    // elements of a slot
  Int delay_bytes = 0;  // of one delay for all connections
};

// The kernel reads the matrix of `product`, whose indices may be Int, and whose delays have `delays` bytes.
// `refused`[1] counts the blocks.
struct CheckArguments {
  ProductArguments product;
  Int delays;
  unsigned* refused;
  unsigned* answer;  // in host memory: 0 until everything is read, then an Answer
};

enum class Answer : unsigned { none, right, wrong };

// A random matrix (random_rows.h).
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

// Members of `product` that describe a stored matrix are not read.
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
  void* parts;       // [splits, batches, out] in the compute type, or null if there is one split
  Int in, out, words, batches, first_batch;
};

constexpr int inputs_at_once = 1024;  // that a block of event_linear processes at once

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
