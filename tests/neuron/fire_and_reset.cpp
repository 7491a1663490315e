#include "csrc/kernels/multistep/cell.h"
#include "csrc/neuron/cell.h"
#include "csrc/neuron/if.h"
#include "csrc/neuron/izhikevich.h"
#include "csrc/neuron/surrogate.h"

#include <cmath>
#include <limits>

#include "tests/catch.h"

namespace spikeforge::test {
namespace {

constexpr CellForm hard{}, soft{.hard_reset = false};
constexpr CellForm smooth_hard{.spiking = false}, smooth_soft{.hard_reset = false, .spiking = false};
constexpr double alpha[] = {2.5};

template <class F> Fired<F> fire(F h, const CellForm& options, F v_threshold = F(.75), F v_reset = F(.125)) {
  return fire_and_reset(h, v_threshold, v_reset, Sigmoid<F>(alpha), options);
}

template <class F> void check_firing() {
  const F infinity = std::numeric_limits<F>::infinity(), nan = std::numeric_limits<F>::quiet_NaN();
  const F threshold = F(.75), above = F(1), below = std::nextafter(threshold, F(0));

  SECTION("a neuron exactly at its threshold fires, and one just below does not") {
    for (const CellForm& options : {hard, soft}) {
      CHECK(fire(threshold, options).spike == F(1));
      CHECK(fire(below, options).spike == F(0));
      CHECK(fire(above, options).spike == F(1));
    }
    CHECK(fire(F(0), hard, F(0)).spike == F(1));
    CHECK(fire(F(-0.), hard, F(0)).spike == F(1));
    CHECK(fire(F(-2), hard, F(-2)).spike == F(1));
  }
  SECTION("a hard reset goes to v_reset, a soft reset subtracts the threshold; silence changes nothing") {
    CHECK(fire(above, hard).voltage == F(.125));
    CHECK(fire(threshold, hard).voltage == F(.125));
    CHECK(fire(above, soft).voltage == F(.25));
    CHECK(fire(threshold, soft).voltage == F(0));
    CHECK(fire(below, hard).voltage == below);
    CHECK(fire(below, soft).voltage == below);
  }
  SECTION("NaN does not fire, and stays") {
    for (const CellForm& options : {hard, soft}) {
      CHECK(fire(nan, options).spike == F(0));
      CHECK(std::isnan(fire(nan, options).voltage));
    }
  }
  SECTION("a hard reset is a selection: it forgets infinity") {
    CHECK(fire(infinity, hard).spike == F(1));
    CHECK(fire(infinity, hard).voltage == F(.125));
    CHECK(fire(infinity, soft).voltage == infinity);
    for (const CellForm& options : {hard, soft}) {
      CHECK(fire(-infinity, options).spike == F(0));
      CHECK(fire(-infinity, options).voltage == -infinity);
    }
  }
  SECTION("without spikes S is the primitive, and the reset the smooth formula") {
    for (const F h : {F(-1), F(.5), F(.75), F(2)}) {
      const double s = 1 / (1 + std::exp(-2.5 * (h - .75)));
      CHECK(std::abs(fire(h, smooth_hard).spike - s) < 1e-6);
      CHECK(std::abs(fire(h, smooth_hard).voltage - (s * .125 + (1 - s) * h)) < 1e-6);
      CHECK(std::abs(fire(h, smooth_soft).voltage - (h - .75 * s)) < 1e-6);
    }
  }
}

// dV/dH of one step of an integrate-and-fire neuron, through its vjp.
double slope_of_reset(double h, bool hard_reset, bool detach_reset) {
  using Cell = SpikingCell<double, IF<double, CellForm>, Sigmoid<double>, CellForm>;
  const double params[] = {.75, .125};
  const Cell cell(params, Sigmoid<double>(alpha), {.hard_reset = hard_reset, .detach_reset = detach_reset});
  const double x = h, state = 0, grad_y = 0;
  double grad_state = 1, grad_x = 0, grad_params[2] = {};
  cell.vjp(&x, &state, &grad_y, &grad_state, &grad_x, grad_params);
  REQUIRE(grad_state == grad_x);
  return grad_x;
}

}  // namespace

TEST_CASE("fire and reset in float64") { check_firing<double>(); }
TEST_CASE("fire and reset in float32") { check_firing<float>(); }

TEST_CASE("detach_reset drops the gradient through S in the reset, and nothing else") {
  for (const double h : {.3, .7, .8, 1.9}) {
    const double s = h >= .75 ? 1 : 0, sigma = 1 / (1 + std::exp(-2.5 * (h - .75))), slope = 2.5 * sigma * (1 - sigma);
    INFO("H = " << h);
    CHECK(std::abs(slope_of_reset(h, true, false) - (1 - s + (.125 - h) * slope)) < 1e-14);
    CHECK(slope_of_reset(h, true, true) == 1 - s);
    CHECK(std::abs(slope_of_reset(h, false, false) - (1 - .75 * slope)) < 1e-14);
    CHECK(slope_of_reset(h, false, true) == 1);
  }
}

TEST_CASE("detach_reset does not detach the recovery's b S") {
  using Cell = SpikingCell<double, Izhikevich<double, CellForm>, Sigmoid<double>, CellForm>;
  const double tau = 2, v_threshold = .75, tau_w = 4, a = .5, b = .25;
  const double params[] = {tau, .8, /*a0=*/0, v_threshold, 0, 0, .125, tau_w, a, b};
  const double x = 1.5, state[] = {.25, 0}, grad_y = 0, h = .25 + 1.5 / 2;
  const double sigma = 1 / (1 + std::exp(-2.5 * (h - v_threshold))), slope = 2.5 * sigma * (1 - sigma);
  const Cell cell(params, Sigmoid<double>(alpha), {.detach_reset = true});
  double grad_state[] = {0, 1}, grad_x = 0, grad_params[10] = {};
  cell.vjp(&x, state, &grad_y, grad_state, &grad_x, grad_params);
  CHECK(std::abs(grad_x - (a / tau_w + b * slope) / tau) < 1e-14);
}

}  // namespace spikeforge::test
