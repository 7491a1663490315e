#include "csrc/custom_op/internal/remembered.h"

#include <bit>

namespace spikeforge::custom_op {
namespace {

// The type of a value comes before the value: an int 1 and true are two calls.
enum Word : std::int64_t { tensor = 1, no_tensor, tensors, none, integer, number, truth, text, integers, numbers };

}  // namespace

bool CallKey::describe(const Arguments& in) {
  for (std::size_t i = 0; i < in.count(); ++i)
    if (!add(in.value(i))) return false;
  return true;
}

bool CallKey::add(const at::Tensor& t) {
  if (!t.defined()) return add(Word::no_tensor), true;
  if (t.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return false;
  add(Word::tensor);
  add(static_cast<std::int64_t>(t.scalar_type()));
  add(t.dim());
  for (const std::int64_t size : t.sizes()) add(size);
  return true;
}

bool CallKey::add(const c10::IValue& value) {
  const auto add_all = [&](Word kind, const auto& list, const auto& word_of) {
    add(kind);
    add(static_cast<std::int64_t>(list.size()));
    for (const auto& element : list) add(word_of(element));
    return true;
  };
  if (value.isTensor()) return add(value.toTensor());
  if (value.isNone()) return add(Word::none), true;
  if (value.isInt()) return add(Word::integer), add(value.toInt()), true;
  if (value.isDouble()) return add(Word::number), add(std::bit_cast<std::int64_t>(value.toDouble())), true;
  if (value.isBool()) return add(Word::truth), add(static_cast<std::int64_t>(value.toBool())), true;
  if (value.isString()) return add_all(Word::text, value.toStringRef(), [](char c) { return std::int64_t{c}; });
  if (value.isIntList()) return add_all(Word::integers, value.toIntVector(), [](std::int64_t i) { return i; });
  if (value.isDoubleList())
    return add_all(Word::numbers, value.toDoubleVector(), [](double d) { return std::bit_cast<std::int64_t>(d); });
  if (!value.isTensorList()) return false;
  const std::vector<at::Tensor> list = value.toTensorVector();
  add(Word::tensors);
  add(static_cast<std::int64_t>(list.size()));
  for (const at::Tensor& t : list)
    if (!add(t)) return false;
  return true;
}

std::size_t CallKey::hash() const {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::int64_t word : words_) {
    hash = (hash ^ static_cast<std::uint64_t>(word)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace spikeforge::custom_op
