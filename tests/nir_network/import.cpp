#include "csrc/nir/read.h"
#include "csrc/nir/write.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/nir_network/graphs.h"

using namespace spikeforge;
using namespace spikeforge::test;

namespace {

// "VmRSS" is the resident memory; "VmHWM" is its maximum so far.
double megabytes(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind(what + ":", 0) == 0) return std::stod(line.substr(what.size() + 1)) * 1024 / 1e6;
  return 0;
}

double megabytes_of(const std::string& file) {
  std::ifstream stream(file, std::ios::ate);
  return static_cast<double>(stream.tellg()) / 1e6;
}

nir::Graph wide(std::int64_t in, std::int64_t out) {
  using namespace nir;
  const std::vector<float> weights(static_cast<std::size_t>(in * out), .5f);
  return {{{"input", {Input{{in}}, {}}},
           {"w", {nir::Linear{Array::of<float>({out, in}, weights)}, {}}},
           {"lif", {lif({out}), {}}},
           {"output", {Output{Shape{out}}, {}}}},
          {{"input", "w"}, {"w", "lif"}, {"lif", "output"}},
          {}};
}

// A child process writes the file, so that its memory is not counted.
std::string file_of(std::int64_t in, std::int64_t out) {
  std::string file = "/tmp/spikeforge_nir_XXXXXX";
  ::close(::mkstemp(file.data()));
  const pid_t child = ::fork();
  if (child == 0) {
    nir::write(wide(in, out), file);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(status == 0);
  return file;
}

}  // namespace

// This is the first test case of the file, which ctest runs in its own process, so that no other test case affects the
// peak.
TEST_CASE("ten million parameters are imported soon, into at most 2.2 times the file's memory") {
  const std::string small = file_of(4, 3), large = file_of(5000, 2000);
  nir::to_module(nir::read(small), {.dt = dt});  // loads the libraries before the measurement
  const double file = megabytes_of(large), before = megabytes("VmRSS");
  const auto start = std::chrono::steady_clock::now();
  const nn::Composite net = nir::to_module(nir::read(large), {.dt = dt});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double peak = megabytes("VmHWM") - before;
  std::remove(small.c_str());
  std::remove(large.c_str());
  INFO(file << " MB in " << seconds << " s; the peak is " << peak / file << " times the file");
  CHECK(net->parameters()[0].numel() == 10'000'000);
#ifndef SPIKEFORGE_SANITIZED
  CHECK(peak < 2.2 * file);
  CHECK(peak > .9 * file);  // the measurement includes the parameters
#endif
  CHECK(seconds < 6);  // 2 s on an idle machine
}

TEST_CASE("an imported network gives the same bits stepped, in chunks and over all steps, for each sample") {
  for (const auto dtype : {c10::kFloat, c10::kDouble}) {
    nn::Composite net = nir::to_module(network(), {.dt = dt, .dtype = dtype});
    const at::Tensor x = inputs({15, 3, 2, 4, 5}, dtype);
    const at::Tensor whole = net->forward(x);
    CHECK(whole.sizes() == at::IntArrayRef({15, 3, 5}));
    CHECK(whole.sum().item<double>() > 10);

    net->reset();
    nn::Tensors steps;
    for (const at::Tensor& row : x.unbind()) steps.push_back(net->step(row));
    CHECK(at::equal(at::stack(steps), whole));
    const at::Tensor v = net->state("cell_lif.v").clone();

    net->reset();
    CHECK(at::equal(at::cat({net->forward(x.narrow(0, 0, 4)), net->forward(x.narrow(0, 4, 11))}), whole));
    CHECK(at::equal(net->state("cell_lif.v"), v));
    CHECK(net->state("w_out_to_cell_lif_in").sizes() == at::IntArrayRef({1, 3, 5}));
  }
}

TEST_CASE("a batch is its samples one by one, and an input needs no batch") {
  nn::Composite net = nir::to_module(network(), in_float64());
  const at::Tensor x = inputs({10, 3, 2, 4, 5});
  const at::Tensor whole = net->forward(x);
  net->reset();
  CHECK(at::equal(net->forward(x.select(1, 1)), whole.select(1, 1)));
}

TEST_CASE("weights are parameters with gradients, constants of neurons only if asked for") {
  for (const bool learn : {false, true}) {
    nn::Composite net = nir::to_module(network(), {.dt = dt, .learn_neurons = learn, .dtype = c10::kDouble});
    const auto parameters = net->named_parameters();
    CHECK(parameters.contains("dense.weight"));
    CHECK(parameters.contains("lif.tau") == learn);
    CHECK(net->named_buffers().contains("lif.tau") != learn);
    net->forward(inputs({10, 2, 2, 4, 5})).sum().backward();
    for (const auto& item : parameters) {
      CAPTURE(item.key());
      REQUIRE(item.value().grad().defined());
      CHECK(item.value().grad().isfinite().all().item<bool>());
      CHECK(item.value().grad().abs().sum().item<double>() > 0);
    }
  }
}

