#include "csrc/kernels/event/connect.h"

#include <string>

#include "tests/catch.h"
#include "tests/kernels/compiles.h"

namespace spikeforge::tests {
namespace {

using event::ConnectStep;
using event::NumberType;

void check_numbers(const std::string& arch, NumberType type) {
  check_compiles(arch, print_source(event::spec_of(ConnectStep::numbers, type)), 0);
}

}  // namespace

TEST_CASE("kernels that draw networks compile for sm_90, and spill nothing") {
  for (int step = 0; step < static_cast<int>(ConnectStep::numbers); ++step)
    check_compiles("sm_90", print_source(event::spec_of(static_cast<ConnectStep>(step), NumberType::f32)), 0);
  for (int type = 0; type <= static_cast<int>(NumberType::i32); ++type)
    check_numbers("sm_90", static_cast<NumberType>(type));
}

TEST_CASE("kernels that draw networks compile for sm_80, sm_100 and sm_120") {
  for (const char* const arch : {"sm_80", "sm_100", "sm_120"}) {
    check_compiles(arch, print_source(event::spec_of(ConnectStep::draw, NumberType::f32)), 0);
    check_numbers(arch, NumberType::f16);
  }
}

}  // namespace spikeforge::tests
