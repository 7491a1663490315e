// The GPU launches of a product with a stored matrix: their kernels, order and widths. Launches and the recorder of
// kernel packs use the same plan, so a pack holds the kernels that a launch looks up.
#pragma once

#include "csrc/jit/device.h"
#include "csrc/kernels/event/spec.h"

#include <cstdint>
#include <vector>

namespace spikeforge::event {

// All that decides it.
struct Product {
  DType weight{};
  EntryType entry{};
  Values values{};
  bool homogeneous = false;       // one weight
  std::uint8_t indptr_bytes = 0;  // of an element; 0 where rows have one width
  bool transpose = false;
  bool deterministic = false;
  std::int64_t rows = 0, cols = 0, nnz = 0;
  std::int64_t n = 1, batches = 1;  // vectors side by side, and one after the other
  Delays delays{};                  // of what is delivered to a ring
  std::int64_t ring = 0;            // elements of it
};

// The representation of a sum by columns, and its size in bytes.
Sums sums_by_columns(Values values, bool homogeneous, bool deterministic);
std::int64_t size_of_sum(Sums sums, DType weight);

constexpr std::int64_t task_bytes = sizeof(Task);

struct Step {
  KernelSpec spec;
  std::int64_t blocks = 0;
  std::int64_t threads = 0;  // of a block
  std::int64_t shared_bytes = 0;
  std::int64_t most_shared_bytes = 0;  // of this kernel on this device, whatever the matrix
  bool together = false;               // blocks wait for each other
};

// A product by rows: A e.
struct GatherPlan {
  std::int64_t batches_at_once = 1;
  std::int64_t words = 0;     // of the bits of one vector; 0 where entries are read as they are
  std::int64_t long_row = 0;  // a row of more nonzeros is summed by a block
  std::vector<Step> steps;
};
GatherPlan plan_gather(const Product& product, const jit::Device& device);

// A product by columns: e A.
struct ScatterPlan {
  Sums sums{};
  std::int64_t sum_bytes = 0;        // of one
  bool in_place = false;             // sums are the results
  std::int64_t batches_at_once = 1;  // so many fit a workspace
  std::int64_t chunk = 0, rows_at_once = 0, private_from = 0;
  std::int64_t tasks = 0;    // of a batch, at most
  std::vector<Step> limits;  // once, before all batches, where sums are fixed
  Step scatter;              // of a full number of batches
  std::vector<Step> finish;  // once, after all batches, for sums over a whole ring
};
ScatterPlan plan_scatter(const Product& product, const jit::Device& device);

// Either order into a ring, whose sums are those of a scatter; by rows a batch is a row of the grid.
ScatterPlan plan_delivery(const Product& product, const jit::Device& device);
KernelSpec take_of(DType compute);

// The gradient of the weights, one per nonzero: x and the result's gradient, of type `product.weight`, are read.
Step plan_weight_gradient(const Product& product, const jit::Device& device);

// The kernel that checks the indices of a stored matrix; `indptr_bytes` as above. Delays: bytes, words or none.
KernelSpec check_of(std::uint8_t indptr_bytes, bool wide_indices, Delays delays = Delays::none);

// The kernels of a product, which are the same on all devices of an architecture: their multiprocessors decide how many
// blocks there are and which rows are long, and no spec.
std::vector<KernelSpec> kernels_of(const Product& product, const jit::Device& device);

}  // namespace spikeforge::event
