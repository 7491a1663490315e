// Draws random networks by the usual rules of simulators: the C++ interface of torch.ops.spikeforge.connect
// (docs/networks.md).
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

// The law from which values are drawn: "constant", always `first`; "uniform" from `first` to `second`; "normal" with
// mean `first` and standard deviation `second`; "lognormal", e to the power of a normal value; "array", given values,
// for the rule "arrays". Values outside [low, high] are clipped, or redrawn if `redraw`. Values are drawn in float32.
struct NumberLaw {
  std::string_view law = "constant";
  double first = 1, second = 0;
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  bool redraw = false;
};

// Connections from the neurons `sources`, rows of the matrix, to `targets`, its columns. Rules, with their `amount`:
//   all_to_all, one_to_one
//   fixed_probability   of every pair, independently
//   fixed_out_degree    targets of every source
//   fixed_in_degree     sources of every target
//   fixed_total         connections, each between any two (with multapses)
//   arrays              the connections from source_indices[k] to target_indices[k], counted within the ranges
// Column j belongs to neuron j % rows: a matrix may have several columns for each neuron.
struct Projection {
  std::string_view rule = "all_to_all";
  NeuronRange sources = {}, targets = {};
  double amount = 0;
  bool autapses = true;                                 // true: a neuron may be connected to itself
  bool multapses = true;                                // for fixed degrees: duplicates are allowed
  NumberLaw weight = {}, delay = {};                    // delays are in steps, rounded to the nearest integer
  at::Tensor source_indices = {}, target_indices = {};  // for arrays: int32 or int64 [connections]
  at::Tensor weights = {}, delays = {};                 // of the law "array": [connections], of any real type
};

// A matrix by rows, as in event products. Within a row, connections are in the order of projections.
struct Connectivity {
  at::Tensor indices;  // int32 [connections]: columns
  at::Tensor indptr;   // int64 [rows + 1]
  at::Tensor weights;  // [connections], or [1] if all projections have the same constant
  at::Tensor delays;   // the same: uint8, or int32 if one may be above 255
};

// Draws a network, which is the same for any number of threads and on every device. Memory in addition to the result:
// 12 bytes per row, and for each connection of the largest projection 4 bytes for a fixed in-degree, and 12 (on a GPU
// about 40) for arrays. Throws c10::ValueError and c10::TypeError.
SPIKEFORGE_API Connectivity connect(std::int64_t rows, std::int64_t cols, c10::ArrayRef<Projection> projections,
                                    std::int64_t seed, at::ScalarType weight_type = at::kFloat,
                                    c10::Device device = c10::kCPU);

// A part of a matrix: a subset of its columns, with new indices for rows and columns.
struct ConnectivityPart {
  at::Tensor columns;                    // int32 [cols]: the new index of each column; -1 for an omitted one
  std::vector<std::int64_t> first_rows;  // per projection: the new row of its first source
  std::int64_t rows = 0;                 // the number of rows of the part
};

// Returns the connections of connect() to the columns of a part, bit for bit, with the part's row and column indices.
// Projections to other columns only are not drawn. The others are drawn completely, in order, and connections to other
// columns are discarded. Memory in addition to twice the result: for each connection of the largest projection, 20
// bytes plus the size of its weight and delay.
SPIKEFORGE_API Connectivity connect_part(std::int64_t rows, std::int64_t cols, c10::ArrayRef<Projection> projections,
                                         const ConnectivityPart& part, std::int64_t seed,
                                         at::ScalarType weight_type = at::kFloat, c10::Device device = c10::kCPU);

}  // namespace spikeforge
