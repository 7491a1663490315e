// Nineteen silent defects of registration layers in other projects, each with a test that it cannot occur here. They
// were found in an audit of the operators of brainevent (docs/specs/op-registration-hardening.md there).
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <dirent.h>
#include <unistd.h>

#include "tests/custom_op/support.h"

namespace spikeforge::test {
namespace {

using torch::autograd::grad;

// A kernel cache of this process only, so that it shows what this process compiled. The library reads the variable at
// its first compilation. std::filesystem is not used, because libtorch.so exports an older copy of it.
class OwnCache {
 public:
  OwnCache() {
    ::mkdtemp(folder_.data());
    ::setenv("SPIKEFORGE_CACHE_DIR", folder_.c_str(), 1);
  }
  ~OwnCache() {
    for (const std::string& name : entries()) ::unlink((folder_ + "/" + name).c_str());
    ::rmdir(folder_.c_str());
  }
  OwnCache(const OwnCache&) = delete;
  OwnCache& operator=(const OwnCache&) = delete;

  std::vector<std::string> kernels(const std::string& stem) const {
    std::vector<std::string> names = entries();
    std::erase_if(names, [&](const std::string& name) { return !name.starts_with("test_custom_" + stem); });
    return names;
  }

 private:
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(folder_.c_str()), ::closedir);
    while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr)
      if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    return names;
  }

  std::string folder_ = "/tmp/spikeforge_test_XXXXXX";
};
const OwnCache cache;

std::string source_with(const std::string& body) {
  return "extern \"C\" __global__ void f(Array<const x_t> x, double factor, Array<y_t> y) { " + body + " }";
}

CustomOp with_cuda(const std::string& name, CudaKernel kernel) {
  CustomOp op = scaled(name);
  op.cuda(std::move(kernel));
  return op;
}

at::Tensor on_meta(c10::ScalarType type = at::kFloat) {
  return at::empty({4}, at::TensorOptions(at::kMeta).dtype(type));
}

TEST_CASE("defect 1: a change of backend that caches hide") {
  // A kernel belongs to a device. Registering the operator again replaces it, also for existing handles.
  const at::Tensor x = at::ones({2});
  auto first = std::make_unique<RegisteredOp>(scaled("backend").registered());
  const auto looked_up = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("test_custom::backend", "")
                             .typed<at::Tensor(const at::Tensor&, double)>();
  CHECK(looked_up.call(x, 3)[0].item<double>() == 3);
  first.reset();
  CustomOp other = scaled("backend");
  other.cpu([](Tensors out, const Arguments&) { out[0].fill_(-1); });
  const RegisteredOp second = other.registered();
  CHECK(looked_up.call(x, 3)[0].item<double>() == -1);
}

TEST_CASE("defect 2: gradient rules dropped because there are fewer of them than inputs") {
  CustomOp op("test_custom::too_few(Tensor x, Tensor y) -> Tensor");
  op.shapes(like_x)
      .cpu([](Tensors out, const Arguments& in) { out[0].copy_(in.tensor("x") + in.tensor("y")); })
      .vjp([](const Arguments&, Tensors grads) { return TensorVector{grads[0]}; })
      .jvp([](const Arguments&, Tensors) { return TensorVector{}; });
  const RegisteredOp registered = op.registered();
  const at::Tensor x = at::ones({2}).requires_grad_(), y = at::ones({2}).requires_grad_();
  CHECK_THAT(
      message_of<c10::ValueError>([&] {
        grad({registered({x, y})[0].sum()}, {x});
      }),
      has_text("its vjp must return 2 gradients, one for each tensor of the differentiable arguments, but returned 1"));

  // The number of results of an operator is known before its call.
  CustomOp by_name = scaled("too_few_results");
  const RegisteredOp backward = scaled("one_gradient").registered();
  CHECK_THAT(message_of<c10::ValueError>([&] { (void)by_name.vjp("test_custom::one_gradient").registered(); }),
             has_text("its vjp must take 3 arguments"));
  CustomOp two("test_custom::two(Tensor x, Tensor y) -> Tensor"),
      half("test_custom::half(Tensor g, Tensor x, Tensor y) -> Tensor");
  half.shapes(like_x).cpu([](Tensors, const Arguments&) {});
  two.shapes(like_x).cpu([](Tensors, const Arguments&) {}).vjp("test_custom::half");
  const RegisteredOp half_registered = half.registered();
  CHECK_THAT(message_of<c10::ValueError>([&] { (void)two.registered(); }),
             has_text("its vjp must return 2 gradients, one for each differentiable argument"));
}

