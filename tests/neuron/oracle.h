// The neurons as slow, obvious loops in long double, written from their published equations, and their gradients as
// finite differences. Nothing here knows how the library works.
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace spikeforge::test {

using Real = long double;

struct Params {
  Real tau = 2, w = 0, delta_t = 1, theta_rh = .8L, v_c = .8L, a0 = 1, v_threshold = 1, v_rest = 0, w_rest = 0,
       v_reset = 0, tau_w = 2, a = 0, b = 0, decay = .9L;
};

// A parameter's name, and a range in which neurons fire now and then and do not run away.
struct ParamFacts {
  std::string name;
  Real Params::*field;
  Real low, high;
};

struct NeuronFacts {
  std::string name;
  std::vector<ParamFacts> params;  // in the order of its lowered operators
  Real weakest, strongest;         // of x
  bool has_w = false;              // a second state: W, or the A of adaptive_lif
  bool has_decay_input = false;
};

inline const std::vector<NeuronFacts>& neurons() {
  static const ParamFacts tau{"tau", &Params::tau, 2.2L, 4}, plif_w{"w", &Params::w, -1, 1},
      delta_t{"delta_t", &Params::delta_t, .8L, 1.2L}, theta_rh{"theta_rh", &Params::theta_rh, .7L, .9L},
      v_c{"v_c", &Params::v_c, .6L, 1}, a0{"a0", &Params::a0, .3L, .5L},
      v_threshold{"v_threshold", &Params::v_threshold, .8L, 1.2L}, v_rest{"v_rest", &Params::v_rest, -.2L, .1L},
      w_rest{"w_rest", &Params::w_rest, -.2L, .2L}, v_reset{"v_reset", &Params::v_reset, -.2L, .2L},
      tau_w{"tau_w", &Params::tau_w, 2.2L, 4}, a{"a", &Params::a, .05L, .4L}, b{"b", &Params::b, .05L, .4L},
      decay{"decay", &Params::decay, .6L, .95L};
  static const std::vector<NeuronFacts> table = {
      {"integrate_and_fire", {v_threshold, v_reset}, -.5L, 1.4L},
      {"lif", {tau, v_threshold, v_reset}, -1, 2.6L, false, true},
      {"plif", {plif_w, v_threshold, v_reset}, -1, 2.6L, false, true},
      {"qif", {tau, v_c, a0, v_threshold, v_rest, v_reset}, -1.8L, 2.6L},
      {"eif", {tau, delta_t, theta_rh, v_threshold, v_rest, v_reset}, -1.8L, 1.8L},
      {"izhikevich", {tau, v_c, a0, v_threshold, v_rest, w_rest, v_reset, tau_w, a, b}, -1.8L, 2.3L, true},
      {"adaptive_lif", {tau, v_threshold, v_reset, decay, b}, -1, 3, true, true},
  };
  return table;
}

struct Form {
  bool hard_reset = true, detach_reset = false, spiking = true, decay_input = true;

  std::string text() const {
    return std::string(hard_reset ? "hard" : "soft") + (detach_reset ? ", detached" : "") +
           (spiking ? "" : ", smooth") + (decay_input ? "" : ", undecayed input");
  }
};

// Every choice that the neuron knows.
inline std::vector<Form> forms(const NeuronFacts& neuron) {
  std::vector<Form> all;
  for (int bits = 0; bits < 16; ++bits) {
    const Form form{(bits & 1) == 0, (bits & 2) != 0, (bits & 4) == 0, (bits & 8) == 0};
    if (form.decay_input || neuron.has_decay_input) all.push_back(form);
  }
  return all;
}

struct Surrogacy {
  std::function<Real(Real)> gradient, primitive;
};

inline Surrogacy sigmoid_of(Real alpha) {
  const auto primitive = [alpha](Real x) { return 1 / (1 + std::exp(-alpha * x)); };
  return {[=](Real x) { return alpha * primitive(x) * primitive(-x); }, primitive};
}

// One neuron over its steps.
struct Case {
  const NeuronFacts* neuron{};
  Form form;
  Surrogacy surrogate;
  Params params;
  std::vector<Real> x;
  std::optional<Real> v,
      w;  // initial states; those that are not given start at v_reset, or 0 under soft reset, and at w_rest
};

struct Step {
  Real u, s, v, w;  // H less the threshold, S, V and W after the step
};

inline Real charge(const Case& c, Real x, Real v, Real w) {
  const Params& p = c.params;
  const std::string& name = c.neuron->name;
  const Real leak = v - (c.form.hard_reset ? p.v_reset : 0);
  const Real parabola = p.a0 * (v - p.v_rest) * (v - p.v_c);
  if (name == "integrate_and_fire") return v + x;
  if (name == "lif" || name == "adaptive_lif")
    return c.form.decay_input ? v + (x - leak) / p.tau : v - leak / p.tau + x;
  if (name == "plif") {
    const Real rate = 1 / (1 + std::exp(-p.w));
    return c.form.decay_input ? v + (x - leak) * rate : v - leak * rate + x;
  }
  if (name == "qif") return v + (x + parabola) / p.tau;
  if (name == "eif") return v + (x + p.v_rest - v + p.delta_t * std::exp((v - p.theta_rh) / p.delta_t)) / p.tau;
  return v + (x + parabola - w) / p.tau;
}

inline Real threshold(const Case& c, Real w) {
  return c.neuron->name == "adaptive_lif" ? c.params.v_threshold + c.params.b * w : c.params.v_threshold;
}

inline Real recover(const Case& c, Real h, Real s, Real w) {
  const Params& p = c.params;
  if (c.neuron->name == "adaptive_lif") return p.decay * w + s;
  return w + (p.a * (h - p.v_rest) - w) / p.tau_w + p.b * s;
}

// `around` makes the loop differentiable as the operators are defined to be: Θ is then its value there plus the
// surrogate's slope, and a detached reset sees the constant value.
inline std::vector<Step> walk(const Case& c, const std::vector<Step>* around = nullptr) {
  const Params& p = c.params;
  Real v = c.v.value_or(c.form.hard_reset ? p.v_reset : 0), w = c.w.value_or(p.w_rest);
  std::vector<Step> steps;
  for (std::size_t t = 0; t < c.x.size(); ++t) {
    const Real h = charge(c, c.x[t], v, w), theta = threshold(c, w), u = h - theta;
    Real s = u >= 0 ? 1 : 0;
    if (!c.form.spiking) s = c.surrogate.primitive(u);
    if (c.form.spiking && around != nullptr)
      s = (*around)[t].s + c.surrogate.gradient((*around)[t].u) * (u - (*around)[t].u);
    const Real s_reset = c.form.detach_reset && around != nullptr ? (*around)[t].s : s;
    v = c.form.hard_reset ? s_reset * p.v_reset + (1 - s_reset) * h : h - theta * s_reset;
    w = recover(c, h, s, w);
    steps.push_back({u, s, v, w});
  }
  return steps;
}

// One number a step for each sequence that a cell returns.
struct Upstream {
  std::vector<Real> s, v, w;
};

inline Real loss(const std::vector<Step>& steps, const Upstream& g) {
  Real sum = 0;
  for (std::size_t t = 0; t < steps.size(); ++t) sum += g.s[t] * steps[t].s + g.v[t] * steps[t].v + g.w[t] * steps[t].w;
  return sum;
}

struct Gradients {
  std::vector<Real> x;
  Real v = 0, w = 0;
  std::vector<Real> params;  // in the order of NeuronFacts
};

// f'(x) of a function with some smooth derivatives; error about 1e-14 of its scale.
template <class Function> Real derivative(Function&& f, Real x, Real step = 1e-4L) {
  return (8 * (f(x + step) - f(x - step)) - (f(x + 2 * step) - f(x - 2 * step))) / (12 * step);
}

inline Gradients differentiate(Case c, const Upstream& g) {
  const std::vector<Step> around = walk(c);
  const auto of = [&](Real& variable) {
    const Real before = variable;
    const Real slope = derivative(
        [&](Real value) {
          variable = value;
          return loss(walk(c, &around), g);
        },
        before);
    variable = before;
    return slope;
  };
  Gradients result;
  for (Real& x : c.x) result.x.push_back(of(x));
  if (c.v) result.v = of(*c.v);
  if (c.w) result.w = of(*c.w);
  for (const ParamFacts& param : c.neuron->params) result.params.push_back(of(c.params.*param.field));
  return result;
}

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  Real uniform(Real low, Real high) {
    return std::uniform_real_distribution<double>(double(low), double(high))(engine_);
  }

 private:
  std::mt19937_64 engine_;
};

