#include <spikeforge/custom_op/internal/cuda_source.h>

#include <fmt/format.h>

namespace spikeforge::custom_op {
namespace {

using Kind = CudaParameter::Kind;

bool is_array(const CudaParameter& parameter) {
  return parameter.kind == Kind::argument || parameter.kind == Kind::result;
}

std::string type_of(const CudaParameter& parameter) {
  switch (parameter.kind) {
    case Kind::argument:
      return fmt::format("Array<const {}_t>", parameter.name);
    case Kind::result:
      return fmt::format("Array<{}_t>", parameter.name);
    case Kind::integer:
      return "long long";
    case Kind::number:
      return "double";
    case Kind::truth:
      return "bool";
  }
  return "";
}

}  // namespace

std::string print_types(const std::vector<CudaParameter>& parameters) {
  std::string text =
      "#include <spikeforge/cuda/custom_op.cuh>\n"
      "using spikeforge::Array;\n"
      "using spikeforge::convert;\n";
  for (const CudaParameter& parameter : parameters)
    if (is_array(parameter)) text += fmt::format("using {}_t = {};\n", parameter.name, parameter.type);
  return text;
}

std::string print_program(std::string_view source, std::string_view entry,
                          const std::vector<CudaParameter>& parameters) {
  std::string types, names;
  for (const CudaParameter& parameter : parameters) {
    const std::string type = type_of(parameter);
    types += fmt::format("{}{}", types.empty() ? "" : ", ", type);
    names += fmt::format("{}{} {}", names.empty() ? "" : ", ", type, parameter.name);
  }
  return fmt::format(
      "{}\nstatic_assert(spikeforge::Same<decltype(&{}), void (*)({})>::value, \"the parameters of {} must be "
      "({})\");\n",
      source, entry, types, entry, names);
}

}  // namespace spikeforge::custom_op
