// Seeds torch's generator in each test case with a hash of its name. SPIKEFORGE_SEED selects other random numbers, as
// for the Python tests.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include "tests/catch.h"

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_test_case_info.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
#endif

#include <ATen/Context.h>

#include <cstdlib>
#include <string>

namespace {

#if __has_include(<catch2/catch_test_macros.hpp>)
using Listener = Catch::EventListenerBase;
#else
using Listener = Catch::TestEventListenerBase;
#endif

uint64_t seed_of(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a: std::hash may differ from one library to the next
  for (const unsigned char letter : name) hash = (hash ^ letter) * 0x100000001b3;
  const char* other = std::getenv("SPIKEFORGE_SEED");
  return hash ^ (other == nullptr ? 0 : std::strtoull(other, nullptr, 10));
}

class SeededTorch : public Listener {
 public:
  using Listener::Listener;
  void testCaseStarting(const Catch::TestCaseInfo& test) override { at::manual_seed(seed_of(test.name)); }
};

}  // namespace

CATCH_REGISTER_LISTENER(SeededTorch)
