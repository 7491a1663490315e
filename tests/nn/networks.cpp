// Networks: all ways to run them agree with each other and with a simulator of the description.
#include "csrc/nn/containers.h"
#include "csrc/nn/neuron.h"
#include "csrc/nn/neurons.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/pooling.h>

#include <functional>
#include <sstream>
#include <tuple>

#include "tests/nn/random_network.h"

namespace spikeforge::test {

TEST_CASE("random networks with random delays: steps, one forward, chunks and a simulator agree bit for bit") {
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  at::manual_seed(seed);
  int loops = 0;
  for (int round = 0; round < 40; ++round) {
    const bool exact_layers = round % 2 == 0;
    const RandomNetwork description = random_network(random, exact_layers);
    loops += description.has_loop;
    INFO("round " << round << ", " << description.parts.size() << " parts");
    Tensor x = at::rand({11, 1 + static_cast<std::int64_t>(random() % 3), width}) * 3;
    if (!exact_layers) x = (x * 4).round() / 4;
    nn::Composite once = description.build(), stepped = description.build(), chunked = description.build();
    const Tensor y = once->forward(x);
    CHECK(at::equal(y, by_steps(*stepped, x)));
    CHECK(at::equal(y, in_chunks(*chunked, x, random, /*empty_ones=*/false)));
    CHECK(at::equal(y, simulate(description, x)));
    for (const auto& state : once->state()) {
      CHECK(at::equal(state.value(), stepped->state(state.key())));
      CHECK(at::equal(state.value(), chunked->state(state.key())));
    }

    // In double precision, because a loop amplifies rounding errors.
    for (nn::Composite* net : {&once, &stepped, &chunked}) (*net)->to(at::kDouble);
    const auto gradients = [&](nn::Composite& net, const auto& run) {
      net->reset();
      const Tensor leaf = x.to(at::kDouble).requires_grad_(true);
      Tensors wanted = net->parameters();
      wanted.push_back(leaf);
      Tensors got = torch::autograd::grad({run(*net, leaf).square().sum()}, wanted, {}, {}, false, true);
      for (std::size_t i = 0; i < got.size(); ++i)
        if (!got[i].defined()) got[i] = at::zeros_like(wanted[i]);
      return got;
    };
    const Tensors a = gradients(once, [](Stateful& m, const Tensor& in) { return m.forward(in); });
    const Tensors b = gradients(stepped, [](Stateful& m, const Tensor& in) { return by_steps(m, in); });
    const Tensors c =
        gradients(chunked, [&](Stateful& m, const Tensor& in) { return in_chunks(m, in, random, false); });
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double tolerance = 1e-8 * (1 + a[i].abs().max().item<double>());
      CHECK((a[i] - b[i]).abs().max().item<double>() < tolerance);
      CHECK((a[i] - c[i]).abs().max().item<double>() < tolerance);
    }
  }
  CHECK(loops > 5);
}

TEST_CASE("Recurrent is its formula") {
  const Tensor x = at::rand({8, 3, width}) * 2;
  torch::nn::Linear feedback(width, width);
  {  // with few bits, so that sums are exact in any order: one operator runs all steps
    const at::NoGradGuard no_grad;
    for (Tensor& weights : feedback->parameters()) weights.copy_((weights * 64).round() / 64);
  }
  nn::Recurrent recurrent(nn::LIF(), feedback);
  const Tensor y = recurrent(x);
  nn::LIF lif;
  Tensor s = at::zeros({3, width});
  for (int t = 0; t < 8; ++t) {
    s = lif->step(x[t] + feedback(s));
    CHECK(at::equal(y[t], s));
  }
  CHECK(at::equal(recurrent->state("cell_out_to_module_in")[0], s));
}

