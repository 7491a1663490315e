#include "csrc/nir/network/tensor.h"
#include "csrc/nir/array_values.h"
#include "csrc/nir/refuse.h"
#include "ops/common/plain.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace spikeforge::nir {
namespace {

constexpr std::pair<DType, c10::ScalarType> types[] = {
    {DType::boolean, c10::kBool},    {DType::int8, c10::kChar},     {DType::int16, c10::kShort},
    {DType::int32, c10::kInt},       {DType::int64, c10::kLong},    {DType::uint8, c10::kByte},
    {DType::uint16, c10::kUInt16},   {DType::uint32, c10::kUInt32}, {DType::uint64, c10::kUInt64},
    {DType::float16, c10::kHalf},    {DType::float32, c10::kFloat}, {DType::float64, c10::kDouble},
    {DType::float32, c10::kBFloat16}};

// Returns nullopt for types that torch cannot compute with.
std::optional<c10::ScalarType> type_in_torch(DType dtype) {
  if (dtype == DType::uint16 || dtype == DType::uint32 || dtype == DType::uint64) return {};
  return std::ranges::find(types, dtype, &std::pair<DType, c10::ScalarType>::first)->second;
}

DType type_of(const at::Tensor& tensor) {
  for (const auto& [dtype, type] : types)
    if (type == tensor.scalar_type()) return dtype;
  refuse("", "", "expected numbers, but it is {}", c10::toString(tensor.scalar_type()));
}

// Copies a tensor on the CPU whose elements have this type.
Array copied(const at::Tensor& tensor, DType dtype) {
  const at::Tensor values = ops::plain(tensor);
  Array array(dtype, values.sizes().vec());
  if (array.count() > 0) std::memcpy(array.writable_bytes().data(), values.const_data_ptr(), array.byte_count());
  return array;
}

}  // namespace

at::Tensor shared_tensor(const Array& array) {
  if (const auto type = type_in_torch(array.dtype()); type && array.count() > 0) {
    auto* bytes = const_cast<std::byte*>(array.bytes().data());  // NOLINT: never written
    return at::from_blob(
        bytes, array.shape(), [keep = array.storage()](void*) {}, at::TensorOptions(*type));
  }
  at::Tensor values = at::empty(array.shape(), c10::kDouble);
  for (std::int64_t i = 0; i < array.count(); ++i) values.mutable_data_ptr<double>()[i] = array.at(i);
  return values;
}

at::Tensor tensor_of(const Array& array, c10::ScalarType dtype, c10::Device device) {
  return shared_tensor(array).to(device, dtype, /*non_blocking=*/false, /*copy=*/true);
}

at::Tensor taken_tensor(const Array& array, c10::ScalarType dtype, c10::Device device) {
  const bool is_shared = array.storage().use_count() > 1;
  return shared_tensor(array).to(device, dtype, /*non_blocking=*/false, /*copy=*/is_shared);
}

Array array_of(const at::Tensor& tensor) {
  const bool is_double = tensor.scalar_type() == c10::kDouble;
  const at::Tensor values = tensor.detach().to(c10::kCPU, is_double ? c10::kDouble : c10::kFloat);
  return copied(values, is_double ? DType::float64 : DType::float32);
}

Array exact_array(const at::Tensor& tensor) {
  const DType dtype = type_of(tensor);
  const at::Tensor values = tensor.detach().to(c10::kCPU);
  return copied(values.scalar_type() == c10::kBFloat16 ? values.to(c10::kFloat) : values, dtype);
}

Array array_as(const at::Tensor& tensor, DType dtype) {
  const auto type = type_in_torch(dtype);
  if (!type) return array_of(tensor);
  const at::Tensor values = tensor.detach().to(c10::kCPU), converted = values.to(*type);
  const at::Tensor again = converted.to(values.scalar_type());
  if (!again.eq(values).logical_or(again.ne(again).logical_and(values.ne(values))).all().item<bool>())
    return array_of(tensor);
  return copied(converted, dtype);
}

}  // namespace spikeforge::nir
