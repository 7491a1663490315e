// Exceptions whose reasons are formatted.
#pragma once
#include "csrc/nir/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace spikeforge::nir {

// Throws an Error at a field of a node.
template <class... Arguments>
[[noreturn]] void refuse(const std::string& node, std::string_view field, fmt::format_string<Arguments...> reason,
                         Arguments&&... arguments) {
  throw Error(node, std::string(field), fmt::format(reason, std::forward<Arguments>(arguments)...));
}

// Throws a std::runtime_error, for what reads and writes files without the names of nodes.
template <class... Arguments>
[[noreturn]] void fail(fmt::format_string<Arguments...> reason, Arguments&&... arguments) {
  throw std::runtime_error(fmt::format(reason, std::forward<Arguments>(arguments)...));
}

// The same with the reason of the system's last error.
[[noreturn]] inline void fail_with_errno(const char* what) {
  fail("{}: {}", what, std::generic_category().message(errno));
}

}  // namespace spikeforge::nir
