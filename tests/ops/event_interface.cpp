// Tests that each function of <spikeforge/ops/event.h>, <spikeforge/ops/frames.h> and, for sparse connections,
// <spikeforge/ops/recurrent.h> passes its arguments to its operator in the correct order, by comparison with dense
// matrices in float64. The operators themselves are tested elsewhere.
#include "ops/connect.h"
#include "ops/event.h"
#include "ops/frames.h"
#include "ops/recurrent.h"

#include <ATen/ATen.h>

#include "tests/catch.h"

namespace spikeforge::test {
namespace {

// A 3 x 4 matrix with a repeated connection and an empty row.
Connections some_connections(bool shared) {
  const at::Tensor weights = shared ? at::tensor({0.5}) : at::tensor({1.0, 2.0, -3.0, 4.0, 0.25});
  return {.weights = weights.to(at::kDouble),
          .indices = at::tensor({0, 3, 1, 1, 2}, at::kInt),
          .indptr = at::tensor({0, 2, 2, 5}, at::kInt),
          .rows = 3,
          .cols = 4};
}

at::Tensor dense(const Connections& m) {
  const at::Tensor rows = at::tensor({0, 0, 2, 2, 2}, at::kLong);
  return at::zeros({m.rows, m.cols}, at::kDouble)
      .index_put({rows, m.indices.to(at::kLong)}, m.weights.expand_as(m.indices), /*accumulate=*/true);
}

bool same(const at::Tensor& a, const at::Tensor& b) { return a.sizes() == b.sizes() && at::allclose(a, b, 1e-12, 0); }

}  // namespace

TEST_CASE("products of stored matrices from C++") {
  for (const bool shared : {false, true}) {
    const Connections m = some_connections(shared);
    m.check(/*sorted=*/true);
    const at::Tensor a = dense(m), by_cols = at::tensor({1.5, -1.0, 2.5, 0.5}, at::kDouble),
                     by_rows = at::tensor({0.25, 7.0, -2.0}, at::kDouble);
    const auto fired = [](const at::Tensor& x) { return x.gt(0).to(at::kDouble); };
    CHECK(same(event_mv(m, by_cols), a.mv(fired(by_cols))));
    CHECK(same(event_mv(m, by_rows, {.transpose = true}), a.t().mv(fired(by_rows))));
    CHECK(same(event_mv(m, by_cols, {.graded = true}), a.mv(by_cols.clamp_min(0))));
    CHECK(same(event_mv(m, by_rows, {.transpose = true, .deterministic = true}), a.t().mv(fired(by_rows))));
    CHECK(same(sparse_mv(m, by_rows, {.transpose = true}), a.t().mv(by_rows)));
    const at::Tensor several = at::stack({by_cols, -by_cols}, 1);
    CHECK(same(event_mm(m, several), a.mm(fired(several))));
    CHECK(same(sparse_mm(m, several), a.mm(several)));
  }
}

TEST_CASE("rows of one length from C++") {
  const Connections ell{.weights = at::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble).view({2, 2}),
                        .indices = at::tensor({0, 2, 1, 1}, at::kInt).view({2, 2}),
                        .rows = 2,
                        .cols = 3};
  const at::Tensor all = at::ones({3}, at::kDouble);
  CHECK(same(event_mv(ell, all), at::tensor({3.0, 7.0}, at::kDouble)));
  CHECK_THROWS_WITH(ell.check(), has_text("csr_check: the matrix must have indptr"));
}

TEST_CASE("a matrix that leads out of bounds is refused from C++, unless it is unchecked") {
  Connections m = some_connections(false);
  const at::Tensor nothing = at::zeros({m.rows}, at::kDouble);
  CHECK(same(event_mv(m, nothing, {.transpose = true}), at::zeros({m.cols}, at::kDouble)));
  m.indices[0] = -1;
  CHECK_THROWS_WITH(event_mv(m, nothing, {.transpose = true}), has_text("event_csrmv: indices must be from 0 to"));
  CHECK_THROWS_WITH(stdp_pre_(m, nothing, at::zeros({m.cols}, at::kDouble)), has_text("stdp_pre: indices must be"));
  m.unchecked = true;  // no row is read
  CHECK(same(event_mv(m, nothing, {.transpose = true}), at::zeros({m.cols}, at::kDouble)));
  stdp_pre_(m, nothing, at::zeros({m.cols}, at::kDouble));
}

