#pragma once
#include "csrc/base/export.h"

#include <stdexcept>
#include <string>
#include <string_view>

namespace spikeforge::nir {

// The error for an invalid file or graph. what() is one line, "FILE: node NODE, field FIELD: REASON", without empty
// parts and without control characters, because names come from untrusted files.
struct SPIKEFORGE_API Error : std::runtime_error {
  Error(std::string file, std::string node, std::string field, std::string reason);
  Error(std::string node, std::string field, std::string reason) : Error({}, node, field, reason) {}

  // Returns the same error with the name of the file.
  Error in_file(const std::string& name) const { return {name, node, field, reason}; }

  std::string file;
  std::string node;   // in a nested graph: graph/node; the outermost graph is /
  std::string field;  // a dataset of the node, or "edges"
  std::string reason;
};

// Returns the text with control characters, and bytes that are not UTF-8, written as \xNN, and truncated after about
// 200 bytes.
SPIKEFORGE_API std::string printable(std::string_view text);

// Returns the number of bytes of the UTF-8 character at the start of a text; 0 if there is none. The text must not be
// empty.
SPIKEFORGE_API std::size_t character_length(std::string_view text);

// Returns the name of a node in messages: lif, or inner/lif inside the nested graph inner.
SPIKEFORGE_API std::string in_node(std::string_view graph, std::string_view name);

}  // namespace spikeforge::nir
