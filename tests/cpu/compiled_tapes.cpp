// Tapes compiled by the machine's compiler give the same bits as the interpreter.
#include "csrc/cpu/host_compiler.h"
#include "csrc/cpu/multistep/print_tapes.h"
#include "csrc/graph/text.h"

#include "tests/catch.h"
#include "tests/cpu/run_interpreter.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include <dirent.h>
#include <ftw.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

namespace spikeforge::test {
namespace {

constexpr std::uint64_t cells = 24;

// Random cells, and one cell with each kind of surrogate.
std::deque<TracedCell> some_cells() {
  std::deque<TracedCell> all;  // in place: cells are not copied
  for (std::uint64_t seed = 0; seed < cells; ++seed)
    all.emplace_back(print(random_cell(seed, {.operations = seed % 2 == 0 ? 24 : 8})));
  for (const char* surrogate :
       {"sigmoid(4)", "atan(2)", "erf(1.5)", "leaky_k_relu(0.1, 1)", "squarewave_fourier(2, 8)"})
    all.emplace_back(std::string("neuron n(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, ") + surrogate +
                     "); return s; v' = select(s, 0, h) }");
  return all;
}

std::string name_of(const char* what, std::size_t cell) { return what + std::to_string(cell); }

template <class F> std::size_t differing(const Rows<F>& a, const Rows<F>& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t k = 0; k < a[i].size(); ++k)
      count += std::isnan(a[i][k]) ? !std::isnan(b[i][k])
                                   : a[i][k] != b[i][k] || std::signbit(a[i][k]) != std::signbit(b[i][k]);
  return count;
}

template <class F> void compare_all() {
  const std::deque<TracedCell> all = some_cells();
  std::vector<TracedProgram> programs;
  for (const TracedCell& cell : all) programs.emplace_back(cell);
  std::vector<cpu::NamedTape> tapes;
  for (std::size_t i = 0; i < all.size(); ++i) {
    tapes.push_back({name_of("step", i), &programs[i].step});
    tapes.push_back({name_of("advance", i), &programs[i].advance});
    tapes.push_back({name_of("backward", i), &programs[i].backward(true, true)});
  }
  const DType type = sizeof(F) == 8 ? DType::f64 : DType::f32;
  const cpu::SharedObject object = cpu::HostCompiler(SPIKEFORGE_TEST_CXX).load("test", cpu::print_tapes(tapes, type));
  std::size_t compared = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto function = [&](const char* what) {
      return reinterpret_cast<cpu::TapeFunction>(object.find(name_of(what, i).c_str()));
    };
    const cpu::TapeFunctions functions{function("step"), function("advance"), function("backward")};
    REQUIRE((functions.step && functions.advance && functions.backward));
    const Numbers<F> at = random_numbers<F>(all[i].graph, i);
    for (const std::int64_t tile : {neurons, std::int64_t{64}}) {
      INFO("tiles of " << tile << "\n" << all[i].text);
      const Outcome<F> compiled = run_interpreter<F>(cpu::loops().traced, all[i], at, tile, functions);
      const Outcome<F> interpreted = run_interpreter<F>(cpu::loops().traced, all[i], at, tile);
      CHECK(differing(compiled.outputs, interpreted.outputs) == 0);
      CHECK(differing(compiled.states, interpreted.states) == 0);
      CHECK(differing(compiled.grad_inputs, interpreted.grad_inputs) == 0);
      CHECK(differing(compiled.grad_initial, interpreted.grad_initial) == 0);
      CHECK(differing(compiled.grad_params, interpreted.grad_params) == 0);
      for (const auto& row : interpreted.grad_inputs) compared += row.size();
    }
  }
  CHECK(compared > 5000);
}

}  // namespace

TEST_CASE("compiled tapes give the bits of the interpreter, in float32") { compare_all<float>(); }

TEST_CASE("compiled tapes give the bits of the interpreter, in float64") { compare_all<double>(); }