TEST_CASE("defect 3: a cache key without the entry that is asked for") {
  REQUIRE_NVRTC_OR_SKIP();
  const std::string source =
      source_with("y[0] = 1;") +
      "extern \"C\" __global__ void g(Array<const x_t> x, double factor, Array<y_t> y) { y[0] = 2; }";
  const RegisteredOp f = with_cuda("entry_f", {.source = source, .entry = "f"}).registered();
  const RegisteredOp g = with_cuda("entry_g", {.source = source, .entry = "g"}).registered();
  f.compile("sm_90", {on_meta()});
  g.compile("sm_90", {on_meta()});
  CHECK(cache.kernels("entry").size() == 2);
  if (at::hasCUDA()) {
    const at::Tensor x = at::ones({1}).to(at::kCUDA);
    CHECK(f({x})[0].item<double>() == 1);
    CHECK(g({x})[0].item<double>() == 2);
  }
}

TEST_CASE("defect 4: registering again under a name in use runs stale code") {
  const RegisteredOp op = scaled("taken").registered();
  CustomOp changed = scaled("taken");
  changed.cpu([](Tensors out, const Arguments&) { out[0].fill_(-1); });
  CHECK_THAT(message_of<c10::ValueError>([&] { (void)changed.registered(); }),
             has_text("test_custom::taken: an operator of this name is registered already"));
  CHECK(op({at::ones({1}), 3.0})[0].item<double>() == 3);  // the first operator is unchanged
}

// Defect 5, a batch folded into the launch grid of one slice, is tested in tests/python/custom_op/test_custom_op.py,
// which uses torch.vmap.

TEST_CASE("defect 6: failures that end the process, or lose their type") {
  // An error on this thread, on another thread or on autograd's thread is an exception that can be caught, with the
  // original message.
  CustomOp op = scaled("throws");
  op.cpu([](Tensors, const Arguments&) { throw std::out_of_range("the user's own"); });
  const RegisteredOp registered = op.registered();
  CHECK(message_of<std::out_of_range>([&] { registered({at::ones({1})}); }) == "the user's own");

  CustomOp backward = scaled("throws_backward");
  backward.vjp([](const Arguments&, Tensors) -> TensorVector { throw std::out_of_range("from the vjp"); });
  const RegisteredOp second = backward.registered();
  const at::Tensor x = at::ones({1}).requires_grad_();
  CHECK(message_of<std::out_of_range>([&] { grad({second({x})[0]}, {x}); }) == "from the vjp");
}

TEST_CASE("defect 7: names of kernels from a counter of the process") {
  // The name in caches depends on the operator and the source of its kernel only, not on earlier registrations.
  REQUIRE_NVRTC_OR_SKIP();
  const auto compile = [] {
    const RegisteredOp op = with_cuda("named", {.source = source_with("y[0] = 7;"), .entry = "f"}).registered();
    op.compile("sm_90", {on_meta()});
    return cache.kernels("named");
  };
  const std::vector<std::string> first = compile();
  REQUIRE(first.size() == 1);
  const RegisteredOp between = with_cuda("between", {.source = source_with("y[0] = 8;"), .entry = "f"}).registered();
  between.compile("sm_90", {on_meta()});
  CHECK(compile() == first);
}

TEST_CASE("defect 8: an object that is gone is taken for a new one at its address") {
  // Registers, calls and destroys an operator repeatedly: each call runs the function that is registered at that time.
  for (int i = 0; i < 50; ++i) {
    CustomOp op = scaled("recycled");
    op.cpu([i](Tensors out, const Arguments&) { out[0].fill_(i); });
    const RegisteredOp registered = op.registered();
    CHECK(call("recycled", {at::ones({1}), 1.0})[0].item<int>() == i);
  }
}

