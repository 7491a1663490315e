// Networks drawn by the rules that simulators have: the C++ face of torch.ops.spikeforge.connect (docs/networks.md).
#pragma once

#include "csrc/base/export.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace spikeforge {

// Neurons begin, ..., end - 1.
struct NeuronRange {
  std::int64_t begin = 0, end = 0;
};

// The law from which numbers are drawn: "constant" first; "uniform" from first to second; "normal" with mean first and
// standard deviation second; "lognormal", e to the power of such a number; "array" for the rule "arrays", given
// numbers. Those outside [low, high] are clipped, or drawn again if `redraw`. A law is drawn in float32.
struct NumberLaw {
  std::string_view law = "constant";
  double first = 1, second = 0;
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  bool redraw = false;
};

// From the neurons `sources`, rows of the matrix, to the neurons `targets`, its columns. Rules, with their `amount`:
//   all_to_all, one_to_one
//   fixed_probability   of every pair, whatever the others are
//   fixed_out_degree    targets of every source
//   fixed_in_degree     sources of every target
//   fixed_total         connections, each between any two (with multapses)
//   arrays              the connections from source_indices[k] to target_indices[k], counted within the ranges
// Column j belongs to neuron j % rows: a matrix may have several columns for each neuron.
struct Projection {
  std::string_view rule = "all_to_all";
  NeuronRange sources = {}, targets = {};
  double amount = 0;
  bool autapses = true;                                 // a neuron may be connected with itself
  bool multapses = true;                                // of fixed degrees: two neurons may be connected several times
  NumberLaw weight = {}, delay = {};                    // a delay in steps, rounded to the nearest whole number
  at::Tensor source_indices = {}, target_indices = {};  // of arrays: int32 or int64 [connections]
  at::Tensor weights = {}, delays = {};                 // of the law "array": [connections], of any real type
};

// A matrix by rows, as event products take it. Within a row, connections are in the order of projections.
struct Connectivity {
  at::Tensor indices;  // int32 [connections]: columns
  at::Tensor indptr;   // int64 [rows + 1]
  at::Tensor weights;  // [connections], or [1] where all projections have the same constant
  at::Tensor delays;   // the same: uint8, or int32 where one may be above 255
};

// The same network for any number of threads and on every device. Memory beyond the result: 12 bytes a row, and of a
// fixed in-degree 4, of arrays 12 (on a GPU about 40) bytes for each connection of the largest such projection. Throws
// c10::ValueError and c10::TypeError.
SPIKEFORGE_API Connectivity connect(std::int64_t rows, std::int64_t cols, c10::ArrayRef<Projection> projections,
                                    std::int64_t seed, at::ScalarType weight_type = at::kFloat,
                                    c10::Device device = c10::kCPU);

// A part of a matrix: some of its columns, and the rows of each projection at other indices.
struct ConnectivityPart {
  at::Tensor columns;                    // int32 [cols]: the new index of each column; -1 for an omitted one
  std::vector<std::int64_t> first_rows;  // of each projection: the row that its first source becomes
  std::int64_t rows = 0;                 // of the part
};

// Returns the connections of connect() to the columns of a part, bit for bit, with the part's row and column indices.
// Projections to other columns only are not drawn. The others are drawn completely, one after the other, and
// connections to other columns are discarded. Memory beyond twice the result: for each connection of the largest
// projection, 20 bytes and the bytes of its weight and delay.
SPIKEFORGE_API Connectivity connect_part(std::int64_t rows, std::int64_t cols, c10::ArrayRef<Projection> projections,
                                         const ConnectivityPart& part, std::int64_t seed,
                                         at::ScalarType weight_type = at::kFloat, c10::Device device = c10::kCPU);

}  // namespace spikeforge
