// Shared by the tests of modules: an instance of every neuron, and three ways to run a sequence.
#pragma once

#include "csrc/nn/encoders.h"
#include "csrc/nn/neuron.h"
#include "csrc/nn/neurons.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace spikeforge::test {

using at::Tensor;
using nn::Stateful;
using nn::Tensors;

constexpr int width = 6;  // the number of neurons

inline const char* adaptive = R"(
neuron alif(x; v, a = 0.25; tau, beta) {
  h = v + (x - v) / tau
  s = spike(h - (1 + beta * a), atan(2))
  return s
  v' = select(s, 0, h)
  a' = 0.9 * a + s
})";

struct Made {
  std::string name;
  std::function<std::shared_ptr<Stateful>(bool persistent)> make;
};

// Every neuron. All three kinds of constants occur.
inline std::vector<Made> all_neurons() {
  using namespace nn;
  const Tensor taus = at::full({width}, 2.0) + at::arange(width) * .1;
  return {
      {"IF", [](bool p) { return IF(IFOptions().v_threshold(Learnable(.9)).persistent_state(p)).ptr(); }},
      {"LIF", [](bool p) { return LIF(LIFOptions().tau(2.5).v_reset(std::nullopt).persistent_state(p)).ptr(); }},
      {"LIF of tensors",
       [=](bool p) {
         return LIF(LIFOptions().tau(Learnable(taus)).v_threshold(taus / 2).decay_input(false).persistent_state(p))
             .ptr();
       }},
      {"PLIF", [](bool p) { return PLIF(PLIFOptions().init_tau(3).surrogate("atan").persistent_state(p)).ptr(); }},
      {"QIF", [](bool p) { return QIF(QIFOptions().v_c(Learnable(.7)).detach_reset(true).persistent_state(p)).ptr(); }},
      {"EIF", [=](bool p) { return EIF(EIFOptions().tau(taus).theta_rh(Learnable(.8)).persistent_state(p)).ptr(); }},
      {"Izhikevich",
       [](bool p) {
         return Izhikevich(nn::IzhikevichOptions().a(.2).b(Learnable(.1)).w_rest(.05).persistent_state(p)).ptr();
       }},
      {"CubaLIF",
       [=](bool p) { return CubaLIF(CubaLIFOptions().tau_synapse(Learnable(taus)).persistent_state(p)).ptr(); }},
      {"LI", [](bool p) { return LI(LIOptions().tau(Learnable(3.0)).v_rest(.1).persistent_state(p)).ptr(); }},
      {"Neuron",
       [=](bool p) {
         return nn::Neuron(NeuronOptions(std::string(adaptive))
                               .param("tau", Learnable(taus))
                               .param("beta", .3)
                               .persistent_state(p))
             .ptr();
       }},
      {"strict IF", [](bool p) { return IF(IFOptions().strict(true).persistent_state(p)).ptr(); }},
      {"strict LIF",
       [=](bool p) {
         return LIF(LIFOptions().tau(Learnable(taus)).v_reset(.1).strict(true).persistent_state(p)).ptr();
       }},
      {"strict PLIF", [](bool p) { return PLIF(PLIFOptions().strict(true).persistent_state(p)).ptr(); }},
      {"strict QIF", [](bool p) { return QIF(QIFOptions().v_reset(-.2).strict(true).persistent_state(p)).ptr(); }},
      {"strict EIF", [](bool p) { return EIF(EIFOptions().strict(true).persistent_state(p)).ptr(); }},
      {"strict Izhikevich",
       [](bool p) {
         return Izhikevich(nn::IzhikevichOptions().a(.2).b(Learnable(.1)).strict(true).persistent_state(p)).ptr();
       }},
  };
}

// Step by step, in one call, and in pieces of random lengths, including 0.
inline Tensor by_steps(Stateful& module, const Tensor& x_seq) {
  Tensors rows;
  for (const Tensor& x : x_seq.unbind(0)) rows.push_back(module.step(x));
  return at::stack(rows);
}

inline Tensor in_chunks(Stateful& module, const Tensor& x_seq, std::mt19937& random, bool empty_ones = true) {
  Tensors pieces;
  for (std::int64_t t = 0; t < x_seq.size(0);) {
    const auto length = std::min<std::int64_t>(random() % 5 + (empty_ones ? 0 : 1), x_seq.size(0) - t);
    pieces.push_back(module.forward(x_seq.narrow(0, t, length)));
    t += length;
  }
  return at::cat(pieces);
}

inline std::shared_ptr<Stateful> clone_of(const Stateful& module) {
  return std::dynamic_pointer_cast<Stateful>(module.clone());
}

template <class Call> std::string message_of(const Call& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

}  // namespace spikeforge::test
