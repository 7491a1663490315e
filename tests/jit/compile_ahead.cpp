#include "tests/catch.h"
#include "tests/jit/support.h"

#include "csrc/jit/compile_ahead.h"

#include <chrono>
#include <cstdlib>
#include <thread>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace spikeforge::jit;
using namespace spikeforge::test;

namespace {

KernelSource kernel_of(const std::string& body) {
  return {.name = "ahead", .entry = "kernel", .text = "extern \"C\" __global__ void kernel(float* x) { " + body + " }"};
}

// Long enough for a process to end during the compilation.
KernelSource long_kernel() {
  std::string body = "float y = x[0];";
  for (int i = 0; i < 400; ++i) body += " y = y / (1.5f + x[" + std::to_string(i) + "]);";
  return kernel_of(body + " x[0] = y;");
}

// Threads of this process may use this until the process ends.
KernelCache& new_cache() {
  static TemporaryFolder& home = *new TemporaryFolder;
  static DiskCache& none = *new DiskCache({home / "none", 0, [](const std::string&) {}});
  return *new KernelCache({&none, []() -> const Nvrtc& { return *find_nvrtc(); }, {}});
}

template <class Condition> bool comes_true(Condition&& condition) {
  for (int i = 0; i < 3000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// The process ended normally, with status 7.
void check_that_it_ends(pid_t child) {
  REQUIRE(child > 0);
  int status = 0;
  const bool ended = comes_true([&] { return ::waitpid(child, &status, WNOHANG) == child; });
  if (!ended) ::kill(child, SIGKILL);
  REQUIRE(ended);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}

}  // namespace

TEST_CASE("a kernel that was compiled ahead is there when a call needs it") {
  REQUIRE_NVRTC_OR_SKIP();
  if (std::thread::hardware_concurrency() < 2) SPIKEFORGE_SKIP("one processor: nothing is compiled ahead");
  KernelCache& cache = new_cache();
  compile_ahead(cache, kernel_of("*x = 1;"), "sm_90");
  REQUIRE(comes_true([&] { return cache.statistics().compiled == 1; }));
  CHECK(cache.image(kernel_of("*x = 1;"), "sm_90")->bytes.size() > 100);
  CHECK(cache.statistics().compiled == 1);
  CHECK(cache.statistics().memory_hits == 1);
}

TEST_CASE("one of two kernels is compiled by the call and the other beside it, each once") {
  REQUIRE_NVRTC_OR_SKIP();
  KernelCache& cache = new_cache();
  for (int i = 0; i < 4; ++i) {
    const std::string number = std::to_string(i);
    compile_ahead(cache, kernel_of("*x = -" + number + ";"), "sm_90");
    cache.image(kernel_of("*x = " + number + ";"), "sm_90");
    cache.image(kernel_of("*x = -" + number + ";"), "sm_90");
  }
  CHECK(cache.statistics().compiled == 8);
}

TEST_CASE("a kernel that does not compile ahead is reported by each call that needs it") {
  REQUIRE_NVRTC_OR_SKIP();
  KernelCache& cache = new_cache();
  compile_ahead(cache, kernel_of("*x = no_such_name;"), "sm_90");
  for (int i = 0; i < 2; ++i)
    CHECK_THAT(message_of<CompileError>([&] { cache.image(kernel_of("*x = no_such_name;"), "sm_90"); }),
               has_text("no_such_name"));
}

TEST_CASE("a process may end while kernels are compiled ahead, and soon") {
  REQUIRE_NVRTC_OR_SKIP();
  for (const int after_ms : {0, 20, 40, 50, 60, 70, 80, 90, 100, 200}) {
    INFO("after " << after_ms << " ms");
    const auto start = std::chrono::steady_clock::now();
    const pid_t child = ::fork();
    if (child == 0) {
      KernelCache& cache = new_cache();
      for (int i = 0; i < 8; ++i) {
        KernelSource more = long_kernel();
        more.text += "// " + std::to_string(i);
        compile_ahead(cache, more, "sm_90");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(after_ms));
      std::exit(7);  // runs the destructors of static objects, as the end of main does
    }
    check_that_it_ends(child);
    // Sequential compilation of all eight would take longer.
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    INFO(taken.count() << " s");
    CHECK(taken.count() < 25);
  }
}

TEST_CASE("a forked child, which has no threads, ends") {
  REQUIRE_NVRTC_OR_SKIP();
  KernelCache& cache = new_cache();
  compile_ahead(cache, kernel_of("*x = 2;"), "sm_90");
  cache.image(kernel_of("*x = 2;"), "sm_90");
  const pid_t child = ::fork();
  if (child == 0) std::exit(7);
  check_that_it_ends(child);
}
