// Calls a function that the user gave.
#pragma once

#include <c10/util/Exception.h>

#include <cxxabi.h>

#include <exception>
#include <string>

namespace spikeforge::custom_op {

// Forwards exceptions of a user's function, except those that are not a std::exception: autograd's threads and Python
// cannot carry them, and the program would end. Throws c10::Error in their place.
template <class Call> decltype(auto) call_of_user(const std::string& op, const char* what, Call&& call) {
  try {
    return call();
  } catch (const std::exception&) {
    throw;
  } catch (abi::__forced_unwind&) {  // the thread ends, which must not be prevented
    throw;
  } catch (...) {
    TORCH_CHECK(false, op, ": ", what, " threw something that is no std::exception");
  }
}

}  // namespace spikeforge::custom_op
