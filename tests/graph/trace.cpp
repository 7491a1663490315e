#include "csrc/graph/trace.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/evaluate.h"
#include "csrc/graph/internal/verify.h"
#include "csrc/graph/text.h"

#include "tests/catch.h"

#include <optional>
#include <thread>
#include <vector>

namespace spikeforge::graph {

using test::has_text;

// Code that must not compile; tests/graph/refused.cpp checks the messages.
static_assert(!std::is_constructible_v<bool, Value>);
static_assert(!std::is_convertible_v<std::vector<float>, Value>);
static_assert(!std::is_convertible_v<const char*, Value>);
static_assert(std::is_convertible_v<int, Value> && std::is_convertible_v<float, Value>);

TEST_CASE("the equations of a neuron are a lambda, and its text contains them") {
  const Cell alif = trace("alif", {"x"}, {"v", "a"}, {"tau"}, [](Value x, Value v, Value a, Value tau) {
    Value decay = 1 / tau;
    Value h = v + (x - v) * decay;
    Value s = spike(h - (1 + a), surrogate::atan(2));
    return step({s}, {select(s, 0, h), 0.9 * a + s});
  });
  verify(alif);
  CHECK(print(alif) == R"(neuron alif(x; v, a; tau) {
  t1 = v + (x - v) * (1 / tau)
  t2 = spike(t1 - (1 + a), atan(2))
  return t2
  v' = select(t2, 0, t1)
  a' = 0.9 * a + t2
}
)");
}

TEST_CASE("captured numbers, of any arithmetic type, are constants") {
  const int two = 2;
  const float half = .5f;
  const bool no = false;
  Value outside = 3;  // a constant belongs to no trace
  const Cell cell = trace("n", {"x"}, {}, {}, [&](Value x) {
    Value sum = x * two + half;
    sum += outside;
    return step({where(no || x > 0, sum, -x)}, {});
  });
  CHECK(print(cell) == "neuron n(x) {\n  return where(x > 0, x * 2 + 0.5 + 3, -x)\n}\n");
}

TEST_CASE("every function of the table can be called") {
  const Cell cell = trace("n", {"x"}, {}, {"p"}, [](Value x, Value p) {
    std::vector<Value> all;
#define SPIKEFORGE_OP(...)
#define SPIKEFORGE_UNARY(name) all.push_back(name(x));
#define SPIKEFORGE_BINARY(name) all.push_back(name(x, p));
#define SPIKEFORGE_TERNARY(name) all.push_back(name(x, p, 1));
#define SPIKEFORGE_DEFAULTED(name, second) all.push_back(name(x));
#include "csrc/graph/ops.def"
    all.push_back(where(!(x < 1) && x <= 1 && x > 2 && x >= 2 && x == p && x != p, x, 1));
    all.push_back(spike(x, surrogate::rect()) + spike_strict(x, surrogate::rect(2)));
    all.push_back(minimum(0, x) + detach(x) - surrogate_gradient(x, surrogate::sigmoid()));
    return step(all, {});
  });
  CHECK_THAT(print(cell), has_text("lerp(x, p, 1)"));
  CHECK_THAT(print(cell), has_text("leaky_relu(x, 0.01)"));
  CHECK(cell.output_count() == 44);
}

TEST_CASE("a custom surrogate and a custom gradient are lambdas and expressions") {
  const Cell cell = trace("own", {"x"}, {"v"}, {"width"}, [](Value x, Value v, Value width) {
    Value s = spike(v + x - 1, [=](Value u) { return width / square(1 + abs(u)); });
    return step({s, custom_gradient(round(x), x, 1), custom_gradient(x * v, x, 2, v, 3)}, {select(detach(s), 0, v)});
  });
  CHECK(print(cell) == R"(neuron own(x; v; width) {
  t1 = v + x - 1
  t2 = add_gradient(spike(t1, none), t1, width / square(1 + abs(t1)))
  return t2, add_gradient(detach(round(x)), x, 1), add_gradient(add_gradient(detach(x * v), x, 2), v, 3)
  v' = select(detach(t2), 0, v)
}
)");
  const Cell strict = trace("strict", {"x"}, {}, {}, [](Value x) {
    return step({spike_strict(x, [](Value u) { return exp(-square(u)); })}, {});
  });
  CHECK_THAT(print(strict), has_text("add_gradient(spike_strict(x, none), x, exp(-square(x)))"));
}

TEST_CASE("states have initial values, and arguments names by number if only counts are given") {
  const Cell cell = trace("n", {"x"}, {"v", {"a", -.5}}, {}, [](Value x, Value v, Value a) {
    return step({x}, {v, a});
  });
  CHECK(print(cell) == "neuron n(x; v, a = -0.5) {\n  return x\n  v' = v\n  a' = a\n}\n");
  const Cell counted = trace("n", 2, 1, 1, [](Value x0, Value, Value v, Value p) { return step({x0 * p}, {v}); });
  CHECK(print(counted) == "neuron n(x0, x1; v0; p0) {\n  return x0 * p0\n  v0' = v0\n}\n");
  const Cell spans = trace("n", 3, 3, 0, [](Values x, Values v, Values p) {
    std::vector<Value> next(v.begin(), v.end());
    for (std::size_t i = 0; i < x.size(); ++i) next[i] += x[i];
    return step({p.empty() ? x[0] : p[0]}, next);
  });
  CHECK_THAT(print(spans), has_text("v2' = v2 + x2"));
  const Cell generic = trace("n", {"x"}, {"v"}, {}, [](auto x, auto v) { return step({x + v}, {v}); });
  CHECK(generic.state_count() == 1);
}

