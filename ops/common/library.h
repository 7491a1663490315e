// Registration of the library spikeforge with torch: SPIKEFORGE_SCHEMAS(library) { ... } and SPIKEFORGE_KERNELS(CPU,
// library) { ... } are torch's TORCH_LIBRARY_FRAGMENT and TORCH_LIBRARY_IMPL, except in a process that loads the
// library twice, from two files (a wheel's and a build's). There, torch would throw at the first schema of the second
// library during loading, which terminates the process. Therefore the second library prints a warning, registers
// nothing, and uses the operators of the first.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <utility>
#include <vector>

namespace spikeforge::ops {

// True if no other copy of the library was loaded before this one. Checked before any registration.
bool is_first_copy();

// Defines operators. torch resolves lazily negated and conjugated tensors and zero tensors in the arguments Tensor and
// Tensor[] before it calls a device's kernel, but not those in Tensor?[]: for an operator with such a list, this class
// registers a kernel that does so.
class Schemas {
 public:
  Schemas(torch::Library& library) : library_(library) {}  // NOLINT(google-explicit-constructor): for the macro below

  void def(const std::string& schema, const std::vector<at::Tag>& tags = {at::Tag::pt2_compliant_tag});
  template <class Function> void def(const char* schema, Function&& function) {
    library_.def(schema, std::forward<Function>(function));
  }

 private:
  torch::Library& library_;
};

// The operator of this name, with its namespace, for calls through the dispatcher.
template <class Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).template typed<Signature>();
}

}  // namespace spikeforge::ops

#define SPIKEFORGE_SCHEMAS(library) \
  SPIKEFORGE_REGISTERED(TORCH_LIBRARY_FRAGMENT(spikeforge, given), ::spikeforge::ops::Schemas library, C10_UID)
#define SPIKEFORGE_KERNELS(key, library) \
  SPIKEFORGE_REGISTERED(TORCH_LIBRARY_IMPL(spikeforge, key, given), torch::Library& library, C10_UID)
#define SPIKEFORGE_REGISTERED(by_torch, parameter, id)                                         \
  static void C10_CONCATENATE(spikeforge_registers_, id)(parameter);                           \
  by_torch {                                                                                   \
    if (::spikeforge::ops::is_first_copy()) C10_CONCATENATE(spikeforge_registers_, id)(given); \
  }                                                                                            \
  void C10_CONCATENATE(spikeforge_registers_, id)(parameter)
