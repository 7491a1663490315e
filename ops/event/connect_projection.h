// One projection of connect: its rule and its laws, and what they must be.
#pragma once

#include <spikeforge/ops/connect.h>

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
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

// Throws ValueError for another name.
ConnectionRule parse_rule(std::string_view name);

inline std::int64_t size_of(const NeuronRange& range) { return range.end - range.begin; }

// The column of row 0's own neuron.
inline std::int64_t first_own_column(const Projection& p, std::int64_t rows) {
  return rows == 0 ? 0 : p.targets.begin / rows * rows;
}

// The least and the most that a law may give.
std::pair<double, double> limits_of(const NumberLaw& law);

// Every check of projection i of a matrix. Throws ValueError and TypeError.
void check_projection(std::size_t i, const Projection& p, std::int64_t rows, std::int64_t cols, c10::Device device);

}  // namespace spikeforge::ops::sparse
