#include "tests/base/child.h"
#include "tests/catch.h"
#include "tests/jit/support.h"

#include "csrc/jit/disk_cache.h"

#include <atomic>
#include <csignal>
#include <thread>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace spikeforge::jit;
using namespace spikeforge::test;

namespace {

constexpr uid_t nobody = 65534;
constexpr auto everyone_may_all = fs::perms(0777);

const DiskKey key{{1, 2}, "sm_90", "nvrtc13.0"};
const std::vector<char> payload = {'c', 'u', '\0', 'b', 'i', 'n'};

// A cache in its own folder that counts warnings.
struct DiskFixture {
  TemporaryFolder home;
  fs::path folder = home / "kernels";
  std::vector<std::string> warnings;

  DiskCache open(std::uint64_t limit_bytes = 1 << 20) {
    return DiskCache({folder, limit_bytes, [this](const std::string& text) { warnings.push_back(text); }});
  }
  fs::path entry(const DiskKey& of = key) const { return folder / DiskCache::file_name(of, "lif_forward"); }
  std::string store() {
    open().store(key, "lif_forward", payload);
    return read_file(entry());
  }
  bool loads(const DiskKey& of = key) { return open().load(of, "lif_forward") == payload; }
};

DiskKey key_number(std::uint64_t number) { return {{number, 0}, "sm_90", "nvrtc13.0"}; }

unsigned mode_of(const fs::path& path) { return static_cast<unsigned>(fs::status(path).permissions()); }

void used_seconds_ago(const fs::path& path, int seconds) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
}

// Runs `action` in a process of an unprivileged user, since file permissions do not apply to root. Returns its result.
template <class Action> bool as_ordinary_user(Action action) {
  return holds_in_child([&] { return (::geteuid() != 0 || ::setuid(nobody) == 0) && action(); });
}

// Limits the size of files of this process to `bytes`, to emulate a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

}  // namespace

TEST_CASE_METHOD(DiskFixture, "what is stored is loaded, by the next process too") {
  CHECK_FALSE(loads());
  store();
  CHECK(loads());
  CHECK(warnings.empty());
}

TEST_CASE_METHOD(DiskFixture, "an entry's name says what it is") {
  store();
  CHECK(entry().filename().string() == "lif_forward_00000000000000010000000000000002_sm90_nvrtc13.0.cubin");
}

TEST_CASE_METHOD(DiskFixture, "a neuron's name that holds a path stays in the folder") {
  open().store(key, "../../my neuron", payload);
  REQUIRE(files_in(folder).size() == 1);
  CHECK(files_in(folder)[0].filename().string().starts_with("______my_neuron_0"));
}

TEST_CASE_METHOD(DiskFixture, "nobody else can read the cache, whatever the umask") {
  const mode_t before = ::umask(0);
  store();
  ::umask(before);
  CHECK(mode_of(folder) == 0700);
  CHECK(mode_of(entry()) == 0600);
}

TEST_CASE_METHOD(DiskFixture, "an entry cut anywhere is a miss and is deleted") {
  const std::string whole = store();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write_file(entry(), whole.substr(0, length));
    INFO("cut to " << length << " of " << whole.size() << " bytes");
    CHECK_FALSE(open().load(key, "lif_forward"));
    CHECK_FALSE(fs::exists(entry()));
  }
}

TEST_CASE_METHOD(DiskFixture, "an entry with any bit flipped is a miss and is deleted") {
  const std::string whole = store();
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    write_file(entry(), flipped);
    INFO("bit " << bit);
    CHECK_FALSE(open().load(key, "lif_forward"));
    CHECK_FALSE(fs::exists(entry()));
  }
}

TEST_CASE_METHOD(DiskFixture, "an entry with bytes added is a miss") {
  write_file(entry(), store() + '\0');
  CHECK_FALSE(loads());
}

TEST_CASE_METHOD(DiskFixture, "a whole entry under another key's name is a miss") {
  const std::string whole = store();
  write_file(entry(key_number(7)), whole);
  CHECK_FALSE(loads(key_number(7)));
  CHECK(loads());
}

