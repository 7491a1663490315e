#include "csrc/torchscript/internal/check_loaded.h"
#include "csrc/base/printable.h"
#include "csrc/torchscript/internal/archive.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/class_type.h>
#include <ATen/core/interned_strings.h>
#include <ATen/core/ivalue_inl.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

namespace spikeforge::torchscript {
namespace {

bool is_inside(const at::Tensor& tensor) {
  if (!tensor.defined()) return true;
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || !tensor.has_storage()) return false;
  if (tensor.numel() == 0) return true;
  std::int64_t last = tensor.storage_offset();
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    std::int64_t span = 0;
    if (tensor.stride(d) < 0 || __builtin_mul_overflow(tensor.size(d) - 1, tensor.stride(d), &span) ||
        __builtin_add_overflow(last, span, &last))
      return false;
  }
  return std::cmp_less(last, tensor.storage().nbytes() / tensor.itemsize()) && tensor.storage_offset() >= 0;
}

class Checker {
 public:
  explicit Checker(SharedCounts& counts) : counts_(counts) {}

  bool conforms(const c10::IValue& value, const c10::TypePtr& type) {
    switch (type->kind()) {
      case c10::TypeKind::TensorType:
        if (!value.isTensor() || !is_inside(value.toTensor())) return false;
        counts_.share(value.toTensor());
        return true;
      case c10::TypeKind::IntType:
        return value.isInt();
      case c10::TypeKind::FloatType:
        return value.isDouble();
      case c10::TypeKind::ComplexType:
        return value.isComplexDouble();
      case c10::TypeKind::BoolType:
        return value.isBool();
      case c10::TypeKind::NumberType:
        return value.isScalar();
      case c10::TypeKind::StringType:
        return value.isString();
      case c10::TypeKind::NoneType:
        return value.isNone();
      case c10::TypeKind::DeviceObjType:
        return value.isDevice();
      case c10::TypeKind::OptionalType:
        return value.isNone() || conforms(value, type->expectRef<c10::OptionalType>().getElementType());
      case c10::TypeKind::UnionType: {
        const auto all = type->expectRef<c10::UnionType>().containedTypes();
        return std::any_of(all.begin(), all.end(), [&](const auto& one) { return conforms(value, one); });
      }
      case c10::TypeKind::AnyType:
        return conforms_to_own(value);
      case c10::TypeKind::ListType:
        return is_list_of(value, type->expectRef<c10::ListType>().getElementType());
      case c10::TypeKind::DictType:
        return is_dict_of(value, type->expectRef<c10::DictType>());
      case c10::TypeKind::TupleType:
        return is_tuple_of(value, type->expectRef<c10::TupleType>());
      case c10::TypeKind::ClassType:
        return value.isObject() && *value.toObjectRef().type() == *type && has_its_attributes(value);
      case c10::TypeKind::InterfaceType:
        return value.isObject() && value.toObjectRef().type()->isSubtypeOf(*type) && has_its_attributes(value);
      default:
        return false;
    }
  }

 private:
  // Of type Any: it may be anything that is sound in itself.
  bool conforms_to_own(const c10::IValue& value) {
    if (value.isObject()) return has_its_attributes(value);
    if (value.isTensor() || value.isList() || value.isGenericDict() || value.isTuple())
      return conforms(value, value.type());
    return value.isNone() || value.isScalar() || value.isString() || value.isDevice();
  }
  bool is_list_of(const c10::IValue& value, const c10::TypePtr& element) {
    if (!value.isList() || !(*value.type()->expectRef<c10::ListType>().getElementType() == *element)) return false;
    const auto list = value.toListRef();
    return std::all_of(list.begin(), list.end(), [&](const c10::IValue& item) { return conforms(item, element); });
  }
  bool is_dict_of(const c10::IValue& value, const c10::DictType& type) {
    if (!value.isGenericDict()) return false;
    const auto dict = value.toGenericDict();
    if (!(*dict.keyType() == *type.getKeyType()) || !(*dict.valueType() == *type.getValueType())) return false;
    for (const auto& item : dict)
      if (!conforms(item.key(), type.getKeyType()) || !conforms(item.value(), type.getValueType())) return false;
    return true;
  }
  bool is_tuple_of(const c10::IValue& value, const c10::TupleType& type) {
    if (!value.isTuple() || value.toTupleRef().size() != type.elements().size()) return false;
    const auto& elements = value.toTupleRef().elements();
    for (std::size_t i = 0; i < elements.size(); ++i)
      if (!conforms(elements[i], type.elements()[i])) return false;
    return true;
  }
  bool has_its_attributes(const c10::IValue& value) {
    const auto& object = value.toObjectRef();
    if (!seen_.insert(&object).second) return true;
    const auto type = object.type();
    if (object.slots().size() != type->numAttributes()) return false;
    for (std::size_t i = 0; i < type->numAttributes(); ++i)
      if (!conforms(object.getSlot(i), type->getAttribute(i)))
        refuse("it is damaged: an attribute " + printable(type->getAttributeName(i), Lines::one, 200) +
               " is not what its class says");
    return true;
  }

  SharedCounts& counts_;
  std::unordered_set<const void*> seen_;
};

}  // namespace

void SharedCounts::share(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.is_inference()) return;
  at::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  const auto [found, is_first] = counts_.try_emplace(tensor.storage().unsafeGetStorageImpl(), impl->version_counter());
  if (!is_first) impl->set_version_counter(found->second);
}

void check_loaded(const c10::IValue& module, SharedCounts& counts) {
  if (!module.isObject() || !Checker(counts).conforms(module, module.type()))
    refuse("it is damaged: it holds no module");
}

}  // namespace spikeforge::torchscript
