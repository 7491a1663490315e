// Calls a function that the user gave.
#pragma once

#include <c10/util/Exception.h>

#include <cxxabi.h>

#include <exception>
#include <string>

namespace spikeforge::custom_op {

// What it throws passes on, but for what is no std::exception: autograd's threads and Python can carry nothing else,
// and the program would end. Throws c10::Error in its place.
template <class Call>
decltype(auto) call_of_user(const std::string& op, const char* what, Call&& call) {
  try {
    return call();
  } catch (const std::exception&) {
    throw;
  } catch (abi::__forced_unwind&) {  // the thread ends, which nobody may hold up
    throw;
  } catch (...) {
    TORCH_CHECK(false, op, ": ", what, " threw something that is no std::exception");
  }
}

}  // namespace spikeforge::custom_op
