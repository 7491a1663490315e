# pip runs CMake (scikit-build-core): the torch to build against is that of the Python that pip installs into, and no
# other. In the environment of its own that pip makes, unless it is told not to, that Python has no torch, and the torch
# of another Python would give a library that does not load.

if(NOT SPIKEFORGE_TORCH_DIR)
  set(SPIKEFORGE_PYTHON "${Python_EXECUTABLE}" CACHE FILEPATH "The Python that pip installs into" FORCE)
  execute_process(COMMAND "${SPIKEFORGE_PYTHON}" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
                  RESULT_VARIABLE no_torch ERROR_QUIET)
  if(no_torch)
    message(FATAL_ERROR
            "spikeforge is built against the torch that is installed, and pip's own build environment has none. Type:\n"
            "  pip install 'torch>=2.11' scikit-build-core\n"
            "  pip install --no-build-isolation .\n")
  endif()
endif()
