// The table of neurons.def as an enumeration and as rows. Only host code includes it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <utility>

namespace spikeforge {

enum class NeuronKind : std::uint8_t {
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params) name,
#include "csrc/neuron/neurons.def"
};

// The values that a parameter may have. NaN is legal only for unchecked parameters. Positive values are finite, and so
// are their reciprocals.
enum class Legal : std::uint8_t { unchecked, any, positive, fraction, between };

// A parameter, or the option decay_input, which divides X by tau. v_reset may be absent: soft reset.
struct NeuronParam {
  enum Role : std::uint8_t { number, v_reset, decay_input };

  const char* name;
  double default_value;
  Legal legal;
  Role role;
};

struct NeuronRow {
  const char *name, *type, *header;            // of the operator, of the struct, and of the header with the struct
  std::initializer_list<const char*> tensors;  // positional and required, such as plif's w
  std::initializer_list<const char*> states;
  std::initializer_list<NeuronParam> params;
};

inline constexpr NeuronRow neuron_rows[] = {
#define SPIKEFORGE_NAME(name) #name,
#define SPIKEFORGE_PARAM(name, default_value, legal) {#name, default_value, Legal::legal, NeuronParam::number},
#define SPIKEFORGE_V_RESET(default_value) {"v_reset", default_value, Legal::any, NeuronParam::v_reset},
#define SPIKEFORGE_DECAY_INPUT() {"decay_input", 1., Legal::unchecked, NeuronParam::decay_input},
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params)                                              \
  {#name,   #Struct, header, {SPIKEFORGE_EACH(SPIKEFORGE_NAME, tensors)}, {SPIKEFORGE_EACH(SPIKEFORGE_NAME, states)}, \
   {params}},
#include "csrc/neuron/neurons.def"
#undef SPIKEFORGE_NAME
};

inline constexpr auto all_neurons = [] {
  std::array<NeuronKind, std::size(neuron_rows)> kinds{};
  for (std::size_t i = 0; i < kinds.size(); ++i) kinds[i] = static_cast<NeuronKind>(i);
  return kinds;
}();

constexpr const NeuronRow& neuron_row(NeuronKind kind) { return neuron_rows[static_cast<std::size_t>(kind)]; }

constexpr std::size_t state_count(NeuronKind kind) { return neuron_row(kind).states.size(); }
constexpr std::size_t tensor_count(NeuronKind kind) { return neuron_row(kind).tensors.size(); }
constexpr bool has_decay_input(NeuronKind kind) {
  for (const NeuronParam& param : neuron_row(kind).params)
    if (param.role == NeuronParam::decay_input) return true;
  return false;
}

// Calls f.operator()<kind>() for each neuron, in the order of the table.
template <class F> void for_each_neuron(F&& f) {
  [&]<std::size_t... kind>(std::index_sequence<kind...>) {
    (f.template operator()<static_cast<NeuronKind>(kind)>(), ...);
  }
  (std::make_index_sequence<std::size(neuron_rows)>{});
}

// Calls f.operator()<kind>(), whose result has the same type for all neurons.
template <std::size_t first = 0, class F> auto with_kind(NeuronKind kind, F&& f) {
  if constexpr (first + 1 < std::size(neuron_rows))
    if (kind != static_cast<NeuronKind>(first)) return with_kind<first + 1>(kind, std::forward<F>(f));
  return f.template operator()<static_cast<NeuronKind>(first)>();
}

}  // namespace spikeforge