TEST_CASE("products from C++ have gradients") {
  Connections m = some_connections(false);
  m.weights.requires_grad_();
  const at::Tensor x = at::tensor({1.0, -1.0, 2.0}, at::kDouble).requires_grad_();
  event_mv(m, x, {.transpose = true}).sum().backward();
  CHECK(same(m.weights.grad(), at::tensor({1.0, 1.0, 1.0, 1.0, 1.0}, at::kDouble)));
  CHECK(same(x.grad(), dense(m).detach().sum(1)));
}

TEST_CASE("a random matrix from C++ is the same in every product") {
  const RandomConnections m{
      .weights = at::tensor({0.5, 2.0}, at::kDouble), .law = "uniform", .rows = 20, .cols = 30, .prob = 0.3, .seed = 5};
  const at::Tensor a = event_mm(m, at::eye(30, at::kDouble));
  CHECK(a.ne(0).sum().item<std::int64_t>() > 100);
  CHECK(same(event_mm(m, at::eye(20, at::kDouble), {.transpose = true}), a.t()));
  CHECK(same(event_mv(m, at::ones({30}, at::kDouble)), a.sum(1)));
  CHECK_THROWS_WITH(
      event_mv(RandomConnections{.weights = m.weights, .law = "gamma", .rows = 2, .cols = 2, .prob = 1}, at::ones({2})),
      has_text("jit_csrmv: law must be"));
}

TEST_CASE("events through connections with delays arrive, from C++") {
  const Connections m = some_connections(false);
  const at::Tensor delays = at::tensor({0, 2, 1, 0, 2}, at::kByte), fired = at::ones({3}, at::kDouble);
  const at::Tensor buffer = at::zeros({3, 4}, at::kDouble), step = at::scalar_tensor(4, at::kLong);
  const at::Tensor sent = event_mv_delayed(m, fired, delays, buffer, step, {.transpose = true});
  at::Tensor right = at::zeros({3, 4}, at::kDouble);
  right[1][0] = 1.0, right[1][1] = 4.0;   // of delay 0
  right[2][1] = -3.0;                     // 1
  right[0][3] = 2.0, right[0][2] = 0.25;  // 2
  CHECK(same(sent, right));
  CHECK(same(buffer, at::zeros_like(buffer)));
  event_mv_delayed_(m, fired, delays, buffer, step, {.transpose = true});
  CHECK(same(buffer, right));
  const auto [arrivals, left] = take_arrivals(buffer, step);
  CHECK(same(arrivals, right[1]));
  CHECK(same(take_arrivals_(buffer, step), arrivals));
  CHECK(same(buffer, left));
  CHECK(buffer[1].eq(0).all().item<bool>());
}

TEST_CASE("a random matrix from C++ delivers all that it sends") {
  const RandomConnections m{.weights = at::ones({1}, at::kDouble), .rows = 20, .cols = 30, .prob = 0.3, .seed = 5};
  const at::Tensor fired = at::ones({20}, at::kDouble), step = at::scalar_tensor(1, at::kLong);
  const at::Tensor buffer = at::zeros({6, 30}, at::kDouble);
  const at::Tensor sent =
      event_mv_delayed(m, fired, {.numbers = {1, 3}, .law = "uniform"}, buffer, step, {.transpose = true});
  CHECK(same(sent.sum(0), event_mv(m, fired, {.transpose = true})));
  CHECK(sent[1].eq(0).all().item<bool>());  // of delay 0
  CHECK(sent[2].gt(0).any().item<bool>());
  event_mv_delayed_(m, fired, {.numbers = {1, 3}, .law = "uniform"}, buffer, step, {.transpose = true});
  CHECK(same(buffer, sent));
  CHECK_THROWS_WITH(event_mv_delayed(m, fired, {.numbers = {6}}, buffer, step, {.transpose = true}),
                    has_text("jit_csrmv_delayed: delays must be below 6"));
}

