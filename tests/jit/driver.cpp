#include "tests/catch.h"
#include "tests/jit/support.h"

#include "csrc/jit/driver.h"

#include <cstring>

using namespace spikeforge::jit;
using namespace spikeforge::test;

namespace {

// The requests that the fake driver received.
struct Seen {
  std::string image;
  unsigned grid[3] = {};
  unsigned block = 0;
  unsigned shared_bytes = 0;
  void* stream = nullptr;
  std::string args;
  int unloaded = 0;
  unsigned cluster = 0;
};
Seen seen;

int library_handle, kernel_handle;

Driver fake_driver() {
  seen = {};
  Driver driver;
  driver.library_load_data = [](void** library, const void* image, void*, void**, unsigned, void*, void**, unsigned) {
    seen.image = static_cast<const char*>(image);
    *library = &library_handle;
    return seen.image == "refused" ? 200 : 0;
  };
  driver.library_unload = [](void*) { return ++seen.unloaded, 0; };
  driver.library_get_kernel = [](void** kernel, void* library, const char* name) {
    *kernel = &kernel_handle;
    return library == &library_handle && std::strcmp(name, "lif_forward") == 0 ? 0 : 500;
  };
  driver.launch_kernel = [](void* kernel, unsigned x, unsigned y, unsigned z, unsigned block, unsigned, unsigned,
                            unsigned shared_bytes, void* stream, void**, void** extra) {
    seen.grid[0] = x, seen.grid[1] = y, seen.grid[2] = z;
    seen.block = block;
    seen.shared_bytes = shared_bytes;
    seen.stream = stream;
    // Values of cuda.h: 1 marks the buffer, 2 its size, and 0 the end.
    const bool as_buffer =
        reinterpret_cast<std::size_t>(extra[0]) == 1 && reinterpret_cast<std::size_t>(extra[2]) == 2 && !extra[4];
    if (as_buffer) seen.args.assign(static_cast<char*>(extra[1]), *static_cast<std::size_t*>(extra[3]));
    return kernel == &kernel_handle && block <= 1024 ? 0 : 1;
  };
  driver.launch_kernel_ex = [](const Driver::LaunchConfig* config, void* kernel, void**, void** extra) {
    for (int i = 0; i < 3; ++i) seen.grid[i] = config->grid[i];
    seen.block = config->block[0];
    seen.shared_bytes = config->shared_bytes;
    seen.stream = config->stream;
    if (config->count == 1 && config->attributes->id == 4) seen.cluster = config->attributes->value[0];
    seen.args.assign(static_cast<char*>(extra[1]), *static_cast<std::size_t*>(extra[3]));
    return kernel == &kernel_handle && config->grid[0] % seen.cluster == 0 ? 0 : 1;
  };
  driver.max_active_clusters = [](int* count, void*, const Driver::LaunchConfig* config) {
    const unsigned cluster = config->attributes->value[0];
    *count = static_cast<int>(132 / cluster);
    return cluster <= 16 ? 0 : 1;
  };
  driver.get_error_name = [](int, const char** name) { return *name = "CUDA_ERROR_OF_TEST", 0; };
  driver.get_error_string = [](int, const char** text) { return *text = "it did not work", 0; };
  return driver;
}

}  // namespace

TEST_CASE("a launch passes its arguments to the driver as one buffer") {
  const Driver driver = fake_driver();
  const LoadedKernel kernel = load_kernel(driver, std::string("image"), "lif_forward");
  int stream;
  kernel.launch({5, 6, 7}, 128, 64, &stream, "arguments", 9);
  CHECK(seen.image == "image");
  CHECK(seen.grid[0] == 5);
  CHECK(seen.grid[1] == 6);
  CHECK(seen.grid[2] == 7);
  CHECK(seen.block == 128);
  CHECK(seen.shared_bytes == 64);
  CHECK(seen.stream == &stream);
  CHECK(seen.args == "arguments");
}

TEST_CASE("the error of a failed launch has the kernel, the grid and the driver's message") {
  const Driver driver = fake_driver();
  const LoadedKernel kernel = load_kernel(driver, std::string("image"), "lif_forward");
  CHECK_THAT(message_of<DriverError>([&] {
               kernel.launch({5, 1, 1}, 2000, 0, nullptr, "", 0);
             }),
             has_text("lif_forward: the launch of 5 x 1 x 1 blocks of 2000 x 1 x 1 threads") &&
                 has_text("it did not work (CUDA_ERROR_OF_TEST)"));
}

TEST_CASE("an image that the driver refuses differs from a missing driver") {
  const Driver driver = fake_driver();
  CHECK_THAT(message_of<ImageRefused>([&] { load_kernel(driver, std::string("refused"), "lif_forward"); }),
             has_text("lif_forward: the driver refused the compiled image"));
}

TEST_CASE("an image without the kernel is unloaded again") {
  const Driver driver = fake_driver();
  CHECK_THAT(message_of<ImageRefused>([&] { load_kernel(driver, std::string("image"), "qif_forward"); }),
             has_text("qif_forward: the compiled image has no kernel of this name"));
  CHECK(seen.unloaded == 1);
}

TEST_CASE("the error on a machine without a driver names the missing library") {
  const std::string message = message_of<DriverError>([] { Driver::get(); });
  if (message.empty()) SPIKEFORGE_SKIP("this machine has a driver");
  CHECK_THAT(message, has_text("cuLibraryLoadData") && has_text("NVIDIA driver") && has_text("nvidia-smi"));
}

TEST_CASE("a launch in clusters tells the driver how many blocks each has") {
  const Driver driver = fake_driver();
  const std::string image = "image";
  const LoadedKernel kernel = load_kernel(driver, image, "lif_forward");
  const int args = 7;
  int stream = 0;
  kernel.launch_in_clusters(24, 8, 128, 1000, &stream, &args, sizeof args);
  CHECK(seen.grid[0] == 24);
  CHECK(seen.cluster == 8);
  CHECK(seen.block == 128);
  CHECK(seen.shared_bytes == 1000);
  CHECK(seen.stream == &stream);
  CHECK(seen.args == std::string(reinterpret_cast<const char*>(&args), sizeof args));
  CHECK_THROWS_AS(kernel.launch_in_clusters(25, 8, 128, 1000, &stream, &args, sizeof args), DriverError);
  CHECK(kernel.most_clusters(8, 128, 1000) == 16);
  CHECK(kernel.most_clusters(32, 128, 1000) == 0);
}
