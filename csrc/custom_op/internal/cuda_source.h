// The CUDA source of a custom operator around a user's text: the names of its dtypes before it, the check of its
// parameters behind it, so that the user's lines keep their numbers. Free of torch.
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

// Included before the user's text: x_t and the like.
std::string print_types(const std::vector<CudaParameter>& parameters);

// The user's text, and below it what refuses a kernel that takes other parameters.
std::string print_program(std::string_view source, std::string_view entry,
                          const std::vector<CudaParameter>& parameters);

}  // namespace spikeforge::custom_op
