// Fuzzes the reader of NIR files with untrusted files: a file is either read, or rejected within the limits with an
// error of one line. A graph that was read is valid, and has the same meaning after it is written in the newest layout.
//
// Crashes in libhdf5 itself are ignored: if libhdf5 crashed, or AddressSanitizer reported an error in a function of
// libc that libhdf5 called, the process adds a line to libhdf5_crashes.txt and exits with status 0. With -fork=1,
// fuzzing then continues.
#include "csrc/nir/error.h"
#include "csrc/nir/interpret.h"
#include "csrc/nir/read.h"
#include "csrc/nir/shapes.h"
#include "csrc/nir/validate.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <execinfo.h>
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <unistd.h>

using namespace spikeforge;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// --- Faults of libhdf5

std::string symbol(void* place, const char* format) {
  std::array<char, 1024> text;
  __sanitizer_symbolize_pc(place, format, text.data(), text.size());
  return text.data();
}

bool contains(std::string_view text, std::string_view word) { return text.find(word) != std::string_view::npos; }

// Exits with status 0 if libhdf5 caused the failure: if, from the innermost frame of the stack on, a function of
// libhdf5 comes before the first function of this library. Frames of libc and of the sanitizers are recognized by their
// names, which needs llvm-symbolizer, and are skipped.
void excuse_libhdf5() {
  std::array<void*, 64> frames;
  const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  for (int i = 2; i < count; ++i) {  // skips the frames of this function and of its caller
    void* const frame = frames[static_cast<std::size_t>(i)];
    const std::string function = symbol(frame, "%f"), file = symbol(frame, "%m");
    if (contains(file, "libhdf5")) {
      if (std::FILE* log = std::fopen("libhdf5_crashes.txt", "a")) {
        std::fprintf(log, "%s\n", function.c_str());
        std::fclose(log);
      }
      ::_exit(0);
    }
    const bool is_unknown = function.empty() || function[0] == '<' || function[0] == '?';
    if (contains(function, "spikeforge::") || contains(function, "LLVMFuzzer") ||
        (is_unknown && contains(file, "fuzz_nir")))
      return;
  }
}

struct sigaction before[NSIG];

void on_signal(int signal, siginfo_t* info, void* context) {
  excuse_libhdf5();
  if (before[signal].sa_flags & SA_SIGINFO) return before[signal].sa_sigaction(signal, info, context);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

// AddressSanitizer calls this function before it prints a report.
extern "C" void __asan_on_error() { excuse_libhdf5(); }

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigaction(signal, &action, &before[signal]);
  }
  return 0;
}

// libhdf5 leaks some memory for a damaged file.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }

namespace {

const nir::Limits limits{.depth = 16, .bytes = 16 << 20, .nodes = 4096, .string = 4096};

void infer(const nir::Graph& graph, nir::ShapeRule rule) {
  try {
    infer_shapes(graph, rule);
  } catch (const nir::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nir::Graph graph;
  try {
    graph = nir::read(std::as_bytes(std::span(data, size)), limits, nullptr, "fuzz");
  } catch (const nir::Error& error) {
    const std::string message = error.what();
    require(message.starts_with("fuzz: ") && message.find('\n') == std::string::npos && message.size() < 4096);
    return 0;
  }
  validate(graph, limits);
  infer(graph, nir::ShapeRule::strict);
  infer(graph, nir::ShapeRule::tolerant);
  nir::Report report;
  require(graph_of(group_of(graph), limits, report) == graph);
  return 0;
}
