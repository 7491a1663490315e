// Each property that a user can define for an operator, tested by its effect.
#include "csrc/custom_op/elementwise.h"

#include <ATen/core/grad_mode.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "tests/custom_op/support.h"

namespace spikeforge::test {
namespace {

using torch::autograd::grad;

TEST_CASE("a registered operator is called by its handle and by its name") {
  const RegisteredOp op = scaled("called").registered();
  const at::Tensor x = at::tensor({1., 2.});
  CHECK(op.name() == "test_custom::called");
  CHECK(at::equal(op({x, 3.0})[0], at::tensor({3., 6.})));
  CHECK(at::equal(call("called", {x, 3.0})[0], at::tensor({3., 6.})));
}

TEST_CASE("an argument with a default may be left out") {
  const RegisteredOp op = scaled("with_default").registered();
  CHECK(at::equal(op({at::tensor({1., 2.})})[0], at::tensor({2., 4.})));
}

TEST_CASE("a destroyed handle removes the operator, and the name is free again") {
  {
    const RegisteredOp op = scaled("gone").registered();
    CHECK(is_registered("gone"));
  }
  CHECK_FALSE(is_registered("gone"));
  const RegisteredOp again = scaled("gone").registered();
  CHECK(is_registered("gone"));
}

TEST_CASE("kernels get contiguous tensors, and results may have other shapes and types than arguments") {
  CustomOp op("test_custom::row_sums(Tensor x) -> (Tensor sums, Tensor positive)");
  op.shapes([](const Arguments& in) {
    return std::vector<Result>{{{in.size("x", 0)}, in.dtype("x")}, {in.sizes("x"), at::kBool}};
  });
  op.cpu([](Tensors out, const Arguments& in) {
    const at::Tensor& x = in.tensor("x");
    CHECK(x.is_contiguous());
    out[0].copy_(x.sum(1));
    out[1].copy_(x > 0);
  });
  const RegisteredOp registered = op.registered();
  const at::Tensor x = at::tensor({1., -2., 3., 4., -5., 7.}).view({3, 2}).t();
  const TensorVector results = registered({x});
  CHECK(at::equal(results[0], at::tensor({-1., 9.})));
  CHECK(at::equal(results[1], x > 0));
}

TEST_CASE("scalars, texts, lists and optional tensors reach the function") {
  CustomOp op(
      "test_custom::all_kinds(Tensor x, Tensor? y, Tensor[] more, int n, float a, bool negate, str mode, Scalar s, "
      "int[] list) -> Tensor");
  op.shapes(like_x).cpu([](Tensors out, const Arguments& in) {
    at::Tensor sum = in.tensor("x") * in.number("a") + in.integer("n") + in.number("s");
    if (in.has("y")) sum = sum + in.tensor("y");
    for (const at::Tensor& t : in.tensors("more")) sum = sum + t;
    for (const std::int64_t i : in.value("list").toIntVector()) sum = sum + i;
    if (in.text("mode") == "double") sum = 2 * sum;
    out[0].copy_(in.flag("negate") ? -sum : sum);
  });
  const RegisteredOp registered = op.registered();
  const at::Tensor x = at::tensor({1., 2.});
  const c10::List<at::Tensor> more({x, x});
  const c10::List<std::int64_t> list({1, 2});
  CHECK(at::equal(registered({x, x, more, 1, 10.0, true, "double", c10::Scalar(0.5), list})[0],
                  -2 * (x * 10 + 1 + 0.5 + x + 2 * x + 3)));
  CHECK(at::equal(registered({x, c10::IValue(), more, 1, 1.0, false, "", c10::Scalar(1), list})[0], 3 * x + 5));
}

TEST_CASE("lazily negated tensors and zero tensors reach the function as memory, in every list") {
  CustomOp op("test_custom::all_lazy(Tensor x, Tensor? y, Tensor[] more, Tensor?[] maybe) -> Tensor");
  op.shapes(like_x).cpu([](Tensors out, const Arguments& in) {
    at::Tensor sum = at::zeros_like(out[0]);
    const auto add = [&](const at::Tensor& t) {
      CHECK_FALSE(t.is_neg());
      for (std::int64_t i = 0; i < t.numel(); ++i) sum.mutable_data_ptr<double>()[i] += t.const_data_ptr<double>()[i];
    };
    add(in.tensor("x"));
    add(in.tensor("y"));
    for (const at::Tensor& t : in.tensors("more")) add(t);
    for (const std::optional<at::Tensor> t : in.value("maybe").toOptionalTensorList())
      if (t) add(*t);
    out[0].copy_(sum);
  });
  const RegisteredOp registered = op.registered();
  const at::Tensor x = at::tensor({1., 2.}), negated = at::_neg_view(10 * x);
  const c10::List<at::Tensor> more({negated, at::_efficientzerotensor({2}, x.options())});
  c10::List<std::optional<at::Tensor>> maybe;
  maybe.push_back(negated);
  maybe.push_back(std::nullopt);
  maybe.push_back(at::_efficientzerotensor({2}, x.options()));
  CHECK(at::equal(registered({x, negated, more, maybe})[0], -29 * x));
}

TEST_CASE("a vjp may be a function, which may use the results, and is differentiated again") {
  CustomOp op("test_custom::exponential(Tensor x) -> Tensor y");
  op.shapes(like_x)
      .cpu([](Tensors out, const Arguments& in) { out[0].copy_(in.tensor("x").exp()); })
      .save_results()
      .vjp([](const Arguments& in, Tensors grads) { return TensorVector{grads[0] * in.result(0)}; });
  const RegisteredOp registered = op.registered();
  const at::Tensor x = at::tensor({0.5, -1.}).requires_grad_();
  const at::Tensor y = registered({x})[0];
  const at::Tensor first = grad({y.sum()}, {x}, {}, {}, /*create_graph=*/true)[0];
  CHECK(at::allclose(first, x.exp(), 1e-12));
  CHECK(at::allclose(grad({first.sum()}, {x})[0], x.exp(), 1e-12));
}

TEST_CASE("a vjp may be another operator") {
  CustomOp backward("test_custom::square_backward(Tensor grad, Tensor x) -> Tensor");
  backward.shapes(like_x).cpu(
      [](Tensors out, const Arguments& in) { out[0].copy_(2 * in.tensor("x") * in.tensor("grad")); });
  CustomOp op("test_custom::square(Tensor x) -> Tensor");
  op.shapes(like_x)
      .cpu([](Tensors out, const Arguments& in) { out[0].copy_(in.tensor("x") * in.tensor("x")); })
      .vjp("test_custom::square_backward");
  const RegisteredOp first = backward.registered(), second = op.registered();
  const at::Tensor x = at::tensor({0.5, -1.}).requires_grad_();
  CHECK(at::equal(grad({second({x})[0].sum()}, {x})[0], at::tensor({1., -2.})));
  // The vjp has no vjp: a second derivative raises an error instead of being zero.
  const at::Tensor once = grad({second({x})[0].sum()}, {x}, {}, {}, /*create_graph=*/true)[0];
  CHECK_THAT(message_of<c10::NotImplementedError>([&] { grad({once.sum()}, {x}); }),
             has_text("test_custom::square_backward has no vjp"));
}

TEST_CASE("a result that nobody differentiates counts as zeros in the vjp") {
  CustomOp op("test_custom::twice(Tensor x) -> (Tensor a, Tensor b)");
  op.shapes([](const Arguments& in) {
      return std::vector<Result>{in.like("x"), in.like("x")};
    })
      .cpu([](Tensors out, const Arguments& in) {
        out[0].copy_(in.tensor("x"));
        out[1].copy_(3 * in.tensor("x"));
      })
      .vjp([](const Arguments&, Tensors grads) { return TensorVector{grads[0] + 3 * grads[1]}; });
  const RegisteredOp registered = op.registered();
  const at::Tensor x = at::ones({2}).requires_grad_();
  CHECK(at::equal(grad({registered({x})[1].sum()}, {x})[0], at::tensor({3.f, 3.f})));
}

TEST_CASE("the gradients of a list of tensors are listed one by one") {
  CustomOp op("test_custom::sum_of(Tensor x, Tensor[] more) -> Tensor");
  op.shapes(like_x)
      .cpu([](Tensors out, const Arguments& in) {
        at::Tensor sum = in.tensor("x");
        for (const at::Tensor& t : in.tensors("more")) sum = sum + t;
        out[0].copy_(sum);
      })
      .vjp([](const Arguments&, Tensors grads) {
        return TensorVector{grads[0], 2 * grads[0], 3 * grads[0]};
      });
  const RegisteredOp registered = op.registered();
  const at::Tensor x = at::ones({2}).requires_grad_(), y = at::ones({2}).requires_grad_();
  const auto gradients = grad({registered({x, c10::List<at::Tensor>({x.detach(), y})})[0].sum()}, {x, y});
  CHECK(gradients[0][0].item<double>() == 1);
  CHECK(gradients[1][0].item<double>() == 3);
}

TEST_CASE("a backward pass outlives the handle of its operator, if its vjp is a function") {
  const at::Tensor x = at::ones({2}).requires_grad_();
  at::Tensor y;
  {
    const RegisteredOp op =
        scaled("outlived")
            .vjp([](const Arguments& in, Tensors g) { return TensorVector{g[0] * in.number("factor")}; })
            .registered();
    y = op({x})[0];
  }
  CHECK(at::equal(grad({y.sum()}, {x})[0], at::tensor({2.f, 2.f})));
}

TEST_CASE("an element-wise operator is a lambda over values, with its gradient, in every type") {
  const RegisteredOp op =
      elementwise("test_custom::damped(Tensor x, float a, Tensor y) -> (Tensor p, Tensor q)", [](graph::Value x,
                                                                                                 graph::Value a,
                                                                                                 graph::Value y) {
        return std::vector<graph::Value>{a * x * x + y, tanh(x - y)};
      }).registered();
  for (const c10::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    const at::Tensor x = at::rand({3, 4}, type).requires_grad_(), y = at::rand({4}, type).requires_grad_();
    const at::Tensor wide_x = x.detach().to(at::kDouble).requires_grad_(),
                     wide_y = y.detach().to(at::kDouble).requires_grad_();
    const TensorVector results = op({x, 0.5, y});
    const TensorVector expected = {0.5 * wide_x * wide_x + wide_y, (wide_x - wide_y).tanh()};
    const double bound = type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 1e-2;
    for (int i : {0, 1}) CHECK(at::allclose(results[i].to(at::kDouble), expected[i], bound, bound));
    const auto gradients = grad({results[0].sum() + 2 * results[1].sum()}, {x, y});
    const auto wide = grad({expected[0].sum() + 2 * expected[1].sum()}, {wide_x, wide_y});
    for (int i : {0, 1}) CHECK(at::allclose(gradients[i].to(at::kDouble), wide[i], 8 * bound, bound));
  }
}

TEST_CASE("a batching rule gets mapped arguments with the map first") {
  CustomOp op("test_custom::batched(Tensor x, Tensor y) -> Tensor");
  int calls = 0;
  op.shapes(like_x)
      .cpu([](Tensors out, const Arguments& in) { out[0].copy_(in.tensor("x") + in.tensor("y")); })
      .batching([&calls](const Arguments& in, std::int64_t size) {
        ++calls;
        CHECK(size == 3);
        CHECK(in.is_mapped("x"));
        CHECK_FALSE(in.is_mapped("y"));
        return TensorVector{in.tensor("x") + in.tensor("y")};
      });
  const RegisteredOp registered = op.registered();
  const at::Tensor x = at::rand({5, 3}), y = at::rand({5});
  const at::Tensor z = registered({at::functorch::makeBatched(x, 1, 1), y})[0];
  CHECK(at::equal(at::functorch::maybeGetBatchedImpl(z)->value(), x.t() + y));
  CHECK(calls == 1);
}

// --- CUDA
// -------------------------------------------------------------------------------------------------------------

TEST_CASE("a CUDA source is compiled for an architecture and for dtypes without a GPU") {
  REQUIRE_NVRTC_OR_SKIP();
  const RegisteredOp op = scaled("compiled").registered();
  for (const c10::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble, at::kInt})
    for (const char* arch : {"sm_80", "sm_90"}) CHECK_NOTHROW(op.compile(arch, {at::empty({0}, type)}));
}

TEST_CASE("a CUDA source runs on the GPU in every type, at any size and offset") {
  REQUIRE_CUDA_OR_SKIP();
  const RegisteredOp op = scaled("on_gpu").registered();
  for (const c10::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble})
    for (const std::int64_t n : {0, 1, 255, 256, 100001}) {
      const at::Tensor x = at::rand({n + 1}).to(at::kCUDA, type).slice(0, 1);
      CHECK(at::allclose(op({x, 3.0})[0].to(at::kDouble), 3.0 * x.to(at::kDouble), 1e-2));
    }
}

