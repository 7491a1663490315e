#include <spikeforge/ops/recurrent/call.h>

namespace spikeforge::ops::recurrent {

RecurrentResults forward_cuda(const RecurrentCall& call, bool save) { return forward_stepped(call, save); }
Tensors backward_cuda(const RecurrentBackwardCall& call) { return backward_stepped(call); }

}  // namespace spikeforge::ops::recurrent