constexpr Real initial_low = -.5L, initial_high = .9L;

// Rounded to T, so that a cell in that type is given the same numbers.
template <class T>
Case random_case(const NeuronFacts& neuron, const Form& form, const Surrogacy& surrogate, int steps, bool given_states,
                 Random& random) {
  const auto draw = [&](Real low, Real high) { return Real(static_cast<T>(random.uniform(low, high))); };
  for (;;) {
    Case c{&neuron, form, surrogate, {}, {}, {}, {}};
    for (const ParamFacts& param : neuron.params) c.params.*param.field = draw(param.low, param.high);
    for (int t = 0; t < steps; ++t) c.x.push_back(draw(neuron.weakest, neuron.strongest));
    if (given_states) {
      c.v = draw(initial_low, initial_high);
      if (neuron.has_w) c.w = draw(-.3L, .3L);
    }
    // Drawn again where a spike would hang on a rounding error.
    bool clear = true;
    for (const Step& step : walk(c)) clear = clear && (!form.spiking || std::abs(step.u) > 1e-4L);
    if (clear) return c;
  }
}

// Only the last states are returned, unless their sequences are asked for.
inline Upstream random_upstream(const NeuronFacts& neuron, std::size_t steps, bool sequences, Random& random) {
  Upstream g;
  for (std::size_t t = 0; t < steps; ++t) {
    const bool returned = sequences || t + 1 == steps;
    g.s.push_back(random.uniform(-1, 1));
    g.v.push_back(returned ? random.uniform(-1, 1) : 0);
    g.w.push_back(returned && neuron.has_w ? random.uniform(-1, 1) : 0);
  }
  return g;
}

}  // namespace spikeforge::test