TEST_CASE("grid, block and shared memory may follow from sizes, and optional tensors may be absent") {
  REQUIRE_CUDA_OR_SKIP();
  CustomOp op("test_custom::geometry(Tensor x, Tensor? bias, int n, bool negate) -> (Tensor y, Tensor z)");
  op.shapes([](const Arguments& in) { return std::vector<Result>{in.like("x"), {{in.symbol("n")}, at::kLong}}; });
  op.zero_results({1});
  op.cuda({.source = R"(
extern "C" __global__ void geometry(Array<const x_t> x, Array<const bias_t> bias, long long n, bool negate,
                                    Array<y_t> y, Array<z_t> z) {
  extern __shared__ float row[];
  const long long column = threadIdx.x, i = blockIdx.y * x.size(1) + column;
  row[column] = x[i];
  __syncthreads();
  const float other = row[x.size(1) - 1 - column] + (bias.data ? bias[column] : 0);
  y[i] = negate ? -other : other;
  if (column < n) atomicAdd(reinterpret_cast<unsigned long long*>(&z[column]), 1ull);
}
)",
           .entry = "geometry",
           .grid = [](const Arguments& in, Tensors) { return custom_op::Dim3{.x = 1, .y = in.tensor("x").size(0)}; },
           .block = [](const Arguments& in, Tensors) { return custom_op::Dim3{.x = in.tensor("x").size(1)}; },
           .shared_bytes = 4096});
  const RegisteredOp registered = op.registered();
  const at::Tensor x = at::rand({5, 7}).to(at::kCUDA), bias = at::rand({7}).to(at::kCUDA);
  const TensorVector plain = registered({x, c10::IValue(), 3, true});
  CHECK(at::equal(plain[0], -x.flip({1})));
  CHECK(at::equal(plain[1].cpu(), at::tensor({5, 5, 5}, at::kLong)));
  CHECK(at::allclose(registered({x, bias, 3, false})[0], x.flip({1}) + bias));
}

