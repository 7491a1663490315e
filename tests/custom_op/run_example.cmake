# Configures, builds and runs examples/custom_op against the installed package, as its users do:
#   cmake -DPREFIX=<where it is installed> -DSOURCE=<the example> -DWORK=<scratch folder> -DCXX=<compiler> -DTORCH=<torch's folder>
#         -DPYTHON=<a Python with torch, or empty> -P run_example.cmake

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${WORK}")
run("${CMAKE_COMMAND}" -G Ninja -S "${SOURCE}" -B "${WORK}/build"
    "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}"
    "-DCMAKE_PREFIX_PATH=${PREFIX}" "-DSPIKEFORGE_TORCH_DIR=${TORCH}")
run("${CMAKE_COMMAND}" --build "${WORK}/build")
run("${WORK}/build/use_mine")
if(PYTHON)
  run("${PYTHON}" "${SOURCE}/use.py" --library "${WORK}/build/libmine.so" --size 2000 --repetitions 1)
endif()
