// A tile of a call: neighbouring neurons whose states stay in the cache while a loop runs all their steps, and their
// position in the caller's memory.
#pragma once

#include "csrc/cpu/operations.h"
#include "csrc/kernels/multistep/launch.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

// The steps [t0, t1), whose states the backward pass stores.
struct Segment {
  std::int64_t t0, t1;
  std::int64_t last;  // the start of the last segment
};

// Neighbouring neurons [first, last) of a tile.
struct Range {
  std::int64_t first, last;
};
// Ranges in ascending order, of whole granules: they end within the tile's padded rows.
using Ranges = std::span<const Range>;

// The way in which a result is written. `cached`: by normal stores. `streamed`: by non-temporal stores from registers,
// for results that are too large to stay in the cache, if rows start on cache lines. `staged`: the same for other rows,
// from pieces that are assembled in the cache. Staging costs 5 % (float16, forward); normal stores of an odd N cost 25
// % (float32).
enum class Writing { cached, streamed, staged };

struct Tile {
  Tile(const Launch& launch, std::int64_t begin, std::int64_t end, std::int64_t steps, bool is_read_again = false,
       bool in_ranges = false)
      : launch(launch),
        steps(steps),
        begin(begin),
        count(end - begin),
        padded((end - begin + granule - 1) / granule * granule),
        is_read_again(is_read_again),
        in_ranges(in_ranges) {}

  const Launch& launch;
  const std::int64_t steps;  // of its longest sample
  const std::int64_t begin, count;
  const std::int64_t padded;  // elements of a row in scratch memory
  const bool is_read_again;   // true if rows of results are read a few steps later
  const bool in_ranges;       // true if rows are written range by range, without staging

  static bool is_dense(const SequenceView& view) { return view.data != nullptr && view.neuron_stride != 0; }

  // Returns row t of a dense sequence.
  template <class Element> const Element* row(const SequenceView& view, std::int64_t t) const {
    return static_cast<const Element*>(view.data) + t * view.time_stride + begin;
  }

  // Returns row t of a result, whose rows have N elements.
  template <class Element> Element* result(void* data, std::int64_t t) const {
    return static_cast<Element*>(data) + t * launch.neurons + begin;
  }

  // Returns the row that is read after the current one: step t if it exists, else step `first` of the next tile; null
  // if there is none.
  template <class Element>
  const Element* row_after(const SequenceView& view, std::int64_t t, std::int64_t first) const {
    if (!is_dense(view)) return nullptr;
    if (t >= 0 && t < steps) return row<Element>(view, t);
    return begin + count < launch.neurons ? row<Element>(view, first) + count : nullptr;
  }

  // Returns the row to prefetch at step t of a backward segment, from the segment that is recomputed next: the segment
  // before this one in time, or the last one of the next tile.
  template <class Element>
  const Element* row_later(const SequenceView& view, std::int64_t t, const Segment& segment) const {
    if (segment.t0 > 0) return row_after<Element>(view, 2 * segment.t0 - 1 - t, 0);
    const std::int64_t row = steps - 1 - t;
    return row < segment.last ? nullptr : row_after<Element>(view, -1, row);
  }

  template <class Element> Writing writing_of(const Element* data, std::int64_t rows) const {
    constexpr std::int64_t element = sizeof(Element);
    if (data == nullptr || is_read_again || rows * launch.neurons * element < large_result) return Writing::cached;
    const bool aligned =
        reinterpret_cast<std::uintptr_t>(data) % line_bytes == 0 && launch.neurons * element % line_bytes == 0;
    if (aligned) return Writing::streamed;
    return in_ranges ? Writing::cached : Writing::staged;
  }
};

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
