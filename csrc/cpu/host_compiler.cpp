#include <spikeforge/base/environment.h>
#include <spikeforge/base/file_descriptor.h>
#include <spikeforge/base/file_io.h>
#include <spikeforge/cpu/host_compiler.h>
#include <spikeforge/cpu/kernels.h>
#include <spikeforge/jit/disk_cache.h>
#include <spikeforge/jit/nvrtc_places.h>
#include <spikeforge/jit/sources.h>

#include <torch/headeronly/version.h>

#include <cstring>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" char** environ;

namespace spikeforge::cpu {
namespace {

// As the library's own kernels are compiled (CMakeLists.txt, csrc/cpu/CMakeLists.txt): the bits depend on it.
std::vector<std::string> options_of(std::string_view capability) {
  std::vector<std::string> options = {"-std=c++20",          "-O3",      "-fPIC", "-shared", "-ffp-contract=off",
                                      "-fvisibility=hidden", "-DNDEBUG", "-w"};
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

// A folder that nobody else can write into, removed with the files that were written into it.
class WorkFolder {
 public:
  WorkFolder() {
    const std::string base = environment("TMPDIR");
    path_ = (base.empty() ? "/tmp" : base) + "/spikeforge_XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) fail(fmt::format("no folder can be made as {}: {}", path_, last_error()));
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  ~WorkFolder() {
    for (auto at = files_.rbegin(); at != files_.rend(); ++at) ::unlink(at->c_str());
    for (auto at = folders_.rbegin(); at != folders_.rend(); ++at) ::rmdir(at->c_str());
    ::rmdir(path_.c_str());
  }

  const std::string& path() const { return path_; }

  // The path of a file in it, which is removed at the end whoever writes it. `name` may have folders.
  std::string file(std::string_view name) {
    for (std::size_t slash = name.find('/'); slash != std::string_view::npos; slash = name.find('/', slash + 1)) {
      std::string folder = fmt::format("{}/{}", path_, name.substr(0, slash));
      if (::mkdir(folder.c_str(), S_IRWXU) == 0) folders_.push_back(std::move(folder));
    }
    files_.push_back(fmt::format("{}/{}", path_, name));
    return files_.back();
  }

  void write(std::string_view name, std::string_view text) {
    const std::string path = file(name);
    FileDescriptor out(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (!out || !write_all(out.get(), text) || !out.close())
      fail(fmt::format("{} cannot be written: {}", path, last_error()));
  }

 private:
  std::string path_;
  std::vector<std::string> files_, folders_;
};

// Empty where it cannot be read.
std::string read_file(const std::string& path) {
  const FileDescriptor in(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (!in || ::fstat(in.get(), &status) != 0) return "";
  return read_all(in.get(), static_cast<std::size_t>(status.st_size)).value_or("");
}

// No shell: the words are what they are. Its output goes to `log`. Returns whether it ended well.
bool run(std::vector<std::string> words, const std::string& log) {
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     S_IRUSR | S_IWUSR);
  ::posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t child = -1;
  const int error = ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail(fmt::format("{} cannot be started: {}", words[0], std::strerror(error)));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) fail(fmt::format("{} was lost: {}", words[0], last_error()));
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// The first line that speaks of an error, else the first.
std::string first_error(std::string_view log) {
  std::size_t from = log.find("error");
  from = from == std::string_view::npos ? 0 : log.rfind('\n', from) + 1;
  return std::string(log.substr(from, log.find('\n', from) - from));
}

// Where a command is found, with what changes when it is replaced.
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

// From memory: what is loaded is what was checked. The descriptor stays open, since its number is the object's name to
// the dynamic linker, which would take a second object of that name for the first.
void* load_from_memory(std::span<const char> bytes) {
#if defined(__linux__)
  const int memory = ::memfd_create("spikeforge", MFD_CLOEXEC);
  if (memory < 0) fail(fmt::format("no memory file: {}", last_error()));
  if (!write_all(memory, {bytes.data(), bytes.size()}))
    fail(fmt::format("a memory file cannot be written: {}", last_error()));
  void* const object = ::dlopen(fmt::format("/proc/self/fd/{}", memory).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) {
    const std::string why = ::dlerror();
    ::close(memory);
    fail(fmt::format("what it made cannot be loaded: {}", why));
  }
  return object;
#else
  fail("SPIKEFORGE_HOST_COMPILER works on Linux alone");
#endif
}

std::string compile(const std::string& command, const std::vector<std::string>& options,
                    const std::string& torch_folder, const std::string& text) {
  WorkFolder folder;
  for (const jit::EmbeddedHeader& header : jit::embedded_host_headers()) folder.write(header.name, header.text);
  folder.write("tapes.cpp", text);
  const std::string object = folder.file("tapes.so"), log = folder.file("log");
  std::vector<std::string> words = {command};
  words.insert(words.end(), options.begin(), options.end());
  for (const std::string& word :
       {"-I" + folder.path(), "-isystem" + torch_folder + "/../include", folder.path() + "/tapes.cpp",
        std::string("-o"), object, "-L" + torch_folder, std::string("-ltorch_cpu"), std::string("-lc10")})
    words.push_back(word);
  if (!run(std::move(words), log)) fail(fmt::format("{} failed: {}", command, first_error(read_file(log))));
  std::string bytes = read_file(object);
  if (bytes.empty()) fail(fmt::format("{} wrote nothing", command));
  return bytes;
}

}  // namespace

const HostCompiler* HostCompiler::get() {
  static const HostCompiler* const wanted = []() -> const HostCompiler* {
    const std::string name = environment("SPIKEFORGE_HOST_COMPILER");
    if (name.empty() || name == "0" || name == "off") return nullptr;
    return new HostCompiler(name == "1" || name == "on" ? "c++" : name);
  }();
  return wanted;
}

HostCompiler::HostCompiler(std::string command) : command_(std::move(command)), identity_(identity_of(command_)) {}

void* HostCompiler::load(const std::string& name, const std::string& text) const {
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
  const std::string made = compile(command_, options, torch_folder, text);
  cache.store(key, name, made);
  return load_from_memory(made);
}

}  // namespace spikeforge::cpu
