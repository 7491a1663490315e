#include <spikeforge/graph/errors.h>
#include <spikeforge/graph/internal/verify.h>
#include <spikeforge/graph/synapse.h>

#include "catch.h"

#include <string>

namespace spikeforge::graph {
namespace {

const std::string text =
    "synapse all(w, c = 0.5; p, q = 1; k, tau; m, n) {\n"
    "  on pre {\n"
    "    d = w * k\n"
    "    c' = c + d * q\n"
    "    p' = p + k\n"
    "    send where(d > 0 and m < 1, d, d * d)\n"
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

}  // namespace

TEST_CASE("a synapse prints as it was written") {
  CHECK(print(parse_synapse(text)) == text);
  for (const char* const rule : {"synapse s(w) {\n}\n", "synapse s(w;;; m) {\n  on m {\n    w' = m\n  }\n}\n",
                                 "synapse s(w; x) {\n  on pre {\n    x' = 1\n  }\n}\n"})
    CHECK(print(parse_synapse(rule)) == rule);
}

TEST_CASE("behind a brace the next part of a synapse may stand on the same line") {
  const std::string_view parts = "synapse s(w; x; t) {on pre {x' = 1} on post {w' = w + x} decay x by t}";
  CHECK(parse_synapse(print(parse_synapse(parts))).decays.size() == 1);
  CHECK_THROWS_AS(parse_synapse("synapse s(w; x, y; t) {decay x by t decay y by t}"), TextError);
}

TEST_CASE("a synapse knows whose its traces are, and what changes at which event") {
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

}  // namespace spikeforge::graph
