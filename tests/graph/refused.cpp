// No part may compile, and the error message of the compiler must name the correct code: see CMakeLists.txt.
#include "csrc/graph/trace.h"

using spikeforge::graph::step;
using spikeforge::graph::trace;
using spikeforge::graph::Value;

#if defined(REFUSED_nothing)
auto n = trace("n", {"x"}, {}, {}, [](Value x) { return step({where(x > 1, 0, x)}, {}); });
#elif defined(REFUSED_if)
auto n = trace("n", {"x"}, {}, {}, [](Value x) {
  if (x > 1) return step({0}, {});
  return step({x}, {});
});
#elif defined(REFUSED_conditional)
auto n = trace("n", {"x"}, {}, {}, [](Value x) { return step({x > 1 ? 0 : x}, {}); });
#elif defined(REFUSED_tensor)
struct Tensor {
} gain;
auto n = trace("n", {"x"}, {}, {}, [](Value x) { return step({x * gain}, {}); });
#elif defined(REFUSED_returned)
auto n = trace("n", {"x"}, {}, {}, [](Value x) { return x; });
#elif defined(REFUSED_reference)
auto n = trace("n", {"x"}, {}, {}, [](Value& x) { return step({x}, {}); });
#endif