TEST_CASE("dense weights and bits from C++") {
  const at::Tensor weight = at::arange(12, at::kDouble).view({3, 4}), bias = at::ones({4}, at::kDouble);
  const at::Tensor events = at::tensor({1, 0, 1, 0, 0, 0}, at::kInt).to(at::kBool).view({2, 3});
  const at::Tensor expected = events.to(at::kDouble).mm(weight) + bias;
  CHECK(same(event_linear(events, weight, bias), expected));
  CHECK(same(event_linear(pack_events(events), weight, bias), expected));
  CHECK(at::equal(unpack_events(pack_events(events), 3), events));
}

TEST_CASE("weights change with spikes from C++") {
  const Connections before = some_connections(false);
  const auto changed = [&](const auto& change) {
    Connections m = before;
    m.weights = before.weights.clone();
    change(m);
    return m.weights - before.weights;
  };
  const at::Tensor of_cols = at::tensor({0.1, 0.2, 0.3, 0.4}, at::kDouble),
                   of_rows = at::tensor({1.0, 2.0, 5.0}, at::kDouble);
  CHECK(same(changed([&](Connections& m) {
               stdp_pre_(m, at::tensor({1, 1, 0}, at::kInt).to(at::kBool), of_cols);
             }),
             at::tensor({0.1, 0.4, 0.0, 0.0, 0.0}, at::kDouble)));
  CHECK(same(changed([&](Connections& m) {
               stdp_post_(m, by_columns(m), at::tensor({0, 1, 0, 1}, at::kInt).to(at::kBool), of_rows, {.most = 3.0});
             }),
             at::tensor({0.0, 1.0, 5.0, -1.0, 0.0}, at::kDouble)));
}

TEST_CASE("connections learn from C++ by a rule of text") {
  const Connections m = some_connections(false);
  const at::Tensor weights = m.weights.clone(), before = at::zeros({m.rows}, at::kDouble),
                   after = at::ones({m.cols}, at::kDouble);
  const at::Tensor sent = plastic_step_(
      "synapse s(w; x, y; k) { on pre { x' = x + 1; w' = w - k * y }; on post { y' = y + 1; w' = w + x } }", {weights},
      {before, after}, m, by_columns(m), at::tensor({1, 0, 0}, at::kInt).to(at::kBool), at::zeros({m.cols}, at::kBool),
      {.params = {0.5}, .sends = true});
  CHECK(same(sent, dense(m).select(0, 0)));
  CHECK(same(before, at::tensor({1.0, 0.0, 0.0}, at::kDouble)));
  constexpr std::int64_t first = 2;  // connections of row 0
  CHECK(same(weights, m.weights - at::cat({at::full({first}, 0.5, at::kDouble),
                                           at::zeros({weights.numel() - first}, at::kDouble)})));
}

