#include "ops/common/spike_bits.h"
#include "ops/common/library.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <optional>
#include <tuple>
#include <utility>

namespace spikeforge::ops {

void check_bits(const char* op, std::int64_t bits) {
  TORCH_CHECK_VALUE(bits == 1 || bits == 4, op, ": bits must be 1, for 0 and 1, or 4, for 0 to 15, but is ", bits);
}

c10::SymInt bytes_of(const c10::SymInt& count, std::int64_t bits) { return (count * bits + 7) / 8; }

Packed empty_packed(const at::Tensor& x, std::int64_t bits) {
  const auto options = x.options().memory_format(std::nullopt);
  return {at::empty_symint({bytes_of(x.sym_numel(), bits)}, options.dtype(at::kByte)),
          at::empty({}, options.dtype(at::kBool))};
}

Packed call_pack(const at::Tensor& x, std::int64_t bits) {
  using Pack = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, std::int64_t);
  static const auto handle = find_operator<Pack>("spikeforge::pack_spikes");
  auto [numbers, valid] = handle.call(x, bits);
  return {std::move(numbers), std::move(valid)};
}

at::Tensor call_unpack(const Packed& packed, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                       c10::ScalarType type, std::int64_t bits) {
  using Unpack = at::Tensor(const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef, c10::SymIntArrayRef,
                            c10::ScalarType, std::int64_t);
  static const auto handle = find_operator<Unpack>("spikeforge::unpack_spikes");
  return handle.call(packed.numbers, packed.valid, sizes, strides, type, bits);
}

at::Tensor without_gaps(const at::Tensor& x) { return x.is_non_overlapping_and_dense() ? x : x.contiguous(); }

}  // namespace spikeforge::ops