TEST_CASE_METHOD(DiskFixture, "a link in place of an entry is not followed") {
  store();
  fs::rename(entry(), home / "elsewhere");
  fs::create_symlink(home / "elsewhere", entry());
  CHECK_FALSE(loads());
  CHECK(fs::exists(home / "elsewhere"));
  CHECK_FALSE(fs::is_symlink(entry()));
}

TEST_CASE_METHOD(DiskFixture, "a pipe in place of an entry does not block") {
  store();
  fs::remove(entry());
  REQUIRE(::mkfifo(entry().c_str(), 0600) == 0);
  CHECK_FALSE(loads());
}

TEST_CASE_METHOD(DiskFixture, "a folder that others can write to is refused with one warning") {
  store();
  fs::permissions(folder, everyone_may_all);
  DiskCache cache = open();
  CHECK_FALSE(cache.load(key, "lif_forward"));
  cache.store(key_number(7), "lif_forward", payload);
  CHECK(files_in(folder).size() == 1);
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], has_text(folder.string()) && has_text("others can write to it"));
}

TEST_CASE_METHOD(DiskFixture, "a folder that is a link is refused with one warning, and links above it are followed") {
  store();
  const fs::path real = folder;
  folder = home / "link";
  fs::create_symlink(real, folder);
  for (const char* end : {"", "/", "/.", "/.//"}) {
    warnings.clear();
    folder = (home / "link").string() + end;
    DiskCache cache = open();
    CHECK_FALSE(cache.load(key, "lif_forward"));
    cache.store(key_number(7), "lif_forward", payload);
    CHECK(files_in(real).size() == 1);
    REQUIRE(warnings.size() == 1);
    CHECK_THAT(warnings[0], has_text((home / "link").string()) && has_text("symbolic link"));
  }
  folder = home / "link" / "below";
  open().store(key, "lif_forward", payload);
  CHECK(loads());
  CHECK(warnings.size() == 1);
}

TEST_CASE_METHOD(DiskFixture, "an entry that others can write to is not loaded") {
  store();
  fs::permissions(entry(), everyone_may_all);
  CHECK_FALSE(loads());
}

TEST_CASE_METHOD(DiskFixture, "another user's folder is refused with one warning") {
  if (::geteuid() != 0) SPIKEFORGE_SKIP("only root can give a folder to another user");
  store();
  REQUIRE(::chown(folder.c_str(), nobody, nobody) == 0);
  DiskCache cache = open();
  CHECK_FALSE(cache.load(key, "lif_forward"));
  cache.store(key_number(7), "lif_forward", payload);
  CHECK(files_in(folder).size() == 1);
  CHECK(warnings.size() == 1);
}

TEST_CASE_METHOD(DiskFixture, "another user's entry is not loaded") {
  if (::geteuid() != 0) SPIKEFORGE_SKIP("only root can give a file to another user");
  store();
  REQUIRE(::chown(entry().c_str(), nobody, nobody) == 0);
  CHECK_FALSE(loads());
}

TEST_CASE_METHOD(DiskFixture, "a full disk costs one warning and leaves nothing behind") {
  DiskCache cache = open();
  {
    const FullDisk full(50);  // cut within the entry
    cache.store(key, "lif_forward", payload);
    cache.store(key_number(7), "lif_forward", payload);
  }
  CHECK(files_in(folder).empty());
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], has_text("cannot be written: File too large"));
  cache.store(key, "lif_forward", payload);
  CHECK(loads());
}

TEST_CASE_METHOD(DiskFixture, "a folder that cannot be made costs one warning") {
  write_file(home / "file", "");
  folder = home / "file" / "kernels";
  DiskCache cache = open();
  cache.store(key, "lif_forward", payload);
  cache.store(key, "lif_forward", payload);
  CHECK_FALSE(cache.load(key, "lif_forward"));
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], has_text("Not a directory"));
}

