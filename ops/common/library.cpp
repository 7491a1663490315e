#include "ops/common/library.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <utility>

#include <dlfcn.h>

namespace spikeforge::ops {

bool is_first_copy() {
  static const bool is_first = [] {
    if (!c10::Dispatcher::singleton().findOp({"spikeforge::run", ""})) return true;
    Dl_info info{};
    const bool is_known =
        ::dladdr(reinterpret_cast<const void*>(&is_first_copy), &info) != 0 && info.dli_fname != nullptr;
    std::fprintf(
        stderr,
        "spikeforge: warning: %s is a second copy of the library in this process; the operators are those of the "
        "first\n",
        is_known ? info.dli_fname : "libspikeforge.so");
    return false;
  }();
  return is_first;
}

namespace {

constexpr c10::DispatchKey lazy_keys[] = {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                          c10::DispatchKey::ZeroTensor};

bool is_lazy(const c10::IValue& value) {
  const auto has = [&](c10::DispatchKey key) { return value.toTensor().key_set().has(key); };
  return value.isTensor() && std::any_of(std::begin(lazy_keys), std::end(lazy_keys), has);
}

c10::IValue resolved(const c10::IValue& value, const c10::Argument& argument) {
  TORCH_CHECK(argument.alias_info() == nullptr, "spikeforge: ", argument.name(),
              " is changed in place and must not be a lazily negated, lazily conjugated or zero tensor: pass a clone");
  const at::Tensor& t = value.toTensor();
  return t._is_zerotensor() ? at::zeros({}, t.options()).expand_symint(t.sym_sizes()) : t.clone();
}

void resolve_all(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = torch::jit::peek(*stack, i, arguments.size());
    if (is_lazy(value)) value = resolved(value, arguments[i]);
    if (!value.isList() || std::none_of(value.toListRef().begin(), value.toListRef().end(), is_lazy)) continue;
    c10::List<c10::IValue> list = value.toList().copy();
    for (std::size_t k = 0; k < list.size(); ++k)
      if (is_lazy(list.get(k))) list.set(k, resolved(list.get(k), arguments[i]));
    value = list;
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, lazy_keys[0]), stack);
}

}  // namespace

void Schemas::def(const std::string& schema, const std::vector<at::Tag>& tags) {
  c10::FunctionSchema parsed = torch::schema(schema.c_str());
  const bool has_optional_tensors = std::any_of(
      parsed.arguments().begin(), parsed.arguments().end(),
      [](const c10::Argument& argument) { return *argument.type() == *c10::ListType::ofOptionalTensors(); });
  const std::string name = c10::toString(parsed.operator_name());
  library_.def(std::move(parsed), tags);
  if (!has_optional_tensors) return;
  for (const c10::DispatchKey key : lazy_keys)
    library_.impl(name.c_str(), torch::dispatch(key, torch::CppFunction::makeFromBoxedFunction<&resolve_all>()));
}

}  // namespace spikeforge::ops
