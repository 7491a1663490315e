// The operators' public contract. All but online_linear and trace_of_input are beneath it.
#include "ops/common/library.h"
#include "ops/online/eligibility.h"

namespace spikeforge::ops::online {
namespace {

SPIKEFORGE_SCHEMAS(library) {
  library.def(
      "online_linear(str neuron, Tensor x, Tensor weight, Tensor? bias, Tensor[] states, Tensor[] params, "
      "Tensor[] traces, *, str rule=\"eprop\", int into=0, Tensor[]? inputs=None, int[]? learned=None) -> "
      "(Tensor[] outputs, Tensor[] states, Tensor[] traces)");
  library.def(
      "local_jacobian(str neuron, Tensor[] inputs, Tensor[] states, Tensor[] params, int into, int[] of_params) -> "
      "(Tensor[] transitions, Tensor[] drives, Tensor[] param_drives)");
  library.def("with_eligibility(Tensor state, Tensor leaf, Tensor trace, bool outer=False) -> Tensor");
  library.def("eligibility_gradient(Tensor grad, Tensor trace) -> Tensor");
  library.def(
      "advance_eligibility(Tensor[] traces, Tensor[] transitions, Tensor[] drives, Tensor? x=None) -> Tensor[]");
  library.def("trace_of_input(str neuron, int into=0) -> str");
}

}  // namespace
}  // namespace spikeforge::ops::online
