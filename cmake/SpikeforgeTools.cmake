# What every target of this project is compiled with: spikeforge_options. Nothing here is global, and nothing reaches a
# project that uses the library.

find_program(SPIKEFORGE_CCACHE ccache)
if(SPIKEFORGE_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${SPIKEFORGE_CCACHE}")
endif()

add_library(spikeforge_options INTERFACE)
target_compile_features(spikeforge_options INTERFACE cxx_std_20)
target_compile_options(spikeforge_options INTERFACE -Wall -Wextra -Wno-unused-parameter)

# The default linker takes several seconds for a program that links torch; these take less than one.
include(CheckLinkerFlag)
foreach(linker mold lld)
  check_linker_flag(CXX -fuse-ld=${linker} SPIKEFORGE_HAS_${linker})
  if(SPIKEFORGE_HAS_${linker})
    target_link_options(spikeforge_options INTERFACE -fuse-ld=${linker})
    break()
  endif()
endforeach()

set(SPIKEFORGE_SANITIZE "" CACHE STRING "Sanitizers for every target of this project, as -fsanitize= takes them")
if(SPIKEFORGE_SANITIZE)
  # Without vptr: it asks for the type information of c10::DynamicType, which torch does not export.
  target_compile_options(spikeforge_options INTERFACE
    "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:SPIKEFORGE_NOT_INSTRUMENTED>>>:-fsanitize=${SPIKEFORGE_SANITIZE}>"
    -fno-sanitize=vptr -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(spikeforge_options INTERFACE -fsanitize=${SPIKEFORGE_SANITIZE})
endif()
