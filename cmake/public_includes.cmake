# spikeforge_public_includes(<text> <out>): the text of a header of this repository as programs that use the library read it.
# "csrc/graph/graph.h" becomes <spikeforge/graph/graph.h>, and "cuda/half.cuh" <spikeforge/cuda/half.cuh>.
function(spikeforge_public_includes text out)
  string(REGEX REPLACE "(#include )\"csrc/([^\"\n]+)\"" "\\1<spikeforge/\\2>" text "${text}")
  string(REGEX REPLACE "(#include )\"(ops|cuda)/([^\"\n]+)\"" "\\1<spikeforge/\\2/\\3>" text "${text}")
  set(${out} "${text}" PARENT_SCOPE)
endfunction()
