#include <spikeforge/base/printable.h>
#include <spikeforge/torchscript/internal/archive.h>
#include <spikeforge/torchscript/internal/check_loaded.h>
#include <spikeforge/torchscript/internal/screen_pickle.h>
#include <spikeforge/torchscript/internal/screen_source.h>
#include <spikeforge/torchscript/screened.h>

#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <string_view>

namespace spikeforge {
namespace torchscript {
namespace {

constexpr std::uint64_t longest_source = std::uint64_t{64} << 20, longest_pickle = std::uint64_t{1} << 30;

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 20 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool is_source(std::string_view name) { return name.starts_with("code/") && name.ends_with(".py"); }

// Others are those of older forms, which torch reads by other ways, and of what is no module.
void check_name(const std::string& name) {
  static constexpr std::string_view known[] = {
      "data.pkl",           "constants.pkl",         "version", "byteorder", ".format_version",
      ".storage_alignment", ".data/serialization_id"};
  for (const std::string_view folder : {"data/", "constants/"})
    if (name.starts_with(folder) && is_number(std::string_view(name).substr(folder.size()))) return;
  if (std::find(std::begin(known), std::end(known), name) != std::end(known) || is_source(name) ||
      name.starts_with("extra/") || (name.starts_with("code/") && name.ends_with(".py.debug_pkl")))
    return;
  refuse("it has a record that TorchScript has not: " + printable(name, Lines::one, 200));
}

void screen(const Archive& archive, const AllowedOperators& allowed) {
  for (const Record& record : archive.records()) {
    check_name(record.name);
    if (is_source(record.name) && record.size > longest_source) refuse(printable(record.name) + " is too large");
  }
  for (const char* needed : {"data.pkl", "constants.pkl"})
    if (!archive.size_of(needed)) refuse("it is no TorchScript file: it has no " + std::string(needed));
  if (archive.size_of("byteorder") && archive.read("byteorder") != "little")
    refuse("it was written by a machine of another byte order");
  for (const Record& record : archive.records())
    if (is_source(record.name)) screen_source(archive.read(record.name), allowed);
  for (const auto& [name, folder, holds] :
       {std::tuple("constants.pkl", "constants/", Holds::constants), std::tuple("data.pkl", "data/", Holds::module)}) {
    if (archive.size_of(name) > longest_pickle) refuse(std::string(name) + " is too large");
    screen_pickle(archive.read(name), holds, [&, below = std::string(folder)](const std::string& key) {
      return is_number(key) ? archive.size_of(below + key) : std::nullopt;
    });
  }
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
    torchscript::screen(archive, torchscript::AllowedOperators(operators));
    // What it has for debuggers are pickles more.
    torch::jit::Module module = torch::jit::load(archive.adapter(), device, /*load_debug_files=*/false);
    torchscript::check_loaded(module._ivalue());
    return module;
  });
}

void check_archive(const std::string& file) {
  torchscript::in_file(file, [&] { torchscript::Archive{file}; });
}

}  // namespace spikeforge
