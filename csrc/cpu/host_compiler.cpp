#include "csrc/cpu/host_compiler.h"
#include "csrc/base/environment.h"
#include "csrc/base/file_io.h"
#include "csrc/base/fork_safe_mutex.h"
#include "csrc/cpu/kernels.h"
#include "csrc/jit/disk_cache.h"
#include "csrc/jit/nvrtc.h"
#include "csrc/jit/nvrtc_places.h"
#include "csrc/jit/sources.h"

#include <torch/headeronly/version.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" char** environ;

namespace spikeforge::cpu {
namespace {

// Returns the options of the library's kernels (CMakeLists.txt, csrc/cpu/CMakeLists.txt): the bits of results depend on
// them.
std::vector<std::string> options_of(std::string_view capability) {
  std::vector<std::string> options = {
      "-std=c++20",          "-O3",      "-fPIC", "-shared",         "-ffp-contract=off",
      "-fvisibility=hidden", "-DNDEBUG", "-w",    "-fno-math-errno", "-fno-trapping-math"};
  const auto add = [&](const char* name, std::initializer_list<const char*> more) {
    options.push_back(fmt::format("-DCPU_CAPABILITY={}", name));
    options.push_back(fmt::format("-DCPU_CAPABILITY_{}", name));
    options.insert(options.end(), more.begin(), more.end());
  };
#if defined(SPIKEFORGE_AVX512_OPTIONS)
  if (capability == "avx512") return add("AVX512", {SPIKEFORGE_AVX512_OPTIONS}), options;
  if (capability == "avx2") return add("AVX2", {SPIKEFORGE_AVX2_OPTIONS}), options;
#endif
  add("DEFAULT", {});
  return options;
}

std::string last_error() { return std::strerror(errno); }

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

// Removes a folder and its contents. It avoids std::filesystem, whose functions the dynamic linker may resolve to those
// of libtorch.so, some of which crash.
void remove_with_all_in_it(const std::string& folder) {
  constexpr int most_descriptors = 8;
  ::nftw(
      folder.c_str(), [](const char* path, const struct stat*, int, FTW*) { return ::remove(path), 0; },
      most_descriptors, FTW_DEPTH | FTW_PHYS);
}

// Returns the contents of a file; empty if it is not readable.
std::string read_file(const std::string& path) {
  const FileDescriptor in(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (!in || ::fstat(in.get(), &status) != 0) return "";
  return read_all(in.get(), static_cast<std::size_t>(status.st_size)).value_or("");
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Returns this process's environment, with `folder` for temporary files of the compiler.
std::vector<std::string> environment_with(const std::string& folder) {
  std::vector<std::string> variables = {"TMPDIR=" + folder};
  for (char** at = environ; *at != nullptr; ++at)
    if (!std::string_view(*at).starts_with("TMPDIR=")) variables.emplace_back(*at);
  return variables;
}

// Kills `target`, a process or a process group (negative) that includes the child `id`, and waits for the child.
void end_and_reap(pid_t id, pid_t target) {
  ::kill(target, SIGKILL);
  int ignored = 0;
  while (::waitpid(id, &ignored, 0) < 0 && errno == EINTR) {
  }
}

// A child process. The destructor kills its process group unless wait_until() has returned its status.
class Child {
 public:
  Child(pid_t id, pid_t group) : id_(id), group_(group) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (id_ >= 0) end_and_reap(id_, -group_);
  }

  // Returns its exit status, or std::nullopt if it has not ended by then.
  std::optional<int> wait_until(std::chrono::steady_clock::time_point end) {
    for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, std::chrono::milliseconds(20))) {
      int status = 0;
      const pid_t ended = ::waitpid(id_, &status, WNOHANG);
      if (ended == id_) {
        id_ = -1;
        return status;
      }
      if (ended < 0 && errno != EINTR) {
        id_ = -1;
        fail(fmt::format("the compiler was lost: {}", last_error()));
      }
      if (std::chrono::steady_clock::now() >= end) return {};
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  pid_t id_;
  const pid_t group_;
};

// Starts a program, which reads from `input` and writes to the file `output`, in the process group `group`, or in a new
// one if `group` is 0. No shell interprets the words.
pid_t start(std::vector<std::string> words, std::vector<std::string> variables, int input, const std::string& output,
            pid_t group) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     S_IRUSR | S_IWUSR);
  ::posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  // Signals have their default effect in the program, even if this thread blocks them or this process ignores them.
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  ::posix_spawnattr_setpgroup(&attributes, group);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  pid_t id = -1;
  const int error = ::posix_spawnp(&id, words[0].c_str(), &actions, &attributes, pointers_to(words).data(),
                                   pointers_to(variables).data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail(fmt::format("{} cannot be started: {}", words[0], std::strerror(error)));
  return id;
}

// The write ends of the pipes that shells read. A child of fork() closes its copies, since it may outlive this process.
class WriteEnds {
 public:
  // Opens a pipe and returns its read end.
  static FileDescriptor open(FileDescriptor& write_end) {
    const std::scoped_lock lock(list().mutex);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return FileDescriptor();
    write_end = FileDescriptor(ends[1]);
    list().open.push_back(ends[1]);
    return FileDescriptor(ends[0]);
  }
  static void close(FileDescriptor& write_end) {
    const std::scoped_lock lock(list().mutex);
    std::erase(list().open, write_end.get());
    write_end.close();
  }

