#include "csrc/jit/kernel_pack.h"
#include "csrc/jit/recorder.h"
#include "csrc/kernels/multistep/typical_kernels.h"
#include "ops/common/library.h"
#include "ops/kernel_pack.h"

#include <c10/util/Exception.h>

namespace spikeforge {
namespace {

// Converts PackError to an exception of torch, which becomes a Python exception.
template <class Function> auto checked(const char* name, const Function& function) {
  try {
    return function();
  } catch (const jit::PackError& e) {
    TORCH_CHECK_VALUE(false, name, ": ", e.what());
  }
}

SPIKEFORGE_SCHEMAS(library) {
  library.def("record_kernels(str[] archs) -> ()",
              [](const std::vector<std::string>& archs) { record_kernels(archs); });
  library.def("records_kernels() -> bool", [] { return jit::recorder() != nullptr; });
  library.def("write_kernel_pack(str path) -> int", [](const std::string& path) { return write_kernel_pack(path); });
  library.def("load_kernel_pack(str path) -> int", [](const std::string& path) { return load_kernel_pack(path); });
}

}  // namespace

void record_kernels(const std::vector<std::string>& archs) {
  checked("record_kernels", [&] { jit::start_recording(archs); });
}

void record_predefined_kernels(const std::vector<std::string>& neurons) {
  const auto recorder = jit::recorder();
  TORCH_CHECK(recorder != nullptr, "record_predefined_kernels: call record_kernels first");
  checked("record_predefined_kernels", [&] { kernels::add_predefined(*recorder, neurons); });
}

std::int64_t write_kernel_pack(const std::string& path, const std::function<void(std::size_t, std::size_t)>& progress) {
  const auto recorder = jit::stop_recording();
  TORCH_CHECK(recorder != nullptr, "write_kernel_pack: call record_kernels first");
  return checked("write_kernel_pack",
                 [&] { return static_cast<std::int64_t>(jit::write_pack(path, *recorder, progress)); });
}

std::int64_t load_kernel_pack(const std::string& path) {
  return checked("load_kernel_pack", [&] { return static_cast<std::int64_t>(jit::KernelPacks::get().add(path)); });
}

}  // namespace spikeforge
