#include <spikeforge/ops/common/library.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdio>

#include <dlfcn.h>

namespace spikeforge::ops {

bool is_first_copy() {
  static const bool is_first = [] {
    if (!c10::Dispatcher::singleton().findOp({"spikeforge::run", ""})) return true;
    Dl_info info{};
    const bool is_known =
        ::dladdr(reinterpret_cast<const void*>(&is_first_copy), &info) != 0 && info.dli_fname != nullptr;
    std::fprintf(
        stderr,
        "spikeforge: warning: %s is a second copy of the library in this process; the operators are those of the "
        "first\n",
        is_known ? info.dli_fname : "libspikeforge.so");
    return false;
  }();
  return is_first;
}

}  // namespace spikeforge::ops
