#include "csrc/nir/hdf5_library.h"
#include "csrc/nir/read.h"
#include "csrc/nir/refuse.h"

#include <cstdlib>
#include <stdexcept>
#include <tuple>

#include <dlfcn.h>

// ThreadSanitizer and AddressSanitizer do not support RTLD_DEEPBIND.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SPIKEFORGE_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SPIKEFORGE_SANITIZED
#endif
#endif

#define SPIKEFORGE_TEXT(x) #x
#define SPIKEFORGE_EXPANDED_TEXT(x) SPIKEFORGE_TEXT(x)

namespace spikeforge::nir {
namespace {

int loading_flags() {
  int flags = RTLD_NOW | RTLD_LOCAL;
#if defined(RTLD_DEEPBIND) && !defined(SPIKEFORGE_SANITIZED)
  flags |= RTLD_DEEPBIND;  // its calls resolve to itself, not to another HDF5 with global symbols
#endif
  return flags;
}

void* load(const std::string& file) {
  if (!file.empty()) {
    if (void* library = dlopen(file.c_str(), loading_flags())) return library;
    fail("{} cannot be loaded: {}", file, dlerror());
  }
  const char* own = std::getenv("SPIKEFORGE_HDF5");
  if (own && *own) {
    if (void* library = dlopen(own, loading_flags())) return library;
    fail("SPIKEFORGE_HDF5={} cannot be loaded: {}", own, dlerror());
  }
  std::string reasons;
  for (const char* name : {SPIKEFORGE_HDF5_SONAME, SPIKEFORGE_HDF5_PATH}) {
    if (void* library = dlopen(name, loading_flags())) return library;
    reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", dlerror());
  }
  fail(
      "libhdf5 cannot be loaded: install it (pip install h5py for the Python package; Debian: "
      "libhdf5-103-1), or name a file of HDF5 1.10.5 or later in SPIKEFORGE_HDF5: {}",
      reasons);
}

// Returns the function of version 1.10. In later versions it has the suffix 1, and the name without it is a macro.
void* symbol(void* library, const std::string& name) {
  if (void* found = dlsym(library, name.c_str())) return found;
  if (void* found = dlsym(library, (name + "1").c_str())) return found;
  fail("libhdf5 has no {}: it is too old, or too new", name);
}

herr_t keep_last(unsigned, const H5E_error2_t* error, void* reason) {
  if (error->desc && *error->desc) *static_cast<std::string*>(reason) = error->desc;
  return 0;
}

ForkSafeMutex& one_at_a_time() {
  static auto& mutex = *new ForkSafeMutex;
  return mutex;
}

}  // namespace

const Hdf5& Hdf5::get(const std::string& file) {
  static const Hdf5& library = *new Hdf5(file);  // never closed: libhdf5 has exit handlers
  return library;
}

void load_hdf5(const std::string& file) { Hdf5::get(file); }

Hdf5::Hdf5(const std::string& file) {
  void* const library = load(file);
#define SPIKEFORGE_HDF5(name) name = reinterpret_cast<decltype(name)>(symbol(library, SPIKEFORGE_EXPANDED_TEXT(name)));
#include "csrc/nir/hdf5_functions.def"

  unsigned major = 0, minor = 0, release = 0;
  if (H5get_libversion(&major, &minor, &release) < 0 || std::tuple(major, minor, release) < std::tuple(1u, 10u, 5u))
    fail("libhdf5 is {}.{}.{}, but NIR files need 1.10.5 or later", major, minor, release);
  if (H5open() < 0) throw std::runtime_error("libhdf5 does not start");

    // The identifiers are valid from here on.
#define SPIKEFORGE_HDF5_ID(name) name = *static_cast<const hid_t*>(symbol(library, #name));
#include "csrc/nir/hdf5_functions.def"
  set_file_locking = reinterpret_cast<decltype(set_file_locking)>(dlsym(library, "H5Pset_file_locking"));

  H5PLset_loading_state(0);  // files must not load plugins
}

Hdf5Session::Hdf5Session() : lock_(one_at_a_time()) {
  const Hdf5& h5 = Hdf5::get();
  h5.H5Eget_auto2(H5E_DEFAULT, &print_, &print_to_);
  h5.H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Hdf5Session::~Hdf5Session() { Hdf5::get().H5Eset_auto2(H5E_DEFAULT, print_, print_to_); }

std::string hdf5_reason() {
  std::string reason = "no reason given";
  Hdf5::get().H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, keep_last, &reason);
  return printable(reason);
}

}  // namespace spikeforge::nir
