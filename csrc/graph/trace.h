// Traces a C++ lambda to a cell.
//
//   Cell alif = trace("alif", {"x"}, {"v", "a"}, {"tau"}, [](Value x, Value v, Value a, Value tau) {
//     Value decay = 1 / tau;
//     Value h = v + (x - v) * decay;
//     Value s = spike(h - (1 + a), surrogate::atan(2));
//     return step({s}, {select(s, 0, h), 0.9 * a + s});  // outputs, next states
//   });
//
// The lambda is called once, with a Value for each input, state and parameter, in this order. C++ numbers that it
// captures become constants. A state {"a", 0.5} starts at 0.5 if no initial state is given.
#pragma once

#include "csrc/graph/cell.h"
#include "csrc/graph/value.h"

#include <array>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace spikeforge::graph {

struct Step {
  std::vector<Value> outputs, next_states;
};

// The return value of the lambda.
inline Step step(std::vector<Value> outputs, std::vector<Value> next_states) {
  return {std::move(outputs), std::move(next_states)};
}

using Values = std::span<const Value>;

// Traces a function whose number of arguments is known only at run time. Throws GraphError.
SPIKEFORGE_API Cell trace(Signature signature,
                          const std::function<Step(Values inputs, Values states, Values params)>& body);

namespace detail {

constexpr int most_lambda_arguments = 48;

template <int> using OneValue = Value;

template <class Lambda, int... i> constexpr bool takes(std::integer_sequence<int, i...>) {
  return std::is_invocable_v<Lambda&, OneValue<i>...>;
}

// Returns the number of Values that the lambda accepts; -1 if it accepts no number of Values.
template <class Lambda, int count = 0> constexpr int arity() {
  if constexpr (takes<Lambda>(std::make_integer_sequence<int, count>{}))
    return count;
  else if constexpr (count < most_lambda_arguments)
    return arity<Lambda, count + 1>();
  else
    return -1;
}

[[noreturn]] SPIKEFORGE_API void throw_wrong_arity(const Signature& signature, int arity);

template <class Lambda, int... i>
Step call_lambda(Lambda& lambda, const std::vector<Value>& values, std::integer_sequence<int, i...>) {
  static_assert(std::is_same_v<std::invoke_result_t<Lambda&, OneValue<i>...>, Step>,
                "the lambda of a trace returns step({outputs...}, {next states...})");
  return lambda(values[i]...);
}

template <class Lambda> Cell trace(Signature signature, Lambda& lambda) {
  constexpr int count = arity<Lambda>();
  if constexpr (count >= 0) {
    const std::size_t named = signature.inputs.size() + signature.states.size() + signature.params.size();
    if (named != count) throw_wrong_arity(signature, count);
    return graph::trace(std::move(signature), [&](Values inputs, Values states, Values params) {
      std::vector<Value> values(inputs.begin(), inputs.end());
      values.insert(values.end(), states.begin(), states.end());
      values.insert(values.end(), params.begin(), params.end());
      return call_lambda(lambda, values, std::make_integer_sequence<int, count>{});
    });
  } else {
    static_assert(std::is_invocable_r_v<Step, Lambda&, Values, Values, Values>,
                  "the lambda of a trace takes one Value for each input, state and parameter, by value, or "
                  "(Values inputs, Values states, Values params), and returns step({outputs...}, {next states...})");
    return graph::trace(std::move(signature), std::function<Step(Values, Values, Values)>(std::ref(lambda)));
  }
}

// Returns the names x0, x1, ...
SPIKEFORGE_API std::vector<std::string> numbered(const char* letter, std::size_t count);

}  // namespace detail

// Throws GraphError for illegal names, a lambda with a different number of arguments, and a step without outputs or
// with a different number of next states. Errors of operations in the lambda are passed on.
template <class Lambda>
Cell trace(std::string name, std::vector<std::string> inputs, std::vector<State> states,
           std::vector<std::string> params, Lambda lambda) {
  return detail::trace({std::move(name), std::move(inputs), std::move(states), std::move(params)}, lambda);
}

// The arguments are named x0, x1, ..., v0, ..., p0, ...
template <class Lambda>
Cell trace(std::string name, std::size_t inputs, std::size_t states, std::size_t params, Lambda lambda) {
  const std::vector<std::string> state_names = detail::numbered("v", states);
  return detail::trace({std::move(name),
                        detail::numbered("x", inputs),
                        {state_names.begin(), state_names.end()},
                        detail::numbered("p", params)},
                       lambda);
}

}  // namespace spikeforge::graph