 private:
  struct List {
    ForkSafeMutex mutex;
    std::vector<int> open;
  };

  static void close_all() {
    for (const int end : list().open) ::close(end);
    list().open.clear();
  }

  static List& list() {
    static List& list = *[] {
      ::pthread_atfork([] { WriteEnds::list(); }, nullptr, close_all);
      return new List;
    }();
    return list;
  }
};

// A folder that other users cannot write to, removed with its contents, also if a signal ends this process: a shell
// waits for the end of a pipe, and then ends the compiler and removes the folder.
class WorkFolder {
 public:
  WorkFolder() {
    const std::string base = environment("TMPDIR");
    path_ = (base.empty() ? "/tmp" : base) + "/spikeforge_XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) fail(fmt::format("no folder can be made as {}: {}", path_, last_error()));
    try {
      const FileDescriptor read_end = WriteEnds::open(write_end_);
      if (!read_end) return;
      guard_ = start({"sh", "-c", "read _; trap '' TERM; kill 0; rm -rf -- \"$1\" || rm -rf -- \"$1\"", "sh", path_},
                     environment_with(path_), read_end.get(), "/dev/null", 0);
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no shell is available, and none is required
    }
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  ~WorkFolder() {
    remove_with_all_in_it(path_);
    if (guard_ != 0) end_and_reap(guard_, guard_);
    if (write_end_) WriteEnds::close(write_end_);
  }

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return fmt::format("{}/{}", path_, name); }

  // Returns the process group for the compiler, which the shell ends; 0 if there is no shell.
  pid_t group() const { return guard_; }

