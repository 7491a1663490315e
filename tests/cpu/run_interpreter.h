// Runs a cell with the loop of an instruction set.
#pragma once

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/multistep/traced_program.h"

#include "tests/catch.h"
#include "tests/graph/random_graph.h"

#include <cstdlib>
#include <memory>

namespace spikeforge::test {

using cpu::TracedProgram;

// Rows of [T, N] numbers, or [N].
template <class F> using Rows = std::vector<std::vector<F>>;

inline constexpr std::int64_t steps = 5, neurons = 77, checkpoint_length = 2;

template <class F> struct Numbers { Rows<F> inputs, states, params, grad_outputs, grad_states; };

template <class F> struct Outcome { Rows<F> outputs, states, grad_inputs, grad_initial, grad_params; };

template <class F> Rows<F> rows(std::size_t count, std::int64_t length) {
  return Rows<F>(count, std::vector<F>(static_cast<std::size_t>(length)));
}

template <class F> Rows<F> random_rows(Dice& dice, std::size_t count, std::int64_t length) {
  Rows<F> all = rows<F>(count, length);
  for (std::vector<F>& row : all)
    for (F& x : row) x = static_cast<F>(dice.uniform(-2, 2));
  return all;
}

template <class F> Numbers<F> random_numbers(const graph::Cell& cell, std::uint64_t seed) {
  Dice dice(seed);
  return {random_rows<F>(dice, cell.input_count(), steps * neurons), random_rows<F>(dice, cell.state_count(), neurons),
          random_rows<F>(dice, cell.param_count(), neurons), random_rows<F>(dice, cell.output_count(), steps * neurons),
          random_rows<F>(dice, cell.state_count(), neurons)};
}

template <class F> Outcome<F> empty_outcome(const graph::Cell& cell) {
  return {rows<F>(cell.output_count(), steps * neurons), rows<F>(cell.state_count(), neurons),
          rows<F>(cell.input_count(), steps * neurons), rows<F>(cell.state_count(), neurons),
          rows<F>(cell.param_count(), neurons)};
}

template <class F> std::vector<void*> pointers(Rows<F>& all) {
  std::vector<void*> list;
  for (std::vector<F>& row : all) list.push_back(row.data());
  return list;
}

using Scratch = std::unique_ptr<void, decltype(&std::free)>;
inline Scratch scratch(std::size_t bytes) { return {std::aligned_alloc(64, (bytes + 64) / 64 * 64), &std::free}; }

// In tiles of `tile` neurons.
template <class F>
Outcome<F> run_interpreter(cpu::Loop (*loop_of)(DType), const TracedCell& traced, Numbers<F> at, std::int64_t tile,
                           const cpu::TapeFunctions& functions = {}) {
  const DType type = sizeof(F) == 8 ? DType::f64 : DType::f32;
  const cpu::Loop loop = loop_of(type);
  const TracedProgram program(traced);
  const cpu::LoopContext context{&program, functions};
  Outcome<F> outcome = empty_outcome<F>(traced.graph);
  std::vector<SequenceView> inputs, grad_outputs, grad_states;
  std::vector<StateView> initial;
  std::vector<ParamView> params;
  for (auto& row : at.inputs) inputs.push_back({row.data(), neurons, 1});
  for (auto& row : at.grad_outputs) grad_outputs.push_back({row.data(), neurons, 1});
  for (auto& row : at.grad_states) grad_states.push_back({row.data(), 0, 1});
  for (auto& row : at.states) initial.push_back({row.data(), type});
  for (auto& row : at.params) params.push_back({.data = row.data(), .type = type, .inner = 1, .count = neurons});
  const auto describe = [&](Launch& launch) {
    launch.cell = &traced;
    launch.type = type;
    launch.steps = steps;
    launch.neurons = neurons;
    launch.checkpoint_length = checkpoint_length;
    launch.inputs = inputs;
    launch.initial = initial;
    launch.params = params;
  };
  std::vector<F> checkpoints((steps - 1) / checkpoint_length * traced.graph.state_count() * neurons);

  ForwardLaunch forward;
  describe(forward);
  const std::vector<void*> outputs = pointers(outcome.outputs), states = pointers(outcome.states);
  forward.outputs = outputs;
  forward.states = states;
  forward.checkpoints = checkpoints.data();
  const Scratch memory = scratch(loop.forward_scratch(forward, context, tile));
  for (std::int64_t begin = 0; begin < neurons; begin += tile)
    loop.forward(forward, context, begin, std::min(begin + tile, neurons), memory.get());

  BackwardLaunch backward;
  describe(backward);
  const std::vector<void*> grad_inputs = pointers(outcome.grad_inputs), grad_initial = pointers(outcome.grad_initial),
                           grad_params = pointers(outcome.grad_params);
  backward.grad_outputs = grad_outputs;
  backward.grad_states = grad_states;
  backward.checkpoints = checkpoints.data();
  backward.any_grad_input = true;
  backward.any_grad_param = !grad_params.empty();
  backward.grad_inputs = grad_inputs;
  backward.grad_initial = grad_initial;
  backward.grad_params = grad_params;
  const Scratch more = scratch(loop.backward_scratch(backward, context, tile));
  for (std::int64_t begin = 0; begin < neurons; begin += tile)
    loop.backward(backward, context, begin, std::min(begin + tile, neurons), more.get());
  return outcome;
}

}  // namespace spikeforge::test
