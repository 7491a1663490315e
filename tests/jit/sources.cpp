#include "catch.h"
#include "support.h"

#include <spikeforge/jit/sources.h>

using namespace spikeforge::jit;
using namespace spikeforge::test;

TEST_CASE("an embedded header is what its file holds, to the byte") {
  const fs::path root = fs::path(__FILE__).parent_path().parent_path().parent_path();
  if (!fs::exists(root / "csrc")) SPIKEFORGE_SKIP("the sources are not where they were built");
  CHECK_FALSE(embedded_headers().empty());
  for (const EmbeddedHeader& header : embedded_headers()) {
    const std::string name = header.name;
    INFO(name);
    REQUIRE(name.starts_with("spikeforge/"));
    const std::string relative = name.substr(std::string("spikeforge/").size());
    const fs::path file = root / (relative.starts_with("cuda/") ? relative : "csrc/" + relative);
    const bool same = read_file(file) == header.text;  // a failure prints no file
    CHECK(same);
  }
}
