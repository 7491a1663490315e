#include "tests/catch.h"
#include "tests/jit/support.h"

#include "csrc/jit/nvrtc.h"
#include "csrc/jit/sources.h"

#include <algorithm>
#include <regex>

using namespace spikeforge::jit;
using namespace spikeforge::test;

namespace {

const std::string scale_text = R"(
#include <spikeforge/test/square.h>

extern "C" __global__ void scale(float* x, float a, float b) { x[threadIdx.x] = square(x[threadIdx.x]) * a + b; }
)";

const EmbeddedHeader square_header = {"spikeforge/test/square.h",
                                      "#pragma once\n__device__ inline float square(float x) { return x * x; }\n"};

CompileRequest scale_request() {
  return {.name = "scale", .text = scale_text, .options = {}, .arch = "sm_90", .headers = {square_header}};
}

std::string as_text(const std::vector<char>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string with_public_includes(const std::string& text) {
  const std::string other_folders =
      std::regex_replace(text, std::regex(R"re(#include "csrc/([^"]+)")re"), "#include <spikeforge/$1>");
  return std::regex_replace(other_folders, std::regex(R"re(#include "((?:ops|cuda)/[^"]+)")re"),
                            "#include <spikeforge/$1>");
}

}  // namespace

TEST_CASE("a kernel compiles to a cubin on a machine without a GPU") {
  REQUIRE_NVRTC_OR_SKIP();
  const CompileResult result = find_nvrtc()->compile(scale_request());
  CHECK(as_text(result.image)
            .starts_with("\x7f"
                         "ELF"));
  CHECK_THAT(as_text(result.image), has_text(".text.scale"));
  CHECK_FALSE(result.is_ptx);
}

TEST_CASE("a compilation that takes too long is stopped, and the error names the kernel and the variable to set") {
  REQUIRE_NVRTC_OR_SKIP();
  if (std::pair(find_nvrtc()->major, find_nvrtc()->minor) < std::pair(12, 9)) SPIKEFORGE_SKIP("NVRTC before 12.9");
  CompileRequest scale = scale_request();
  scale.longest = std::chrono::milliseconds(0);
  CHECK_THAT(message_of<CompileError>([&] { find_nvrtc()->compile(scale); }),
             has_text("scale: NVRTC did not finish this kernel for sm_90") && has_text("longer than 0 s") &&
                 has_text("SPIKEFORGE_COMPILE_SECONDS"));
  scale.longest = std::chrono::minutes(10);
  CHECK(find_nvrtc()->compile(scale).image.size() > 100);
}

TEST_CASE("the limit is a number of seconds in the environment, or two minutes") {
  const auto limit = [](const char* text) {
    const ScopedEnvironment variable("SPIKEFORGE_COMPILE_SECONDS", text);
    return longest_compilation();
  };
  CHECK(limit("7") == std::chrono::seconds(7));
  for (const char* text : {"", "0", "-1", "1.5", "7s", "99999999999999999999"})
    CHECK(limit(text) == std::chrono::minutes(2));
}

TEST_CASE("registers and spills of a kernel are known") {
  REQUIRE_NVRTC_OR_SKIP();
  CompileRequest scale = scale_request();
  scale.anew = true;
  const auto usage = find_nvrtc()->compile(scale).usage;
  REQUIRE(usage);
  CHECK(usage->registers > 0);
  CHECK(usage->spill_bytes == 0);

  CompileRequest crowded = scale;
  crowded.text = R"(extern "C" __global__ void crowded(float* x) {
    float a[64];
    for (int i = 0; i < 64; ++i) a[i] = x[i];
    __syncthreads();
    for (int i = 0; i < 64; ++i) x[63 - i] = a[i] * a[(i + 7) % 64];
  })";
  crowded.options = {"--maxrregcount=24"};
  const auto spilled = find_nvrtc()->compile(crowded).usage;
  REQUIRE(spilled);
  CHECK(spilled->spill_bytes > 0);
  CHECK(spilled->stack_bytes > 0);
}

TEST_CASE("a product and a sum stay two operations") {
  REQUIRE_NVRTC_OR_SKIP();
  CompileRequest request = scale_request();
  request.arch = "sm_999";  // an unknown architecture is compiled to PTX, which is text
  const std::string ptx = as_text(find_nvrtc()->compile(request).image);
  CHECK_THAT(ptx, has_text("add") && !has_text("fma"));
}

TEST_CASE("an architecture newer than NVRTC gets PTX for the newest supported one") {
  REQUIRE_NVRTC_OR_SKIP();
  const Nvrtc& nvrtc = *find_nvrtc();
  CHECK(compile_target(nvrtc, "sm_90") == "sm_90");
  CHECK(compile_target(nvrtc, "sm_999") == "compute_" + std::to_string(nvrtc.archs.back()));

  CompileRequest request = scale_request();
  request.arch = "sm_999";
  const CompileResult result = nvrtc.compile(request);
  CHECK(result.is_ptx);
  CHECK_THAT(as_text(result.image), has_text(".target sm_" + std::to_string(nvrtc.archs.back())));
  CHECK(result.image.back() == '\0');
}

TEST_CASE("an architecture between two supported ones gets PTX for the lower") {
  Nvrtc nvrtc;
  nvrtc.archs = {75, 80, 90, 100};
  CHECK(compile_target(nvrtc, "sm_89") == "compute_80");
  CHECK(compile_target(nvrtc, "sm_90a") == "sm_90a");
}

TEST_CASE("an architecture older than NVRTC is refused in words") {
  Nvrtc nvrtc;
  nvrtc.major = 13;
  nvrtc.archs = {75, 80};
  CHECK_THAT(message_of<CompileError>([&] { compile_target(nvrtc, "sm_70"); }),
             has_text("NVRTC 13.0 compiles for sm_75 and newer, not for sm_70"));
  CHECK_THAT(message_of<CompileError>([&] { compile_target(nvrtc, "hopper"); }), has_text("\"hopper\""));
}

TEST_CASE("a compile error shows the kernel's name and the generated source around the line") {
  REQUIRE_NVRTC_OR_SKIP();
  CompileRequest request = scale_request();
  request.name = "my_neuron_forward";
  request.text = "// one\n// two\n__device__ float f() {\n  return membrane;\n}\n// six\n// seven\n// eight\n// nine\n";
  const std::string message = message_of<CompileError>([&] { find_nvrtc()->compile(request); });
  CHECK_THAT(message, has_text("my_neuron_forward: NVRTC could not compile this kernel for sm_90"));
  CHECK_THAT(message, has_text("identifier \"membrane\" is undefined"));
  CHECK_THAT(message, has_text("    1 | // one\n"));
  CHECK_THAT(message, has_text(">    4 |   return membrane;\n"));
  CHECK_THAT(message, has_text("    8 | // eight\n") && !has_text("// nine"));
}

TEST_CASE("a compile error in a header shows the header's line") {
  REQUIRE_NVRTC_OR_SKIP();
  CompileRequest request = scale_request();
  request.headers = {{"spikeforge/test/square.h", "\n__device__ float square(float x) { return y; }\n"}};
  CHECK_THAT(message_of<CompileError>([&] { find_nvrtc()->compile(request); }),
             has_text("spikeforge/test/square.h, line 2:") && has_text(">    2 | __device__ float square"));
}

TEST_CASE("an unknown option is a compile error with NVRTC's words") {
  REQUIRE_NVRTC_OR_SKIP();
  CompileRequest request = scale_request();
  request.options = {"--no-such-option"};
  CHECK_THAT(message_of<CompileError>([&] { find_nvrtc()->compile(request); }), has_text("no-such-option"));
}

TEST_CASE("an excerpt at the end of a text, and one of a file nobody has, are harmless") {
  const EmbeddedHeader file = {"a.cu", "one\ntwo"};
  CHECK(excerpt_of_errors("a.cu(9): error: end\n", {&file, 1}) == "a.cu, line 9:\n");
  CHECK(excerpt_of_errors("b.cu(1): error: what\nno line here", {&file, 1}) == "");
  CHECK(excerpt_of_errors("a.cu(1): warning #177-D: unused", {&file, 1}) == "");
}

TEST_CASE("a missing libnvrtc-builtins is explained") {
  CHECK_THAT(installation_hint("nvrtc: error: failed to open libnvrtc-builtins.so.13.0."),
             has_text("same version") && has_text("pip install") && has_text("SPIKEFORGE_NVRTC"));
  CHECK(installation_hint("a.cu(1): error: what").empty());
}

TEST_CASE("the error without NVRTC lists the searched places and the solution") {
  const std::string message = message_of<NvrtcNotFound>([] {
    Nvrtc::open({"/nonexistent/libnvrtc.so.13", "libnothing.so.7"});
  });
  CHECK_THAT(message, has_text("/nonexistent/libnvrtc.so.13") && has_text("libnothing.so.7"));
  CHECK_THAT(message, has_text("pip install nvidia-cuda-nvrtc") && has_text("SPIKEFORGE_NVRTC"));
}

TEST_CASE("a library that is not NVRTC is passed over") {
  CHECK_THAT(message_of<NvrtcNotFound>([] { Nvrtc::open({"libm.so.6"}); }), has_text("libm.so.6: it has no nvrtc"));
}

TEST_CASE("SPIKEFORGE_NVRTC is the only place where it is set, and a failure does not stick") {
  {
    const ScopedEnvironment variable("SPIKEFORGE_NVRTC", "/nonexistent/libnvrtc.so");
    const std::string message = message_of<NvrtcNotFound>([] { Nvrtc::get(); });
    CHECK_THAT(message, has_text("/nonexistent/libnvrtc.so") && !has_text("libnvrtc.so.13"));
  }
  const std::string later = message_of<NvrtcNotFound>([] { Nvrtc::get(); });
  CHECK_THAT(later, !has_text("/nonexistent"));
}

TEST_CASE("NVRTC is sought beside torch") {
  CHECK(nvrtc_places("/my/libnvrtc.so", "/site-packages/torch/lib") == std::vector<std::string>{"/my/libnvrtc.so"});
  CHECK(nvrtc_places("", "") == std::vector<std::string>{"libnvrtc.so.13", "libnvrtc.so.12"});
  const auto places = nvrtc_places("", "/site-packages/torch/lib");
  CHECK(places.front() == "libnvrtc.so.13");
  CHECK(std::ranges::count(places, "/site-packages/nvidia/cu13/lib/libnvrtc.so.13") == 1);
  CHECK(std::ranges::count(places, "/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12") == 1);
}

TEST_CASE("the wheel's NVRTC compiles") {
  auto places = nvrtc_places("", torch_folder());
  std::erase_if(places, [](const std::string& place) { return !place.starts_with('/'); });
  if (std::ranges::none_of(places, [](const fs::path& place) { return fs::exists(place); }))
    SPIKEFORGE_SKIP("this torch brings no NVRTC");
  CHECK_FALSE(Nvrtc::open(places).compile(scale_request()).image.empty());
}

TEST_CASE("an embedded header is its file, with the includes of programs") {
  const fs::path root = fs::path(__FILE__).parent_path().parent_path().parent_path();
  if (!fs::exists(root / "csrc")) SPIKEFORGE_SKIP("the sources are not where they were built");
  CHECK_FALSE(embedded_headers().empty());
  for (const EmbeddedHeader& header : embedded_headers()) {
    const std::string name = header.name;
    INFO(name);
    REQUIRE(name.starts_with("spikeforge/"));
    const std::string relative = name.substr(std::string("spikeforge/").size());
    const fs::path file = root / (relative.starts_with("cuda/") ? relative : "csrc/" + relative);
    const bool same = with_public_includes(read_file(file)) == header.text;  // a failure prints no file
    CHECK(same);
  }
}
