// Spikes as bits, for the data that is saved from the forward pass for the backward pass.
#include "csrc/cpu/layer/spike_bits.h"
#include "csrc/jit/recorder.h"
#include "csrc/kernels/layer/spike_bits.h"
#include "ops/common/checks.h"
#include "ops/common/layout.h"
#include "ops/common/library.h"
#include "ops/common/spike_bits.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_strided.h>

#include <atomic>
#include <limits>
#include <tuple>
#include <utility>

#if defined(SPIKEFORGE_WITH_CUDA)
#include "ops/common/on_stream.h"

#include <c10/cuda/CUDAGuard.h>
#endif

namespace spikeforge::ops::layers {
namespace {

using spikeforge::layers::BitsLaunch;
using spikeforge::layers::BitsPass;

SPIKEFORGE_SCHEMAS(library) {
  library.def("pack_spikes(Tensor x, int bits=1) -> (Tensor packed, Tensor valid)");
  library.def(
      "unpack_spikes(Tensor packed, Tensor valid, SymInt[] size, SymInt[] stride, ScalarType dtype, int bits=1) -> "
      "Tensor");
}

void check_pack(const at::Tensor& x, std::int64_t bits) {
  check_floating("pack_spikes", "x", x);
  check_dense("pack_spikes", "x", x);
  check_bits("pack_spikes", bits);
}

std::tuple<at::Tensor, at::Tensor> pack_meta(const at::Tensor& x, std::int64_t bits) {
  check_pack(x, bits);
  Packed packed = empty_packed(x, bits);
  return {std::move(packed.numbers), std::move(packed.valid)};
}

constexpr std::int64_t block = 1 << 14;  // elements; whole bytes for any width

void note(const BitsLaunch& call) {
  jit::note_by_arch([&](const jit::Device&, const jit::Want& want) { want(source_of(call)); });
}

std::tuple<at::Tensor, at::Tensor> pack_cpu(const at::Tensor& x, std::int64_t bits) {
  auto [packed, valid] = pack_meta(x, bits);
  const at::Tensor numbers = without_gaps(x);
  const DType type = dtype_of(x.scalar_type());
  const auto* const from = static_cast<const char*>(numbers.const_data_ptr());
  auto* const to = packed.mutable_data_ptr<std::uint8_t>();
  const std::int64_t count = x.numel();
  note({.pass = BitsPass::pack, .type = type, .bits = static_cast<int>(bits), .count = count, .from = from, .to = to});
  std::atomic<bool> all_legal = true;
  at::parallel_for(0, (count + block - 1) / block, 4, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t begin = first * block, end = std::min(last * block, count);
    if (!cpu::spike_bits().pack(from + begin * static_cast<std::int64_t>(size_of(type)), type, end - begin,
                                static_cast<int>(bits), to + begin * bits / 8))
      all_legal = false;
  });
  *valid.mutable_data_ptr<bool>() = all_legal;
  return {packed, valid};
}

constexpr std::int64_t most_numbers = std::int64_t{1} << 60;  // limit of the count of bits

void check_unpack(const at::Tensor& packed, const at::Tensor& valid, c10::SymIntArrayRef sizes,
                  c10::SymIntArrayRef strides, c10::ScalarType type, std::int64_t bits) {
  constexpr const char* op = "unpack_spikes";
  check_bits(op, bits);
  TORCH_CHECK_TYPE(packed.scalar_type() == at::kByte, op, ": packed must be uint8, but is ", packed.scalar_type());
  TORCH_CHECK_TYPE(valid.scalar_type() == at::kBool && valid.dim() == 0, op,
                   ": valid must be bool and 0-dimensional, but is ", valid.scalar_type(), " of shape ",
                   valid.sym_sizes());
  check_device({op, "packed", packed}, "valid", valid);
  TORCH_CHECK_TYPE(is_supported(type), op, ": dtype must be float16, bfloat16, float32 or float64, but is ", type);
  TORCH_CHECK_VALUE(sizes.size() == strides.size(), op, ": size and stride must have as many entries, but have ",
                    sizes.size(), " and ", strides.size());
  c10::SymInt count = 1;
  for (const c10::SymInt& size : sizes) {
    TORCH_CHECK_VALUE(size >= 0, op, ": size must not be negative, but is ", sizes);
    const auto so_far = count.maybe_as_int(), more = size.maybe_as_int();
    TORCH_CHECK_VALUE(!so_far || !more || *more == 0 || *so_far <= most_numbers / *more, op,
                      ": size is too large: ", sizes);
    count = count * size;
  }
  TORCH_CHECK_VALUE(packed.dim() == 1 && packed.sym_size(0) == bytes_of(count, bits), op, ": packed must have shape [",
                    bytes_of(count, bits), "], which is ", bits, " bits for each number of size ", sizes, ", but has ",
                    packed.sym_sizes());
}

at::Tensor empty_dense(const at::Tensor& packed, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                       c10::ScalarType type) {
  bool is_legal = true;
  for (const c10::SymInt& stride : strides) is_legal = is_legal && stride >= 0;
  const auto options = packed.options().dtype(type);
  // The requested size may be huge if strides are wrong.
  is_legal =
      is_legal && at::empty_strided_symint(sizes, strides, options.device(at::kMeta)).is_non_overlapping_and_dense();
  TORCH_CHECK_VALUE(is_legal, "unpack_spikes: stride must be that of a dense tensor of size ", sizes, ", but is ",
                    strides);
  return at::empty_strided_symint(sizes, strides, options);
}

at::Tensor unpack_meta(const at::Tensor& packed, const at::Tensor& valid, c10::SymIntArrayRef sizes,
                       c10::SymIntArrayRef strides, c10::ScalarType type, std::int64_t bits) {
  check_unpack(packed, valid, sizes, strides, type, bits);
  return empty_dense(packed, sizes, strides, type);
}

at::Tensor unpack_cpu(const at::Tensor& packed, const at::Tensor& valid, c10::SymIntArrayRef sizes,
                      c10::SymIntArrayRef strides, c10::ScalarType type, std::int64_t bits) {
  at::Tensor x = unpack_meta(packed, valid, sizes, strides, type, bits);
  // Read as a byte: a bool that is a view of other memory may be neither true nor false.
  if (*static_cast<const std::uint8_t*>(valid.const_data_ptr()) == 0)
    return x.fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor bytes = packed.contiguous();
  const auto* const from = bytes.const_data_ptr<std::uint8_t>();
  const DType number = dtype_of(type);
  auto* const to = static_cast<char*>(x.mutable_data_ptr());
  const std::int64_t count = x.numel();
  note({.pass = BitsPass::unpack,
        .type = number,
        .bits = static_cast<int>(bits),
        .count = count,
        .from = from,
        .to = to});
  at::parallel_for(0, (count + block - 1) / block, 4, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t begin = first * block, end = std::min(last * block, count);
    cpu::spike_bits().unpack(from + begin * bits / 8, end - begin, static_cast<int>(bits), number,
                             to + begin * static_cast<std::int64_t>(size_of(number)));
  });
  return x;
}

