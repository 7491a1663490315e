# What the Python package holds of this build: spikeforge/lib/libspikeforge-torch2.11.so, a file that is named after the
# torch it belongs to. python/spikeforge/_library.py chooses by that name. A library for a torch without CUDA is called
# libspikeforge-torch2.11-cpu.so.

string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${SPIKEFORGE_TORCH_VERSION}")
set(name "spikeforge-torch${minor}")
if(NOT SPIKEFORGE_WITH_CUDA)
  string(APPEND name "-cpu")
endif()

# A wheel has no links, hence no version in the file's name. The soname is that of every build: what was linked against
# libspikeforge.so takes the library that Python has loaded, and does not register the operators once more.
#
# Where HDF5's headers are, libspikeforge_nir_nn-torch2.11.so lies beside it, which spikeforge.nir loads.
add_custom_target(spikeforge_package ALL)
foreach(target spikeforge spikeforge_nir_nn)
  if(NOT TARGET ${target})
    continue()
  endif()
  string(REPLACE "spikeforge" "${target}" output "${name}")
  set_property(TARGET ${target} PROPERTY VERSION)
  set_property(TARGET ${target} PROPERTY SOVERSION)
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME "${output}" NO_SONAME ON BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "")
  target_link_options(${target} PRIVATE LINKER:-soname,lib${target}.so.${SPIKEFORGE_SOVERSION})
  install(TARGETS ${target} LIBRARY DESTINATION spikeforge/lib)
  add_dependencies(spikeforge_package ${target})
endforeach()
