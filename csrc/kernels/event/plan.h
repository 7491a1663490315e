// The GPU launches of a product with a stored matrix: their kernels, order and widths. Launches and the recorder of
// kernel packs use the same plan, so a pack contains the kernels that a launch looks up.
#pragma once

#include "csrc/jit/device.h"
#include "csrc/kernels/event/spec.h"

#include <cstdint>
#include <vector>

namespace spikeforge::event {

// All properties of a product that determine its plan.
struct Product {
  DType weight{};
  EntryType entry{};
  Values values{};
  bool homogeneous = false;       // one weight for all connections
  std::uint8_t indptr_bytes = 0;  // of an element; 0 if all rows have the same width
  bool transpose = false;
  bool deterministic = false;
  std::int64_t rows = 0, cols = 0, nnz = 0;
  std::int64_t n = 1, batches = 1;  // vectors of a batch; batches, each with a separate result
  Delays delays{};                  // for delivery to a ring
  std::int64_t ring = 0;            // elements of the ring
};

// Return the representation of a sum by columns, and its size in bytes.
Sums sums_by_columns(Values values, bool homogeneous, bool deterministic);
std::int64_t size_of_sum(Sums sums, DType weight);

constexpr std::int64_t task_bytes = sizeof(Task);

struct Step {
  KernelSpec spec;
  std::int64_t blocks = 0;
  std::int64_t threads = 0;  // of a block
  std::int64_t shared_bytes = 0;
  std::int64_t most_shared_bytes = 0;  // of this kernel on this device, for any matrix
  bool together = false;               // true if blocks wait for each other
};

// A product by rows: A e.
struct GatherPlan {
  std::int64_t batches_at_once = 1;
  std::int64_t words = 0;     // of the bits of one vector; 0 if entries are not packed to bits
  std::int64_t long_row = 0;  // a block sums a row of more nonzeros
  std::vector<Step> steps;
};
GatherPlan plan_gather(const Product& product, const jit::Device& device);
// Returns the plan of a product that also adds to the gradient of weights, for at most most_with_gradient vectors.
GatherPlan plan_gather_with_gradient(const Product& product, const jit::Device& device);
constexpr std::int64_t most_with_gradient = 32;

// A product by columns: e A.
struct ScatterPlan {
  Sums sums{};
  std::int64_t sum_bytes = 0;        // of one
  bool in_place = false;             // sums are the results
  std::int64_t batches_at_once = 1;  // the number that fits a workspace
  std::int64_t chunk = 0, rows_at_once = 0, private_from = 0;
  std::int64_t tasks = 0;    // the maximum number per batch
  std::vector<Step> limits;  // once, before all batches, for fixed sums
  Step scatter;              // for the full number of batches at once
  std::vector<Step> finish;  // once, after all batches, for sums over a whole ring
};
ScatterPlan plan_scatter(const Product& product, const jit::Device& device);

// Returns the plan of a product in either order whose results are added to a ring. The sums are those of a scatter; by
// rows, a batch is a row of the grid.
ScatterPlan plan_delivery(const Product& product, const jit::Device& device);
KernelSpec take_of(DType compute);

// Returns the step for the gradient of the weights, one per nonzero. It reads x and the result's gradient, both of type
// `product.weight`.
Step plan_weight_gradient(const Product& product, const jit::Device& device);

// Returns the kernel that checks the indices of a stored matrix; `indptr_bytes` as in Product. Delays: bytes, words or
// none.
KernelSpec check_of(std::uint8_t indptr_bytes, bool wide_indices, Delays delays = Delays::none);

// Returns the kernels of a product. They are the same on all devices of an architecture: the number of multiprocessors
// determines the number of blocks and the length of long rows, but no spec.
std::vector<KernelSpec> kernels_of(const Product& product, const jit::Device& device);

}  // namespace spikeforge::event