// Defect 9, nested vmap returns uninitialised memory, is tested in the same file as defect 5.

TEST_CASE("defect 10: a cache key without the text of headers") {
  REQUIRE_NVRTC_OR_SKIP();
  const std::string source = "#include <amount.h>\n" + source_with("y[0] = amount;");
  const auto with_header = [&](const std::string& text) {
    return with_cuda("with_header", {.source = source, .entry = "f", .headers = {{"amount.h", text}}});
  };
  for (const char* text : {"constexpr int amount = 1;", "constexpr int amount = 2;"}) {
    const RegisteredOp op = with_header(text).registered();
    op.compile("sm_90", {on_meta()});
    if (at::hasCUDA())
      CHECK(op({at::ones({1}).to(at::kCUDA)})[0].item<int>() == text[std::string(text).size() - 2] - '0');
  }
  CHECK(cache.kernels("with_header").size() == 2);
}

TEST_CASE("defect 11: a kernel that failed to compile leaves something in the cache that is taken for it") {
  REQUIRE_NVRTC_OR_SKIP();
  const RegisteredOp op =
      with_cuda("fails_twice", {.source = source_with("y[0] = nothing;"), .entry = "f"}).registered();
  for (int i = 0; i < 2; ++i)
    CHECK_THAT(message_of<std::runtime_error>([&] { op.compile("sm_90", {on_meta()}); }),
               has_text("\"nothing\" is undefined"));
  CHECK(cache.kernels("fails_twice").empty());
}

TEST_CASE("defect 12: changed source under a name that was compiled before") {
  REQUIRE_NVRTC_OR_SKIP();
  for (const std::size_t value : {1, 2}) {
    const RegisteredOp op =
        with_cuda("edited", {.source = source_with("y[0] = " + std::to_string(value) + ";"), .entry = "f"})
            .registered();
    op.compile("sm_90", {on_meta()});
    CHECK(cache.kernels("edited").size() == value);
    if (at::hasCUDA()) CHECK(op({at::ones({1}).to(at::kCUDA)})[0].item<double>() == value);
  }
}

TEST_CASE("defect 13: a dtype that kernels do not know is read as bytes of another") {
  REQUIRE_NVRTC_OR_SKIP();
  const RegisteredOp op = scaled("unknown_dtype").registered();
  for (const c10::ScalarType type : {at::kComplexFloat, at::kFloat8_e4m3fn, at::kUInt16})
    CHECK_THAT(message_of<c10::TypeError>([&] { op.compile("sm_90", {on_meta(type)}); }),
               has_text("test_custom::unknown_dtype: x is ") && has_text("which CUDA kernels do not support"));
}

TEST_CASE("defect 14: results that a kernel adds to begin as whatever lay there") {
  CustomOp op("test_custom::accumulates(Tensor x) -> (Tensor a, Tensor b)");
  op.shapes([](const Arguments& in) { return std::vector<Result>{in.like("x"), in.like("x")}; });
  op.zero_results().cpu([](Tensors out, const Arguments& in) {
    for (const at::Tensor& t : out) t.add_(in.tensor("x"));
  });
  const RegisteredOp registered = op.registered();
  for (int i = 0; i < 3; ++i) {
    at::full({4096}, 7.f);  // nonzero memory, which the allocator may reuse
    for (const at::Tensor& t : registered({at::ones({4096})})) CHECK(at::equal(t, at::ones({4096})));
  }
}

TEST_CASE("defect 15: an error on the way leaves half an operator") {
  CustomOp op = scaled("half_way");
  op.vjp("test_custom::not_there");
  CHECK_THAT(message_of<c10::ValueError>([&] { (void)op.registered(); }),
             has_text("test_custom::not_there, is not registered"));
  CHECK_FALSE(is_registered("half_way"));
  const RegisteredOp whole = scaled("half_way").registered();
  CHECK(whole({at::ones({1}), 3.0})[0].item<double>() == 3);
}