TEST_CASE("a lambda with another number of values is refused in words") {
  const auto two = [](Value x, Value v) { return step({x}, {v}); };
  CHECK_THROWS_WITH(trace("n", {"x"}, {"v"}, {"tau"}, two),
                    "neuron n: the lambda takes 2 values, but 3 are named (x; v; tau): it takes one for each input, "
                    "state and parameter");
  CHECK_THROWS_WITH(trace("n", {"x"}, {"v", "w"}, {}, [](Values x, Values v, Values) { return step({x[0]}, {v[0]}); }),
                    "neuron n: 1 next state for a neuron with 2 (x; v, w; )");
  CHECK_THROWS_WITH(trace("n", {"x"}, {"v"}, {}, [](Value, Value v) { return step({}, {v}); }),
                    "neuron n: a neuron has 1 to 256 outputs, not 0");
  CHECK_THROWS_WITH(trace("n", 257, 0, 0, [](Values x, Values, Values) { return step({x[0]}, {}); }),
                    "neuron n: a neuron has at most 256 inputs, states and parameters together, not 257");
  CHECK_THROWS_WITH(trace("n", {"x"}, {"x"}, {}, two), "neuron n: two arguments are called x");
}

TEST_CASE("kinds are checked while the equations are written") {
  CHECK_THROWS_WITH(trace("n", {"x"}, {}, {}, [](Value x) { return step({x > 0}, {}); }),
                    "neuron n: an output is a number, not a boolean; write where(condition, 1, 0)");
  CHECK_THROWS_WITH(
      trace("n", {"x"}, {}, {}, [](Value x) { return step({(x > 0) + 1}, {}); }),
      has_text("neuron n: +: operand 1 must be a number, but is a boolean; write where(condition, 1, 0)"));
  CHECK_THROWS_WITH(trace("n", {"x"}, {}, {}, [](Value x) { return step({where(x, 1, 0)}, {}); }),
                    has_text("where: operand 1 must be a boolean, but is a number; write a comparison"));
}

TEST_CASE("a value is used inside its own trace, and nowhere else") {
  std::optional<Value> kept;
  const auto keep = [&](Value x) {
    kept = x;
    return step({x}, {});
  };
  trace("first", {"x"}, {}, {}, keep);
  CHECK_THROWS_WITH(exp(*kept), "exp: a Value can be used only inside the lambda that trace calls, and on its thread");
  CHECK_THROWS_WITH(Value(1) + Value(2), has_text("+: a Value can be used only inside the lambda"));
  const char* mixed =
      "a Value of another trace, or of one that has ended, cannot be used here: make every Value inside "
      "the lambda, and pass what comes from elsewhere as an input, a state or a parameter";
  CHECK_THROWS_WITH(trace("second", {"x"}, {}, {}, [&](Value x) { return step({x * *kept}, {}); }),
                    std::string("neuron second: *: ") + mixed);
  CHECK_THROWS_WITH(trace("second", {"x"}, {}, {}, [&](Value) { return step({*kept}, {}); }),
                    std::string("neuron second: step: ") + mixed);
  CHECK_THROWS_WITH(trace("outer", {"x"}, {}, {},
                          [&](Value outer) {
                            trace("inner", {"x"}, {}, {}, [&](Value inner) { return step({inner + outer}, {}); });
                            return step({outer}, {});
                          }),
                    has_text("neuron outer: neuron inner: +: a Value of another trace"));
}

TEST_CASE("the text does not depend on the order in which operands are evaluated") {
  const auto text = [](bool left_first) {
    return print(trace("n", {"x"}, {"v"}, {}, [=](Value x, Value v) {
      tan(v);  // nothing uses it
      Value first = left_first ? sin(x) : cos(v);
      Value second = left_first ? cos(v) : sin(x);
      Value left = left_first ? first : second, right = left_first ? second : first;
      return step({left * right + left, square(left)}, {right});
    }));
  };
  CHECK(text(true) == text(false));
  CHECK(text(true) ==
        "neuron n(x; v) {\n  t1 = sin(x)\n  t2 = cos(v)\n  return t1 * t2 + t1, square(t1)\n  v' = t2\n}\n");
}

TEST_CASE("a trace inside a trace, and after one that failed, is its own") {
  const Cell cell = trace("outer", {"x"}, {}, {}, [](Value x) {
    const Cell inner = trace("inner", {"y"}, {}, {}, [](Value y) { return step({y * 2}, {}); });
    CHECK_THROWS_AS(trace("bad", {"y"}, {}, {}, [](Value y) { return step({y > 0}, {}); }), GraphError);
    CHECK(print(inner) == "neuron inner(y) {\n  return y * 2\n}\n");
    return step({x + 1}, {});
  });
  CHECK(print(cell) == "neuron outer(x) {\n  return x + 1\n}\n");
}

TEST_CASE("threads trace side by side") {
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (std::string& text : texts)
    threads.emplace_back([&text] {
      for (int i = 0; i < 50; ++i)
        text = print(trace("eif", {"x"}, {"v"}, {"tau", "delta_t"}, [](Value x, Value v, Value tau, Value delta_t) {
          const Value h = v + 1 / tau * (x - v + delta_t * exp((v - 0.8) / delta_t));
          const Value s = spike(h - 1, surrogate::atan(2));
          return step({s}, {select(s, 0, h)});
        }));
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) CHECK(text == texts[0]);
}

TEST_CASE("a trace that never ends is stopped") {
  CHECK_THROWS_WITH(trace("n", {"x"}, {}, {},
                          [](Value x) {
                            for (int i = 0; i < 10000; ++i) x = exp(x);
                            return step({x}, {});
                          }),
                    "neuron n: a neuron or a rule has at most 4096 operations, arguments and constants included");
}

}  // namespace spikeforge::graph
