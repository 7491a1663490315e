#include "csrc/custom_op/internal/cuda_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace spikeforge::custom_op {
namespace {

using Kind = CudaParameter::Kind;

bool is_array(const CudaParameter& parameter) {
  return parameter.kind == Kind::argument || parameter.kind == Kind::result;
}

std::string type_of(const CudaParameter& parameter) {
  switch (parameter.kind) {
    case Kind::argument: return fmt::format("Array<const {}_t>", parameter.name);
    case Kind::result: return fmt::format("Array<{}_t>", parameter.name);
    case Kind::integer: return "long long";
    case Kind::number: return "double";
    case Kind::truth: return "bool";
  }
  return "";
}

// The names of C and POSIX types, without the suffix _t.
constexpr std::string_view types_of_c[] = {
    "blkcnt",   "blksize",   "clock",    "clockid",    "cpu_set",  "dev",    "div",    "double",  "error",   "femode",
    "fenv",     "fexcept",   "float",    "fpos",       "fsid",     "gid",    "greg",   "id",      "imaxdiv", "ino",
    "int16",    "int32",     "int64",    "int8",       "intmax",   "intptr", "key",    "ldiv",    "lldiv",   "locale",
    "loff",     "mbstate",   "mode",     "max_align",  "nlink",    "off",    "pid",    "nullptr", "ptrdiff", "quad",
    "register", "sem",       "sig",      "sig_atomic", "siginfo",  "sigset", "sigval", "size",    "socklen", "ssize",
    "stack",    "suseconds", "time",     "timer",      "ucontext", "uid",    "uint16", "uint32",  "uint64",  "uint8",
    "uintmax",  "uintptr",   "useconds", "wctrans",    "wctype",   "wint"};

bool hides_types_of_c(const std::vector<CudaParameter>& parameters) {
  return std::ranges::any_of(parameters, [](const CudaParameter& parameter) {
    return is_array(parameter) && std::ranges::find(types_of_c, parameter.name) != std::end(types_of_c);
  });
}

// Returns the #include lines to place before a namespace. Headers must be included outside of it; include guards then
// make the same lines within the namespace empty. Only <...> is moved: a header in quotes may need the types of the
// arguments, and a macro may not be defined yet.
std::string inclusions(std::string_view source) {
  std::string text;
  while (!source.empty()) {
    const std::string_view line = source.substr(0, source.find('\n'));
    source.remove_prefix(std::min(source.size(), line.size() + 1));
    const auto after = [&](std::size_t from) { return std::min(line.find_first_not_of(" \t", from), line.size()); };
    const std::size_t hash = after(0), word = after(std::min(hash + 1, line.size()));
    if (line.substr(hash, 1) != "#" || !line.substr(word).starts_with("include")) continue;
    const std::size_t open = after(word + 7), close = line.find('>', open);
    if (line.substr(open, 1) != "<" || close == std::string_view::npos) continue;
    const std::string_view header = line.substr(open, close + 1 - open);
    text += fmt::format("#if __has_include({0})\n#include {0}\n#endif\n", header);
  }
  return text;
}

}  // namespace

bool is_keyword(std::string_view type) {
  return type == "wchar_t" || type == "char8_t" || type == "char16_t" || type == "char32_t";
}

std::string print_types(std::string_view header, std::string_view source,
                        const std::vector<CudaParameter>& parameters) {
  std::string text = fmt::format("#include <{}>\nusing spikeforge::Array;\nusing spikeforge::convert;\n", header);
  if (hides_types_of_c(parameters)) text += inclusions(source) + "namespace spikeforge_source {\n";
  for (const CudaParameter& parameter : parameters)
    if (is_array(parameter)) text += fmt::format("using {}_t = {};\n", parameter.name, parameter.type);
  return text;
}

std::string print_program(std::string_view source, std::string_view entry, const std::vector<CudaParameter>& parameters,
                          std::string_view caller) {
  std::string types, names;
  for (const CudaParameter& parameter : parameters) {
    const std::string type = type_of(parameter);
    types += fmt::format("{}{}", types.empty() ? "" : ", ", type);
    names += fmt::format("{}{} {}", names.empty() ? "" : ", ", type, parameter.name);
  }
  return fmt::format(
      "{}\nstatic_assert(spikeforge::Same<decltype(&{}), void (*)({})>::value, \"the parameters of {} must be "
      "({})\");\n{}{}",
      source, entry, types, entry, names, caller, hides_types_of_c(parameters) ? "}\n" : "");
}

}  // namespace spikeforge::custom_op
