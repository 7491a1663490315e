// The CUDA source of a custom operator around a user's text: the names of its dtypes before it, the check of its
// parameters after it, so that the user's lines keep their numbers. Free of torch.
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

// The text before the user's: the header, and x_t and the like. If C has a type of such a name (time_t, size_t), all
// that follows is in a namespace, after the headers that the user's text includes.
std::string print_types(std::string_view header, std::string_view source, const std::vector<CudaParameter>& parameters);

// The user's text, below it what refuses a kernel that takes other parameters, and then what calls it from the host.
std::string print_program(std::string_view source, std::string_view entry, const std::vector<CudaParameter>& parameters,
                          std::string_view caller = {});

// The name of a dtype that is a word of the language (wchar_t), which no type can have.
bool is_keyword(std::string_view type);

}  // namespace spikeforge::custom_op
