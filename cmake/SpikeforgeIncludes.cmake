# Headers are included as <spikeforge/...>, in the tree as where they are installed. In the tree that is a folder of
# links, so an edit is seen at once; installed, they are files.

set(SPIKEFORGE_INCLUDE_DIR "${PROJECT_BINARY_DIR}/include")

# Pairs: where a header or folder lies, and its name under spikeforge/.
set(public_headers
    csrc/custom_op       custom_op
    csrc/export.h        export.h
    csrc/graph           graph
    csrc/lava            lava
    csrc/neuron          neuron
    csrc/nn              nn
    csrc/torchscript     torchscript
    cuda                 cuda
    ops/event/event.h    ops/event.h
    ops/lava/lava.h      ops/lava.h
    ops/neuron/neuron.h  ops/neuron.h
    ops/pack/kernel_pack.h ops/kernel_pack.h
    ops/traced/traced.h  ops/traced.h)
set(internal_headers
    csrc/autodiff        autodiff
    csrc/codegen         codegen
    csrc/cpu             cpu
    csrc/event           event
    csrc/nir             nir
    ops/event            ops/event
    ops/lava             ops/lava
    ops/neuron           ops/neuron
    ops/traced           ops/traced
    csrc/runtime         runtime)

function(spikeforge_link_headers)
  file(MAKE_DIRECTORY "${SPIKEFORGE_INCLUDE_DIR}/spikeforge/ops")
  set(pairs ${public_headers} ${internal_headers})
  while(pairs)
    list(POP_FRONT pairs source name)
    file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${source}" "${SPIKEFORGE_INCLUDE_DIR}/spikeforge/${name}" SYMBOLIC)
  endwhile()
endfunction()

function(spikeforge_install_headers)
  set(pairs ${public_headers})
  while(pairs)
    list(POP_FRONT pairs source name)
    cmake_path(SET destination NORMALIZE "${CMAKE_INSTALL_INCLUDEDIR}/spikeforge/${name}")
    if(IS_DIRECTORY "${PROJECT_SOURCE_DIR}/${source}")
      install(DIRECTORY "${source}/" DESTINATION "${destination}"
              FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh" PATTERN "*.def" PATTERN "internal" EXCLUDE)
    else()
      cmake_path(GET destination PARENT_PATH folder)
      install(FILES "${source}" DESTINATION "${folder}")
    endif()
  endwhile()
endfunction()

spikeforge_link_headers()
