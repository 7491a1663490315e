#include "csrc/base/printable.h"

#include "tests/catch.h"

namespace spikeforge::test {

TEST_CASE("no control character reaches a terminal") {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text = printable(std::string(1, static_cast<char>(byte)));
    INFO(byte);
    const bool plain = byte >= 0x20 && byte < 0x7f;
    CHECK(text.size() == (plain ? 1 : 4));
    CHECK(text.starts_with(plain ? static_cast<char>(byte) : '\\'));
  }
  CHECK(printable("\x1b]0;title\x07") == "\\x1b]0;title\\x07");
  CHECK(printable("\u009b2J") == "\\xc2\\x9b2J");  // a control character of Latin-1 in UTF-8
  CHECK(printable("é😀") == "é😀");
  CHECK(printable("\xc0\xaf\xed\xa0\x80") == "\\xc0\\xaf\\xed\\xa0\\x80");  // an overlong encoding; a lone surrogate
}

TEST_CASE("lines stay where they are asked for, and a long text is cut") {
  CHECK(printable("a\n\tb\r") == "a\\x0a\\x09b\\x0d");
  CHECK(printable("a\n\tb\r", Lines::several) == "a\n\tb\\x0d");
  CHECK(printable("abcdef", Lines::one, 3) == "abc...");
  CHECK(printable("abc", Lines::one, 3) == "abc");
}

}  // namespace spikeforge::test
