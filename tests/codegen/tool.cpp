// Runs the program spikeforge-neuron.
#include "tests/catch.h"
#include "tests/codegen/gallery.h"

#include <sys/wait.h>
#include <array>
#include <cstdio>
#include <cstdlib>

namespace spikeforge::test {
namespace {

struct Run {
  int status = 0;
  std::string output;  // stdout and stderr
};

Run run(const std::string& arguments) {
  const std::string command = std::string(SPIKEFORGE_TEST_TOOL) + " 2>&1 " + arguments;
  Run result;
  FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe);
  std::array<char, 4096> buffer;
  while (const std::size_t count = fread(buffer.data(), 1, buffer.size(), pipe))
    result.output.append(buffer.data(), count);
  result.status = WEXITSTATUS(pclose(pipe));
  return result;
}

Run run_on(const std::string& text, const std::string& arguments = "") {
  return run(arguments + " - <<'END'\n" + text + "\nEND\n");
}

std::string example(const std::string& name) { return SPIKEFORGE_TEST_NEURONS "/" + name + ".neuron"; }

}  // namespace

TEST_CASE("a neuron file that is right is summed up") {
  const Run lif = run(example("lif"));
  CHECK(lif.status == 0);
  CHECK_THAT(lif.output, has_text("lif: 1 input, 1 state, 3 parameters, 1 output"));
}

TEST_CASE("an error in a neuron file is shown with its line, its column and a caret") {
  const Run broken = run_on("neuron a(x) {\n  h = x +* 2\n  return h\n}");
  CHECK(broken.status == 1);
  CHECK(broken.output ==
        "spikeforge-neuron: -: line 2, column 10: expected an expression, but found \"*\"\n"
        "    h = x +* 2\n"
        "           ^\n");
}

TEST_CASE("no more is read from a file that is no neuron than a neuron could have") {
  const Run endless = run("/dev/zero");
  CHECK(endless.status == 1);
  CHECK_THAT(endless.output, has_text("a neuron text has at most 2097152 bytes, and this one has more"));
}

TEST_CASE("the requested text is printed") {
  const Run shown = run(example("alif") + " --text --step --derivative --cuda --dtype bfloat16");
  CHECK(shown.status == 0);
  for (const char* piece : {"neuron alif(x; v, a; tau) {", "graph step(x, v, a, ", "graph epilogue(tau, ",
                            "using Input = bf16;", "spikeforge_forward(", "spikeforge_backward("})
    CHECK_THAT(shown.output, has_text(piece));
}

TEST_CASE("kernels are compiled without a GPU, and their registers are reported") {
  const Run compiled = run(example("channel_decay_lif") + " --arch sm_80 --arch sm_90");
  CHECK(compiled.status == 0);
  for (const char* piece :
       {"sm_80    channel_decay_lif_forward", "sm_90    channel_decay_lif_backward", " registers, 0 bytes spilled, "})
    CHECK_THAT(compiled.output, has_text(piece));
}

TEST_CASE("a wrong command line is another status than a wrong neuron") {
  const Run wrong_arch = run(example("lif") + " --arch 90");
  CHECK(wrong_arch.status == 2);
  CHECK_THAT(wrong_arch.output, has_text("an architecture is sm_ and a number, such as sm_90, not 90"));
  CHECK(run("no_such_file").status == 2);
  CHECK(run(example("lif") + " --dtype float8").status == 2);
}

}  // namespace spikeforge::test
