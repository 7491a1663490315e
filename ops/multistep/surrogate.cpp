#include "csrc/graph/surrogate.h"
#include "csrc/graph/errors.h"
#include "ops/multistep/surrogate.h"

#include <c10/util/Exception.h>

namespace spikeforge::ops {

Surrogate parse_surrogate(const char* op, std::string_view name, c10::ArrayRef<double> args) {
  try {
    const graph::Surrogate made = graph::make_surrogate(name, {args.data(), args.size()});
    TORCH_CHECK_VALUE(made.kind.has_value(), op, ": surrogate none is for custom neurons");
    return {*made.kind, made.args};
  } catch (const graph::GraphError& error) {
    TORCH_CHECK_VALUE(false, op, ": ", error.what(), " (arguments surrogate and surrogate_args)");
  }
}

std::string_view name_of(SurrogateKind kind) { return graph::describe(kind).name; }

c10::ArrayRef<double> arguments_of(const MultistepCall& call) {
  return {call.surrogate_args.data(), graph::describe(call.form.surrogate).args.size()};
}

}  // namespace spikeforge::ops
