// The table of cells made from text: bounded by bytes, and what is held stays.
#include <spikeforge/graph/errors.h>
#include <spikeforge/kernels/multistep/traced_cell.h>

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "catch.h"

namespace spikeforge::test {
namespace {

// Texts of one length, each another neuron.
std::string text_number(int i) {
  return fmt::format(
      "neuron n(x; v) {{ h = 0.{:05} * v + x; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }}", 10000 + i);
}

// Room for so many of them.
std::size_t room_for(std::size_t count) { return count * TracedCell(text_number(0)).bytes() + 100; }

std::string chain(int divisions) {
  std::string body = "a0 = x + v\n";
  for (int i = 1; i <= divisions; ++i) body += fmt::format("a{} = a{} / (1.5 + a{})\n", i, i - 1, i - 1);
  return fmt::format("neuron chain(x; v) {{ {} s = spike(a{} - 1, atan(2)); return s; v' = select(s, 0, a{}) }}", body,
                     divisions, divisions);
}

template <class Error, class Action>
std::string words_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("of the neurons that nobody holds, the least recently used makes room for a new one") {
  TracedCells cells(room_for(3));
  std::vector<std::weak_ptr<const TracedCell>> seen;
  for (int i = 0; i < 3; ++i) seen.push_back(cells.intern(text_number(i)));
  cells.intern(text_number(0));  // used again
  cells.intern(text_number(3));
  CHECK_FALSE(seen[0].expired());
  CHECK(seen[1].expired());
  CHECK_FALSE(seen[2].expired());
  CHECK(cells.size() == 3);
}

TEST_CASE("a neuron that is held stays, and its text finds it again, however many others come") {
  TracedCells cells(room_for(4));
  const auto held = cells.intern(text_number(0));
  for (int i = 1; i < 2000; ++i) {
    cells.intern(text_number(i));
    REQUIRE(cells.bytes() <= room_for(4));
  }
  CHECK(cells.intern(text_number(0)) == held);
  CHECK(cells.size() == 4);
}

TEST_CASE("where neurons that are held leave no room, it is said what is full, and what to do") {
  TracedCells cells(room_for(2));
  const auto first = cells.intern(text_number(0));
  auto second = cells.intern(text_number(1));
  const std::string words = words_of<NoRoomForCell>([&] { cells.intern(text_number(2)); });
  CHECK_THAT(words, has_text("the 2 neurons in use take") && has_text("SPIKEFORGE_NEURONS_LIMIT_MB"));
  CHECK(cells.intern(text_number(1)) == second);
  second.reset();
  CHECK(cells.intern(text_number(2)) != nullptr);
  CHECK_THAT(words_of<NoRoomForCell>([] { TracedCells(100).intern(text_number(0)); }),
             has_text("the 0 neurons in use"));
}

TEST_CASE("a text that is not legal takes no room") {
  TracedCells cells(room_for(2));
  CHECK(!words_of<graph::GraphError>([&] { cells.intern("neuron n(x) { return y }"); }).empty());
  CHECK(cells.size() == 0);
  CHECK(cells.bytes() == 0);
}

TEST_CASE("what others keep for a cell goes with it") {
  struct Kept {
    std::shared_ptr<int> count;
  };
  const auto count = std::make_shared<int>(0);
  {
    const TracedCell cell(text_number(0));
    const Kept& made = cell.cpu_program.get<Kept>([&] { return Kept{count}; });
    CHECK(&cell.cpu_program.get<Kept>([]() -> Kept { throw 7; }) == &made);
    CHECK(count.use_count() == 2);
  }
  CHECK(count.use_count() == 1);
}

TEST_CASE("a neuron whose compilation would take minutes is refused in words, and runs on the CPU all the same") {
  const TracedCell usual(chain(150)), too_long(chain(400));
  CHECK(!usual.is_too_long());
  CHECK(usual.device_text({}).text.size() > 1000);
  CHECK_THAT(words_of<graph::GraphError>([&] { (void)too_long.device_text({}); }),
             has_text("a step of neuron chain and its derivative come to about") && has_text("at most 8000") &&
                 has_text("run it on the CPU"));
}

}  // namespace spikeforge::test
