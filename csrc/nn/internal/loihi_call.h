// Shared by the fixed-point modules: the errors of their operators, with the name of the module.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace spikeforge::nn {

// The operator names itself and the argument.
template <class Call> auto call_as(const std::string& title, const Call& call) {
  try {
    return call();
  } catch (const c10::TypeError& error) {
    TORCH_CHECK_TYPE(false, title, ": ", error.msg());
    throw;
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, title, ": ", error.msg());
    throw;
  }
}

}  // namespace spikeforge::nn
