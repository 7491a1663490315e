// One projection of connect: its rule and its laws, and their checks.
#pragma once

#include "ops/connect.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace spikeforge::ops::sparse {

enum class ConnectionRule {
  all_to_all,
  one_to_one,
  fixed_probability,
  fixed_out_degree,
  fixed_in_degree,
  fixed_total,
  arrays
};

// Returns the rule with this name. Throws ValueError for other names, with a message that begins with `where`.
ConnectionRule parse_rule(const std::string& where, std::string_view name);

inline std::int64_t size_of(const NeuronRange& range) { return range.end - range.begin; }

// Returns the column of the neuron of row 0, among the columns of the targets' input.
inline std::int64_t first_own_column(const Projection& p, std::int64_t rows) {
  return rows == 0 ? 0 : p.targets.begin / rows * rows;
}

// Returns the minimum and the maximum value of a law; for the law "array", those of the array, which must not be empty.
std::pair<double, double> limits_of(const NumberLaw& law, const at::Tensor& array);

// Returns the delays of an array in whole steps, rounded like those of a law.
at::Tensor whole_delays(const at::Tensor& delays);

// Checks a projection of a matrix with delays of at least `least_delay` steps. Messages begin with `where`. Throws
// ValueError and TypeError.
void check_projection(const std::string& where, const Projection& p, std::int64_t rows, std::int64_t cols,
                      c10::Device device, int least_delay = 0);

}  // namespace spikeforge::ops::sparse
