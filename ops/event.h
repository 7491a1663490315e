// Products of sparse matrices with events, and changes of weights by spikes: the C++ interface of
// torch.ops.spikeforge's event_csrmv, event_csrmv_delayed, jit_csrmv, event_linear, stdp_pre and related operators.
// docs/events.md describes all arguments.
//
// Matrices are stored by rows, one for each neuron that fires. An entry x of `events` is an event if it is true, or x >
// 0; NaN is not an event. All functions run on CPU and GPU. Products and event_linear have gradients, straight-through
// for events. Errors are c10::TypeError and c10::ValueError and name the operator and the argument.
#pragma once

#include "csrc/base/export.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace spikeforge {

// A stored matrix [rows, cols]. The first call checks its indices, and throws if one is out of range. The result is
// remembered until one of the tensors changes.
struct Connections {
  at::Tensor weights;  // floating point, with the shape of indices, or one element for all
  at::Tensor indices;  // int32, the columns: [connections], or in ELL form [rows, connections a row]
  // int32 or int64 [rows + 1], the begin of each row in indices; nullopt in ELL form.
  std::optional<at::Tensor> indptr = std::nullopt;
  std::int64_t rows = 0, cols = 0;
  bool unchecked = false;  // skips the check: an illegal index accesses memory out of bounds

  // Throws ValueError for an index out of range, rows that are not consecutive, and, if `sorted`, columns of a row that
  // do not ascend. Synchronises with a GPU. Not for the ELL form, in which only indices can be illegal.
  SPIKEFORGE_API void check(bool sorted = false) const;
};

struct ProductOptions {
  bool transpose = false;      // e A instead of A e
  bool deterministic = false;  // the same bits in every run on a GPU too
};
struct EventProductOptions {
  bool transpose = false;
  bool graded = false;  // an event counts x instead of 1
  bool deterministic = false;
};

// Maps events [..., cols] to [..., rows], or [..., rows] to [..., cols] with transpose. The result has the weights'
// type.
SPIKEFORGE_API at::Tensor event_mv(const Connections& matrix, const at::Tensor& events,
                                   const EventProductOptions& options = {});
// Maps events [..., cols, n] to [..., rows, n], or the reverse with transpose.
SPIKEFORGE_API at::Tensor event_mm(const Connections& matrix, const at::Tensor& events,
                                   const EventProductOptions& options = {});
// The same for vectors of numbers: every entry counts with its value.
SPIKEFORGE_API at::Tensor sparse_mv(const Connections& matrix, const at::Tensor& vector,
                                    const ProductOptions& options = {});
SPIKEFORGE_API at::Tensor sparse_mm(const Connections& matrix, const at::Tensor& vectors,
                                    const ProductOptions& options = {});

// A random matrix [rows, cols] that is redrawn in every call and never stored: every entry is a connection with
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

// Delays that are drawn with the matrix. The law "constant" has the delay d; "uniform" the first and the last of a
// range of integers; "normal" the mean and the standard deviation, and is rounded and clipped to the slots.
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

// Returns the sums that arrive at a step, [..., out], and the buffer with that slot set to zero, as a copy or in place.
SPIKEFORGE_API std::pair<at::Tensor, at::Tensor> take_arrivals(const at::Tensor& buffer, const at::Tensor& step);
SPIKEFORGE_API at::Tensor take_arrivals_(const at::Tensor& buffer, const at::Tensor& step);

// Returns events [..., in], or their bits, times weight [in, out], plus bias [out]. Rows of inputs without an event are
// not read.
SPIKEFORGE_API at::Tensor event_linear(const at::Tensor& events, const at::Tensor& weight,
                                       const std::optional<at::Tensor>& bias = std::nullopt, bool graded = false);

// Packs [..., n] into int32 [..., ceil(n / 32)], with entry 32 w + b in bit b of word w; and unpacks to bool.
SPIKEFORGE_API at::Tensor pack_events(const at::Tensor& events);
SPIKEFORGE_API at::Tensor unpack_events(const at::Tensor& packed, std::int64_t n);

// A matrix by columns, for stdp_post_. `slots`, int64, has the index of each connection's weight in the matrix.
struct ByColumns {
  at::Tensor indices, indptr, slots;
};
SPIKEFORGE_API ByColumns by_columns(const Connections& matrix);

struct ClipRange {
  std::optional<double> least = std::nullopt, most = std::nullopt;
};
// Updates weights in place, for a matrix with indptr and a weight for each connection. For every row i with an event in
// `events` [rows]: w_ij += trace[j], trace [cols], then clipped.
SPIKEFORGE_API void stdp_pre_(Connections& matrix, const at::Tensor& events, const at::Tensor& trace,
                              const ClipRange& range = {});
// For every column j with an event in `events` [cols]: w_ij += trace[i], trace [rows], then clipped.
SPIKEFORGE_API void stdp_post_(Connections& matrix, const ByColumns& columns, const at::Tensor& events,
                               const at::Tensor& trace, const ClipRange& range = {});

// Further arguments of plastic_step_. `params` are the values of the rule's parameters, in its order.
struct PlasticOptions {
  std::vector<double> params = {};
  std::vector<std::optional<at::Tensor>> signals = {};  // 0-dimensional or [cols] each
  std::optional<at::Tensor> step = std::nullopt;        // int64, 0-dimensional; for rules with a decaying state
  bool sends = false;                                   // true to return the sums that arrive
  bool refresh = false;                                 // only updates decaying states to `step`
};
// Computes a step of plastic connections in place. `rule` is synapse text (docs/plasticity.md). `states`
// [connections] begin with matrix.weights; `traces` are [rows] or [cols]. Spikes `pre` [rows] arrive and neurons `post`
// [cols] fire. Returns the sums that arrive, [cols], or no elements without `sends`. `columns` is by_columns(matrix).
SPIKEFORGE_API at::Tensor plastic_step_(std::string_view rule, at::TensorList states, at::TensorList traces,
                                        const Connections& matrix, const ByColumns& columns, const at::Tensor& pre,
                                        const at::Tensor& post, const PlasticOptions& options = {});

}  // namespace spikeforge
