// Products of sparse matrices with events, and what spikes do to weights: the C++ face of torch.ops.spikeforge's
// event_csrmv, event_csrmv_delayed, jit_csrmv, event_linear, stdp_pre and their like, where every argument is explained
// (docs/events.md).
//
// Matrices are stored by rows, one for each neuron that fires. An entry x of `events` is an event where it is true, or
// x > 0; NaN is none. All of it runs on CPU and GPU; products and event_linear have gradients, straight through for
// events. Errors are c10::TypeError and c10::ValueError and name operator and argument.
#pragma once

#include "csrc/base/export.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace spikeforge {

// A stored matrix [rows, cols]. Its numbers are read by its first call, which refuses those that are out of range;
// later calls remember it, until one of the tensors changes.
struct Connections {
  at::Tensor weights;  // floating point: one a connection, of the shape of indices, or one element for all
  at::Tensor indices;  // int32, the columns: [connections], or in ELL form [rows, connections a row]
  // int32 or int64 [rows + 1], where rows begin in indices; none in ELL form.
  std::optional<at::Tensor> indptr = std::nullopt;
  std::int64_t rows = 0, cols = 0;
  bool unchecked = false;  // calls take the numbers as they are; a wrong one reads or writes memory of others

  // Throws ValueError for an index that is out of range, rows that are not consecutive, and, if `sorted`, columns of a
  // row that do not ascend. Synchronises with a GPU. Not for the ELL form, where only indices may be wrong.
  SPIKEFORGE_API void check(bool sorted = false) const;
};

struct ProductOptions {
  bool transpose = false;      // e A in place of A e
  bool deterministic = false;  // the same bits at every run on a GPU too
};
struct EventProductOptions {
  bool transpose = false;
  bool graded = false;  // an event counts x in place of 1
  bool deterministic = false;
};

// events [..., cols] to [..., rows], or [..., rows] to [..., cols] under transpose; of the weights' type.
SPIKEFORGE_API at::Tensor event_mv(const Connections& matrix, const at::Tensor& events,
                                   const EventProductOptions& options = {});
// events [..., cols, n] to [..., rows, n], or the other way.
SPIKEFORGE_API at::Tensor event_mm(const Connections& matrix, const at::Tensor& events,
                                   const EventProductOptions& options = {});
// Every entry counts as it is.
SPIKEFORGE_API at::Tensor sparse_mv(const Connections& matrix, const at::Tensor& vector,
                                    const ProductOptions& options = {});
SPIKEFORGE_API at::Tensor sparse_mm(const Connections& matrix, const at::Tensor& vectors,
                                    const ProductOptions& options = {});

// A random matrix [rows, cols] that is drawn anew at every call and never stored: every entry is a connection with
// probability `prob`. `seed` determines the matrix, which is the same on every device.
struct RandomConnections {
  at::Tensor weights;  // of law "constant" [1]; "uniform" [2], from, to; "normal" [2], mean, deviation
  std::string_view law = "constant";
  std::int64_t rows = 0, cols = 0;
  double prob = 0;
  std::int64_t seed = 0;
};
SPIKEFORGE_API at::Tensor event_mv(const RandomConnections& matrix, const at::Tensor& events,
                                   const EventProductOptions& options = {});
SPIKEFORGE_API at::Tensor event_mm(const RandomConnections& matrix, const at::Tensor& events,
                                   const EventProductOptions& options = {});

// Products whose results arrive some steps later. Sums that arrive at step t are in buffer[t % slots]; an event of step
// t through a connection of delay d is added to buffer[(t + d) % slots], with 0 <= d < slots. `buffer` is [slots, ...,
// out] of the weights' type, float32 with half types, for `events` [..., in]; `step` is int64, 0-dimensional, on the
// CPU or the buffer's device. `delays` are uint8 or int32, of the shape of indices, or one element for all. Functions
// whose names end with _ change the buffer, and have no gradient.
SPIKEFORGE_API at::Tensor event_mv_delayed(const Connections& matrix, const at::Tensor& events,
                                           const at::Tensor& delays, const at::Tensor& buffer, const at::Tensor& step,
                                           const EventProductOptions& options = {});
