// Errors: when they are raised, and their messages.
#include "csrc/graph/errors.h"
#include "csrc/custom_op/elementwise.h"

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/empty.h>

#include <functional>

#include "tests/custom_op/support.h"

namespace spikeforge::test {
namespace {

CustomOp with_schema(const std::string& schema) {
  CustomOp op(schema);
  op.shapes([](const Arguments& in) { return std::vector<Result>{in.like(0)}; }).cpu([](Tensors, const Arguments&) {});
  return op;
}

std::string refusal(const CustomOp& op) {
  return message_of<c10::ValueError>([&] { (void)op.registered(); });
}

TEST_CASE("a schema that cannot be read, or not served, is refused in words") {
  const auto says = [](const char* schema, const char* words) {
    INFO(schema);
    CHECK_THAT(refusal(with_schema(schema)), has_text(words));
  };
  says("test_custom::bad(Tensor x -> Tensor", "cannot be read");
  says("test_custom::bad(Tensr x) -> Tensor", "cannot be read");
  says("bad(Tensor x) -> Tensor", "must begin with a namespace");
  says("aten::bad(Tensor x) -> Tensor", "the namespace aten is torch's own");
  says("c10d::bad(Tensor x) -> Tensor", "the namespace c10d is torch's own");
  says("spikeforge::bad(Tensor x) -> Tensor", "the namespace spikeforge is this library's own");
  says("test_custom::bad(int n) -> Tensor", "must have an argument of type Tensor");
  says("test_custom::bad(Tensor x) -> ()", "must have a result of type Tensor");
  says("test_custom::bad(Tensor x) -> int", "every result must be a new Tensor");
  says("test_custom::bad(Tensor(a!) x) -> Tensor(a!)", "argument x is marked as changed");
  says("test_custom::bad(Tensor x) -> (Tensor x)", "x names a result and something else");
  says("test_custom::bad(Tensor x, Tensor x) -> Tensor", "two arguments are called x");
  says("test_custom::bad(Tensor x, float a, int a) -> Tensor", "two arguments are called a");
  CHECK_FALSE(is_registered("bad"));
}

TEST_CASE("an operator without shapes or without a kernel is refused") {
  CHECK_THAT(refusal(CustomOp("test_custom::bad(Tensor x) -> Tensor")), has_text("no shape function"));
  CHECK_THAT(refusal(CustomOp("test_custom::bad(Tensor x) -> Tensor").shapes(like_x)), has_text("no kernel"));
}

TEST_CASE("a function that is empty is refused, whatever it is for") {
  const auto named = [](const char* part) { return std::string(".") + part + "(...) was given an empty function"; };
  CHECK_THAT(refusal(scaled("bad").shapes(nullptr)), has_text("no shape function"));
  CHECK_THAT(refusal(scaled("bad").cpu(nullptr)), has_text(named("cpu")));
  CHECK_THAT(refusal(scaled("bad").cuda(custom_op::Kernel())), has_text(named("cuda")));
  CHECK_THAT(refusal(scaled("bad").compute(nullptr)), has_text(named("compute")));
  CHECK_THAT(refusal(scaled("bad").vjp(custom_op::Vjp())), has_text(named("vjp")));
  CHECK_THAT(refusal(scaled("bad").jvp(nullptr)), has_text(named("jvp")));
  CHECK_THAT(refusal(scaled("bad").batching(nullptr)), has_text(named("batching")));
  const custom_op::Extent::Function none;
  CHECK_THAT(refusal(scaled("bad").cuda({.source = scaled_cuda, .entry = "scaled", .grid = none})),
             has_text("the grid of its CUDA kernel is an empty function"));
  CHECK_THAT(refusal(scaled("bad").cuda({.source = scaled_cuda, .entry = "scaled", .block = none})),
             has_text("the block of its CUDA kernel is an empty function"));
  graph::Value (*const lambda)(graph::Value) = nullptr;
  CHECK_THAT(message_of<c10::ValueError>([&] { elementwise("test_custom::bad(Tensor x) -> Tensor", lambda); }),
             has_text("test_custom::bad(Tensor x) -> Tensor\": the lambda is a null pointer"));
  CHECK_FALSE(is_registered("bad"));
}

// Exceptions of other types cannot pass autograd's threads or Python.
TEST_CASE("an exception of another type becomes a std::exception with the operator's name") {
  const auto says = [](CustomOp op, const char* words, const std::function<void(const RegisteredOp&)>& call) {
    INFO(words);
    const RegisteredOp registered = op.registered();
    const std::string message = message_of<c10::Error>([&] { call(registered); });
    CHECK_THAT(message, has_text("test_custom::throws: " + std::string(words)));
    CHECK_THAT(message, has_text("threw an object that is not a std::exception"));
  };
  const auto plainly = [](const RegisteredOp& op) { op({at::ones({2})}); };
  const CustomOp op = scaled("throws");
  says(CustomOp(op).shapes([](const Arguments&) -> std::vector<Result> { throw 7; }), "its shape function", plainly);
  says(CustomOp(op).cpu([](Tensors, const Arguments&) { throw 7; }), "its CPU function", plainly);
  says(CustomOp(op).compute([](const Arguments&) -> TensorVector { throw 7; }), "its function", plainly);
  says(CustomOp(op).vjp([](const Arguments&, Tensors) -> TensorVector { throw 7; }), "its vjp",
       [](const RegisteredOp& op) {
         const at::Tensor x = at::ones({2}).requires_grad_();
         torch::autograd::grad({op({x})[0].sum()}, {x});
       });
  says(CustomOp(op).batching([](const Arguments&, std::int64_t) -> TensorVector { throw 7; }), "its batching rule",
       [](const RegisteredOp& op) {
         op({at::functorch::makeBatched(at::ones({2, 3}), 0, 1)});
       });
  says(CustomOp(op).jvp([](const Arguments&, Tensors) -> TensorVector { throw 7; }), "its jvp",
       [](const RegisteredOp& op) {
         const std::uint64_t level = torch::autograd::forward_ad::enter_dual_level();
         at::Tensor x = at::ones({2});
         x._set_fw_grad(at::ones({2}), level, /*is_inplace_op=*/false);
         try {
           op({x});
         } catch (...) {
           torch::autograd::forward_ad::exit_dual_level(level);
           throw;
         }
         torch::autograd::forward_ad::exit_dual_level(level);
       });
}

TEST_CASE("an exception while a library is loaded does not end the program") {
  const custom_op::AtLoad loaded(+[]() -> std::vector<CustomOp> { throw 7; });
  CHECK_FALSE(is_registered("throws"));
}

TEST_CASE("names of arguments that are not there are refused") {
  CHECK_THAT(refusal(scaled("bad").differentiable({"z"})), has_text("differentiable names z"));
  CHECK_THAT(refusal(scaled("bad").differentiable({"factor"})), has_text("factor, which is not a tensor"));
  CHECK_THAT(refusal(scaled("bad").dtypes("z", {at::kFloat})), has_text("dtypes names z"));
  CHECK_THAT(refusal(scaled("bad").zero_results({1})), has_text("zero_results names result 1"));
}

TEST_CASE("a shape function is held to the schema") {
  const auto says = [](const custom_op::ShapeFunction& shapes, const char* words) {
    CustomOp op = scaled("wrong_shapes");
    op.shapes(shapes);
    const RegisteredOp registered = op.registered();
    CHECK_THAT(message_of<c10::Error>([&] { registered({at::ones({2})}); }),
               has_text("test_custom::wrong_shapes: its shape function") && has_text(words));
  };
  says([](const Arguments&) { return std::vector<Result>{}; },
       "must describe 1 result, as its schema has, but describes 0");
  says([](const Arguments& in) { return std::vector<Result>{in.like("x"), in.like("x")}; }, "but describes 2");
  says([](const Arguments&) { return std::vector<Result>{{{-1}, at::kFloat}}; }, "sizes must not be negative");
  says(
      [](const Arguments&) {
        return std::vector<Result>{{{1}, at::ScalarType::Undefined}};
      },
      "which tensors cannot have");
}

TEST_CASE("a function that requests an argument that the schema lacks raises an error") {
  CustomOp op("test_custom::asks(Tensor x, int n) -> Tensor");
  op.shapes([](const Arguments& in) {
    CHECK_THAT(message_of<c10::ValueError>([&] { in.tensor("z"); }), has_text("there is no argument z in its schema"));
    CHECK_THAT(message_of<c10::ValueError>([&] { in.tensor(7); }), has_text("there is no argument 7"));
    CHECK_THAT(message_of<c10::ValueError>([&] { in.tensor("n"); }), has_text("argument n was requested as a tensor"));
    CHECK_THAT(message_of<c10::ValueError>([&] { (void)in.number("x"); }), has_text("requested as a number"));
    CHECK_THAT(message_of<c10::ValueError>([&] { in.size("x", 3); }), has_text("x must have a dimension 3"));
    CHECK_THAT(message_of<c10::ValueError>([&] { in.result(0); }), has_text("save_results()"));
    return std::vector<Result>{in.like("x")};
  });
  op.cpu([](Tensors out, const Arguments& in) { out[0].copy_(in.tensor("x")); });
  CHECK(at::equal(op.registered()({at::ones({2}), 1})[0], at::ones({2})));
}

TEST_CASE("a CPU function that resizes a result is found out") {
  CustomOp op = scaled("resizes");
  op.cpu([](Tensors out, const Arguments&) { out[0].resize_({7}); });
  const RegisteredOp registered = op.registered();
  CHECK_THAT(message_of<c10::ValueError>([&] { registered({at::ones({2})}); }), has_text("resized result 0"));
}

TEST_CASE("a wrong number of inputs, or a wrong kind, is refused before anything runs") {
  const RegisteredOp op = scaled("inputs").registered();
  CHECK_THAT(message_of<c10::ValueError>([&] { op({}); }), has_text("takes 1 to 2 arguments, but was given 0"));
  CHECK_THAT(message_of<c10::ValueError>([&] { op({at::ones({1}), 1.0, 2.0}); }), has_text("but was given 3"));
  CHECK_THAT(message_of<c10::Error>([&] { op({at::ones({1}), "text"}); }), has_text("factor"));
}

TEST_CASE("a dtype that was not allowed is refused with those that are") {
  CustomOp op = scaled("typed");
  op.dtypes("x", {at::kFloat, at::kDouble});
  const RegisteredOp registered = op.registered();
  CHECK_THAT(message_of<c10::TypeError>([&] { registered({at::ones({1}, at::kInt)}); }),
             has_text("test_custom::typed: x must be Float or Double, but is Int"));
}

TEST_CASE("a tensor on another device is refused") {
  REQUIRE_CUDA_OR_SKIP();
  CustomOp op("test_custom::devices(Tensor x, Tensor y) -> Tensor");
  op.shapes(like_x).cpu([](Tensors, const Arguments&) {}).cuda([](Tensors, const Arguments&) {});
  const RegisteredOp registered = op.registered();
  CHECK_THAT(message_of<c10::ValueError>([&] {
               registered({at::ones({1}).to(at::kCUDA), at::ones({1})});
             }),
             has_text("y must be on cuda:0, the device of x, but is on cpu"));
}

TEST_CASE("CUDA that does not compile is an exception with the user's numbered lines") {
  REQUIRE_NVRTC_OR_SKIP();
  CustomOp op = scaled("no_cuda");
  op.cuda({.source =
               "// one\n// two\nextern \"C\" __global__ void f(Array<const x_t> x, double factor, Array<y_t> y) {\n"
               "  y[0] = membrane;\n}\n",
           .entry = "f"});
  const RegisteredOp registered = op.registered();
  const std::string message = message_of<std::runtime_error>([&] { registered.compile("sm_90", {at::empty({1})}); });
  CHECK_THAT(message, has_text("test_custom_no_cuda: NVRTC could not compile this kernel for sm_90"));
  CHECK_THAT(message, has_text("identifier \"membrane\" is undefined"));
  CHECK_THAT(message, has_text(">    4 |   y[0] = membrane;\n") && has_text("    1 | // one\n"));
}

TEST_CASE("a kernel with other parameters than the schema's does not compile, and the error lists the right ones") {
  REQUIRE_NVRTC_OR_SKIP();
  const auto compile = [](const char* parameters) {
    CustomOp op = scaled("parameters");
    op.cuda({.source = std::string("extern \"C\" __global__ void f(") + parameters + ") {}", .entry = "f"});
    const RegisteredOp registered = op.registered();
    return message_of<std::runtime_error>([&] { registered.compile("sm_90", {at::empty({1})}); });
  };
  CHECK(compile("Array<const float> x, double factor, Array<float> y") == "");
  const char* const right = "the parameters of f must be (Array<const x_t> x, double factor, Array<y_t> y)";
  CHECK_THAT(compile("Array<const float> x, float factor, Array<float> y"), has_text(right));
  CHECK_THAT(compile("Array<const double> x, double factor, Array<float> y"), has_text(right));
  CHECK_THAT(compile("Array<float> x, double factor, Array<float> y"), has_text(right));
  CHECK_THAT(compile("Array<const float> x, double factor"), has_text(right));
}

TEST_CASE("an entry that is not in the source is named") {
  REQUIRE_NVRTC_OR_SKIP();
  CustomOp op = scaled("entry");
  op.cuda({.source = scaled_cuda, .entry = "scale"});
  const RegisteredOp registered = op.registered();
  CHECK_THAT(message_of<std::runtime_error>([&] { registered.compile("sm_90", {at::empty({1})}); }),
             has_text("identifier \"scale\" is undefined"));
}

TEST_CASE("arguments that a CUDA source cannot take are refused when it is registered") {
  CustomOp op = with_schema("test_custom::bad(Tensor x, str mode) -> Tensor");
  op.cuda({.source = "x", .entry = "f"});
  CHECK_THAT(refusal(op), has_text("argument mode of type str cannot be given to a CUDA source"));
  op.cuda(CudaKernel{.source = "", .entry = ""});
  CHECK_THAT(refusal(op), has_text("needs a source, and an entry"));
}

TEST_CASE("an element-wise lambda is held to the schema") {
  const auto one = [](graph::Value x) { return x + 1; };
  CHECK_THAT(message_of<c10::ValueError>([&] { elementwise("test_custom::bad(Tensor x, Tensor y) -> Tensor", one); }),
             has_text("its schema has 2 arguments, but the lambda takes 1"));
  CHECK_THAT(message_of<c10::ValueError>([&] { elementwise("test_custom::bad(Tensor x) -> (Tensor, Tensor)", one); }),
             has_text("its lambda must return 2 values"));
  CHECK_THAT(message_of<c10::ValueError>([&] { elementwise("test_custom::bad(str x) -> Tensor", one); }),
             has_text("test_custom::bad"));
}

}  // namespace
}  // namespace spikeforge::test
