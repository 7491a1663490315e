#include "tests/catch.h"
#include "tests/jit/support.h"

#include "csrc/jit/sources.h"

#include <regex>

using namespace spikeforge::jit;
using namespace spikeforge::test;

namespace {

std::string with_public_includes(const std::string& text) {
  const std::string other_folders =
      std::regex_replace(text, std::regex(R"re(#include "csrc/([^"]+)")re"), "#include <spikeforge/$1>");
  return std::regex_replace(other_folders, std::regex(R"re(#include "((?:ops|cuda)/[^"]+)")re"),
                            "#include <spikeforge/$1>");
}

}  // namespace

TEST_CASE("an embedded header is its file, with the includes of programs") {
  const fs::path root = fs::path(__FILE__).parent_path().parent_path().parent_path();
  if (!fs::exists(root / "csrc")) SPIKEFORGE_SKIP("the sources are not where they were built");
  CHECK_FALSE(embedded_headers().empty());
  for (const EmbeddedHeader& header : embedded_headers()) {
    const std::string name = header.name;
    INFO(name);
    REQUIRE(name.starts_with("spikeforge/"));
    const std::string relative = name.substr(std::string("spikeforge/").size());
    const fs::path file = root / (relative.starts_with("cuda/") ? relative : "csrc/" + relative);
    const bool same = with_public_includes(read_file(file)) == header.text;  // a failure prints no file
    CHECK(same);
  }
}
