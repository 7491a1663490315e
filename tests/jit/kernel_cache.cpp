#include "tests/catch.h"
#include "tests/jit/support.h"

#include "csrc/base/hash.h"
#include "csrc/jit/kernel_cache.h"

#include <barrier>
#include <thread>

using namespace spikeforge::jit;
using namespace spikeforge::test;

namespace {

KernelSource source(const std::string& body = "*x = 1;") {
  return {.name = "lif_forward",
          .entry = "kernel",
          .text = "extern \"C\" __global__ void kernel(float* x) { " + body + " }"};
}

const Nvrtc& no_nvrtc() { throw NvrtcNotFound("no NVRTC here"); }

// A fake driver that accepts and records every image, or rejects the first few.
struct FakeLoader {
  int refuse = 0;
  std::vector<std::string> images;

  LoadedKernel operator()(std::span<const char> image, const std::string& entry) {
    images.emplace_back(image.begin(), image.end());
    if (refuse-- > 0) throw ImageRefused("refused");
    return LoadedKernel(driver, nullptr, entry);
  }
  Driver driver;
};

// Images are compared in double parentheses, so that a failure prints no bytes. Each cache created here is like that of
// a new process on the same disk.
struct CacheFixture {
  TemporaryFolder home;
  FakeLoader loader;
  DiskCache disk{{home / "kernels", 1 << 24, [](const std::string&) {}}};

  KernelCache cache(std::function<const Nvrtc&()> nvrtc = []() -> const Nvrtc& { return *find_nvrtc(); }) {
    return KernelCache({&disk, std::move(nvrtc), std::ref(loader)});
  }
  fs::path only_entry() const {
    const auto files = files_in(home / "kernels");
    REQUIRE(files.size() == 1);
    return files[0];
  }
};

}  // namespace

TEST_CASE_METHOD(CacheFixture, "a kernel is compiled, then found in memory, then by the next process on disk") {
  REQUIRE_NVRTC_OR_SKIP();
  KernelCache first = cache();
  const LoadedKernel& kernel = first.get(source(), "sm_90");
  CHECK(&first.get(source(), "sm_90") == &kernel);
  CHECK(first.statistics().compiled == 1);
  CHECK(first.statistics().memory_hits == 1);
  CHECK(first.statistics().disk_hits == 0);
  CHECK(first.statistics().compile_milliseconds > 0);

  KernelCache second = cache();
  second.get(source(), "sm_90");
  CHECK(second.statistics().compiled == 0);
  CHECK(second.statistics().disk_hits == 1);
  REQUIRE(loader.images.size() == 2);
  CHECK((loader.images[0] == loader.images[1]));
  CHECK_THAT(only_entry().filename().string(),
             has_text("lif_forward_") && has_text("_sm90_" + find_nvrtc()->version() + ".cubin"));
}