SPIKEFORGE_API void event_mv_delayed_(const Connections& matrix, const at::Tensor& events, const at::Tensor& delays,
                                      const at::Tensor& buffer, const at::Tensor& step,
                                      const EventProductOptions& options = {});

// Delays that are drawn with the matrix: of law "constant" d; "uniform" the first and the last of whole numbers;
// "normal" mean and deviation, rounded and clipped to the slots.
struct DrawnDelays {
  std::vector<double> numbers;
  std::string_view law = "constant";
};
SPIKEFORGE_API at::Tensor event_mv_delayed(const RandomConnections& matrix, const at::Tensor& events,
                                           const DrawnDelays& delays, const at::Tensor& buffer, const at::Tensor& step,
                                           const EventProductOptions& options = {});
SPIKEFORGE_API void event_mv_delayed_(const RandomConnections& matrix, const at::Tensor& events,
                                      const DrawnDelays& delays, const at::Tensor& buffer, const at::Tensor& step,
                                      const EventProductOptions& options = {});

// The sums that arrive at a step, [..., out], and the buffer with that slot set to zero, as a copy or in place.
SPIKEFORGE_API std::pair<at::Tensor, at::Tensor> take_arrivals(const at::Tensor& buffer, const at::Tensor& step);
SPIKEFORGE_API at::Tensor take_arrivals_(const at::Tensor& buffer, const at::Tensor& step);

// events [..., in], or their bits, times weight [in, out], plus bias [out]; rows of other inputs are not read.
SPIKEFORGE_API at::Tensor event_linear(const at::Tensor& events, const at::Tensor& weight,
                                       const std::optional<at::Tensor>& bias = std::nullopt, bool graded = false);

// [..., n] to int32 [..., ceil(n / 32)], entry 32 w + b in bit b of word w; and back, as bool.
SPIKEFORGE_API at::Tensor pack_events(const at::Tensor& events);
SPIKEFORGE_API at::Tensor unpack_events(const at::Tensor& packed, std::int64_t n);

// A matrix by columns, for stdp_post_: `slots`, int64, has the index of each connection's weight in the matrix.
struct ByColumns {
  at::Tensor indices, indptr, slots;
};
SPIKEFORGE_API ByColumns by_columns(const Connections& matrix);

struct ClipRange {
  std::optional<double> least = std::nullopt, most = std::nullopt;
};
// In place, of a matrix with a weight for each connection and indptr. For every row i of `events` [rows] that is an
// event: w_ij += trace[j], trace [cols], then clipped.
SPIKEFORGE_API void stdp_pre_(Connections& matrix, const at::Tensor& events, const at::Tensor& trace,
                              const ClipRange& range = {});
// For every column j of `events` [cols] that is an event: w_ij += trace[i], trace [rows], then clipped.
SPIKEFORGE_API void stdp_post_(Connections& matrix, const ByColumns& columns, const at::Tensor& events,
                               const at::Tensor& trace, const ClipRange& range = {});

// Further arguments of plastic_step_. `params` are the values of the rule's parameters, in its order.
struct PlasticOptions {
  std::vector<double> params = {};
  std::vector<std::optional<at::Tensor>> signals = {};  // of no dimension or [cols] each
  std::optional<at::Tensor> step = std::nullopt;        // int64, of no dimension; of rules with a state that decays
  bool sends = false;                                   // true to return the sums that arrive
  bool refresh = false;                                 // only updates states that decay to `step`
};
// Computes a step of plastic connections in place. `rule` is synapse text (docs/plasticity.md). `states`
// [connections] begin with matrix.weights; `traces` are [rows] or [cols]. Spikes `pre` [rows] arrive and neurons `post`
// [cols] fire. Returns the sums that arrive, [cols], or no elements without `sends`. `columns` is by_columns(matrix).
SPIKEFORGE_API at::Tensor plastic_step_(std::string_view rule, at::TensorList states, at::TensorList traces,
                                        const Connections& matrix, const ByColumns& columns, const at::Tensor& pre,
                                        const at::Tensor& post, const PlasticOptions& options = {});

}  // namespace spikeforge