TEST_CASE("in pieces whose history is cut, a Recurrent learns its weights as its formula does") {
  torch::nn::Linear back(width, width);
  nn::Recurrent recurrent(nn::LIF(nn::LIFOptions().v_threshold(.3)), back);
  nn::LIF lif(nn::LIFOptions().v_threshold(.3));
  recurrent->to(at::kDouble);
  const Tensor x = at::rand({7, 3, width}, at::kDouble);
  for (const std::int64_t steps : {1, 2, 7}) {
    const auto gradients = [&](const auto& run_piece) {
      recurrent->zero_grad();
      for (const Tensor& piece : x.split(steps)) run_piece(piece).sum().backward();
      return Tensors{back->weight.grad().clone(), back->bias.grad().clone()};
    };
    recurrent->reset();
    lif->reset();
    Tensor s = at::zeros({3, width}, at::kDouble);
    const Tensors found = gradients([&](const Tensor& piece) {
      recurrent->detach_state();
      return recurrent->forward(piece);
    });
    const Tensors expected = gradients([&](const Tensor& piece) {
      lif->detach_state();
      s = s.detach();
      Tensor sum = at::zeros({}, at::kDouble);
      for (const Tensor& row : piece.unbind(0)) {
        s = lif->step(row + back(s));
        sum = sum + s.sum();
      }
      return sum;
    });
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(at::allclose(found[i], expected[i], 1e-9, 1e-12));
  }
}

TEST_CASE("a loop needs no shape, accepts any batch, and finding its shapes changes nothing") {
  torch::nn::BatchNorm1d norm(width);
  torch::nn::Linear there(width, 4), back(4, width);
  for (const bool from_rest : {false, true}) {
    nn::Composite net;
    net->add("back", back);
    net->add("i", nn::LIF(nn::LIFOptions().v_threshold(.2)));
    net->add("there", there);
    net->add("e", nn::Sequential(norm, nn::LIF()));
    net->connect("in", "e.in");
    net->connect("e.out", "there.in", {.delay = 1, .from_rest = from_rest});
    net->connect("there.out", "i.in");
    net->connect("i.out", "back.in", {.delay = 2, .from_rest = from_rest});
    net->connect("back.out", "e.in");
    net->connect("e.out", "out");
    for (const std::int64_t batch : {4, 3}) {
      const Tensor x = at::rand({6, batch, width}) * 3;
      const at::NoGradGuard no_grad;
      norm->running_mean.zero_();
      norm->running_var.fill_(1);
      norm->num_batches_tracked.zero_();
      net->reset();
      const Tensor y = net->forward(x);
      CHECK(norm->num_batches_tracked.item<std::int64_t>() == 6);
      CHECK(norm->is_training());
      const auto check_loop = [&](const Tensor& found) {
        nn::LIF excites, inhibits(nn::LIFOptions().v_threshold(.2));
        Tensors e{at::zeros({batch, width})}, i{at::zeros({batch, 4}), at::zeros({batch, 4})};
        for (std::int64_t t = 0; t < 6; ++t) {
          e.push_back(excites->step(norm(x[t] + back(i[i.size() - 2]))));
          i.push_back(inhibits->step(there(e[e.size() - 2])));
          CHECK(at::equal(found[t], e.back()));
        }
      };
      check_loop(y);
      net->eval();
      net->reset();
      check_loop(net->forward(x));
      net->train();
    }
  }
}

