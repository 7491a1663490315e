// Products with delays on the CPU: what is delivered is added to the ring itself, so that a call costs what it delivers
// and not what the ring holds.
//
// By rows (A e) a thread owns the rows that it adds to. By columns (e A), what goes to a ring that is larger than a
// cache is first sorted into bins, pieces of the ring that stay in one, of which threads own some; what goes to a
// smaller one is added as it comes, by threads that own columns, where those of each row ascend, else by one. Several
// vectors are shared out whole. Sums go by rows in any case: any number of threads gives the same bits.
#include <spikeforge/kernels/event/note.h>
#include <spikeforge/ops/event/delays.h>
#include <spikeforge/ops/event/prepared.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace spikeforge::ops::sparse {
namespace {

// The nonzeros of active rows whose columns lie in [begin, end).
Active between(const Rows& matrix, const Active& active, std::int64_t begin, std::int64_t end) {
  Active own(static_cast<std::int64_t>(active.rows.size()));
  for (std::size_t a = 0; a < active.rows.size(); ++a) {
    const std::int32_t* const first = matrix.indices + active.begins[a];
    const std::int32_t* const last = first + (active.starts[a + 1] - active.starts[a]);
    const std::int32_t* const from = std::lower_bound(first, last, begin);
    const std::int32_t* const until = std::lower_bound(from, last, end);
    if (from < until) own.add(active.rows[a], from - matrix.indices, until - matrix.indices);
  }
  own.finish();
  return own;
}

// Of sums, 256 KiB of float32, and at most so many bins, which are written side by side.
constexpr int least_shift = 16;
constexpr std::int64_t most_bins = 256;
// A ring below is not worth the sorting, nor is one that gets less than an event for each cache line.
constexpr std::int64_t least_ring = std::int64_t{2} << 20;
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

  void run() const {
    if (weights_.type == DType::f64)
      run_in<double>();
    else
      run_in<float>();
  }

 private:
  template <class C>
  void run_in() const {
    const Options& options = call_.product.options;
    if (options.transpose && in_.count() > 1) {
      at::parallel_for(0, in_.count(), 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t v = first; v < last; ++v) deliver<C>(v);
      });
      return;
    }
    for (std::int64_t v = 0; v < in_.count(); ++v) deliver<C>(v);
  }

  template <class C>
  void deliver(std::int64_t v) const {
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
    const std::int64_t parts = parts_for(active.total),
                       bytes = call_.buffer.numel() / in_.count() * static_cast<std::int64_t>(sizeof(C));
    if (bytes >= least_ring && active.total >= bytes / line_bytes) return deliver_in_bins<C>(x, active, ring, parts);
    if (parts == 1 || !columns_ascend(stored_matrix(call_))) {
      kernels_.deliver(matrix_, weights_, x, active.share(0, 1), ring);
      return;
    }
    at::parallel_for(0, parts, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t part = first; part < last; ++part) {
        const Active own = between(matrix_, active, matrix_.cols * part / parts, matrix_.cols * (part + 1) / parts);
        kernels_.deliver(matrix_, weights_, x, own.share(0, 1), ring);
      }
    });
  }

  // Each part of the nonzeros is sorted by a thread, behind what the parts before it have for the same bin.
  template <class C>
  void deliver_in_bins(const cpu::Prepared& x, const Active& active, const event::Ring& ring,
                       std::int64_t parts) const {
    const std::int64_t size = call_.buffer.numel();
    cpu::Bins bins{.shift = least_shift};
    while (size >> bins.shift >= most_bins) ++bins.shift;
    const std::int64_t count = (size >> bins.shift) + 1;
    std::vector<std::int64_t> next(static_cast<std::size_t>(parts * count)), starts;
    const auto for_parts = [&](auto&& use) {
      at::parallel_for(0, parts, 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t part = first; part < last; ++part) {
          cpu::Bins own = bins;
          own.next = next.data() + part * count;
          use(active.share(part, parts), own);
        }
      });
    };
    for_parts([&](const cpu::Share& share, const cpu::Bins& own) { kernels_.count_bins(matrix_, share, ring, own); });
    std::int64_t total = 0;
    for (std::int64_t bin = 0; bin < count; ++bin) {
      starts.push_back(total);
      for (std::int64_t part = 0; part < parts; ++part)
        total += std::exchange(next[static_cast<std::size_t>(part * count + bin)], total);
    }
    starts.push_back(total);

    const bool is_counted = x.values == Values::event && weights_.homogeneous;
    const at::Tensor places = at::empty({total}, at::kInt),
                     numbers = at::empty({is_counted ? 0 : total}, call_.buffer.options());
    bins.places = static_cast<std::uint32_t*>(places.mutable_data_ptr());
    bins.numbers = is_counted ? nullptr : numbers.mutable_data_ptr();
    for_parts([&](const cpu::Share& share, const cpu::Bins& own) {
      kernels_.fill_bins(matrix_, weights_, x, share, ring, own);
    });
    at::parallel_for(0, count, (count + parts - 1) / parts, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t bin = first; bin < last; ++bin) {
        const auto i = static_cast<std::size_t>(bin);
        kernels_.add_bin(weights_, bins, starts[i], starts[i + 1], static_cast<C*>(ring.sums) + (bin << bins.shift));
      }
    });
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
  Delivery(call, held).run();
}

}  // namespace spikeforge::ops::sparse
