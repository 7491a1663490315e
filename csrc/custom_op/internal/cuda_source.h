// The CUDA source of a custom operator: the names of its dtypes, the user's text, and the check of its parameters. The
// user's lines keep their numbers. This header does not depend on torch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace spikeforge::custom_op {

struct CudaParameter {
  enum class Kind { argument, result, integer, number, truth };
  std::string name;
  Kind kind;
  std::string type;  // of an argument's or a result's elements: "float"
};

inline constexpr const char* cuda_types_header = "spikeforge_custom_op_types.h";

// Returns the text before the user's source: the header, and the types such as x_t. If C has a type of the same name
// (time_t, size_t), the headers that the user's source includes come first, and everything after them is in a
// namespace.
std::string print_types(std::string_view header, std::string_view source, const std::vector<CudaParameter>& parameters);

// Returns the user's source, followed by a static check of the kernel's parameters and the entry point for the host.
std::string print_program(std::string_view source, std::string_view entry, const std::vector<CudaParameter>& parameters,
                          std::string_view caller = {});

// True if the name of a dtype is a keyword (wchar_t), which no type can have.
bool is_keyword(std::string_view type);

}  // namespace spikeforge::custom_op
