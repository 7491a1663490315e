// The filters of HDF5 chunks.
#include "tests/catch.h"

#include "csrc/nir/filters.h"

#include <string>

#include <zlib.h>

namespace spikeforge::test {
namespace {

using namespace nir;

std::vector<std::byte> bytes(const std::string& text) {
  const auto all = std::as_bytes(std::span(text));
  return {all.begin(), all.end()};
}

std::string undone(std::vector<Filter> filters, std::vector<std::byte> input, std::size_t size, unsigned skipped = 0) {
  std::string output(size, '?');
  const std::string wrong = unfilter(filters, skipped, input, std::as_writable_bytes(std::span(output)));
  return wrong.empty() ? output : "wrong: " + wrong;
}

std::string deflated(const std::string& text) {
  std::string result(compressBound(text.size()), '\0');
  uLongf size = result.size();
  compress(reinterpret_cast<Bytef*>(result.data()), &size, reinterpret_cast<const Bytef*>(text.data()), text.size());
  return result.substr(0, size);
}

}  // namespace

TEST_CASE("lzf is literals and copies from before, which may overlap themselves") {
  const Filter filter{lzf, 0};
  CHECK(undone({filter}, bytes(std::string("\x02", 1) + "abc"), 3) == "abc");
  // "ab", then a copy of 5 bytes (length field 3, plus 2) from distance 2.
  CHECK(undone({filter},
               bytes(std::string("\x01"
                                 "ab"
                                 "\x60\x01",
                                 5)),
               7) == "abababa");
  // A long copy: 7 marks a length of two bytes.
  CHECK(undone({filter},
               bytes(std::string("\x00"
                                 "x"
                                 "\xe0\x0a\x00",
                                 5)),
               20) == std::string(20, 'x'));
  CHECK_THAT(undone({filter}, bytes(std::string("\x20\x00", 2)), 3), has_text("damaged"));  // starts before the output
  CHECK_THAT(undone({filter},
                    bytes(std::string("\x05"
                                      "ab",
                                      3)),
                    6),
             has_text("damaged"));  // too few literals
  CHECK_THAT(undone({filter},
                    bytes(std::string("\x00"
                                      "x"
                                      "\xe0\xff\x00",
                                      5)),
                    20),
             has_text("damaged"));  // too long
  CHECK_THAT(undone({filter},
                    bytes(std::string("\x00"
                                      "x",
                                      2)),
                    3),
             has_text("a chunk has 1 bytes instead of 3"));
}

TEST_CASE("deflate stops at the size of the chunk") {
  const std::string text = "some text, some text";
  CHECK(undone({{deflate, 0}}, bytes(deflated(text)), text.size()) == text);
  CHECK_THAT(undone({{deflate, 0}}, bytes(deflated(std::string(1 << 20, 'x'))), 100),
             has_text("inflates to more than its size"));
  CHECK_THAT(undone({{deflate, 0}}, bytes("nonsense"), 100), has_text("damaged"));
  CHECK_THAT(undone({{deflate, 0}}, bytes(deflated(text)), text.size() + 1),
             has_text("a chunk has 20 bytes instead of 21"));
}

TEST_CASE("shuffled bytes go back to their elements, and filters are undone last first unless skipped") {
  // Three elements of 2 bytes, and one remaining byte.
  CHECK(undone({{shuffle, 2}},
               bytes("ace"
                     "bdf"
                     "g"),
               7) == "abcdefg");
  CHECK(undone({{shuffle, 2}, {deflate, 0}},
               bytes(deflated("ace"
                              "bdf")),
               6) == "abcdef");
  CHECK(undone({{shuffle, 2}, {deflate, 0}},
               bytes("ace"
                     "bdf"),
               6, 0b10) == "abcdef");
  CHECK_THAT(undone({{szip, 0}}, bytes("x"), 1), has_text("filter"));
}

TEST_CASE("a checksum is compared") {
  // The Fletcher checksum of the words 0x6162, 0x6364: 0xc4c6 and 0x6162 + 0xc4c6 = 0x12628, folded 0x2629.
  CHECK(undone({{fletcher32, 0}},
               bytes("abcd"
                     "\xc6\xc4\x29\x26"),
               4) == "abcd");
  CHECK_THAT(undone({{fletcher32, 0}},
                    bytes("abcx"
                          "\xc6\xc4\x29\x26"),
                    4),
             has_text("a chunk's checksum is wrong"));
  CHECK_THAT(undone({{fletcher32, 0}}, bytes("abc"), 4), has_text("shorter than its checksum"));
}

}  // namespace spikeforge::test
