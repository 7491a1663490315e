// One projection of connect: its rule and its laws, and what they must be.
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

// Throws ValueError for another name, in a message that begins with `where`.
ConnectionRule parse_rule(const std::string& where, std::string_view name);

inline std::int64_t size_of(const NeuronRange& range) { return range.end - range.begin; }

// The column of row 0's own neuron.
inline std::int64_t first_own_column(const Projection& p, std::int64_t rows) {
  return rows == 0 ? 0 : p.targets.begin / rows * rows;
}

// The least and the most that a law may give; of the law "array" those of the array, which is not empty.
std::pair<double, double> limits_of(const NumberLaw& law, const at::Tensor& array);

// The delays of an array in whole steps, rounded as those of a law are.
at::Tensor whole_delays(const at::Tensor& delays);

// Checks a projection of a matrix with delays of at least `least_delay` steps. Messages begin with `where`. Throws
// ValueError and TypeError.
void check_projection(const std::string& where, const Projection& p, std::int64_t rows, std::int64_t cols,
                      c10::Device device, int least_delay = 0);

}  // namespace spikeforge::ops::sparse
