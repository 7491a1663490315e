// Frames of the events of cameras: the arguments of the kernels, and the step, cell and weight of an event. C++17 for
// the host compiler and NVRTC, shared by the CPU and the GPU.
//
// An event (t, x, y, p) of a sample is added to one cell of the sample's frames [steps, channels, out_height,
// out_width]. Frames of all samples are [steps, samples, cells].
#pragma once

#include "csrc/neuron/portable.h"

namespace spikeforge {
namespace frames {

using Int = long long;

// The contents of a cell:
//   count    the number of its events
//   binary   1 if it has events
//   bits     the same, one bit each: 32 columns of a row per word
//   voxel    bilinear in time: an event between two steps is divided between them
//   surface  exp(-(end of the step - time of the last event until then) / tau)
enum class Values : int { count, binary, bits, voxel, surface };

struct FramesArguments {
  const void *t, *x, *y, *p;     // [events]; y and p may be null
  const unsigned char* keep;     // [events]: events with 0 are skipped; may be null
  const Int* offsets;            // [samples + 1]
  const Int* start;              // [samples]: the time of step 0; null: that of the sample's first event
  const Int* origin;             // [samples, 2]: first row and column of the cropped window; null: row and column below
  const unsigned char* flip;     // [samples, 2]: upside down, and left to right; may be null
  const unsigned char* ignored;  // pixels whose events are skipped: [height, width], per sample or of all; may be null
  Int ignored_stride;            // 0, or height * width
  Int events;
  Int window;    // duration of a step, or its number of events; 0: equal shares of the sample
  int by_count;  // true if steps have `window` events
  int samples, steps;
  int height, width, channels;  // of the sensor; with 2 channels, the second has the events whose p is above 0
  int row, column, crop_height, crop_width, downsample;
  int out_height, out_width, row_words;  // row_words: words of bits per row
  Int cells;                             // of a frame: numbers, or words of bits
  double tau;
  void* out;           // [steps, samples, cells]: the numbers or, for voxels and surfaces, 64-bit sums or times
  void* numbers;       // the same: the result
  Int* wrong;          // the first event that is not on the sensor, or before the first one; -1 if none
  Int* arrived;        // -1, and then 1 more for each block that arrives at a barrier of the grid
  Int* redone;         // [samples]: -1, or the sample if frames_in_global computes its frames; null: it computes all
  int steps_of_block;  // consecutive steps that frames_in_shared computes in one block
  int kept_events;     // voxels: events that it keeps in shared memory for the following step
};

// True if numbers are computed from 64-bit sums or times.
constexpr SPIKEFORGE_PLAIN_FN bool has_second_pass(Values values) {
  return values == Values::voxel || values == Values::surface;
}

// The steps of a sample: an event at `time` is at ((time - start) * factor) / length.
struct Steps {
  Int start = 0, factor = 1, length = 1;
  bool begins_with_first = false;  // events before the start are errors
};

SPIKEFORGE_PLAIN_FN Int at_least_1(Int n) { return n < 1 ? 1 : n; }

// `first` and `last` are the times of the first and last of `count` events.
SPIKEFORGE_PLAIN_FN Steps steps_of(const FramesArguments& a, bool is_voxel, int sample, Int count, Int first,
                                   Int last) {
  if (a.by_count != 0) return {0, 1, a.window != 0 ? a.window : at_least_1(count / a.steps), false};
  const Int start = a.start != nullptr ? a.start[sample] : first;
  const bool begins_with_first = a.start == nullptr;
  if (a.window != 0) return {start, 1, a.window, begins_with_first};
  // The last event of a voxel grid is at the last step, and not a step later (Zhu et al. 2019).
  if (is_voxel) return {start, a.steps - 1, at_least_1(last - start), begins_with_first};
  return {start, 1, at_least_1((last - start) / a.steps), begins_with_first};
}

// Returns n / d for n >= 0 and d > 0.
SPIKEFORGE_PLAIN_FN Int quotient_of(Int n, Int d) {
  if (n < Int{1} << 31 && d < Int{1} << 31) return static_cast<unsigned>(n) / static_cast<unsigned>(d);
  return n / d;
}

SPIKEFORGE_PLAIN_FN bool is_below(int n, int bound) { return static_cast<unsigned>(n) < static_cast<unsigned>(bound); }
SPIKEFORGE_PLAIN_FN bool is_below(Int n, Int bound) {
  return static_cast<unsigned long long>(n) < static_cast<unsigned long long>(bound);
}

// Returns a - b modulo 2^64.
SPIKEFORGE_PLAIN_FN Int difference(Int a, Int b) {
  return static_cast<Int>(static_cast<unsigned long long>(a) - static_cast<unsigned long long>(b));
}

// Computes (time - start) * factor. Returns false for times before the start, and for products of 2^63 and above.
SPIKEFORGE_PLAIN_FN bool scale(const Steps& steps, Int time, Int& scaled) {
  scaled = difference(time, steps.start);
  if (time < steps.start || scaled < 0) return false;
  if (steps.factor == 1) return true;
  // The product's bits from 32 on: the factor is below 2^30.
  if (((scaled >> 32) * steps.factor + ((scaled & 0xffffffff) * steps.factor >> 32)) >> 31 != 0) return false;
  scaled *= steps.factor;
  return true;
}

// Frames in shared memory. Counters have 16 bits: those of the first cells are the low halves of words, and the others
// the high halves.
SPIKEFORGE_PLAIN_FN Int half_of(Int cells) { return (cells + 7) / 8 * 4; }
SPIKEFORGE_PLAIN_FN Int shared_bytes_of(Values values, Int cells) {
  const Int words = values == Values::count ? half_of(cells) : values == Values::binary ? (cells + 31) / 32 : cells;
  return (words + 3) / 4 * 16;
}

constexpr int events_of_block = 2048;  // that a block adds to frames in global memory, one after another

constexpr int no_cell = -1, wrong_cell = -2;

SPIKEFORGE_PLAIN_FN bool is_legal(const FramesArguments& a, int x, int y, int p) {
  return is_below(x, a.width) & is_below(y, a.height) & (is_below(p, 2) | (p == -1));
}

// Returns the columns of a row of cells: those of bits fill whole words, so cell i is bit i % 32 of word i / 32.
SPIKEFORGE_PLAIN_FN int row_width(const FramesArguments& a, Values values) {
  return values == Values::bits ? 32 * a.row_words : a.out_width;
}

SPIKEFORGE_PLAIN_FN int index_of(const FramesArguments& a, int out_width, int row, int column, int p) {
  const int channel_row = a.channels == 2 && p > 0 ? a.out_height + row : row;
  return channel_row * out_width + column;
}

// Returns the index of an event's pixel in a frame of [channels, out_height, out_width], or no_cell if the event is
// skipped, or wrong_cell if it is not on the sensor. `out_width` is row_width.
SPIKEFORGE_PLAIN_FN int cell_of(const FramesArguments& a, int out_width, int sample, int x, int y, int p) {
  if (!is_legal(a, x, y, p)) return wrong_cell;
  if (a.ignored != nullptr && a.ignored[sample * a.ignored_stride + Int{y} * a.width + x] != 0) return no_cell;
  const Int first_row = a.origin != nullptr ? a.origin[2 * sample] : a.row;
  const Int first_column = a.origin != nullptr ? a.origin[2 * sample + 1] : a.column;
  if (!is_below(difference(y, first_row), Int{a.crop_height}) ||
      !is_below(difference(x, first_column), Int{a.crop_width}))
    return no_cell;
  int row = static_cast<int>(y - first_row), column = static_cast<int>(x - first_column);
  if (a.flip != nullptr) {
    if (a.flip[2 * sample] != 0) row = a.crop_height - 1 - row;
    if (a.flip[2 * sample + 1] != 0) column = a.crop_width - 1 - column;
  }
  if (a.downsample != 1) {
    row /= a.downsample;
    column /= a.downsample;
  }
  return index_of(a, out_width, row, column, p);
}

// True if frames have all events of the sensor, at its pixels.
SPIKEFORGE_PLAIN_FN bool has_whole_frames(const FramesArguments& a) {
  return a.keep == nullptr && a.ignored == nullptr && a.origin == nullptr && a.flip == nullptr &&
         a.crop_height == a.height && a.crop_width == a.width && a.downsample == 1;
}

// cell_of, if has_whole_frames.
SPIKEFORGE_PLAIN_FN int whole_cell_of(const FramesArguments& a, int out_width, int x, int y, int p) {
  const int cell = index_of(a, out_width, y, x, p);
  return is_legal(a, x, y, p) ? cell : wrong_cell;
}

// The polarity of an event as a factor, if channels do not separate it.
SPIKEFORGE_PLAIN_FN Int sign_of(const FramesArguments& a, int p) {
  return a.channels == 1 && a.p != nullptr && p <= 0 ? -1 : 1;
}

// Returns the divisor of number_of.
SPIKEFORGE_PLAIN_FN double divisor_of(const FramesArguments& a, Values values, const Steps& steps) {
  return values == Values::voxel ? static_cast<double>(steps.length) : a.tau;
}

// Returns the number of a cell of voxels from its sum, or the logarithm of a surface from the latest time until then.
template <class Divisor>
SPIKEFORGE_PLAIN_FN double number_of(Values values, const Steps& steps, int step, Int sum, const Divisor& divisor) {
  if (values == Values::voxel) return static_cast<double>(sum) / divisor;
  const double age = static_cast<double>((step + Int{1}) * steps.length - (sum - 1)) / divisor;
  return sum == 0 ? -1.0 / 0.0 : -age;
}

}  // namespace frames
}  // namespace spikeforge
