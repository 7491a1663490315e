// The order of a traced graph's nodes.
#pragma once

#include "csrc/graph/graph.h"

namespace spikeforge::graph {

// The same function, its nodes in the order in which the results need them, operands from the left, and without those
// that no result needs. C++ leaves open which operand of a + b is evaluated first; a text, and whatever is kept under
// it, must not depend on the compiler's choice. Draws are numbered in this order too.
Graph in_order_of_need(const Graph& graph);

}  // namespace spikeforge::graph
