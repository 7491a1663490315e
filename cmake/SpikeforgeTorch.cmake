# Finds LibTorch and makes the imported target spikeforge::torch.
#
# find_package(Torch) of a CUDA build insists on nvcc and on an architecture list of its own. Spikeforge compiles its
# kernels at run time and needs neither, so this module takes only the headers and the libraries. It serves the wheel
# that pip installs, a LibTorch zip, and a CPU-only build of either. The installed package uses it too.
#
# Where LibTorch is looked for, first hit wins:
#   SPIKEFORGE_TORCH_DIR          a folder with include/ and lib/: an unpacked LibTorch zip, or site-packages/torch
#   SPIKEFORGE_PYTHON             a Python that has torch (CMake variable, or environment variable)
#   Torch_DIR, CMAKE_PREFIX_PATH  as find_package(Torch) would
#   SPIKEFORGE_TORCH_BUILT_WITH   in the installed package: the one it was built with, if it is still there
#   .venv/bin/python in the source tree of the project, then python3 in the PATH
#
# Result: spikeforge::torch, SPIKEFORGE_TORCH_ROOT, SPIKEFORGE_TORCH_VERSION, SPIKEFORGE_TORCH_OPENMP: ON where this
# LibTorch's threads are OpenMP's, and SPIKEFORGE_WITH_CUDA: ON where it has CUDA and the headers of the CUDA runtime are
# there too.

set(SPIKEFORGE_TORCH_DIR "" CACHE PATH "LibTorch: a folder with include/ and lib/ (empty: take the wheel of a Python)")
set(SPIKEFORGE_PYTHON "$ENV{SPIKEFORGE_PYTHON}" CACHE FILEPATH "A Python that has torch (empty: .venv/bin/python, then python3)")

