// Networks: that the ways to run them agree, with each other and with a simulator that knows only the description.
#include <spikeforge/nn/containers.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/pooling.h>

#include "random_network.h"

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
    nn::Composite once = description.build(x.size(1)), stepped = description.build(x.size(1)),
                  chunked = description.build(x.size(1));
    const Tensor y = once->forward(x);
    CHECK(at::equal(y, by_steps(*stepped, x)));
    CHECK(at::equal(y, in_chunks(*chunked, x, random, /*empty_ones=*/false)));
    CHECK(at::equal(y, simulate(description, x)));
    for (const auto& state : once->state()) {
      CHECK(at::equal(state.value(), stepped->state(state.key())));
      CHECK(at::equal(state.value(), chunked->state(state.key())));
    }

    // In double precision, so that what a loop amplifies is not the rounding.
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
  nn::Recurrent recurrent(nn::LIF(), feedback);
  const Tensor y = recurrent(x);
  nn::LIF lif;
  Tensor f = at::zeros({3, width});
  for (int t = 0; t < 8; ++t) {
    const Tensor s = lif->step(x[t] + f);
    CHECK(at::equal(y[t], s));
    f = feedback(s);
  }
  CHECK(at::equal(recurrent->state("module_out_to_cell_in")[0], f));
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