TEST_CASE_METHOD(DiskFixture, "a read-only cache is still read") {
  if (::geteuid() == 0) {
    fs::permissions(home.path(), everyone_may_all);
    REQUIRE(as_ordinary_user([&] { return store(), true; }));
  } else {
    store();
  }
  fs::permissions(folder, fs::perms(0500));
  CHECK(as_ordinary_user([&] {
    DiskCache cache = open();
    cache.store(key_number(7), "lif_forward", payload);
    return cache.load(key, "lif_forward") == payload && !cache.load(key_number(7), "lif_forward") &&
           warnings.size() == 1;
  }));
  fs::permissions(folder, fs::perms(0700));
}

TEST_CASE_METHOD(DiskFixture, "the least recently used entries go when the cache is over its limit") {
  const std::uint64_t entry_bytes = store().size();
  fs::remove(entry());
  DiskCache cache = open(3 * entry_bytes);
  for (int number : {1, 2, 3}) {
    cache.store(key_number(number), "lif_forward", payload);
    used_seconds_ago(entry(key_number(number)), 10 - number);
  }
  REQUIRE(cache.load(key_number(1), "lif_forward"));  // now the most recently used, although it was stored first

  cache.store(key_number(4), "lif_forward", payload);
  CHECK(loads(key_number(1)));
  CHECK_FALSE(loads(key_number(2)));
  CHECK(loads(key_number(3)));
  CHECK(loads(key_number(4)));
}

TEST_CASE_METHOD(DiskFixture, "an entry larger than the limit displaces nothing") {
  DiskCache cache = open(store().size());
  cache.store(key_number(7), "lif_forward", std::vector<char>(1000));
  CHECK(loads());
}

TEST_CASE_METHOD(DiskFixture, "eviction leaves files alone that are not the cache's") {
  store();
  for (const char* name : {"paper.pdf", "mine.cubin"}) {
    write_file(folder / name, std::string(1000, 'x'));
    used_seconds_ago(folder / name, 1000000);
  }
  open(200).store(key_number(7), "lif_forward", payload);
  CHECK(fs::exists(folder / "paper.pdf"));
  CHECK(fs::exists(folder / "mine.cubin"));
}

TEST_CASE_METHOD(DiskFixture, "eviction leaves files alone that have an entry's name and are none") {
  open().store(key_number(0), "old", payload);
  const auto named = [&](const std::string& name) { return folder / name; };
  const std::string hash(32, 'a');
  const std::vector<fs::path> others = {named("paper_" + hash + "_sm90_nvrtc13.0.cubin"),
                                        named("paper_" + hash + "_avx512_cxx.so"), named(".spikeforge_notes"),
                                        named(".spikeforge_1_2_old")};
  for (const fs::path& other : others) {
    write_file(other, std::string(5000, 'x'));
    used_seconds_ago(other, 1'000'000);
  }
  fs::create_directory(named("folder_" + hash + "_sm90_nvrtc13.0.cubin"));
  used_seconds_ago(folder / DiskCache::file_name(key_number(0), "old"), 100);
  open(150).store(key_number(1), "new", payload);
  for (const fs::path& other : others) {
    INFO(other);
    CHECK(fs::exists(other));
  }
  CHECK_FALSE(fs::exists(folder / DiskCache::file_name(key_number(0), "old")));  // files of the cache are removed
  CHECK(fs::exists(folder / DiskCache::file_name(key_number(1), "new")));
}

TEST_CASE_METHOD(DiskFixture, "an entry of a terabyte without content is a miss, and no memory is asked for") {
  const std::string whole = store();
  for (const std::uint64_t size : {std::uint64_t{1} << 29, std::uint64_t{1} << 40}) {
    write_file(entry(), whole);
    fs::resize_file(entry(), size);
    CHECK(holds_in_child([&] {
      const rlimit small = {std::uint64_t{1} << 28, std::uint64_t{1} << 28};
      ::setrlimit(RLIMIT_DATA, &small);
      return !open().load(key, "lif_forward") && !fs::exists(entry());
    }));
  }
}