  // Writes a file. `name` may include folders.
  void write(std::string_view name, std::string_view text) const {
    for (std::size_t slash = name.find('/'); slash != std::string_view::npos; slash = name.find('/', slash + 1))
      ::mkdir(file(name.substr(0, slash)).c_str(), S_IRWXU);
    const std::string path = file(name);
    FileDescriptor out(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (!out || !write_all(out.get(), text) || !out.close())
      fail(fmt::format("{} cannot be written: {}", path, last_error()));
  }

 private:
  std::string path_;
  FileDescriptor write_end_;
  pid_t guard_ = 0;
};

// Runs the compiler in the folder's process group. Its output goes to `log`, and its temporary files go to the folder.
// Returns true if it succeeded.
bool run_compiler(const std::vector<std::string>& words, const WorkFolder& folder, const std::string& log,
                  std::chrono::milliseconds longest) {
  const FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const pid_t id = start(words, environment_with(folder.path()), nothing.get(), log, folder.group());
  Child child(id, folder.group() == 0 ? id : folder.group());
  const std::optional<int> status = child.wait_until(std::chrono::steady_clock::now() + longest);
  if (!status)
    fail(fmt::format("{} took longer than {} s, and was ended", words[0],
                     std::chrono::duration<double>(longest).count()));
  return WIFEXITED(*status) && WEXITSTATUS(*status) == 0;
}

// Returns the first line with "error", or else the first line, with the indented source lines that follow it.
std::string first_error(std::string_view log) {
  std::size_t from = log.find("error");
  from = from == std::string_view::npos ? 0 : log.rfind('\n', from) + 1;
  std::size_t end = log.find('\n', from);
  while (end != std::string_view::npos && log.substr(end + 1).starts_with(' ')) end = log.find('\n', end + 1);
  return std::string(log.substr(from, end - from));
}

// Returns the path of a command, with data that changes if the command is replaced.
std::string identity_of(const std::string& command) {
  const auto describe = [](const std::string& path) -> std::string {
    struct stat status;
    if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return "";
    return fmt::format("{} {} {}", path, status.st_size, status.st_mtime);
  };
  if (command.find('/') != std::string::npos) return describe(command);
  const std::string path = environment("PATH");
  for (std::string_view rest = path; !rest.empty();) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    if (std::string found = describe(fmt::format("{}/{}", folder, command)); !found.empty()) return found;
  }
  return "";
}

// Returns a path of an open file that was never returned before. The dynamic linker identifies objects by their paths,
// and descriptor numbers are reused: with equal paths, it would return the first object instead of a second one.
std::string new_path_of(int descriptor) {
  static std::atomic<unsigned> count = 0;
  std::string path = "/proc/self";
  for (unsigned digits = count++; digits > 0; digits /= 2) path += digits % 2 == 0 ? "/" : "/.";
  return fmt::format("{}/fd/{}", path, descriptor);
}

// Loads an object from memory, so that the loaded bytes are the ones that were checked.
SharedObject load_from_memory(std::span<const char> bytes) {
#if defined(__linux__)
  const FileDescriptor memory(::memfd_create("spikeforge", MFD_CLOEXEC));
  if (!memory) fail(fmt::format("no memory file: {}", last_error()));
  if (!write_all(memory.get(), {bytes.data(), bytes.size()}))
    fail(fmt::format("a memory file cannot be written: {}", last_error()));
  void* const object = ::dlopen(new_path_of(memory.get()).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) fail(fmt::format("the compiled library cannot be loaded: {}", ::dlerror()));
  return SharedObject(object);
#else
  fail("SPIKEFORGE_HOST_COMPILER is supported only on Linux");
#endif
}

std::string compile(const std::string& command, const std::vector<std::string>& options,
                    const std::string& torch_folder, const std::string& text, std::chrono::milliseconds longest) {
  const WorkFolder folder;
  for (const jit::EmbeddedHeader& header : jit::embedded_host_headers()) folder.write(header.name, header.text);
  folder.write("tapes.cpp", text);
  const std::string object = folder.file("tapes.so"), log = folder.file("log");
  std::vector<std::string> words = {command};
  words.insert(words.end(), options.begin(), options.end());
  for (const std::string& word :
       {"-I" + folder.path(), "-isystem" + torch_folder + "/../include", folder.path() + "/tapes.cpp",
        std::string("-o"), object, "-L" + torch_folder, std::string("-ltorch_cpu"), std::string("-lc10")})
    words.push_back(word);
  if (!run_compiler(words, folder, log, longest))
    fail(fmt::format("{} failed: {}", command, first_error(read_file(log))));
  std::string bytes = read_file(object);
  if (bytes.empty()) fail(fmt::format("{} wrote nothing", command));
  return bytes;
}

const HostCompiler* named(const std::string& name) {
  if (name.empty() || name == "0" || name == "off") return nullptr;
  return new HostCompiler(name == "1" || name == "on" ? "c++" : name, jit::longest_compilation());
}

}  // namespace

const HostCompiler* HostCompiler::get() {
  static const HostCompiler* const wanted = named(environment("SPIKEFORGE_HOST_COMPILER"));
  return wanted;
}

const HostCompiler* HostCompiler::asked_for() {
  static const HostCompiler* const wanted = [] {
    const std::string name = environment("SPIKEFORGE_HOST_COMPILER");
    return named(name.empty() ? "c++" : name);
  }();
  return wanted;
}

HostCompiler::HostCompiler(std::string command, std::chrono::milliseconds longest)
    : command_(std::move(command)), longest_(longest), identity_(identity_of(command_)) {}

SharedObject::~SharedObject() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

void* SharedObject::find(const char* symbol) const { return handle_ == nullptr ? nullptr : ::dlsym(handle_, symbol); }

SharedObject HostCompiler::load(const std::string& name, const std::string& text) const {
  const std::string torch_folder = jit::loaded_torch_folder().string();
  if (torch_folder.empty()) fail("the folder of libc10.so is not known");
  if (identity_.empty()) fail(fmt::format("there is no compiler {}", command_));
  const std::vector<std::string> options = options_of(capability());

  std::vector<std::string_view> parts = {identity_, torch_folder, TORCH_VERSION, text};
  parts.insert(parts.end(), options.begin(), options.end());
  for (const jit::EmbeddedHeader& header : jit::embedded_host_headers()) parts.push_back(header.text);
  const jit::DiskKey key{hash128(parts), capability(), "cxx", ".so"};

  jit::DiskCache& cache = jit::DiskCache::get();
  if (const auto stored = cache.load(key, name)) return load_from_memory(*stored);
  const std::string made = compile(command_, options, torch_folder, text, longest_);
  cache.store(key, name, made);
  return load_from_memory(made);
}

}  // namespace spikeforge::cpu
