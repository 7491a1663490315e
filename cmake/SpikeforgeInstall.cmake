# What `cmake --install` gives: headers, libspikeforge.so, and a package for find_package(spikeforge).

include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/spikeforge")

spikeforge_install_headers()
set(libraries spikeforge)
if(TARGET spikeforge_nir)
  list(APPEND libraries spikeforge_nir spikeforge_nir_nn)
endif()
install(TARGETS ${libraries} EXPORT spikeforge-targets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT spikeforge-targets NAMESPACE spikeforge:: DESTINATION "${package_dir}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/spikeforge-config.cmake.in"
                              "${PROJECT_BINARY_DIR}/cmake/spikeforge-config.cmake"
                              INSTALL_DESTINATION "${package_dir}" NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/cmake/spikeforge-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/cmake/spikeforge-config.cmake"
              "${PROJECT_BINARY_DIR}/cmake/spikeforge-config-version.cmake"
              cmake/SpikeforgeTorch.cmake
        DESTINATION "${package_dir}")