TEST_CASE_METHOD(CacheFixture, "two threads that want one kernel compile it once") {
  REQUIRE_NVRTC_OR_SKIP();
  KernelCache shared = cache();
  std::barrier start(2);
  const LoadedKernel* kernels[2] = {};
  const auto work = [&](int i) {
    start.arrive_and_wait();
    kernels[i] = &shared.get(source(), "sm_90");
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  CHECK(kernels[0] == kernels[1]);
  CHECK(shared.statistics().compiled == 1);
  CHECK(shared.statistics().memory_hits == 1);
}

TEST_CASE_METHOD(CacheFixture, "whatever decides a kernel is part of its key") {
  REQUIRE_NVRTC_OR_SKIP();
  KernelCache one = cache();
  KernelSource text = source("*x = 2;"), option = source(), header = source(), define = source();
  option.options = {"--maxrregcount=32"};
  define.options = {"-DA"};
  header.headers = {{"spikeforge/test/a.h", ""}};
  KernelSource other_header = header;
  other_header.headers = {{"spikeforge/test/a.h", "\n"}};
  for (const KernelSource& each : {source(), text, option, define, header, other_header}) one.image(each, "sm_90");
  one.image(source(), "sm_80");
  CHECK(one.statistics().compiled == 7);
  CHECK(one.statistics().memory_hits == 0);
}

TEST_CASE_METHOD(CacheFixture, "two kernels of one source are compiled together") {
  REQUIRE_NVRTC_OR_SKIP();
  KernelCache one = cache();
  KernelSource first = source(), second = source();
  second.entry = "another";
  CHECK(&one.get(first, "sm_90") != &one.get(second, "sm_90"));
  CHECK(one.statistics().compiled == 1);
}

TEST_CASE_METHOD(CacheFixture, "a disk entry that the driver refuses is deleted and compiled once more") {
  REQUIRE_NVRTC_OR_SKIP();
  cache().image(source(), "sm_90");
  const std::string compiled = read_file(only_entry());
  loader.refuse = 1;

  KernelCache next = cache();
  next.get(source(), "sm_90");
  CHECK(next.statistics().disk_hits == 1);
  CHECK(next.statistics().compiled == 1);
  CHECK(loader.images.size() == 2);
  CHECK((read_file(only_entry()) == compiled));
  CHECK_FALSE(next.image(source(), "sm_90")->is_stored);
}

TEST_CASE_METHOD(CacheFixture, "a disk entry that the driver refuses goes even if there is no room for another") {
  REQUIRE_NVRTC_OR_SKIP();
  cache().image(source(), "sm_90");
  loader.refuse = 1;
  DiskCache small({home / "kernels", 100, [](const std::string&) {}});
  KernelCache next({&small, []() -> const Nvrtc& { return *find_nvrtc(); }, std::ref(loader)});
  next.get(source(), "sm_90");
  CHECK(files_in(home / "kernels").empty());
}

TEST_CASE_METHOD(CacheFixture, "a fresh image that the driver refuses is an error, and the next call tries again") {
  REQUIRE_NVRTC_OR_SKIP();
  loader.refuse = 1;
  KernelCache one = cache();
  CHECK_THROWS_AS(one.get(source(), "sm_90"), ImageRefused);
  CHECK(loader.images.size() == 1);
  CHECK_NOTHROW(one.get(source(), "sm_90"));
  CHECK(one.statistics().compiled == 1);
}

TEST_CASE_METHOD(CacheFixture, "a kernel that does not compile is an error each time, and none is kept") {
  REQUIRE_NVRTC_OR_SKIP();
  KernelCache one = cache();
  for (int i = 0; i < 2; ++i)
    CHECK_THAT(message_of<CompileError>([&] { one.get(source("undefined();"), "sm_90"); }),
               has_text("lif_forward") && has_text("undefined"));
  CHECK(one.statistics().compiled == 0);
  CHECK(files_in(home / "kernels").empty());
}

TEST_CASE_METHOD(CacheFixture, "a kernel on disk needs no NVRTC") {
  REQUIRE_NVRTC_OR_SKIP();
  const std::vector<char> image = cache().image(source(), "sm_90")->bytes;
  KernelCache without = cache(no_nvrtc);
  CHECK((without.image(source(), "sm_90")->bytes == image));
  CHECK(without.statistics().disk_hits == 1);
}

TEST_CASE_METHOD(CacheFixture, "without NVRTC a kernel that is nowhere is an error, until there is an NVRTC") {
  REQUIRE_NVRTC_OR_SKIP();
  bool installed = false;
  KernelCache one = cache([&]() -> const Nvrtc& { return installed ? *find_nvrtc() : no_nvrtc(); });
  CHECK_THROWS_AS(one.get(source(), "sm_90"), NvrtcNotFound);
  installed = true;
  CHECK_NOTHROW(one.get(source(), "sm_90"));
}

TEST_CASE("without a disk cache kernels are compiled by every process") {
  REQUIRE_NVRTC_OR_SKIP();
  DiskCache off({});
  for (int process = 0; process < 2; ++process) {
    KernelCache one({&off, []() -> const Nvrtc& { return *find_nvrtc(); }, FakeLoader()});
    one.image(source(), "sm_90");
    one.image(source(), "sm_90");
    CHECK(one.statistics().compiled == 1);
    CHECK(one.statistics().memory_hits == 1);
  }
}

TEST_CASE("a hash is written as 32 digits, and the boundaries of parts are part of it") {
  using spikeforge::Hash128, spikeforge::hash128;
  CHECK(Hash128{0xab, 1}.hex() == "00000000000000ab0000000000000001");
  CHECK(hash128({"ab", "c"}) == hash128({"ab", "c"}));
  CHECK(hash128({"ab", "c"}) != hash128({"a", "bc"}));
  CHECK(hash128({"ab", "c"}) != hash128({"abc"}));
  CHECK(hash128({""}) != hash128({}));
}
