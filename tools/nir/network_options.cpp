#include "tools/nir/network_options.h"

#include "csrc/nir/error.h"
#include "csrc/nir/network/option_words.h"
#include "csrc/nir/read.h"

#include <torch/csrc/jit/api/module.h>

#include <map>

namespace spikeforge::nir {
namespace {

template <class T, class E, std::size_t N>
void add_choice(CLI::App& command, const std::string& name, T& value, const std::string& help,
                const Word<E> (&words)[N]) {
  std::map<std::string, E> choices;
  for (const Word<E>& word : words) choices.emplace(word.text, word.value);
  command
      .add_option_function<std::string>(
          name, [&value, choices](const std::string& text) { value = choices.at(text); }, help)
      ->check(CLI::IsMember(choices).description(""));
}

constexpr Word<c10::ScalarType> dtypes[] = {{"float32", c10::kFloat}, {"float64", c10::kDouble}};

}  // namespace

void add_network_options(CLI::App& command, NetworkOptions& options) {
  ModuleOptions& module = options.module;
  command.add_option("--dt", module.dt, "Seconds of a time step")->required();
  add_choice(
      command, "--reset", module.reset,
      "Reset after a spike: file (to v_reset, the default), zero, subtract (v - v_threshold), "
      "subtract-delayed (the same a step later), subtract-twice (both, and the part subtracted twice is added back)",
      resets);
  add_choice(command, "--if-scaling", module.if_scaling,
             "The term that IF adds in a step: ode (dt r x), or per-step (r x)", if_scalings);
  add_choice(command, "--comparison", module.comparison, "Fire if v is gt (above) or ge (at or above) the threshold",
             comparisons);
  add_choice(command, "--cuba-current", module.cuba_current,
             "The current that charges a membrane: new (with this step's input), or old", cuba_currents);
  add_choice(command, "--recurrent-start", module.recurrent_start,
             "The value of back edges in the first step: zero, or apply (layers applied to zeros)", recurrent_starts);
  add_choice(command, "--delays", module.delays,
             "Delays that are not a whole number of steps: exact (an error), or nearest", delay_roundings);
  command
      .add_option_function<std::string>(
          "--device",
          [&module](const std::string& text) {
            try {
              module.device = c10::Device(text);
            } catch (const c10::Error&) {
              throw CLI::ValidationError("--device", text + " is not a device; expected cpu, cuda or cuda:1");
            }
          },
          "Device: cpu (the default), cuda, cuda:1, ...")
      ->type_name("TEXT");
  command.add_flag("--fold-time", module.fold_time,
                   "Call layers outside cycles once for all steps: faster, and the same within rounding");
  add_choice(command, "--dtype", module.dtype, "float32 (the default), or float64", dtypes);
  add_shape_rule(command, options);
  add_limits(command, options);
}

Graph NetworkOptions::read_graph() const { return read(file, limits); }

template <class Function> auto NetworkOptions::made_of(Function function) const {
  ModuleOptions with_shapes = module;
  with_shapes.shapes = shapes;
  try {
    return function(with_shapes);
  } catch (const Error& error) {
    throw error.in_file(file);
  }
}

nn::Composite NetworkOptions::network(const Graph& graph) const {
  return made_of([&](const ModuleOptions& options) { return to_module(graph, options); });
}

torch::jit::Module NetworkOptions::torchscript(const Graph& graph) const {
  return made_of([&](const ModuleOptions& options) { return to_torchscript(graph, options); });
}

}  // namespace spikeforge::nir
