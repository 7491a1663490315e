#include "csrc/graph/surrogate.h"
#include "csrc/graph/errors.h"

#include <cmath>
#include <sstream>
#include <string>

#include "tests/catch.h"

namespace spikeforge::graph {

TEST_CASE("every published surrogate is known, by name and with its numbers, their names and defaults") {
  std::ostringstream known;
  for (const SurrogateDescription& description : surrogate_descriptions()) {
    const Surrogate made = make_surrogate(description.name, {});
    known << description.name << ':';
    for (std::size_t i = 0; i < description.args.size(); ++i)
      known << ' ' << description.args[i].name << '=' << made.args[i];
    known << '\n';
    CHECK(text_of(made).starts_with(std::string(description.name) + "("));
  }
  CHECK(known.str() ==
        "sigmoid: alpha=4\n"
        "atan: alpha=2\n"
        "piecewise_quadratic: alpha=1\n"
        "piecewise_exp: alpha=1\n"
        "soft_sign: alpha=2\n"
        "super_spike: alpha=1\n"
        "erf: alpha=2\n"
        "piecewise_leaky_relu: w=1 c=0.01\n"
        "s2nn: alpha=4 beta=1\n"
        "q_pseudo_spike: alpha=2\n"
        "leaky_k_relu: leak=0 k=1\n"
        "fake_numerical_gradient: alpha=0.3\n"
        "log_tailed_relu: alpha=0\n"
        "nonzero_sign_log_abs: alpha=1\n"
        "squarewave_fourier: n=2 period=8\n"
        "rect: alpha=1\n"
        "fast_sigmoid: slope=25\n"
        "zenke_super_spike: beta=100\n"
        "straight_through:\n"
        "triangular: threshold=1\n"
        "spike_rate_escape: beta=1 slope=25\n"
        "gaussian: sigma=0.5 gamma=0.5\n"
        "multi_gaussian: sigma=0.5 h=0.15 s=6 gamma=0.5\n");
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
  CHECK_THROWS_WITH(make_surrogate("none", one), "the surrogate none has no arguments");
}

}  // namespace spikeforge::graph