namespace {

// Not std::filesystem, whose functions the dynamic linker may take from libtorch.so, where some of them crash.
std::size_t entries_of(const std::string& folder) {
  DIR* const open = ::opendir(folder.c_str());
  REQUIRE(open != nullptr);
  std::size_t count = 0;
  while (::readdir(open) != nullptr) ++count;
  ::closedir(open);
  return count - 2;  // . and ..
}

// A folder for temporary files during the lifetime of this object.
class TemporaryFiles {
 public:
  TemporaryFiles() {
    path_ = "/tmp/spikeforge_test_XXXXXX";
    REQUIRE(::mkdtemp(path_.data()) != nullptr);
    if (const char* before = std::getenv("TMPDIR")) before_ = before;
    ::setenv("TMPDIR", path_.c_str(), 1);
  }
  ~TemporaryFiles() {
    before_.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", before_.c_str(), 1);
    ::nftw(
        path_.c_str(), [](const char* path, const struct stat*, int, FTW*) { return ::remove(path), 0; }, 8,
        FTW_DEPTH | FTW_PHYS);
  }
  TemporaryFiles(const TemporaryFiles&) = delete;
  TemporaryFiles& operator=(const TemporaryFiles&) = delete;

  const std::string& path() const { return path_; }
  std::size_t count() const { return entries_of(path_); }

 private:
  std::string path_, before_;
};

std::size_t open_descriptors() { return entries_of("/proc/self/fd"); }

std::string message_of_load(const cpu::HostCompiler& compiler, const std::string& text) {
  return message_of<std::runtime_error>([&] { (void)compiler.load("test", text); });
}

}  // namespace

TEST_CASE("a compiler that takes too long is ended, with its processes and files") {
  const TemporaryFiles scripts;
  const std::string script = scripts.path() + "/slow", id = scripts.path() + "/id";
  // Like a real compiler, it starts another program and does not delete a temporary file.
  std::ofstream(script) << "#!/bin/sh\necho left > \"$(mktemp)\"\nsleep 300 &\necho $! > " << id << "\nwait\n";
  REQUIRE(::chmod(script.c_str(), S_IRWXU) == 0);
  const TemporaryFiles files;
  const cpu::HostCompiler compiler(script, std::chrono::milliseconds(1000));
  const auto start = std::chrono::steady_clock::now();
  CHECK_THAT(message_of_load(compiler, "int slow();"), has_text("slow took longer than 1 s, and was ended"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(100));
  CHECK(files.count() == 0);
  pid_t started = 0;
  std::ifstream(id) >> started;
  REQUIRE(started > 0);
  for (int i = 0; i < 500 && ::kill(started, 0) == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(::kill(started, 0) != 0);
}

TEST_CASE("nothing is left of a compiler that fails") {
  const TemporaryFiles files;
  CHECK(!message_of_load(cpu::HostCompiler("/bin/false"), "int f();").empty());
  CHECK(!message_of_load(cpu::HostCompiler("/bin/true"), "int f();").empty());
  CHECK(!message_of_load(cpu::HostCompiler(SPIKEFORGE_TEST_CXX), "not C++").empty());
  CHECK(files.count() == 0);
}

TEST_CASE("a loaded program keeps no descriptor, differs from those before, and is unloaded with its object") {
  const std::size_t before = open_descriptors();
  const cpu::HostCompiler compiler(SPIKEFORGE_TEST_CXX);
  std::vector<cpu::SharedObject> objects;
  for (int i = 0; i < 5; ++i) {
    const std::string number = std::to_string(i);
    objects.push_back(compiler.load(
        "test", "extern \"C\" __attribute__((visibility(\"default\"))) int number() { return " + number + "; }"));
    CHECK(open_descriptors() == before);
  }
  for (int i = 0; i < 5; ++i) CHECK(reinterpret_cast<int (*)()>(objects[i].find("number"))() == i);
  CHECK(objects[0].find("no_such_name") == nullptr);
}

TEST_CASE("a compiler that is not there, or fails, is an exception with its words") {
  const auto message = [](const char* command, const char* text) {
    return message_of_load(cpu::HostCompiler(command), text);
  };
  CHECK(message("no-such-compiler", "").find("there is no compiler no-such-compiler") != std::string::npos);
  CHECK(message("/no/such/compiler", "").find("there is no compiler /no/such/compiler") != std::string::npos);
  CHECK(message("/bin/false", "").find("/bin/false failed") != std::string::npos);
  CHECK(message("/bin/true", "").find("/bin/true wrote nothing") != std::string::npos);
  CHECK(message("/etc/passwd", "").find("/etc/passwd cannot be started") != std::string::npos);
  CHECK(message(SPIKEFORGE_TEST_CXX, "int f() { return no_such_name; }").find("no_such_name") != std::string::npos);
}

}  // namespace spikeforge::test
