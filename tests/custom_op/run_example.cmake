# Installs the build, then configures, builds and runs examples/custom_op against what was installed, as its users do:
#   cmake -DBUILD=<build folder> -DSOURCE=<the example> -DWORK=<scratch folder> -DCXX=<compiler> -DTORCH=<torch's folder>
#         -DPYTHON=<a Python with torch, or empty> -P run_example.cmake

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${WORK}")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/prefix")
run("${CMAKE_COMMAND}" -G Ninja -S "${SOURCE}" -B "${WORK}/build"
    "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}"
    "-DCMAKE_PREFIX_PATH=${WORK}/prefix" "-DSPIKEFORGE_TORCH_DIR=${TORCH}")
run("${CMAKE_COMMAND}" --build "${WORK}/build")
run("${WORK}/build/use_mine")
if(PYTHON)
  run("${PYTHON}" "${SOURCE}/use.py" --library "${WORK}/build/libmine.so" --size 2000 --repetitions 1)
endif()
