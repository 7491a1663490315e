# Whether this torch has torch.distributed, whose process groups networks are shared over.
#
# Result: SPIKEFORGE_WITH_DISTRIBUTED.

include(CheckCXXSourceCompiles)

block()
  set(CMAKE_CXX_STANDARD 20)
  set(CMAKE_REQUIRED_LIBRARIES spikeforge::torch)
  set(CMAKE_REQUIRED_QUIET ON)
  check_cxx_source_compiles("
    #include <string>
    #include <c10/util/intrusive_ptr.h>
    namespace c10d { class ProcessGroup; void unregister_process_group(const std::string& name); }
    int main() { c10d::unregister_process_group(\"\"); }
    " SPIKEFORGE_WITH_DISTRIBUTED)
endblock()
message(STATUS "torch.distributed: ${SPIKEFORGE_WITH_DISTRIBUTED}")