TEST_CASE("clone, reset and a network within another") {
  nn::Composite net = nir::to_module(network(), in_float64());
  const at::Tensor x = inputs({8, 2, 2, 4, 5});
  const at::Tensor first = net->forward(x), second = net->forward(x);
  nn::Composite copy(std::dynamic_pointer_cast<nn::CompositeImpl>(net->clone()));
  CHECK(at::equal(copy->forward(x), net->forward(x)));
  copy->reset();
  CHECK(at::equal(copy->forward(x), first));
  CHECK(at::equal(copy->forward(x), second));
}

TEST_CASE("the importer shares no memory with the graph") {
  const nir::Graph graph = network();
  nn::Composite net = nir::to_module(graph, in_float64());
  const at::Tensor before = net->forward(at::ones({3, 2, 4, 5}, c10::kDouble));
  {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : net->parameters()) at::Tensor(parameter).zero_();
    for (const at::Tensor& buffer : net->buffers()) at::Tensor(buffer).zero_();
  }
  CHECK(at::equal(nir::to_module(graph, in_float64())->forward(at::ones({3, 2, 4, 5}, c10::kDouble)), before));
}

TEST_CASE("half types have float32 neurons") {
  for (const auto dtype : {c10::kHalf, c10::kBFloat16}) {
    nn::Composite net = nir::to_module(network(), {.dt = dt, .dtype = dtype});
    CHECK(net->forward(at::randn({4, 2, 2, 4, 5}).to(dtype)).scalar_type() == dtype);
    CHECK(net->state("lif.v").scalar_type() == c10::kFloat);
  }
}

TEST_CASE("a graph that cannot be represented is refused by name") {
  using namespace nir;
  const auto graph_of = [](const Kind& node) {
    return Graph{{{"input", {Input{{2}}, {}}}, {"n", {node, {}}}, {"output", {Output{Shape{2}}, {}}}},
                 {{"input", "n"}, {"n", "output"}},
                 {}};
  };
  const Array whole = Array::of<double>({2}, {2 * dt, 0}), broken = Array::of<double>({2}, {2 * dt, 1.5 * dt});
  CHECK(refusal(graph_of(Delay{whole})).empty());
  CHECK_THAT(refusal(graph_of(Delay{broken})), has_text("node n, field delay: 0.0015 s are 1.5 steps"));
  CHECK(refusal(graph_of(Delay{broken}), {.dt = dt, .delays = DelayRounding::nearest}).empty());
  CHECK_THAT(refusal(graph_of(Delay{Array::of<double>({2}, {1e9, 1e300})})), has_text("field delay"));
  CHECK_THAT(refusal(graph_of(Delay{Array::of<double>({2}, {1e8, 0})})), has_text("too much memory"));
  CHECK_THAT(refusal(graph_of(Delay{whole}), {}), has_text("dt must be given"));
  CHECK_THAT(refusal(graph_of(Delay{whole}), {.dt = dt, .dtype = c10::kInt}), has_text("Int"));
  CHECK_THAT(refusal(graph_of(Threshold{whole}), {.dt = dt, .surrogate = Surrogate{"none such"}}), has_text("node n"));

  Graph graph = graph_of(Threshold{whole});
  graph.edges.push_back({"n", "input"});
  CHECK_THAT(refusal(graph), has_text("node input: an edge leads to this Input"));
  graph.edges.back() = {"output", "n"};
  CHECK_THAT(refusal(graph), has_text("node output: an edge leads on from this Output"));
}

TEST_CASE("nodes that nothing leads to, and graphs without Input or Output, have documented ports") {
  using namespace nir;
  const Array half = Array::full({2}, -.5);
  Graph graph{{{"a", {Threshold{half}, {}}}, {"b", {Threshold{half}, {}}}}, {{"a", "b"}}, {}};
  nn::Composite open = to_module(graph, in_float64());
  CHECK(open->input_names() == nn::Names{"input_a"});
  CHECK(open->output_names() == nn::Names{"output_b"});

  graph.nodes.push_back({"c", {Input{{2}}, {}}});
  graph.nodes.push_back({"d", {Output{Shape{2}}, {}}});
  graph.edges = {{"c", "a"}, {"a", "d"}, {"b", "d"}};
  nn::Composite silent = to_module(graph, in_float64());  // b receives zeros, and 0 > -0.5
  CHECK(at::equal(silent->forward(at::full({3, 7, 2}, -1, c10::kDouble)), at::ones({3, 7, 2}, c10::kDouble)));

  graph.edges = {{"c", "d"}, {"a", "b"}, {"b", "a"}};  // a cycle without an input
  CHECK(at::equal(to_module(graph, in_float64())->forward(at::ones({3, 2}, c10::kDouble)),
                  at::ones({3, 2}, c10::kDouble)));
}

TEST_CASE("names with dots become names without") {
  using namespace nir;
  const Graph graph{{{"a.b", {Threshold{Array::full({1}, 0)}, {}}},
                     {"a_b", {Threshold{Array::full({1}, 0)}, {}}},
                     {"a..b", {Threshold{Array::full({1}, 0)}, {}}}},
                    {{"a.b", "a_b"}, {"a_b", "a..b"}},
                    {}};
  CHECK(module_names(graph) == std::vector<std::string>{"a_b_2", "a_b", "a__b"});
  CHECK(to_module(graph, {.dt = dt})->named_children().contains("a_b_2"));
}
