// Lengths and starts of samples: the results of a batch equal those of separate calls for each sample, whose states are
// reset at each start.
#include "csrc/nn/batch_norm_neuron.h"
#include "csrc/nn/containers.h"
#include "csrc/nn/delay.h"
#include "csrc/nn/loihi.h"
#include "csrc/nn/time_distributed.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <map>

#include "tests/nn/modules.h"

namespace spikeforge::test {
namespace {

constexpr std::int64_t sample_steps = 9;

// Returns random starts, at the first and at later steps.
nn::Samples random_samples(const std::vector<std::int64_t>& lengths) {
  Tensor start = at::rand({sample_steps, static_cast<std::int64_t>(lengths.size())}) < 0.25;
  start.select(1, 0).select(0, 4).fill_(true);
  return {.lengths = at::tensor(lengths), .start = start};
}

struct Found {
  Tensor outputs;
  std::map<std::string, Tensor> states;
};

// Runs each sample separately, one step at a time.
Found each_by_itself(const Stateful& module, const Tensor& x, const nn::Samples& samples) {
  Tensors columns;
  std::map<std::string, Tensors> states;
  for (std::int64_t b = 0; b < x.size(1); ++b) {
    const auto own = clone_of(module);
    own->reset();
    const std::int64_t length = samples.lengths[b].item<std::int64_t>();
    const Tensor sample = x.narrow(1, b, 1);
    Tensors rows;
    if (length == 0) own->forward(sample.narrow(0, 0, 0));
    for (std::int64_t t = 0; t < length; ++t) {
      if (samples.start[t][b].item<bool>()) own->reset();
      rows.push_back(own->forward(sample.narrow(0, t, 1)));
    }
    const Tensor like = rows.empty() ? sample.narrow(0, 0, 1) : rows[0];
    while (static_cast<std::int64_t>(rows.size()) < sample_steps) rows.push_back(at::zeros_like(like));
    columns.push_back(at::cat(rows));
    for (const auto& state : own->state()) states[state.key()].push_back(state.value());
  }
  Found found{at::cat(columns, 1), {}};
  // Values in flight are [steps, samples, ...].
  for (const auto& [name, parts] : states) found.states[name] = at::cat(parts, parts[0].dim() == x.dim() ? 1 : 0);
  return found;
}

Found together(Stateful& module, const Tensor& x, const nn::Samples& samples) {
  Found found{module.forward(x, samples), {}};
  for (const auto& state : module.state()) found.states[state.key()] = state.value();
  return found;
}

void check_equal(const Found& a, const Found& b, double tolerance) {
  const auto same = [&](const Tensor& found, const Tensor& expected) {
    return tolerance == 0 ? at::equal(found, expected) : at::allclose(found, expected, tolerance, tolerance);
  };
  CHECK(same(a.outputs, b.outputs));
  REQUIRE(a.states.size() == b.states.size());
  for (const auto& [name, state] : a.states) {
    INFO(name);
    CHECK(same(state, b.states.at(name)));
  }
}

}  // namespace

TEST_CASE("samples of different lengths that restart equal each sample alone, in every neuron") {
  torch::manual_seed(1);
  const nn::Samples samples = random_samples({9, 4, 0, 7});
  const Tensor x = at::rand({sample_steps, 4, width}) * 3;
  for (const Made& neuron : all_neurons()) {
    INFO(neuron.name);
    const auto module = neuron.make(false), stored = neuron.make(false);
    const Found found = together(*module, x, samples);
    check_equal(found, each_by_itself(*neuron.make(false), x, samples), 0);
    stored->store_states(true);
    check_equal(together(*stored, x, samples), found, 0);
    const std::string name = stored->state_names()[0];
    CHECK(!stored->state_sequence(name).select(1, 1).slice(0, 4).any().item<bool>());
    CHECK(at::equal(stored->state_sequence(name).select(1, 1)[3], found.states.at(name)[1]));
    // Lengths and starts apply to one call only: the next call has full sequences.
    CHECK(at::equal(module->forward(x), [&] {
      const auto other = neuron.make(false);
      for (const auto& [state, value] : found.states) other->set_state(state, value);
      return other->forward(x);
    }()));
  }
}

TEST_CASE("samples of Loihi's neurons are each sample by itself") {
  const nn::Samples samples = random_samples({9, 4, 0, 7});
  const Tensor x = at::randint(0, 400, {sample_steps, 4, width}, at::kInt);
  nn::LoihiLIF lif(nn::LoihiLIFOptions().du(512).dv(256).vth(300));
  check_equal(together(*lif, x, samples), each_by_itself(*lif, x, samples), 0);
}

TEST_CASE("a network tells its neurons of samples, and nothing crosses a start on its way through a delay") {
  torch::manual_seed(2);
  const nn::Samples samples = random_samples({9, 4, 1, 7});
  const Tensor x = at::randn({sample_steps, 4, width}, at::kDouble) + 1;
  const auto check = [&](const std::shared_ptr<Stateful>& network) {
    network->to(at::kDouble);
    const auto other = clone_of(*network);
    check_equal(together(*network, x, samples), each_by_itself(*other, x, samples), 1e-10);
    // Runs in two pieces. The second continues with the values in flight.
    const auto pieces = clone_of(*other);
    const Tensor whole = other->forward(x, {.start = samples.start});
    const Tensor first = pieces->forward(x.narrow(0, 0, 4), {.start = samples.start.narrow(0, 0, 4)});
    const Tensor second = pieces->forward(x.narrow(0, 4, 5), {.start = samples.start.narrow(0, 4, 5)});
    CHECK(at::allclose(at::cat({first, second}), whole, 1e-10, 1e-10));
  };
  const auto linear = [] { return torch::nn::Linear(width, width); };
  check(nn::Sequential(nn::TimeDistributed(linear()), nn::AdaptiveLIF(), linear(), nn::LI()).ptr());
  check(nn::Recurrent(nn::LIF(nn::LIFOptions().tau(1.5)), linear()).ptr());
  nn::Composite net;
  net->add("first", nn::LI());
  net->add("lif", nn::LIF(nn::LIFOptions().tau(1.5)));
  net->add("back", linear());
  net->add("last", nn::LI());
  net->connect("in", "first.in", {.delay = 3});
  net->connect("first.out", "lif.in");
  net->connect("lif.out", "back.in", {.delay = 2});
  net->connect("back.out", "lif.in");
  net->connect("lif.out", "last.in", {.delay = 1});
  net->connect("last.out", "out");
  check(net.ptr());
  nn::Composite late;  // the delay follows the Linear
  late->add("lif", nn::LIF(nn::LIFOptions().tau(1.5)));
  late->add("back", linear());
  late->connect("in", "lif.in");
  late->connect("lif.out", "back.in");
  late->connect("back.out", "lif.in", {.delay = 2});
  late->connect("lif.out", "out");
  check(late.ptr());
}

TEST_CASE("gradients of samples stop at their ends and starts") {
  torch::manual_seed(3);
  const nn::Samples samples = random_samples({9, 4, 1, 7});
  const Tensor x = at::randn({sample_steps, 4, width}, at::kDouble) + 1,
               weight = at::randn({sample_steps, 4, width}, at::kDouble);
  nn::Recurrent network(nn::LIF(), torch::nn::Linear(width, width));
  network->to(at::kDouble);
  const auto gradients = [&](const auto& run) {
    const Tensor own = x.detach().clone().requires_grad_();
    network->reset();
    network->zero_grad();
    (run(own) * weight).sum().backward();
    Tensors all{own.grad()};
    for (const Tensor& parameter : network->parameters()) all.push_back(parameter.grad().clone());
    return all;
  };
  const Tensors found = gradients([&](const Tensor& own) { return network->forward(own, samples); });
  const Tensors expected = gradients([&](const Tensor& own) {
    Tensors columns;
    for (std::int64_t b = 0; b < own.size(1); ++b) {
      network->reset();
      Tensors rows;
      for (std::int64_t t = 0; t < samples.lengths[b].item<std::int64_t>(); ++t) {
        if (samples.start[t][b].item<bool>()) network->reset();
        rows.push_back(network->forward(own.narrow(0, t, 1).narrow(1, b, 1)));
      }
      while (static_cast<std::int64_t>(rows.size()) < sample_steps) rows.push_back(at::zeros_like(rows[0]));
      columns.push_back(at::cat(rows));
    }
    return at::cat(columns, 1);
  });
  for (std::size_t i = 0; i < expected.size(); ++i) CHECK(at::allclose(found[i], expected[i], 1e-9, 1e-10));
}

TEST_CASE("modules without samples refuse lengths") {
  const Tensor x = at::rand({sample_steps, 4, width});
  const nn::Samples samples = random_samples({9, 4, 0, 7});
  const auto refused = [&](auto module, const char* words, const nn::Samples& given) {
    CHECK_THAT(message_of([&] { module->forward(x, given); }), has_text(words));
  };
  refused(nn::Delay(2), "Delay: takes neither lengths nor start", samples);
  refused(nn::Sequential(nn::LIF(), nn::Delay(2)), "Delay '1': takes neither lengths nor start", samples);
  refused(nn::Sequential(nn::TimeDistributed(torch::nn::BatchNorm1d(width)), nn::LIF()), "statistics of a", samples);
  refused(nn::BatchNormNeuron(torch::nn::BatchNorm1d(width), nn::LIF()), "takes neither lengths nor start", samples);
  nn::Recurrent stepped(nn::LIF(), torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::ReLU()));
  refused(stepped, "takes neither lengths nor start: module, cell are stepped", samples);
  refused(nn::LIF(nn::LIFOptions().v_reset(nn::Learnable(.1)).strict(true)), "must be scalars", samples);
  refused(nn::LIF(), "lengths must have shape [4] for an input of shape [9, 4, 6], but has [3]",
          {.lengths = at::tensor({1, 2, 3})});
  refused(nn::LIF(), "start must have shape [9, 4]", {.start = samples.start.narrow(0, 0, 3)});
  refused(nn::LIF(), "lengths must be in [0, 9]", {.lengths = at::tensor({1, 2, 3, 10})});
}

TEST_CASE("a Sequential of torch calls a neuron with the sequence alone") {
  const Tensor x = at::rand({sample_steps, 4, width});
  torch::nn::Linear linear(width, width);
  torch::nn::Sequential network(linear, nn::LIF());
  CHECK(at::equal(network->forward(x), nn::LIF()(linear->forward(x))));
}

}  // namespace spikeforge::test
