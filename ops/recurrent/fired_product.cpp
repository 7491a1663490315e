#include "csrc/cpu/recurrent/fired_product.h"
#include "ops/common/checks.h"
#include "ops/common/rows_product.h"
#include "ops/multistep/cpu_tiles.h"
#include "ops/recurrent/call.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <limits>

namespace spikeforge::ops::recurrent {
namespace {

// The share of firing neurons above which the dense product is at least as fast.
constexpr double densest = 1. / 6;

// True for a plain tensor on the CPU whose calls nothing intercepts.
bool is_plain(const at::Tensor& t) {
  const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  const c10::DispatchKeySet keys = ((t.key_set() | local.included_) - local.excluded_ - c10::autograd_dispatch_keyset)
                                       .remove(c10::DispatchKey::BackendSelect)
                                       .remove(c10::DispatchKey::ADInplaceOrView);
  return keys.highestPriorityTypeId() == c10::DispatchKey::CPU && t.layout() == c10::kStrided &&
         is_supported(t.scalar_type());
}

// Returns the number of spikes, or -1 if a value is neither 0 nor 1.
std::int64_t list(const cpu::FiredProduct& product, DType type, const void* spikes) {
  constexpr std::int64_t rows_of_a_thread = 128;
  std::atomic<std::int64_t> total = 0;
  std::atomic<bool> all_legal = true;
  at::parallel_for(0, product.rows, rows_of_a_thread, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t count = cpu::fired_kernels().list(product, type, spikes, begin, end);
    if (count < 0) all_legal.store(false, std::memory_order_relaxed);
    total.fetch_add(count, std::memory_order_relaxed);
  });
  return all_legal ? total.load() : -1;
}

}  // namespace

std::optional<at::Tensor> fired_product(const at::Tensor& spikes, const at::Tensor& gradients) {
  if (at::GradMode::is_enabled() || !is_plain(spikes) || !is_plain(gradients)) return std::nullopt;
  const at::Tensor fed_back = in_rows(spikes).contiguous(), of_current = in_rows(gradients).contiguous();
  const std::int64_t rows = fed_back.size(0), width = fed_back.size(1);
  constexpr std::int64_t least_work = 1 << 20;
  if (rows * width * width < least_work || width > std::numeric_limits<std::int32_t>::max()) return std::nullopt;
  const DType type = dtype_of(fed_back.scalar_type());
  const auto options = fed_back.options().dtype(state_type(fed_back.scalar_type()));
  const at::Tensor product = at::zeros({width, width}, options);
  const at::Tensor fired = at::empty({std::min(rows, cpu::fired_rows) + 1, width + 1}, options.dtype(at::kInt));
  const at::Tensor when = at::empty({width, std::min(rows, cpu::fired_rows)}, options.dtype(at::kShort));
  const std::int64_t columns = cpu::fired_panel_bytes / product.element_size();
  const auto panel_bytes = static_cast<std::size_t>(std::min(rows, cpu::fired_rows) * cpu::fired_panel_bytes);
  for (std::int64_t first = 0; first < rows; first += cpu::fired_rows) {
    const auto at = [&](const at::Tensor& t) {
      return static_cast<const char*>(t.const_data_ptr()) + first * width * t.element_size();
    };
    cpu::FiredProduct part{.rows = std::min(cpu::fired_rows, rows - first),
                           .width = width,
                           .fired = fired.mutable_data_ptr<std::int32_t>(),
                           .when = static_cast<std::uint16_t*>(when.mutable_data_ptr()),
                           .gradients = at(of_current),
                           .product = product.mutable_data_ptr()};
    part.counts = part.fired + part.rows * width;
    part.times = part.counts + part.rows;
    const std::int64_t count = list(part, type, at(fed_back));
    if (count < 0 || (first == 0 && static_cast<double>(count) > densest * static_cast<double>(part.rows * width)))
      return std::nullopt;
    cpu::fired_kernels().turn(part);
    at::parallel_for(0, (width + columns - 1) / columns, 1, [&](std::int64_t begin, std::int64_t end) {
      void* const panel = thread_scratch(panel_bytes);
      for (std::int64_t p = begin; p < end; ++p) cpu::fired_kernels().add(part, type, p * columns, panel);
    });
  }
  return product.to(fed_back.scalar_type());
}

}  // namespace spikeforge::ops::recurrent
