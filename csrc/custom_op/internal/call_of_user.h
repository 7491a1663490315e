// Calls a user's function.
#pragma once

#include <c10/util/Exception.h>

#include <cxxabi.h>

#include <exception>
#include <string>

namespace spikeforge::custom_op {

// Forwards exceptions of a user's function. An exception that is not a std::exception is replaced by a c10::Error,
// because it would terminate the program in autograd's threads and in Python.
template <class Call> decltype(auto) call_of_user(const std::string& op, const char* what, Call&& call) {
  try {
    return call();
  } catch (const std::exception&) {
    throw;
  } catch (abi::__forced_unwind&) {  // thread cancellation must not be stopped
    throw;
  } catch (...) {
    TORCH_CHECK(false, op, ": ", what, " threw an object that is not a std::exception");
  }
}

}  // namespace spikeforge::custom_op