TEST_CASE("a neuron that hears itself through a Linear runs as one operator, and as its steps do") {
  at::manual_seed(7);
  const auto late = [](std::int64_t there, std::int64_t back, bool steps) {
    nn::Composite net(nn::CompositeOptions().step_loops(steps));
    net->add("a", nn::Neuron(nn::NeuronOptions("neuron two(x, y; v; k) { h = 0.5 * v + x * k; return tanh(h + y), h; "
                                               "v' = h - y }")
                                 .param("k", nn::Learnable(0.7))));
    net->add("w", torch::nn::Linear(width, width));
    net->connect("x", "a.x");
    net->connect("y", "a.y");
    net->connect("a.out0", "w.in", {.delay = there});
    net->connect("w.out", "a.y", {.delay = back, .from_rest = back == 2});
    net->connect("a.out1", "out");
    return net;
  };
  const auto simple = [](std::int64_t, std::int64_t, bool steps) {
    const nn::Recurrent net(nn::PLIF(), torch::nn::Linear(width, width), nn::CompositeOptions().step_loops(steps));
    return nn::Composite(std::shared_ptr<nn::CompositeImpl>(net.ptr()));
  };
  const std::tuple<std::function<nn::Composite(std::int64_t, std::int64_t, bool)>, std::int64_t, std::int64_t> kinds[] =
      {{simple, 0, 1}, {late, 0, 3}, {late, 3, 0}, {late, 0, 2}};
  for (const auto& [make, there, back] : kinds) {
    nn::Composite once = make(there, back, false), stepped = make(there, back, true);
    const auto printed = [](const nn::Composite& net) {
      std::ostringstream text;
      net->pretty_print(text);
      return text.str();
    };
    CHECK(printed(once).find("one operator over time") != std::string::npos);
    CHECK(printed(stepped).find("stepped") != std::string::npos);
    for (nn::Composite* net : {&once, &stepped}) (*net)->to(at::kDouble);
    {
      const at::NoGradGuard no_grad;
      for (const auto& parameter : once->named_parameters()) {
        Tensor(parameter.value()).uniform_(0, 0.9);
        Tensor(stepped->named_parameters()[parameter.key()]).copy_(parameter.value());
      }
    }
    Tensors x;
    for (std::size_t i = 0; i < once->input_names().size(); ++i)
      x.push_back((at::rand({7, 3, width}, at::kDouble) * 2).requires_grad_(true));
    const auto run = [&](nn::Composite& net) {
      Tensors pieces;
      for (const auto& [begin, length] : {std::pair{0, 2}, std::pair{2, 5}}) {
        Tensors piece;
        for (const Tensor& t : x) piece.push_back(t.narrow(0, begin, length));
        pieces.push_back(net->run(piece, length)[0]);
      }
      return at::cat(pieces);
    };
    const Tensor y = run(once), expected = run(stepped);
    CHECK(y.allclose(expected, 1e-12, 1e-12));
    CHECK(once->state().keys() == stepped->state().keys());
    for (const auto& state : once->state()) CHECK(state.value().allclose(stepped->state(state.key()), 1e-12, 1e-12));
    const auto gradients = [&](nn::Composite& net, const Tensor& of) {
      Tensors wanted = net->parameters();
      wanted.insert(wanted.end(), x.begin(), x.end());
      return torch::autograd::grad({of.sin().sum()}, wanted);
    };
    const Tensors found = gradients(once, y), right = gradients(stepped, expected);
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i].allclose(right[i], 1e-9, 1e-12));
  }
}

TEST_CASE("TimeDistributed folds time into the batch") {
  const Tensor x = at::rand({5, 4, 2, 6, 6});
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(2, 3, 3));
  CHECK(nn::TimeDistributed(conv)->forward(x).allclose(at::stack([&] {
                                                         Tensors rows;
                                                         for (const Tensor& row : x.unbind(0))
                                                           rows.push_back(conv(row));
                                                         return rows;
                                                       }()),
                                                       1e-4, 1e-5));
  torch::nn::BatchNorm2d norm(2);
  CHECK(at::equal(nn::TimeDistributed(norm)->forward(x), torch::nn::BatchNorm2d(2)(x.flatten(0, 1)).view(x.sizes())));
  torch::nn::AvgPool2d pool(2);
  CHECK(at::equal(nn::TimeDistributed(pool)->forward(x)[3], pool(x[3])));
  CHECK(nn::TimeDistributed(conv)->named_parameters().contains("module.weight"));
}

TEST_CASE("a Sequential calls its parts in order, and they keep their names") {
  torch::nn::Linear first(4, width), second(width, 2);
  nn::LIF lif;
  nn::Sequential net(first, lif, second);
  const Tensor x = at::rand({6, 3, 4}) * 3;
  nn::LIF other;
  Tensors rows;
  for (const Tensor& row : x.unbind(0)) rows.push_back(second(other->step(first(row))));
  CHECK(at::equal(net(x), at::stack(rows)));
  CHECK(net->named_parameters().contains("2.weight"));
  net->push_back("mean", nn::LI());
  CHECK(net->state().size() == 1);
  net(x);
  CHECK(net->state("mean.v").sizes() == at::IntArrayRef{3, 2});
}

}  // namespace spikeforge::test