TEST_CASE("on a GPU, a host function may take a source's place") {
  REQUIRE_CUDA_OR_SKIP();
  CustomOp op = scaled("host_function");
  op.cuda([](Tensors out, const Arguments& in) { out[0].copy_(in.tensor("x") * in.number("factor")); });
  const RegisteredOp registered = op.registered();
  const at::Tensor x = at::rand({9}).to(at::kCUDA);
  CHECK(at::equal(registered({x, 3.0})[0], 3 * x));
}

TEST_CASE("an element-wise operator on the GPU equals the CPU") {
  REQUIRE_CUDA_OR_SKIP();
  const RegisteredOp op =
      elementwise("test_custom::cubic(Tensor x, float a) -> Tensor", [](graph::Value x, graph::Value a) {
        return x * x * x - a * x;
      }).registered();
  const at::Tensor x = at::rand({100, 33});
  CHECK(at::equal(op({x.to(at::kCUDA), 0.3})[0].cpu(), op({x, 0.3})[0]));
}

// --- cost
// -------------------------------------------------------------------------------------------------------------

template <class Body> double microseconds(Body&& body) {
  constexpr int rounds = 200, calls = 50;
  double least = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) body();
    least = std::min(
        least, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / calls);
  }
  return least;
}

TEST_CASE("a hot call costs within 3 us of a built-in operator's") {
  const at::Tensor x = at::rand({16});
  CustomOp definition("test_custom::hot(Tensor x, float factor=2.0) -> Tensor");
  definition.shapes(like_x)
      .cpu([](Tensors out, const Arguments& in) {
        const float* from = in.tensor(0).const_data_ptr<float>();
        float* to = out[0].mutable_data_ptr<float>();
        const auto factor = static_cast<float>(in.number(1));
        for (std::int64_t i = 0; i < out[0].numel(); ++i) to[i] = factor * from[i];
      })
      .vjp([](const Arguments& in, Tensors grads) { return TensorVector{grads[0] * in.number(1)}; });
  const RegisteredOp op = definition.registered();
  const auto hot = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("test_custom::hot", "")
                       .typed<at::Tensor(const at::Tensor&, double)>();
  const at::Tensor leaf = x.clone().requires_grad_();
  const double built_in = microseconds([&] { at::silu(x); }), own = microseconds([&] { hot.call(x, 2.0); });
  const double built_in_training = microseconds([&] { at::silu(leaf); });
  const double own_training = microseconds([&] { hot.call(leaf, 2.0); });
  std::printf("a call in us: silu %.2f, a custom operator %.2f; recorded by autograd %.2f, %.2f\n", built_in, own,
              built_in_training, own_training);
#ifndef SPIKEFORGE_SANITIZED
  CHECK(own < built_in + 3);
  CHECK(own_training < built_in_training + 3);
#endif
}

}  // namespace
}  // namespace spikeforge::test