# The folder of the torch package, without importing it: `import torch` takes seconds.
function(spikeforge_torch_of_python python out)
  execute_process(
    COMMAND "${python}" -c
            "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s and s.origin else '')"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# The folders that may be LibTorch, best first.
function(spikeforge_torch_candidates out)
  if(SPIKEFORGE_TORCH_DIR)
    set(${out} "${SPIKEFORGE_TORCH_DIR}" PARENT_SCOPE)
    return()
  endif()
  if(SPIKEFORGE_PYTHON)
    spikeforge_torch_of_python("${SPIKEFORGE_PYTHON}" root)
    set(${out} "${root}" PARENT_SCOPE)
    return()
  endif()

  set(candidates "")
  find_path(config NAMES TorchConfig.cmake PATHS "${Torch_DIR}" ${CMAKE_PREFIX_PATH} "$ENV{CMAKE_PREFIX_PATH}"
            PATH_SUFFIXES Torch share/cmake/Torch NO_DEFAULT_PATH NO_CACHE)
  if(config)
    cmake_path(SET config NORMALIZE "${config}/../../..")
    list(APPEND candidates "${config}")
  endif()
  list(APPEND candidates ${SPIKEFORGE_TORCH_BUILT_WITH})
  foreach(python "${CMAKE_SOURCE_DIR}/.venv/bin/python" python3)
    if(NOT candidates)
      spikeforge_torch_of_python("${python}" root)
      list(APPEND candidates ${root})
    endif()
  endforeach()
  set(${out} "${candidates}" PARENT_SCOPE)
endfunction()

function(spikeforge_read_torch_version root out)
  foreach(header headeronly/version.h csrc/api/include/torch/version.h)
    if(EXISTS "${root}/include/torch/${header}")
      file(STRINGS "${root}/include/torch/${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      string(REGEX REPLACE "[^0-9;]" "" numbers "${lines}")
      if(numbers)
        list(JOIN numbers "." version)
        set(${out} "${version}" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
  set(${out} "" PARENT_SCOPE)
endfunction()

# The folder of cuda_runtime_api.h: in a wheel beside torch, which pip installs with it, or in a CUDA toolkit.
function(spikeforge_find_cuda_headers root out)
  file(GLOB wheels "${root}/../nvidia/cu[0-9]*/include" "${root}/../nvidia/cuda_runtime/include")
  find_path(headers NAMES cuda_runtime_api.h NO_CACHE
            HINTS ${wheels} "$ENV{CUDA_HOME}/include" "$ENV{CUDA_PATH}/include"
            PATHS /usr/local/cuda/include)
  if(NOT headers)
    set(headers "")
  endif()
  set(${out} "${headers}" PARENT_SCOPE)
endfunction()

function(spikeforge_add_torch_target root cuda_headers)
  add_library(spikeforge::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(spikeforge::torch SYSTEM INTERFACE
    "${root}/include" "${root}/include/torch/csrc/api/include" ${cuda_headers})

  set(names torch torch_cpu c10)
  if(cuda_headers)
    list(APPEND names torch_cuda c10_cuda)
  endif()
  foreach(name IN LISTS names)
    set(file "${root}/lib/${CMAKE_SHARED_LIBRARY_PREFIX}${name}${CMAKE_SHARED_LIBRARY_SUFFIX}")
    if(NOT EXISTS "${file}")
      message(FATAL_ERROR "${root} is not a whole LibTorch: ${file} is missing")
    endif()
    target_link_libraries(spikeforge::torch INTERFACE "${file}")
  endforeach()

  # libspikeforge.so holds no path to torch, so that it runs beside any copy of it. A program therefore names all of
  # torch's libraries itself, needed or not: the loader has them before it reads what libspikeforge.so needs.
  # libcudart and the runtime of OpenMP are named by neither: torch brings its own, from wherever they lie.
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    target_link_options(spikeforge::torch INTERFACE LINKER:--no-as-needed LINKER:--allow-shlib-undefined)
  endif()

  # LibTorch zips came with either ABI of libstdc++, and those with the old one say so in their own config.
  set(config "${root}/share/cmake/Torch/TorchConfig.cmake")
  if(EXISTS "${config}")
    file(READ "${config}" text)
    if(text MATCHES "_GLIBCXX_USE_CXX11_ABI=([01])")
      target_compile_definitions(spikeforge::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${CMAKE_MATCH_1})
    endif()
  endif()
endfunction()

set(SPIKEFORGE_TORCH_ROOT "")
spikeforge_torch_candidates(candidates)
foreach(candidate IN LISTS candidates)
  spikeforge_read_torch_version("${candidate}" SPIKEFORGE_TORCH_VERSION)
  if(SPIKEFORGE_TORCH_VERSION)
    set(SPIKEFORGE_TORCH_ROOT "${candidate}")
    break()
  endif()
endforeach()
if(NOT SPIKEFORGE_TORCH_ROOT)
  message(FATAL_ERROR "No torch found. Run scripts/setup, or give -DSPIKEFORGE_PYTHON=<a python that has torch> or "
                      "-DSPIKEFORGE_TORCH_DIR=<an unpacked LibTorch zip>.")
endif()
if(SPIKEFORGE_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "torch ${SPIKEFORGE_TORCH_VERSION} in ${SPIKEFORGE_TORCH_ROOT} is too old: spikeforge needs 2.11 or later.")
endif()

set(SPIKEFORGE_TORCH_OPENMP OFF)
file(STRINGS "${SPIKEFORGE_TORCH_ROOT}/include/ATen/Config.h" openmp REGEX "define AT_PARALLEL_OPENMP 1")
if(openmp)
  set(SPIKEFORGE_TORCH_OPENMP ON)
endif()

set(SPIKEFORGE_WITH_CUDA OFF)
set(cuda_headers "")
if(EXISTS "${SPIKEFORGE_TORCH_ROOT}/lib/${CMAKE_SHARED_LIBRARY_PREFIX}c10_cuda${CMAKE_SHARED_LIBRARY_SUFFIX}")
  spikeforge_find_cuda_headers("${SPIKEFORGE_TORCH_ROOT}" cuda_headers)
  if(cuda_headers)
    set(SPIKEFORGE_WITH_CUDA ON)
  else()
    message(WARNING "This torch has CUDA, but cuda_runtime_api.h is neither beside it nor in a CUDA toolkit: going on "
                    "for the CPU only. `pip install nvidia-cuda-runtime` brings the header.")
  endif()
endif()
if(NOT TARGET spikeforge::torch)
  spikeforge_add_torch_target("${SPIKEFORGE_TORCH_ROOT}" "${cuda_headers}")
  message(STATUS "torch ${SPIKEFORGE_TORCH_VERSION} in ${SPIKEFORGE_TORCH_ROOT} (CUDA: ${SPIKEFORGE_WITH_CUDA})")
endif()
