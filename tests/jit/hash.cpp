#include "tests/catch.h"

#include "csrc/base/hash.h"

using spikeforge::Hash128;
using spikeforge::hash128;

TEST_CASE("a hash is written as 32 digits") { CHECK(Hash128{0xab, 1}.hex() == "00000000000000ab0000000000000001"); }

TEST_CASE("the boundaries of parts are part of the hash") {
  CHECK(hash128({"ab", "c"}) == hash128({"ab", "c"}));
  CHECK(hash128({"ab", "c"}) != hash128({"a", "bc"}));
  CHECK(hash128({"ab", "c"}) != hash128({"abc"}));
  CHECK(hash128({""}) != hash128({}));
}
