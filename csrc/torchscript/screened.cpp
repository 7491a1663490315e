#include "csrc/torchscript/screened.h"
#include "csrc/base/printable.h"
#include "csrc/torchscript/internal/archive.h"
#include "csrc/torchscript/internal/check_compiled.h"
#include "csrc/torchscript/internal/check_loaded.h"
#include "csrc/torchscript/internal/screen_pickle.h"
#include "csrc/torchscript/internal/screen_source.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <pthread.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string_view>

namespace spikeforge {
namespace torchscript {
namespace {

constexpr std::uint64_t longest_source = std::uint64_t{64} << 20, longest_pickle = std::uint64_t{1} << 30;

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 20 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool is_source(std::string_view name) { return name.starts_with("code/") && name.ends_with(".py"); }

// Others are those of older forms, which torch reads by other ways, and of what is no module. A trace's example inputs
// are read by nobody who loads it.
void check_name(const std::string& name) {
  static constexpr std::string_view known[] = {
      "data.pkl",  "constants.pkl",   "traced_inputs.pkl",  "version",
      "byteorder", ".format_version", ".storage_alignment", ".data/serialization_id"};
  for (const std::string_view folder : {"data/", "constants/", "traced_inputs/"})
    if (name.starts_with(folder) && is_number(std::string_view(name).substr(folder.size()))) return;
  if (std::find(std::begin(known), std::end(known), name) != std::end(known) || is_source(name) ||
      name.starts_with("extra/") || (name.starts_with("code/") && name.ends_with(".py.debug_pkl")))
    return;
  refuse("it has a record that TorchScript has not: " + printable(name, Lines::one, 200));
}

// code/__torch__/nets.py has the classes whose names begin with __torch__.nets
std::string module_of(std::string_view record) {
  record.remove_prefix(std::string_view("code/").size());
  record.remove_suffix(std::string_view(".py").size());
  std::string module(record);
  std::replace(module.begin(), module.end(), '/', '.');
  return module;
}

// What is defined in all sources, classes with their whole names.
Definitions screen(const Archive& archive, const AllowedOperators& allowed) {
  for (const Record& record : archive.records()) {
    check_name(record.name);
    if (record.is_packed && !record.name.starts_with("code/"))
      refuse(printable(record.name) + " is packed, which torch does with source alone");
    if (is_source(record.name) && record.size > longest_source) refuse(printable(record.name) + " is too large");
  }
  for (const char* needed : {"data.pkl", "constants.pkl"})
    if (!archive.size_of(needed)) refuse("it is no TorchScript file: it has no " + std::string(needed));
  if (archive.size_of("byteorder") && archive.read("byteorder") != "little")
    refuse("it was written by a machine of another byte order");
  Definitions all;
  for (const Record& record : archive.records()) {
    if (!is_source(record.name)) continue;
    const Definitions own = screen_source(archive.read(record.name), allowed);
    all.levels += own.levels;
    for (const std::string& name : own.classes) all.classes.push_back(module_of(record.name) + "." + name);
  }
  for (const auto& [name, folder, holds] :
       {std::tuple("constants.pkl", "constants/", Holds::constants), std::tuple("data.pkl", "data/", Holds::module)}) {
    if (archive.size_of(name) > longest_pickle) refuse(std::string(name) + " is too large");
    screen_pickle(archive.read(name), holds, [&, below = std::string(folder)](const std::string& key) {
      return is_number(key) ? archive.size_of(below + key) : std::nullopt;
    });
  }
  return all;
}

// A function is compiled while the one that calls it is, and a class while the one that holds it is. torch 2.11 takes 4
// to 6 KiB for each (x86-64).
constexpr std::size_t stack_for(std::size_t levels) {
  return (std::size_t{16} << 20) + levels * (std::size_t{16} << 10);
}

// Calls it on a thread of its own, with what this one has set of torch (inference mode, gradients) and so much stack,
// of which the system gives what is touched.
template <class Function>
void on_own_stack(std::size_t bytes, const Function& function) {
  struct Call {
    const Function& function;
    at::ThreadLocalState state;
    std::exception_ptr error;
  } call{function, {}, nullptr};
  const auto run = [](void* given) -> void* {
    auto& call = *static_cast<Call*>(given);
    try {
      const at::ThreadLocalStateGuard guard(call.state);
      call.function();
    } catch (...) {
      call.error = std::current_exception();
    }
    return nullptr;
  };
  pthread_attr_t attributes;
  pthread_t thread{};
  ::pthread_attr_init(&attributes);
  const bool started =
      ::pthread_attr_setstacksize(&attributes, bytes) == 0 && ::pthread_create(&thread, &attributes, run, &call) == 0;
  ::pthread_attr_destroy(&attributes);
  if (!started) refuse("there is no memory for the stack that it may take to compile it");
  ::pthread_join(thread, nullptr);
  if (call.error) std::rethrow_exception(call.error);
}

// Which GPU is current is said for each thread.
c10::Device with_index(c10::Device device) {
  if (device.is_cpu() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

template <class Function>
auto in_file(const std::string& file, const Function& function) {
  try {
    return function();
  } catch (const ScreeningError& error) {
    throw ScreeningError(printable(file) + ": " + error.what());
  }
}

}  // namespace
}  // namespace torchscript

torch::jit::Module load_screened(const std::string& file, c10::Device device,
                                 const std::vector<std::string>& operators) {
  return torchscript::in_file(file, [&] {
    const torchscript::Archive archive(file);
    const torchscript::AllowedOperators allowed(operators);
    const torchscript::Definitions definitions = torchscript::screen(archive, allowed);
    std::optional<torch::jit::Module> module;
    const c10::Device there = torchscript::with_index(device);
    torchscript::on_own_stack(torchscript::stack_for(definitions.levels), [&] {
      // What it has for debuggers are pickles more.
      torch::jit::Module loaded = torch::jit::load(archive.adapter(), there, /*load_debug_files=*/false);
      torchscript::SharedCounts counts;
      torchscript::check_compiled(loaded, definitions.classes, allowed, counts);
      torchscript::check_loaded(loaded._ivalue(), counts);
      module = std::move(loaded);
    });
    return std::move(*module);
  });
}

void check_archive(const std::string& file) {
  torchscript::in_file(file, [&] { torchscript::Archive{file}; });
}

}  // namespace spikeforge
