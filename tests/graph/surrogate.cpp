#include "csrc/graph/surrogate.h"
#include "csrc/graph/errors.h"

#include "tests/catch.h"
#include "tests/neuron/surrogate_table.h"

namespace spikeforge::graph {

TEST_CASE("every published surrogate is known, by name and with its defaults") {
  REQUIRE(surrogate_descriptions().size() == test::surrogate_table().size());
  for (const test::KnownSurrogate& known : test::surrogate_table()) {
    INFO(known.name);
    const Surrogate made = make_surrogate(known.name, {});
    REQUIRE(made.kind.has_value());
    CHECK(describe(*made.kind).name == known.name);
    CHECK(describe(*made.kind).args.size() == known.defaults.size());
    for (std::size_t i = 0; i < known.defaults.size(); ++i) CHECK(made.args[i] == double(known.defaults[i]));
    CHECK(text_of(made).starts_with(known.name + "("));
  }
}

TEST_CASE("a surrogate is made by a function of its name") {
  CHECK(text_of(surrogate::atan()) == "atan(2)");
  CHECK(text_of(surrogate::atan(3)) == "atan(3)");
  CHECK(text_of(surrogate::s2nn(4, .5)) == "s2nn(4, 0.5)");
  CHECK(text_of(surrogate::squarewave_fourier(4, 8)) == "squarewave_fourier(4, 8)");
  CHECK(text_of(surrogate::none()) == "none");
}

TEST_CASE("a surrogate's name and numbers are checked") {
  const double one[] = {1}, two[] = {1, 2}, negative[] = {-1}, part[] = {2.5, 8}, infinite[] = {HUGE_VAL, 0};
  CHECK_THROWS_WITH(make_surrogate("arctan", {}),
                    test::has_text("unknown surrogate \"arctan\"; known are sigmoid, atan"));
  CHECK_THROWS_WITH(make_surrogate("atan", two),
                    "surrogate atan takes 1 number, or none for its defaults, but 2 are given");
  CHECK_THROWS_WITH(make_surrogate("s2nn", one),
                    "surrogate s2nn takes 2 numbers, or none for its defaults, but 1 are given");
  CHECK_THROWS_WITH(make_surrogate("atan", negative),
                    "surrogate atan: alpha must be a finite number above 0, but is -1");
  CHECK_THROWS_WITH(make_surrogate("squarewave_fourier", part),
                    "surrogate squarewave_fourier: n must be a whole number of at least 2, but is 2.5");
  CHECK_THROWS_WITH(make_surrogate("leaky_k_relu", infinite),
                    "surrogate leaky_k_relu: leak must be a finite number, but is inf");
  CHECK_THROWS_WITH(make_surrogate("none", one), "surrogate none takes no numbers");
}

}  // namespace spikeforge::graph
