# An include of this project is a path from the repository's root, in quotes: "csrc/graph/graph.h". Programs that use the
# library, and kernels that are compiled at run time, include the same header as <spikeforge/graph/graph.h>: in angle
# brackets, without csrc/.

target_compile_options(spikeforge_options INTERFACE "SHELL:-iquote \"${PROJECT_SOURCE_DIR}\"")

# spikeforge_public_includes(<text> <out>): the text of a header, with its includes in the form for programs.
include("${CMAKE_CURRENT_LIST_DIR}/public_includes.cmake")

file(GLOB public_headers RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS
     csrc/custom_op/*.h csrc/graph/*.h csrc/graph/*.def csrc/nn/*.h csrc/simulation/*.h csrc/torchscript/*.h ops/*.h)
list(APPEND public_headers
     csrc/base/confinement.h
     csrc/base/export.h
     csrc/base/own_process.h
     csrc/base/printable.h
     csrc/base/version.h
     csrc/neuron/loihi.h
     csrc/neuron/neuron_kind.h
     csrc/neuron/neurons.def
     csrc/neuron/portable.h
     csrc/neuron/surrogate.def
     csrc/neuron/surrogate_kind.h
     cuda/custom_op.cuh
     cuda/half.cuh)
if(SPIKEFORGE_BUILD_NIR)
  # The other headers of csrc/nir include HDF5's.
  foreach(name array array_values data error interpret limits node read shapes validate value write
               network/back_edges network/from_module network/options network/to_module network/torchscript)
    list(APPEND public_headers csrc/nir/${name}.h)
  endforeach()
endif()

# The examples are built as programs that use the library are: with the headers in this folder, which are installed.
set(SPIKEFORGE_PUBLIC_INCLUDE "${PROJECT_BINARY_DIR}/include")
function(spikeforge_write_public_header header name)
  file(READ "${header}" text)
  spikeforge_public_includes("${text}" text)
  set(output "${SPIKEFORGE_PUBLIC_INCLUDE}/spikeforge/${name}")
  set(present "")
  if(EXISTS "${output}")
    file(READ "${output}" present)
  endif()
  if(NOT text STREQUAL present)
    file(WRITE "${output}" "${text}")
  endif()
endfunction()
foreach(header IN LISTS public_headers)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
  string(REGEX REPLACE "^csrc/" "" name "${header}")
  spikeforge_write_public_header("${PROJECT_SOURCE_DIR}/${header}" "${name}")
endforeach()
spikeforge_write_public_header("${PROJECT_SOURCE_DIR}/csrc/base/version.h" version.h)

# Headers that were public in an earlier build are not installed.
list(TRANSFORM public_headers REPLACE "^csrc/" "" OUTPUT_VARIABLE written)
file(GLOB_RECURSE stale RELATIVE "${SPIKEFORGE_PUBLIC_INCLUDE}/spikeforge" "${SPIKEFORGE_PUBLIC_INCLUDE}/spikeforge/*")
list(REMOVE_ITEM stale ${written} version.h)
foreach(header IN LISTS stale)
  file(REMOVE "${SPIKEFORGE_PUBLIC_INCLUDE}/spikeforge/${header}")
endforeach()

function(spikeforge_install_headers)
  install(DIRECTORY "${SPIKEFORGE_PUBLIC_INCLUDE}/spikeforge" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
endfunction()
