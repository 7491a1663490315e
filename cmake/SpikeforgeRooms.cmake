# Rooms: folders of headers, included as <spikeforge/<room>/...> in the tree as where they are installed. In the tree each
# room has an include folder of its own that holds one link, so that an edit is seen at once and a target sees the rooms
# that it names and those below them, and no other. docs/architecture.md says what each is for; scripts/check_layers
# reads every include.

set(SPIKEFORGE_INCLUDE_ROOT "${PROJECT_BINARY_DIR}/include")

# spikeforge_link(<include folder> <source> <name under spikeforge/>)
function(spikeforge_link include source name)
  cmake_path(SET link "${include}/spikeforge/${name}")
  cmake_path(GET link PARENT_PATH parent)
  file(MAKE_DIRECTORY "${parent}")
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${source}" "${link}" SYMBOLIC)
endfunction()

# spikeforge_room(<name> <folder> [SEES <rooms>]): ops/neuron becomes the target spikeforge_room_ops_neuron.
function(spikeforge_room name folder)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "SEES")
  string(REPLACE "/" "_" room "${name}")
  spikeforge_link("${SPIKEFORGE_INCLUDE_ROOT}/${room}" "${folder}" "${name}")
  add_library(spikeforge_room_${room} INTERFACE)
  target_include_directories(spikeforge_room_${room} INTERFACE $<BUILD_INTERFACE:${SPIKEFORGE_INCLUDE_ROOT}/${room}>)
  list(TRANSFORM arg_SEES PREPEND spikeforge_room_)
  target_link_libraries(spikeforge_room_${room} INTERFACE ${arg_SEES})
endfunction()

spikeforge_room(base csrc/base)
spikeforge_room(neuron csrc/neuron)
spikeforge_room(graph csrc/graph SEES base neuron)
spikeforge_room(autodiff csrc/autodiff SEES graph)
spikeforge_room(codegen csrc/codegen SEES autodiff)
spikeforge_room(jit csrc/jit SEES base)
spikeforge_room(kernels csrc/kernels SEES codegen jit)
spikeforge_room(cpu csrc/cpu SEES kernels)
spikeforge_room(cuda cuda SEES neuron kernels)
spikeforge_room(ops/common ops/common SEES cpu kernels)
foreach(family neuron traced event layer loihi recurrent online)
  spikeforge_room(ops/${family} ops/${family} SEES ops_common)
endforeach()
spikeforge_room(nn csrc/nn SEES graph)
spikeforge_room(torchscript csrc/torchscript SEES nn)
spikeforge_room(custom_op csrc/custom_op SEES graph)
spikeforge_room(simulation csrc/simulation SEES graph)
spikeforge_room(nir csrc/nir SEES base)

# The operators' C++ headers, one a family, are public: fronts see them, and nothing else of ops/.
set(operator_headers
    ops/event/connect.h    ops/connect.h
    ops/event/event.h      ops/event.h
    ops/layer/layer.h      ops/layer.h
    ops/loihi/loihi.h      ops/loihi.h
    ops/loihi/lava.h       ops/lava.h
    ops/neuron/neuron.h    ops/neuron.h
    ops/online/online.h    ops/online.h
    ops/pack/kernel_pack.h ops/kernel_pack.h
    ops/recurrent/recurrent.h ops/recurrent.h
    ops/traced/traced.h    ops/traced.h)
add_library(spikeforge_room_operators INTERFACE)
target_include_directories(spikeforge_room_operators INTERFACE $<BUILD_INTERFACE:${SPIKEFORGE_INCLUDE_ROOT}/operators>)
target_link_libraries(spikeforge_room_operators INTERFACE spikeforge_room_graph)
function(spikeforge_link_operators)
  set(pairs ${operator_headers})
  while(pairs)
    list(POP_FRONT pairs source name)
    spikeforge_link("${SPIKEFORGE_INCLUDE_ROOT}/operators" ${source} ${name})
  endwhile()
endfunction()
spikeforge_link_operators()
foreach(room ops_common nn custom_op simulation)
  target_link_libraries(spikeforge_room_${room} INTERFACE spikeforge_room_operators)
endforeach()

# What a program that uses the library may include.
add_library(spikeforge_room_public INTERFACE)
target_link_libraries(spikeforge_room_public INTERFACE
  spikeforge_room_custom_op spikeforge_room_nn spikeforge_room_simulation spikeforge_room_torchscript)

# Of these rooms all is installed but internal/.
set(installed_rooms
    csrc/custom_op custom_op
    csrc/graph graph
    csrc/nn nn
    csrc/simulation simulation
    csrc/torchscript torchscript)

function(spikeforge_install_headers)
  set(pairs ${installed_rooms})
  while(pairs)
    list(POP_FRONT pairs source name)
    install(DIRECTORY "${source}/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/spikeforge/${name}"
            FILES_MATCHING PATTERN "*.h" PATTERN "*.def" PATTERN "internal" EXCLUDE)
  endwhile()
  set(pairs
      csrc/base/confinement.h        base/confinement.h
      csrc/base/export.h             base/export.h
      csrc/base/own_process.h        base/own_process.h
      csrc/base/printable.h          base/printable.h
      csrc/base/version.h            base/version.h
      csrc/base/version.h            version.h
      csrc/neuron/loihi.h            neuron/loihi.h
      csrc/neuron/neuron_kind.h      neuron/neuron_kind.h
      csrc/neuron/neurons.def        neuron/neurons.def
      csrc/neuron/portable.h         neuron/portable.h
      csrc/neuron/surrogate.def      neuron/surrogate.def
      csrc/neuron/surrogate_kind.h   neuron/surrogate_kind.h
      cuda/custom_op.cuh             cuda/custom_op.cuh
      cuda/half.cuh                  cuda/half.cuh
      ${operator_headers})
  while(pairs)
    list(POP_FRONT pairs source name)
    cmake_path(GET name PARENT_PATH folder)
    cmake_path(GET name FILENAME file)
    install(FILES "${source}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/spikeforge/${folder}" RENAME "${file}")
  endwhile()
endfunction()
