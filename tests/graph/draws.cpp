#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/dependence.h"
#include "csrc/graph/internal/hoist.h"
#include "csrc/graph/text.h"
#include "csrc/graph/trace.h"

#include "tests/catch.h"

#include <string>
#include <vector>

namespace spikeforge::graph {
namespace {

// Returns the draws that the results need, with their numbers, such as "normal 0, uniform 2 once".
std::string draws_of(const Graph& graph) {
  const std::vector<bool> live = live_nodes(graph);
  std::string list;
  for (Id id = 0; id < graph.size(); ++id) {
    if (!live[id] || !is_draw(graph[id].op)) continue;
    if (!list.empty()) list += ", ";
    list += std::string(info(graph[id].op).text) + " " + std::to_string(graph[id].draw.number);
    if (graph[id].draw.once) list += " once";
  }
  return list;
}

std::string draws_in(const std::string& body) { return draws_of(parse("neuron n(x; v; p) {" + body + "}").graph()); }

}  // namespace

TEST_CASE("each draw of a text is another, numbered in its order") {
  CHECK(draws_in("return normal() + normal(); v' = uniform()") == "normal 0, normal 1, uniform 2");
  CHECK(draws_in("return poisson(p) * normal(); v' = draw_once(bernoulli(p))") ==
        "poisson 0, normal 2, bernoulli 3 once");
  CHECK(draws_in("a = normal(); return a * a; v' = a") == "normal 0");
  CHECK(draws_in("a = draw(normal(), 7); return a + normal(); v' = draw(normal(), 7)") == "normal 7, normal 8");
}

TEST_CASE("print and parse keep the numbers of draws") {
  for (const char* body :
       {"return normal() + normal(); v' = uniform()", "a = normal(); b = normal(); return b * b; v' = 0 * b",
        "return exp(normal()) * draw_once(poisson(2 * p)); v' = draw(bernoulli(p), 9) * draw_once(normal(), 9)"}) {
    const Cell cell = parse(std::string("neuron n(x; v; p) {") + body + "}");
    const std::string text = print(cell);
    INFO(text);
    CHECK(draws_of(parse(text).graph()) == draws_of(cell.graph()));
    CHECK(print(parse(text)) == text);
  }
  // The unused first draw is removed, and the second one keeps its number.
  CHECK(print(parse("neuron n(x) { a = normal(); b = normal(); return b + x }")) ==
        "neuron n(x) {\n  b = draw(normal(), 1)\n  return b + x\n}\n");
  CHECK(print(parse("neuron n(x) { return x + 0.5 * normal() }")) == "neuron n(x) {\n  return x + 0.5 * normal()\n}\n");
}

TEST_CASE("a lambda draws in the order of need, whatever the compiler's") {
  const Cell cell = trace("n", {"x"}, {}, {"p"}, [](Value x, Value p) {
    const Value last = normal();
    const Value mask = draw_once(bernoulli(p));
    return step({x * mask + poisson(2), last + uniform()}, {});
  });
  CHECK(draws_of(cell.graph()) == "bernoulli 0 once, poisson 1, normal 3, uniform 4");
  CHECK_THROWS_AS(trace("n", {"x"}, {}, {}, [](Value x) { return step({draw_once(x)}, {}); }), GraphError);
}

TEST_CASE("a number drawn once is computed before the steps, and no other drawn number is") {
  const Cell cell = parse(
      "neuron n(x; v; tau) { k = 1 / (tau + draw_once(uniform())); return x * k * (tau * normal())\n"
      " v' = v }");
  const Hoisted split = hoist(cell.graph(), 2, 1);
  CHECK(draws_of(split.prologue) == "uniform 0 once");
  CHECK(draws_of(split.inner) == "normal 1");
  CHECK(draws(cell.graph()));
  CHECK(!draws(parse("neuron n(x) { a = normal(); return x }").graph()));
}

}  // namespace spikeforge::graph
