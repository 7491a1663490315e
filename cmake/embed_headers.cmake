# Writes a C++ file that holds the text of headers, for compilers at run time, as a function of csrc/jit/sources.h:
#   cmake -DOUTPUT=sources.cpp -DFUNCTION=embedded_headers -DROOT=<the repository> "-DFILES=<whole paths>"
#         -P embed_headers.cmake
# csrc/neuron/lif.h is embedded as spikeforge/neuron/lif.h, with its includes in the form for programs.

cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/public_includes.cmake")

set(piece_limit 15000)  # characters: a compiler need not take a literal of more than 16 KB
set(delimiter "SPIKEFORGE")

# Cuts after a line's end where there is one, so that no UTF-8 character is split.
function(raw_literals text out)
  set(literals "")
  string(LENGTH "${text}" rest)
  while(rest GREATER 0)
    string(SUBSTRING "${text}" 0 ${piece_limit} piece)
    if(rest GREATER piece_limit)
      string(FIND "${piece}" "\n" line_end REVERSE)
      if(line_end GREATER -1)
        math(EXPR line_end "${line_end} + 1")
        string(SUBSTRING "${piece}" 0 ${line_end} piece)
      endif()
    endif()
    string(APPEND literals "\n     R\"${delimiter}(${piece})${delimiter}\"")
    string(LENGTH "${piece}" taken)
    string(SUBSTRING "${text}" ${taken} -1 text)
    string(LENGTH "${text}" rest)
  endwhile()
  if(literals STREQUAL "")
    set(literals " \"\"")
  endif()
  set(${out} "${literals}" PARENT_SCOPE)
endfunction()

set(entries "")
list(SORT FILES)  # the order is part of every kernel's key
foreach(file IN LISTS FILES)
  file(READ "${file}" text)
  spikeforge_public_includes("${text}" text)
  string(FIND "${text}" ")${delimiter}\"" clash)
  if(clash GREATER -1)
    message(FATAL_ERROR "${file} holds )${delimiter}\", which ends the raw string literal that it is put into")
  endif()
  cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${ROOT}" OUTPUT_VARIABLE name)
  string(REGEX REPLACE "^csrc/" "" name "${name}")
  raw_literals("${text}" literals)
  string(APPEND entries "    {\"spikeforge/${name}\",${literals}},\n")
endforeach()

# A std::vector, because a build may have no device header yet.
file(WRITE "${OUTPUT}" "// Written by cmake/embed_headers.cmake.
#include \"csrc/jit/sources.h\"

#include <vector>

namespace spikeforge::jit {

std::span<const EmbeddedHeader> ${FUNCTION}() {
  static const std::vector<EmbeddedHeader> headers = {
${entries}  };
  return headers;
}

}  // namespace spikeforge::jit
")