#if defined(SPIKEFORGE_WITH_CUDA)
std::tuple<at::Tensor, at::Tensor> pack_cuda(const at::Tensor& x, std::int64_t bits) {
  check_pack(x, bits);
  const c10::cuda::OptionalCUDAGuard guard(x.device());
  auto [packed, valid] = pack_meta(x, bits);
  valid.fill_(true);
  if (x.numel() == 0) return {packed, valid};
  const at::Tensor numbers = without_gaps(x);
  spikeforge::layers::launch_spike_bits({.pass = BitsPass::pack,
                                         .type = dtype_of(x.scalar_type()),
                                         .bits = static_cast<int>(bits),
                                         .count = x.numel(),
                                         .from = numbers.const_data_ptr(),
                                         .to = packed.mutable_data_ptr(),
                                         .valid = static_cast<std::uint8_t*>(valid.mutable_data_ptr())},
                                        gpu_of(x), stream_of(x));
  return {packed, valid};
}

at::Tensor unpack_cuda(const at::Tensor& packed, const at::Tensor& valid, c10::SymIntArrayRef sizes,
                       c10::SymIntArrayRef strides, c10::ScalarType type, std::int64_t bits) {
  const c10::cuda::OptionalCUDAGuard guard(packed.device());
  at::Tensor x = unpack_meta(packed, valid, sizes, strides, type, bits);
  if (x.numel() == 0) return x;
  const at::Tensor bytes = packed.contiguous();
  spikeforge::layers::launch_spike_bits(
      {.pass = BitsPass::unpack,
       .type = dtype_of(type),
       .bits = static_cast<int>(bits),
       .count = x.numel(),
       .from = bytes.const_data_ptr(),
       .to = x.mutable_data_ptr(),
       // It is only read.
       .valid = static_cast<std::uint8_t*>(const_cast<void*>(valid.const_data_ptr()))},
      gpu_of(packed), stream_of(packed));
  return x;
}
#endif

SPIKEFORGE_KERNELS(CPU, library) {
  library.impl("pack_spikes", TORCH_FN(pack_cpu));
  library.impl("unpack_spikes", TORCH_FN(unpack_cpu));
}
SPIKEFORGE_KERNELS(Meta, library) {
  library.impl("pack_spikes", TORCH_FN(pack_meta));
  library.impl("unpack_spikes", TORCH_FN(unpack_meta));
}
#if defined(SPIKEFORGE_WITH_CUDA)
SPIKEFORGE_KERNELS(CUDA, library) {
  library.impl("pack_spikes", TORCH_FN(pack_cuda));
  library.impl("unpack_spikes", TORCH_FN(unpack_cuda));
}
#endif

}  // namespace
}  // namespace spikeforge::ops::layers
