// What a product with a stored matrix comes to on a GPU: which kernels, in which order, and how wide. Launches and the
// recorder of kernel packs ask here, so that a pack holds what a launch looks for.
#pragma once

#include <spikeforge/kernels/event/spec.h>
#include <spikeforge/jit/device.h>

#include <cstdint>
#include <vector>

namespace spikeforge::jit {

// All that decides it.
struct EventProduct {
  DType weight{};
  event::EntryType entry{};
  event::Values values{};
  bool shared = false;            // one weight
  std::uint8_t indptr_bytes = 0;  // of an element; 0 where rows have one width
  bool transpose = false;
  bool deterministic = false;
  std::int64_t rows = 0, cols = 0, connections = 0;
  std::int64_t n = 1, batches = 1;  // vectors side by side, and one after the other
};

// A product whose weights get a gradient.
struct EventWeightGradient {
  EventProduct product;
};

// What a sum by columns is made of, and the bytes of one.
EventSums sums_by_columns(event::Values values, bool shared, bool deterministic);
std::int64_t size_of_sum(EventSums sums, DType weight);

struct EventStep {
  EventSpec spec;
  std::int64_t blocks = 0;
  std::int64_t threads = 0;  // of a block
  std::int64_t shared_bytes = 0;
  std::int64_t most_shared_bytes = 0;  // of this kernel on this device, whatever the matrix
  bool together = false;               // blocks wait for each other
};

// By rows: A e.
struct GatherPlan {
  std::int64_t batches_at_once = 1;
  std::int64_t words = 0;     // of the bits of one vector; 0 where entries are read as they are
  std::int64_t long_row = 0;  // a row of more connections is summed by a block
  std::vector<EventStep> steps;
};
GatherPlan plan_gather(const EventProduct& product, const Device& device);

// By columns: e A.
struct ScatterPlan {
  EventSums sums{};
  std::int64_t sum_bytes = 0;        // of one
  bool in_place = false;             // sums are the results
  std::int64_t batches_at_once = 1;  // so many fit a workspace
  std::int64_t chunk = 0, rows_at_once = 0, private_from = 0;
  std::int64_t tasks = 0;         // of a batch, at most
  std::vector<EventStep> limits;  // once, before all batches, where sums are fixed
  EventStep scatter;              // of a full number of batches
};
ScatterPlan plan_scatter(const EventProduct& product, const Device& device);

// Of the weights, where every connection has its own: x and the result's gradient, of `product.weight`, are read.
EventStep plan_weight_gradient(const EventProduct& product, const Device& device);

// The kernels of a product on any device of this architecture.
std::vector<EventSpec> kernels_of(const EventProduct& product, const Device& device);

}  // namespace spikeforge::jit
