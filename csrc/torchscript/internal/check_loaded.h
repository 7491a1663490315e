#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <unordered_map>

namespace spikeforge::torchscript {

// Tensors of one storage: torch loads each with a count of changes of its own, by which spikeforge knows whether a
// matrix that it has read is the same. From here on they have one.
class SharedCounts {
 public:
  void share(const at::Tensor& tensor);

 private:
  std::unordered_map<const c10::StorageImpl*, c10::VariableVersion> counts_;
};

// Throws ScreeningError unless every attribute, of this object and of what it holds, is what its class declares, and
// every tensor lies within its storage. torch sets attributes to whatever the file has, and reads those of one class's
// object as another's, beyond its end.
void check_loaded(const c10::IValue& module, SharedCounts& counts);

}  // namespace spikeforge::torchscript
