#include "csrc/jit/kernel_cache.h"
#include "csrc/jit/errors.h"
#include "csrc/jit/kernel_pack.h"

#include <chrono>
#include <exception>
#include <string_view>
#include <utility>

namespace spikeforge::jit {
namespace {

// Incremented if the same text means a different kernel, for example after a change of the launch convention.
constexpr std::string_view generator_version = "1";

const std::string& library_hash() {
  static const std::string hash = KernelCache::library_key().hex();
  return hash;
}

// Returns the key of a kernel in an image, which may contain several kernels.
Hash128 hash_of_kernel(const Hash128& image, const std::string& entry) { return hash128({image.hex(), entry}); }

}  // namespace

KernelCache::KernelCache(Parts parts) : parts_(std::move(parts)) {}

Hash128 KernelCache::library_key() {
  std::vector<std::string_view> parts = {generator_version};
  for (const EmbeddedHeader& header : embedded_headers()) {
    parts.push_back(header.name);
    parts.push_back(header.text);
  }
  for (const std::string& option : base_options()) parts.push_back(option);
  return hash128(parts);
}

Hash128 KernelCache::key(const KernelSource& source, const std::string& arch) {
  std::vector<std::string_view> parts = {library_hash(), source.text, arch};
  for (const std::string& option : source.options) parts.push_back(option);
  for (const EmbeddedHeader& header : source.headers) {
    parts.push_back(header.name);
    parts.push_back(header.text);
  }
  return hash128(parts);
}

KernelCache& KernelCache::get() {
  // Leaked: at exit, the driver may be unloaded before the destructor would run, and other static objects may still
  // launch.
  static KernelCache& cache = *new KernelCache({
      .disk = &DiskCache::get(),
      .nvrtc = Nvrtc::get,
      .load = [](std::span<const char> image,
                 const std::string& entry) { return load_kernel(Driver::get(), image, entry); },
      .packed = [](const Hash128& key) { return KernelPacks::get().find(key); },
  });
  return cache;
}

const LoadedKernel& KernelCache::get(const KernelSource& source, const std::string& arch) {
  const Hash128 hash = key(source, arch);
  const auto found = kernels_.get(hash_of_kernel(hash, source.entry), [&] { return load(hash, source, arch); });
  memory_hits_ += found.was_there;
  return *found.value;  // owned by kernels_
}

std::shared_ptr<const Image> KernelCache::image(const KernelSource& source, const std::string& arch) {
  return image(key(source, arch), source, arch);
}

std::shared_ptr<const Image> KernelCache::image(const Hash128& hash, const KernelSource& source,
                                                const std::string& arch) {
  const auto found = images_.get(hash, [&] { return make_image(hash, source, arch); });
  memory_hits_ += found.was_there;
  return found.value;
}

Image KernelCache::make_image(const Hash128& hash, const KernelSource& source, const std::string& arch) {
  if (parts_.packed)
    if (auto bytes = parts_.packed(hash)) {
      ++pack_hits_;
      return {std::move(*bytes), true};
    }
  const Nvrtc* nvrtc = nullptr;
  std::exception_ptr no_nvrtc;
  try {
    nvrtc = &parts_.nvrtc();
  } catch (const NvrtcNotFound&) {
    no_nvrtc = std::current_exception();
  }
  const DiskKey key{hash, arch, nvrtc ? nvrtc->version() : ""};
  if (auto bytes = parts_.disk->load(key, source.name)) {
    ++disk_hits_;
    return {std::move(*bytes), true};
  }
  if (no_nvrtc) std::rethrow_exception(no_nvrtc);
  return compile(*nvrtc, key, source);
}

Image KernelCache::compile(const Nvrtc& nvrtc, const DiskKey& key, const KernelSource& source) {
  const auto start = std::chrono::steady_clock::now();
  CompileResult result = nvrtc.compile({source.name, source.text, source.options, key.arch, source.headers});
  const auto taken = std::chrono::steady_clock::now() - start;
  compile_microseconds_ += std::chrono::duration_cast<std::chrono::microseconds>(taken).count();
  ++compiled_;
  parts_.disk->store(key, source.name, result.image);
  return {std::move(result.image), false};
}

LoadedKernel KernelCache::load(const Hash128& hash, const KernelSource& source, const std::string& arch) {
  const std::shared_ptr<const Image> stored = image(hash, source, arch);
  try {
    return parts_.load(stored->bytes, source.entry);
  } catch (const ImageRefused&) {
    if (!stored->is_stored) throw;
  }
  // The image is complete, but the driver rejects it. Compiling it again may help; otherwise every later call would
  // fail.
  const Nvrtc& nvrtc = parts_.nvrtc();
  const DiskKey key{hash, arch, nvrtc.version()};
  parts_.disk->remove(key, source.name);
  Image fresh = compile(nvrtc, key, source);
  LoadedKernel kernel = parts_.load(fresh.bytes, source.entry);
  images_.replace(hash, std::move(fresh));
  return kernel;
}

bool KernelCache::can_compile() const {
  try {
    parts_.nvrtc();
    return true;
  } catch (const NvrtcNotFound&) {
    return false;
  }
}

KernelCache::Statistics KernelCache::statistics() const {
  return {compiled_, pack_hits_, disk_hits_, memory_hits_, static_cast<double>(compile_microseconds_) / 1000};
}

}  // namespace spikeforge::jit