TEST_CASE("networks are drawn from C++, as one matrix of several projections") {
  const NeuronRange excitatory{0, 80}, inhibitory{80, 100};
  const Connectivity network =
      connect(100, 100,
              {{.rule = "fixed_in_degree",
                .sources = excitatory,
                .targets = inhibitory,
                .amount = 9,
                .multapses = false,
                .weight = {.law = "normal", .first = 2, .second = 0.1, .low = 1.9},
                .delay = {.first = 15}},
               {.rule = "one_to_one", .sources = inhibitory, .targets = {0, 20}, .weight = {.first = -1}}},
              7, at::kDouble);
  CHECK(network.indices.size(0) == 200);
  CHECK(network.indptr.size(0) == 101);
  CHECK(network.delays.scalar_type() == at::kByte);
  CHECK(network.delays.sum().item<int>() == 180 * 15 + 20);
  const Connections matrix{network.weights, network.indices, network.indptr, 100, 100};
  matrix.check();
  const at::Tensor arriving = event_mv(matrix, at::ones({100}, at::kDouble), {.transpose = true});
  CHECK(at::equal(arriving.slice(0, 0, 20), at::full({20}, -1.0, at::kDouble)));
  CHECK(arriving.slice(0, 80).gt(9 * 1.9 - 1e-9).all().item<bool>());
  CHECK_THROWS_AS(connect(100, 100, {{.rule = "fixed_probability", .sources = excitatory, .targets = {90, 200}}}, 7),
                  c10::ValueError);
}

TEST_CASE("events of cameras become frames from C++") {
  const Events events{.t = at::tensor({0, 10, 25, 7}, at::kLong),
                      .x = at::tensor({1, 1, 3, 0}, at::kInt),
                      .y = at::tensor({0, 1, 1, 1}, at::kInt),
                      .p = at::tensor({1, 0, 1, 1}, at::kInt),
                      .offsets = at::tensor({0, 3, 4}, at::kLong)};
  // Sample 0 is flipped left to right; its first event is outside of the crop, and its second one is ignored.
  const FrameOptions options{.size = {2, 2, 4},
                             .steps = 3,
                             .window = 10,
                             .start = at::tensor({0, 7}, at::kLong),
                             .values = "binary",
                             .crop = {{1, 4}},
                             .origin = at::tensor({1, 0, 1, 0}, at::kLong).view({2, 2}),
                             .flip = at::tensor({0, 1, 0, 0}, at::kInt).view({2, 2}).to(at::kBool),
                             .ignored = at::tensor({0, 0, 0, 0, 0, 1, 0, 0}, at::kInt).view({2, 4}).to(at::kBool),
                             .dtype = at::kDouble};
  const at::Tensor frames = event_frames(events, options);
  at::Tensor expected = at::zeros({3, 2, 2, 1, 4}, at::kDouble);
  expected.index_put_(
      {at::tensor({2, 0}), at::tensor({0, 1}), at::tensor({1, 1}), at::tensor({0, 0}), at::tensor({0, 0})},
      at::ones({2}, at::kDouble));
  CHECK(same(frames, expected));
}

TEST_CASE("a recurrent layer with sparse connections is that with a dense matrix, from C++") {
  const Neuron neuron("neuron n(x, y; v) { h = 0.5 * v + x + 2 * y; return spike(h - 1, atan(2)); v' = 0.5 * h }");
  const at::Tensor x = at::rand({9, 2, 3}, at::kDouble), y = at::rand({9, 2, 3}, at::kDouble),
                   w = at::tensor({0., .5, 0., 0., 0., 0., -1., 0., 2.}, at::kDouble).view({3, 3});
  const SparseConnections connections{.weights = at::tensor({.5, -1., 2.}, at::kDouble),
                                      .indices = at::tensor({1, 0, 2}, at::kInt),
                                      .indptr = at::tensor({0, 1, 1, 3}, at::kInt),
                                      .delays = at::tensor({2}, at::kByte),
                                      .max_delay = 2};
  const at::Tensor before = (at::rand({2, 2, 3}, at::kDouble) > .5).to(at::kDouble);
  const RecurrentOptions options{.spikes = before, .into = 1, .delay = 2, .store_states = true};
  const auto [found, states] = sparse_recurrent_run(neuron, {x, y}, connections, {}, {}, options);
  const auto [expected, expected_states] = recurrent_run(neuron, {x, y}, w, {}, {}, options);
  REQUIRE(same(found[0], expected[0]));
  REQUIRE(same(states[0], expected_states[0]));
  REQUIRE(found[0].any().item<bool>());
}

}  // namespace spikeforge::test
