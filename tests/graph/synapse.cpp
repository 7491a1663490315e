#include "csrc/graph/synapse.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/verify.h"
#include "csrc/graph/synapse_parts.h"
#include "csrc/graph/trace_synapse.h"

#include "tests/catch.h"

#include <string>

namespace spikeforge::graph {
namespace {

// `d` is the name of the variable.
std::string written(const std::string& d) {
  return "synapse all(w, c = 0.5; p, q = 1; k, tau; m, n) {\n"
         "  on pre {\n"
         "    " +
         d +
         " = w * k\n"
         "    c' = c + " +
         d +
         " * q\n"
         "    p' = p + k\n"
         "    send where(" +
         d + " > 0 and m < 1, " + d + ", " + d + " * " + d +
         ")\n"
         "  }\n"
         "  on post {\n"
         "    q' = q * (1 - k)\n"
         "  }\n"
         "  on n {\n"
         "    w' = w + n * c\n"
         "    c' = 0\n"
         "  }\n"
         "  each step {\n"
         "    w' = w - 0.1 * w\n"
         "  }\n"
         "  decay c by tau + tau * tau\n"
         "  decay q by tau to 1 / k\n"
         "}\n";
}
const std::string text = written("d");

}  // namespace

TEST_CASE("a synapse prints as it was written") {
  CHECK(print(parse_synapse(text)) == text);
  for (const char* const rule : {"synapse s(w) {\n}\n", "synapse s(w;;; m) {\n  on m {\n    w' = m\n  }\n}\n",
                                 "synapse s(w; x) {\n  on pre {\n    x' = 1\n  }\n}\n"})
    CHECK(print(parse_synapse(rule)) == rule);
}

TEST_CASE("after a brace the next part of a synapse may follow on the same line") {
  const std::string_view parts = "synapse s(w; x; t) {on pre {x' = 1} on post {w' = w + x} decay x by t}";
  CHECK(parse_synapse(print(parse_synapse(parts))).decays.size() == 1);
  CHECK_THROWS_AS(parse_synapse("synapse s(w; x, y; t) {decay x by t decay y by t}"), TextError);
}

TEST_CASE("a synapse has the owners of its traces, and the changes at each event") {
  const Synapse s = parse_synapse(text);
  CHECK_FALSE(s.traces[0].after);
  CHECK(s.traces[1].after);
  CHECK(s.states[1].initial == 0.5);
  CHECK(s.pre.states == std::vector<std::size_t>{1});
  CHECK(s.pre.traces == std::vector<std::size_t>{0});
  CHECK(s.pre.sends);
  CHECK_FALSE(s.pre.sends_by_itself);
  CHECK(s.post->traces == std::vector<std::size_t>{1});
  CHECK_FALSE(s.on_signal[0].has_value());
  CHECK(s.on_signal[1]->states == std::vector<std::size_t>{0, 1});
  CHECK(s.decays.size() == 2);
  for (const SynapseBlock* const block : {&s.pre, &*s.post, &*s.each_step}) verify(block->graph);
  const Synapse relay = parse_synapse("synapse relay(w) { }");
  CHECK(relay.pre.sends_by_itself);
  CHECK(relay.pre.graph.results()[0] == 0);
}

TEST_CASE("a synapse that is cut off anywhere is refused with a place") {
  const std::size_t last = text.rfind('}');
  for (std::size_t length = 0; length <= last; ++length) {
    try {
      parse_synapse(text.substr(0, length));
      FAIL("read " << length << " bytes");
    } catch (const TextError& error) {
      CHECK(error.line >= 1);
    }
  }
}

TEST_CASE("a rule of C++ lambdas is that of its text") {
  const double rest = 0;
  const SynapseSignature signature{.name = "all",
                                   .states = {"w", {"c", 0.5}},
                                   .traces = {"p", {"q", 1}},
                                   .params = {"k", "tau"},
                                   .signals = {"m", "n"}};
  SynapseEvents events{.on_pre =
                           [](SynapseEvent& at) {
                             const Value d = at["w"] * at["k"];
                             at.send(where(d > 0 && at["m"] < 1, d, d * d));
                             at.next("p", at["p"] + at["k"]);
                             at.next("c", at["c"] + d * at["q"]);
                           },
                       .on_post = [](SynapseEvent& at) { at.next("q", at["q"] * (1 - at["k"])); },
                       .on_signal = {{"n",
                                      [&](SynapseEvent& at) {
                                        at.next("w", at["w"] + at["n"] * at["c"]);
                                        at.next("c", rest);
                                      }}},
                       .each_step = [](SynapseEvent& at) { at.next("w", at["w"] - 0.1 * at["w"]); },
                       .decays = {{"c", [](const SynapseEvent& of) { return of["tau"] + of["tau"] * of["tau"]; }},
                                  {"q", "tau", [](const SynapseEvent& of) { return 1 / of["k"]; }}}};
  const Synapse made = trace_synapse(signature, events);
  CHECK(print(made) == written("t1"));  // a traced variable has a generated name
  CHECK(made.traces[1].after);
  CHECK(print(trace_synapse({.name = "s", .states = {"w"}}, {})) == "synapse s(w) {\n}\n");

  const auto refused = [&](SynapseEvents wrong, const char* words) {
    CHECK_THROWS_WITH(trace_synapse(signature, wrong), test::has_text(words));
  };
  events.on_post = [](SynapseEvent& at) { at.next("p", at["p"]); };
  refused(events, "synapse all: ");
  events.on_post = [](SynapseEvent& at) { at.next("v", at["p"]); };
  refused(events, "on post: v is not a state or trace");
  events.on_post = [](SynapseEvent& at) { at.next("w", at["weight"]); };
  refused(events, "nothing is called \"weight\" there");
  events.on_post = [](SynapseEvent& at) { at.next("q", normal()); };
  refused(events, "draws no random numbers");
}

TEST_CASE("a step of a synapse falls into parts, each a synapse with the same header") {
  const SynapseParts parts = parts_of(parse_synapse(text));
  const std::string header = text.substr(0, text.find('\n') + 1);
  CHECK(print(parts.before) == header +
                                   "  on pre {\n    p' = p + k\n  }\n"
                                   "  on post {\n    q' = q\n  }\n}\n");
  CHECK(print(parts.arrival) == header +
                                    "  on pre {\n    d = w * k\n    c' = c + d * q\n    p' = p\n"
                                    "    send where(d > 0 and m < 1, d, d * d)\n  }\n"
                                    "  on post {\n    q' = q\n  }\n"
                                    "  decay c by tau + tau * tau\n  decay q by tau to 1 / k\n}\n");
  CHECK(print(parts.after) == header +
                                  "  on pre {\n    p' = p\n  }\n"
                                  "  on post {\n    q' = q * (1 - k)\n  }\n"
                                  "  on n {\n    w' = w + n * c\n    c' = 0\n  }\n"
                                  "  each step {\n    w' = w - 0.1 * w\n  }\n"
                                  "  decay c by tau + tau * tau\n}\n");
  for (const Synapse* const part : {&parts.before, &parts.arrival, &parts.after})
    CHECK(print(parse_synapse(print(*part))) == print(*part));
}

}  // namespace spikeforge::graph
