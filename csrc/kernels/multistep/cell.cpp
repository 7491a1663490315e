#include "csrc/kernels/multistep/cell.h"
#include "csrc/kernels/multistep/schedule.h"

#include <atomic>
#include <limits>
#include <stdexcept>

namespace spikeforge {
namespace {

constexpr std::size_t most_cells = 64;  // predefined ones and Loihi's
std::array<std::atomic<const Cell*>, most_cells> enrolled{};
std::atomic<std::size_t> next_number = 0;

// In float32, 1 / 2^-128 = 2^128 is infinite, and the reciprocal of the next larger number is finite. The same holds
// for 2^-1024 in float64.
constexpr double least_float_with_reciprocal = 0x1p-128 + 0x1p-149;
constexpr double least_double_with_reciprocal = 0x1p-1024 + 0x1p-1074;

}  // namespace

LegalRange CellParam::range(DType arithmetic) const {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  switch (legal) {
    case Legal::unchecked:
    case Legal::any: return {-infinity, infinity};
    case Legal::positive:
      if (arithmetic == DType::f64) return {least_double_with_reciprocal, std::numeric_limits<double>::max()};
      return {least_float_with_reciprocal, std::numeric_limits<float>::max()};
    case Legal::fraction: return {0, 1};
    case Legal::between: return {static_cast<double>(least), static_cast<double>(most)};
  }
  return {-infinity, infinity};
}

std::int64_t Cell::checkpoint_length(DType type) const {
  static const int forced = kernels::override_of("SPIKEFORGE_CHECKPOINT");
  if (forced != 0) return forced;
  // A segment of the backward pass is stored in registers; a checkpoint costs memory. A second state leaves no
  // registers for 16 steps. Training, T = 32, N = 2^22, for lengths of 8 and 16: float32 1.07, 1.05; float16 1.12,
  // 1.11. EIF, T = 16: 1.05, 1.10. QIF: 1.04, 1.03.
  const bool is_small = states.size() <= 1 && kept_values <= (type == DType::f32 ? 3 : 2);
  int length = type != DType::f64 && is_small ? 16 : 8;
  // Segments are unrolled, so they are shorter for cells with long code.
  const int most = type == DType::f64 ? 1000 : 2000;
  while (length > 2 && length * (forward_cost + backward_cost) > most) length /= 2;
  return length;
}

void enroll(Cell& cell) {
  const std::size_t number = next_number++;
  if (number >= most_cells) throw std::length_error("spikeforge: more cells of the library's own than cell.cpp counts");
  cell.number = number;
  enrolled[number].store(&cell, std::memory_order_release);
}

const Cell& cell_of_number(std::size_t number) { return *enrolled.at(number).load(std::memory_order_acquire); }

}  // namespace spikeforge