TEST_CASE("defect 16: a device without a kernel falls back to another in silence") {
  CustomOp cpu_only = scaled("cpu_only"), gpu_only("test_custom::gpu_only(Tensor x, float factor=2.0) -> Tensor y");
  gpu_only.shapes(like_x).cuda({.source = scaled_cuda, .entry = "scaled"});
  const RegisteredOp op = gpu_only.registered();
  CHECK_THAT(message_of<c10::NotImplementedError>([&] { op({at::ones({1})}); }),
             has_text("test_custom::gpu_only has a kernel for CUDA only"));
  CHECK(op({on_meta()})[0].is_meta());  // the shapes do not depend on a kernel
  if (at::hasCUDA()) {
    CustomOp plain("test_custom::plain(Tensor x) -> Tensor");
    plain.shapes(like_x).cpu([](Tensors, const Arguments&) {});
    const RegisteredOp second = plain.registered();
    CHECK_THAT(message_of<c10::NotImplementedError>([&] { second({at::ones({1}).to(at::kCUDA)}); }),
               has_text("test_custom::plain has a kernel for the CPU only"));
  }
}

TEST_CASE("defect 17: an operator without a gradient gives a gradient of zero") {
  const RegisteredOp op = scaled("no_vjp").registered();
  const at::Tensor x = at::ones({2}).requires_grad_();
  const at::Tensor y = op({x})[0];
  CHECK(y.requires_grad());
  CHECK_THAT(message_of<c10::NotImplementedError>([&] { grad({y.sum()}, {x}); }),
             has_text("test_custom::no_vjp has no vjp, so it cannot be differentiated"));
  CHECK_FALSE(op({x.detach()})[0].requires_grad());

  // An argument that is not in the list of differentiable arguments has no gradient either.
  CustomOp some("test_custom::some(Tensor x, Tensor y) -> Tensor");
  some.shapes(like_x)
      .cpu([](Tensors out, const Arguments& in) { out[0].copy_(in.tensor("x")); })
      .differentiable({"x"})
      .vjp([](const Arguments&, Tensors grads) { return TensorVector{grads[0]}; });
  const RegisteredOp second = some.registered();
  CHECK_THAT(message_of<c10::NotImplementedError>([&] {
               grad({second({at::ones({2}), x})[0].sum()}, {x});
             }),
             has_text("argument y is not among its differentiable arguments"));
}

TEST_CASE("defect 18: a gradient of another shape or type, or none, is made to fit") {
  const at::Tensor x = at::ones({2}).requires_grad_();
  const auto says = [&](const at::Tensor& gradient, const char* words) {
    CustomOp op = scaled("misfit");
    op.vjp([gradient](const Arguments&, Tensors) { return TensorVector{gradient}; });
    const RegisteredOp registered = op.registered();
    CHECK_THAT(message_of<c10::Error>([&] { grad({registered({x})[0].sum()}, {x}); }),
               has_text("test_custom::misfit: its vjp") && has_text(words));
  };
  says(at::ones({3, 2}), "must return x a gradient of its shape, [2], but returned [3, 2]");
  says(at::ones({2}, at::kDouble), "a gradient of its type, Float, but returned Double");
  says(at::Tensor(), "returned no gradient for x, which is required");
}

TEST_CASE("defect 19: two threads that register or call at once see half of each other") {
  constexpr int threads = 8;
  std::vector<std::thread> running;
  std::vector<char> won(threads), right(threads);
  const RegisteredOp shared = scaled("shared").registered();
  std::vector<std::unique_ptr<RegisteredOp>> handles(threads);
  for (int i = 0; i < threads; ++i)
    running.emplace_back([&, i] {
      try {
        handles[i] = std::make_unique<RegisteredOp>(scaled("contested").registered());
        won[i] = true;
      } catch (const c10::ValueError&) {
      }
      right[i] = true;
      for (int k = 0; k < 100; ++k)
        right[i] = right[i] && shared({at::ones({8}), double(i)})[0].sum().item<double>() == 8.0 * i;
    });
  for (std::thread& thread : running) thread.join();
  CHECK(std::count(won.begin(), won.end(), true) == 1);
  CHECK(std::count(right.begin(), right.end(), true) == threads);
}

}  // namespace
}  // namespace spikeforge::test
