// Includes Catch2, version 2.13 or 3.
#pragma once

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <string>

namespace spikeforge::test {

#if __has_include(<catch2/catch_test_macros.hpp>)
using Catch::Approx;
#else
using Approx = Catch::Detail::Approx;  // in Catch2 2, Catch::Approx is a function that creates a matcher
#endif

inline auto has_text(const std::string& piece) {
#if __has_include(<catch2/catch_test_macros.hpp>)
  return Catch::Matchers::ContainsSubstring(piece);
#else
  return Catch::Matchers::Contains(piece);
#endif
}

// Returns the message of the Error that `action` throws, or an empty string if it throws none.
template <class Error, class Action> std::string message_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace spikeforge::test

// Ends the test case and prints the reason.
#ifdef SKIP
#define SPIKEFORGE_SKIP(reason) SKIP(reason)
#else
#define SPIKEFORGE_SKIP(reason)  \
  do {                           \
    WARN("skipped: " << reason); \
    return;                      \
  } while (false)
#endif
