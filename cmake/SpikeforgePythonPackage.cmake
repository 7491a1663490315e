# What the Python package holds of this build: spikeforge/lib/libspikeforge-torch2.11.so, one file that is named after the
# torch it belongs to. python/spikeforge/_library.py chooses by that name. A library for a torch without CUDA is called
# libspikeforge-torch2.11-cpu.so.

string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${SPIKEFORGE_TORCH_VERSION}")
set(name "spikeforge-torch${minor}")
if(NOT SPIKEFORGE_WITH_CUDA)
  string(APPEND name "-cpu")
endif()

# A wheel has no links, hence no version in the file's name. The soname is that of every build: what was linked against
# libspikeforge.so takes the library that Python has loaded, and does not register the operators once more.
set_property(TARGET spikeforge PROPERTY VERSION)
set_property(TARGET spikeforge PROPERTY SOVERSION)
set_target_properties(spikeforge PROPERTIES
  OUTPUT_NAME "${name}" NO_SONAME ON BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "")
target_link_options(spikeforge PRIVATE LINKER:-soname,libspikeforge.so.${SPIKEFORGE_SOVERSION})
install(TARGETS spikeforge LIBRARY DESTINATION spikeforge/lib)