TEST_CASE_METHOD(DiskFixture,
                 "what a process left that died while it wrote is cleared away, but not what is being written") {
  store();
  for (const char* name : {".spikeforge_1_0", ".spikeforge_2_0"}) write_file(folder / name, "half an ent");
  used_seconds_ago(folder / ".spikeforge_1_0", 4000);
  store();
  CHECK_FALSE(fs::exists(folder / ".spikeforge_1_0"));
  CHECK(fs::exists(folder / ".spikeforge_2_0"));
}

TEST_CASE_METHOD(DiskFixture, "without a compiler in the key, the newest compiler's entry is taken") {
  const auto stored_by = [&](const std::string& compiler) {
    open().store({key.hash, key.arch, compiler}, "lif_forward", std::vector<char>(compiler.begin(), compiler.end()));
  };
  const auto found = [&] {
    const auto bytes = open().load({key.hash, key.arch, ""}, "lif_forward");
    return bytes ? std::string(bytes->begin(), bytes->end()) : "";
  };
  CHECK(found() == "");
  stored_by("nvrtc9.2");
  CHECK(found() == "nvrtc9.2");
  stored_by("nvrtc13.10");
  stored_by("nvrtc13.9");
  CHECK(found() == "nvrtc13.10");
  write_file(entry({key.hash, key.arch, "nvrtc13.10"}), "damaged");
  CHECK(found() == "nvrtc13.9");
}

TEST_CASE_METHOD(DiskFixture, "readers and writers of one entry at once see all of it or nothing") {
  const std::vector<char> large(200000, 'k');
  std::atomic<int> wrong = 0;
  const auto work = [&] {
    DiskCache cache({folder, 1 << 20, {}});
    for (int round = 0; round < 20; ++round) {
      cache.store(key, "lif_forward", large);
      const auto got = cache.load(key, "lif_forward");
      wrong += got != large;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong.load() == 0);
  CHECK(files_in(folder).size() == 1);
}

TEST_CASE("a cache that is off stores nothing and does not complain") {
  int warnings = 0;
  DiskCache cache({"", 1 << 20, [&](const std::string&) { ++warnings; }});
  cache.store(key, "lif_forward", payload);
  CHECK_FALSE(cache.load(key, "lif_forward"));
  CHECK(warnings == 0);
}

TEST_CASE("an environment variable sets the folder of the cache") {
  const ScopedEnvironment home("HOME", "/home/ada");
  const ScopedEnvironment no_xdg("XDG_CACHE_HOME", "");
  const ScopedEnvironment no_own("SPIKEFORGE_CACHE_DIR", "");
  const auto folder = [] { return DiskCache::Config::from_environment().folder.string(); };
  CHECK(folder() == "/home/ada/.cache/spikeforge");
  {
    const ScopedEnvironment relative("XDG_CACHE_HOME", "cache");
    CHECK(folder() == "/home/ada/.cache/spikeforge");
  }
  const ScopedEnvironment xdg("XDG_CACHE_HOME", "/scratch/ada");
  CHECK(folder() == "/scratch/ada/spikeforge");
  {
    const ScopedEnvironment own("SPIKEFORGE_CACHE_DIR", "/kernels");
    CHECK(folder() == "/kernels");
  }
  {
    const ScopedEnvironment slash("SPIKEFORGE_CACHE_DIR", "/kernels/");
    CHECK(folder() == "/kernels");
  }
  for (const char* off : {"off", "0"}) {
    const ScopedEnvironment own("SPIKEFORGE_CACHE_DIR", off);
    CHECK(folder().empty());
  }
}

TEST_CASE("an environment variable limits the size of the cache") {
  const auto limit = [](const char* text) {
    const ScopedEnvironment variable("SPIKEFORGE_CACHE_LIMIT_MB", text);
    return DiskCache::Config::from_environment().limit_bytes;
  };
  CHECK(limit("") == 256u << 20);
  CHECK(limit("8") == 8u << 20);
  CHECK(limit("a lot") == 256u << 20);
}
