// Products with delays on the CPU: contributions are added to the ring itself, so the cost of a call depends on its
// contributions, and not on the size of the ring.
//
// By rows (A e), a thread owns the rows that it adds to. By columns (e A), it owns columns if those of each row ascend,
// and processes them in blocks whose slots stay in its cache; otherwise one thread adds all. Each of several vectors is
// processed by one thread. Sums are ordered by rows: any number of threads gives the same bits.
#include "csrc/kernels/event/note.h"
#include "ops/event/delays.h"
#include "ops/event/prepared.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace spikeforge::ops::sparse {
namespace {

// The bytes of a block of the ring, over all slots: a part of a second-level cache. Sorting contributions by their
// targets before adding them took longer (10^6 events, rings of 6 and 26 MB).
constexpr std::int64_t block_bytes = std::int64_t{256} << 10;
// The minimum number of nonzeros of a row in a block, so that switching rows does not dominate.
constexpr std::int64_t least_piece = 8;
constexpr std::int64_t line_bytes = 64;

class Delivery {
 public:
  Delivery(const DeliverCall& call, const HeldRows& held)
      : call_(call),
        matrix_(held.rows),
        in_(vectors_of(call.product.x, false)),
        weights_{call.product.weights.const_data_ptr(), dtype_of(call.product.weights.scalar_type()),
                 call.product.weights.numel() == 1},
        offsets_(slot_offsets(call.buffer, call.step)),
        delays_(call.delays.contiguous()) {}

  void deliver() const {
    if (weights_.type == DType::f64)
      run_in<double>();
    else
      run_in<float>();
  }

 private:
  template <class C> void run_in() const {
    const Options& options = call_.product.options;
    if (options.transpose && in_.count() > 1) {
      at::parallel_for(0, in_.count(), 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t v = first; v < last; ++v) deliver<C>(v);
      });
      return;
    }
    for (std::int64_t v = 0; v < in_.count(); ++v) deliver<C>(v);
  }

  template <class C> void deliver(std::int64_t v) const {
    const Values values = call_.product.options.values;
    const bool events = values == Values::event;
    const Bits bits = events ? pack(call_.product.x, in_, v) : Bits();
    const std::vector<C> entries = events ? std::vector<C>() : contributions<C>(call_.product.x, in_, values, v, 1);
    const cpu::Prepared x{values, bits.data(), entries.data()};
    const event::Ring ring = ring_of(v, sizeof(C));
    if (!call_.product.options.transpose) {
      for_rows(matrix_, 1, [&](std::int64_t begin, std::int64_t end) {
        kernels_.deliver_rows(matrix_, weights_, x, begin, end, ring);
      });
      return;
    }
    const Active active = events ? active_rows(matrix_, bits) : active_rows(matrix_, entries, values);
    const std::int64_t block = block_of(active, sizeof(C)), parts = parts_for(active.total);
    const bool ascend = (parts > 1 || block < matrix_.cols) && columns_ascend(stored_matrix(call_));
    if (!ascend) return deliver_columns(x, active, ring, active.begins, 0, matrix_.cols, matrix_.cols);
    at::parallel_for(0, parts, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t part = first; part < last; ++part) {
        const std::int64_t begin = matrix_.cols * part / parts, end = matrix_.cols * (part + 1) / parts;
        deliver_columns(x, active, ring, from_column(active, begin), begin, end, block);
      }
    });
  }

  // Returns the columns of a block: all columns if there are few events per cache line of the ring, or few nonzeros of
  // a row per block.
  std::int64_t block_of(const Active& active, std::size_t size) const {
    const auto rows = static_cast<std::int64_t>(active.rows.size());
    const std::int64_t column = static_cast<std::int64_t>(offsets_.size() * size), bytes = column * matrix_.cols;
    const std::int64_t blocks =
        std::min(bytes / block_bytes, active.total / std::max<std::int64_t>(rows * least_piece, 1));
    if (blocks < 2 || active.total * line_bytes < bytes) return matrix_.cols;
    return (matrix_.cols + blocks - 1) / blocks;
  }

  // Returns for each row the first nonzero from a column on.
  std::vector<std::int64_t> from_column(const Active& active, std::int64_t column) const {
    if (column == 0) return active.begins;
    std::vector<std::int64_t> first(active.rows.size());
    for (std::size_t a = 0; a < first.size(); ++a) {
      const std::int32_t* const begin = matrix_.indices + active.begins[a];
      const std::int32_t* const end = begin + (active.starts[a + 1] - active.starts[a]);
      first[a] = std::lower_bound(begin, end, column) - matrix_.indices;
    }
    return first;
  }

  void deliver_columns(const cpu::Prepared& x, const Active& active, const event::Ring& ring,
                       std::vector<std::int64_t> next, std::int64_t begin, std::int64_t end, std::int64_t block) const {
    const cpu::Columns columns{.rows = active.rows.data(),
                               .begins = active.begins.data(),
                               .starts = active.starts.data(),
                               .next = next.data(),
                               .count = static_cast<std::int64_t>(active.rows.size()),
                               .begin = begin,
                               .end = end,
                               .block = block};
    kernels_.deliver_columns(matrix_, weights_, x, columns, ring);
  }

  event::Ring ring_of(std::int64_t v, std::size_t size) const {
    const Options& options = call_.product.options;
    const std::int64_t out = options.transpose ? matrix_.cols : matrix_.rows;
    return {.sums = static_cast<char*>(call_.buffer.mutable_data_ptr()) + v * out * static_cast<std::int64_t>(size),
            .offsets = offsets_.data(),
            .delays = delays_.const_data_ptr(),
            .wide_delays = delays_.scalar_type() == c10::ScalarType::Int,
            .same_delay = delays_.numel() == 1};
  }

  const cpu::EventKernels& kernels_ = cpu::event_kernels();
  const DeliverCall& call_;
  const Rows& matrix_;
  Vectors in_;
  event::Weights weights_;
  std::vector<std::int64_t> offsets_;
  at::Tensor delays_;
};

}  // namespace

void deliver_cpu(const DeliverCall& call) {
  const HeldRows held = hold_rows(call.product);
  const StoredMatrix stored = stored_matrix(call);
  const bool unchecked = call.product.options.unchecked;
  if (unchecked)
    check_indptr(call.name(), held.rows);
  else
    verify(stored);
  event::note_kernels([&](const jit::Device& device) {
    std::vector<event::KernelSpec> specs = kernels_of(gpu_delivery(call, held.rows), device);
    if (!specs.empty() && !unchecked) specs.push_back(check_kernel(stored));
    return specs;
  });
  if (call.buffer.numel() == 0) return;
  Delivery(call, held).deliver();
}

}  // namespace spikeforge::ops::sparse
