# HDF5's headers, and the library that belongs to them, for spikeforge_nir. Where they are not, spikeforge_nir is not
# built, and nothing else is missing.
#
# The library is not linked but loaded when it is needed, with a scope of its own: see csrc/nir/hdf5_library.h. It is
# known by the name that the loader knows it by (libhdf5_serial.so.103), and by its path where that fails.
#
# Result: SPIKEFORGE_BUILD_NIR, turned off where there is no HDF5; target spikeforge_hdf5.

if(NOT SPIKEFORGE_BUILD_NIR)
  return()
endif()

enable_language(C)  # FindHDF5 asks the C compiler
find_package(HDF5 1.10.5 COMPONENTS C QUIET)
find_package(ZLIB QUIET)
set(SPIKEFORGE_HDF5_PATH "")
foreach(candidate IN LISTS HDF5_C_LIBRARIES HDF5_LIBRARIES)
  if(candidate MATCHES "hdf5[^/]*\\${CMAKE_SHARED_LIBRARY_SUFFIX}" AND NOT SPIKEFORGE_HDF5_PATH)
    set(SPIKEFORGE_HDF5_PATH "${candidate}")
  endif()
endforeach()
if(NOT HDF5_FOUND OR NOT SPIKEFORGE_HDF5_PATH OR NOT ZLIB_FOUND)
  message(STATUS "No HDF5 1.10.5 or later as a shared library, or no zlib (Debian: libhdf5-dev): going on without spikeforge_nir")
  set(SPIKEFORGE_BUILD_NIR OFF)
  return()
endif()

file(REAL_PATH "${SPIKEFORGE_HDF5_PATH}" SPIKEFORGE_HDF5_PATH)
cmake_path(GET SPIKEFORGE_HDF5_PATH FILENAME SPIKEFORGE_HDF5_SONAME)
if(CMAKE_OBJDUMP)
  execute_process(COMMAND "${CMAKE_OBJDUMP}" -p "${SPIKEFORGE_HDF5_PATH}" OUTPUT_VARIABLE headers ERROR_QUIET)
  if(headers MATCHES "SONAME +([^ \n]+)")
    set(SPIKEFORGE_HDF5_SONAME "${CMAKE_MATCH_1}")
  endif()
endif()

add_library(spikeforge_hdf5 INTERFACE)
target_include_directories(spikeforge_hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS} ${HDF5_INCLUDE_DIRS})
target_compile_definitions(spikeforge_hdf5 INTERFACE
  "SPIKEFORGE_HDF5_SONAME=\"${SPIKEFORGE_HDF5_SONAME}\"" "SPIKEFORGE_HDF5_PATH=\"${SPIKEFORGE_HDF5_PATH}\"")
message(STATUS "HDF5 ${HDF5_VERSION}: ${SPIKEFORGE_HDF5_SONAME}")
