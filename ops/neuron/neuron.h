// Spiking neurons over a sequence of steps: the C++ face of torch.ops.spikeforge.*.
//
// x is [T, *shape], time first; float16, bfloat16, float32 or float64; on a CPU or a CUDA device. Spikes have x's
// shape, type and layout. States are [*shape], float32 for half types, else x's type; a call returns the last ones, or
// with `store_v` their sequences [T, *shape]. A parameter is a number or a tensor that broadcasts against shape, and is
// differentiable. An initial state that is not given is v_reset (0 under soft reset), and w_rest.
//
// Equations: Fang et al., Science Advances 9, eadi1480 (2023); csrc/neuron/<neuron>.h has each with its derivative. A
// neuron fires where H >= v_threshold. v_reset = std::nullopt is soft reset.
//
// Errors are c10::TypeError and c10::ValueError and name operator and argument.
#pragma once

#include <spikeforge/export.h>

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

namespace spikeforge {

// A neuron's parameter: a number, or a tensor with its own gradient.
class Param {
 public:
  Param(double number) : value_(number) {}                 // NOLINT(google-explicit-constructor)
  Param(at::Tensor tensor) : value_(std::move(tensor)) {}  // NOLINT(google-explicit-constructor)

  bool is_tensor() const { return std::holds_alternative<at::Tensor>(value_); }
  double number() const { return std::get<double>(value_); }
  const at::Tensor& tensor() const { return std::get<at::Tensor>(value_); }

 private:
  std::variant<double, at::Tensor> value_;
};

using MaybeTensor = std::optional<at::Tensor>;

// H = V + X
struct IfOptions {
  Param v_threshold = 1.0;
  std::optional<Param> v_reset = 0.0;
  bool detach_reset = false;
  std::string surrogate = "sigmoid";
  std::vector<double> surrogate_args = {};
  bool spiking = true;
  bool store_v = false;
};
SPIKEFORGE_API std::tuple<at::Tensor, at::Tensor> integrate_and_fire(const at::Tensor& x, const MaybeTensor& v = {},
                                                                     const IfOptions& options = {});

// decay_input: H = V + (X - (V - Vr)) / tau; else H = V - (V - Vr) / tau + X; Vr is v_reset, or 0 under soft reset.
struct LifOptions {
  Param tau = 2.0;
  bool decay_input = true;
  Param v_threshold = 1.0;
  std::optional<Param> v_reset = 0.0;
  bool detach_reset = false;
  std::string surrogate = "sigmoid";
  std::vector<double> surrogate_args = {};
  bool spiking = true;
  bool store_v = false;
};
SPIKEFORGE_API std::tuple<at::Tensor, at::Tensor> lif(const at::Tensor& x, const MaybeTensor& v = {},
                                                      const LifOptions& options = {});

// As LIF, with 1/tau = sigmoid(w).
struct PlifOptions {
  bool decay_input = true;
  Param v_threshold = 1.0;
  std::optional<Param> v_reset = 0.0;
  bool detach_reset = false;
  std::string surrogate = "sigmoid";
  std::vector<double> surrogate_args = {};
  bool spiking = true;
  bool store_v = false;
};
SPIKEFORGE_API std::tuple<at::Tensor, at::Tensor> plif(const at::Tensor& x, const at::Tensor& w,
                                                       const MaybeTensor& v = {}, const PlifOptions& options = {});

// H = V + (X + a0 (V - v_rest)(V - v_c)) / tau
struct QifOptions {
  Param tau = 2.0;
  Param v_c = 0.8;
  Param a0 = 1.0;
  Param v_threshold = 1.0;
  Param v_rest = 0.0;
  std::optional<Param> v_reset = -0.1;
  bool detach_reset = false;
  std::string surrogate = "sigmoid";
  std::vector<double> surrogate_args = {};
  bool spiking = true;
  bool store_v = false;
};
SPIKEFORGE_API std::tuple<at::Tensor, at::Tensor> qif(const at::Tensor& x, const MaybeTensor& v = {},
                                                      const QifOptions& options = {});

// H = V + (X + v_rest - V + delta_t exp((V - theta_rh) / delta_t)) / tau
struct EifOptions {
  Param tau = 2.0;
  Param delta_t = 1.0;
  Param theta_rh = 0.8;
  Param v_threshold = 1.0;
  Param v_rest = 0.0;
  std::optional<Param> v_reset = -0.1;
  bool detach_reset = false;
  std::string surrogate = "sigmoid";
  std::vector<double> surrogate_args = {};
  bool spiking = true;
  bool store_v = false;
};
SPIKEFORGE_API std::tuple<at::Tensor, at::Tensor> eif(const at::Tensor& x, const MaybeTensor& v = {},
                                                      const EifOptions& options = {});

// H = V + (X + a0 (V - v_rest)(V - v_c) - W) / tau; Z = W + (a (H - v_rest) - W) / tau_w; W = Z + b S. Returns (spikes,
// v, w).
struct IzhikevichOptions {
  Param tau = 2.0;
  Param v_c = 0.8;
  Param a0 = 1.0;
  Param v_threshold = 1.0;
  Param v_rest = -0.1;
  Param w_rest = 0.0;
  std::optional<Param> v_reset = 0.0;
  Param tau_w = 2.0;
  Param a = 0.0;
  Param b = 0.0;
  bool detach_reset = false;
  std::string surrogate = "sigmoid";
  std::vector<double> surrogate_args = {};
  bool spiking = true;
  bool store_v = false;
};
SPIKEFORGE_API std::tuple<at::Tensor, at::Tensor, at::Tensor> izhikevich(const at::Tensor& x, const MaybeTensor& v = {},
                                                                         const MaybeTensor& w = {},
                                                                         const IzhikevichOptions& options = {});

}  // namespace spikeforge
