// Loihi's fixed-point neurons and connections as modules. They equal the operators of ops/loihi.h bit for bit, and have
// their argument names, ranges and defaults:
//
//   Sequential net(LoihiDense(LoihiDenseOptions(loihi_prepare_weights(weight)).weight_exp(2)),
//                  LoihiLIF(LoihiLIFOptions().du(4095).dv(128).bias_mant(bias).vth(10)));
//   at::Tensor spikes = net(x_seq);  // int32, [T, *batch, in] to [T, *batch, out]
//
// All tensors are int32 (indices int64), are copied, and are registered as buffers, which to() does not convert to
// floating point. Constants out of range raise an error at construction. Integers have no gradients. For a float32 or
// float64 input of integer values, LoihiLIF returns the same spikes in the input's type, with the gradients of the
// operator (docs/loihi.md).
#pragma once

#include "csrc/nn/neuron_module.h"
#include "ops/loihi.h"

#include <string>
#include <utility>
#include <vector>

namespace spikeforge::nn {

class SPIKEFORGE_API LoihiLIFOptions {
 public:
  using Given = std::vector<std::pair<std::string, LoihiNumber>>;

  LoihiLIFOptions& du(LoihiNumber number) { return set("du", std::move(number)); }
  LoihiLIFOptions& dv(LoihiNumber number) { return set("dv", std::move(number)); }
  LoihiLIFOptions& bias_mant(LoihiNumber number) { return set("bias_mant", std::move(number)); }
  LoihiLIFOptions& bias_exp(LoihiNumber number) { return set("bias_exp", std::move(number)); }
  LoihiLIFOptions& vth(LoihiNumber number) { return set("vth", std::move(number)); }
  // The thresholds of a ternary neuron, in place of vth: it emits 1 above vth_hi and -1 below vth_lo.
  LoihiLIFOptions& vth_hi(LoihiNumber number) { return set("vth_hi", std::move(number)); }
  LoihiLIFOptions& vth_lo(LoihiNumber number) { return set("vth_lo", std::move(number)); }
  LoihiLIFOptions& ternary(bool on) { return ternary_ = on, *this; }
  // LoihiForm::reset has the parameters reset_interval and reset_offset, LoihiForm::refractory has refractory_period.
  LoihiLIFOptions& form(LoihiForm form) { return form_ = form, *this; }
  LoihiLIFOptions& reset_interval(std::int64_t steps) { return set("reset_interval", steps); }
  LoihiLIFOptions& reset_offset(std::int64_t steps) { return set("reset_offset", steps); }
  LoihiLIFOptions& refractory_period(std::int64_t steps) { return set("refractory_period", steps); }
  // The surrogate for a floating-point input.
  LoihiLIFOptions& surrogate(std::string name, std::vector<double> args = {}) {
    surrogate_ = std::move(name);
    surrogate_args_ = std::move(args);
    return *this;
  }
  LoihiLIFOptions& detach_reset(bool on) { return detach_reset_ = on, *this; }
  // Includes the states in save().
  LoihiLIFOptions& persistent_state(bool on) { return persistent_ = on, *this; }

  const Given& given() const { return given_; }
  bool ternary() const { return ternary_; }
  LoihiForm form() const { return form_; }
  const std::string& surrogate() const { return surrogate_; }
  const std::vector<double>& surrogate_args() const { return surrogate_args_; }
  bool detach_reset() const { return detach_reset_; }
  bool persistent_state() const { return persistent_; }

 private:
  LoihiLIFOptions& set(const char* name, LoihiNumber number);

  Given given_;
  bool ternary_ = false, persistent_ = false, detach_reset_ = false;
  std::string surrogate_ = "sigmoid";
  std::vector<double> surrogate_args_;
  LoihiForm form_ = LoihiForm::plain;
};

// The operators loihi_lif, loihi_ternary_lif and their forms. States: u and v, and also phase (LoihiForm::reset) or
// wait (LoihiForm::refractory).
class SPIKEFORGE_API LoihiLIFImpl : public NeuronModule {
 public:
  // Also throws c10::ValueError for an argument that the operator of this form does not have.
  explicit LoihiLIFImpl(LoihiLIFOptions options = {});

  const LoihiLIFOptions& options() const { return options_; }
  void pretty_print(std::ostream& stream) const override;
  Script script() const override;

 protected:
  const char* kind() const override { return "LoihiLIF"; }
  void check_input(const at::Tensor& x) const override;
  Results call(at::TensorList inputs, const Tensors& states, bool store) const override;
  void set_own_state(std::size_t i, at::Tensor value) override;
  std::shared_ptr<Stateful> fresh() const override { return std::make_shared<LoihiLIFImpl>(options_); }

 private:
  LoihiLIFOptions options_;
  LoihiOptions call_;  // with the registered copies of tensors
};
TORCH_MODULE(LoihiLIF);

// Options shared by the connections.
template <class Self> class LoihiWiring {
 public:
  Self& weight_exp(std::int64_t exponent) { return call_.weight_exp = exponent, self(); }
  Self& num_message_bits(std::int64_t bits) { return call_.num_message_bits = bits, self(); }
  // Includes the values in flight in save().
  Self& persistent_state(bool on) { return persistent_ = on, self(); }

  const LoihiConnectionOptions& call() const { return call_; }
  bool persistent_state() const { return persistent_; }

 protected:
  Self& self() { return static_cast<Self&>(*this); }

  LoihiConnectionOptions call_;
  bool persistent_ = false;
};

// Prepared weights, [out, in]: see loihi_prepare_weights.
struct SPIKEFORGE_API LoihiDenseOptions : LoihiWiring<LoihiDenseOptions> {
  LoihiDenseOptions(at::Tensor weight) : weight(std::move(weight)) {}  // NOLINT(google-explicit-constructor)
  LoihiDenseOptions& delay(std::int64_t steps) { return call_.delay = steps, *this; }

  at::Tensor weight;
};

// Prepared weights in CSR: crow_indices [out + 1], col_indices and values [nnz].
struct SPIKEFORGE_API LoihiSparseOptions : LoihiWiring<LoihiSparseOptions> {
  LoihiSparseOptions(at::Tensor crow_indices, at::Tensor col_indices, at::Tensor values)
      : crow_indices(std::move(crow_indices)), col_indices(std::move(col_indices)), values(std::move(values)) {}
  LoihiSparseOptions& delay(std::int64_t steps) { return call_.delay = steps, *this; }

  at::Tensor crow_indices, col_indices, values;
};

// Weights and delays, both [out, in]; delays from 0 to max_delay.
struct SPIKEFORGE_API LoihiDelayDenseOptions : LoihiWiring<LoihiDelayDenseOptions> {
  LoihiDelayDenseOptions(at::Tensor weight, at::Tensor delays, std::int64_t max_delay)
      : weight(std::move(weight)), delays(std::move(delays)), max_delay(max_delay) {}

  at::Tensor weight, delays;
  std::int64_t max_delay;
};

// A connection. State: "buffer", the values in flight, [slots, *batch, out], if there is a delay.
class SPIKEFORGE_API LoihiConnection : public Stateful {
 public:
  Names state_names() const override { return slots_ == 0 ? Names{} : Names{"buffer"}; }
  at::Tensor own_state(std::size_t /*i*/) const override { return buffer_; }
  Tensors at_rest(at::TensorList inputs) override;
  void pretty_print(std::ostream& stream) const override;
  Script script() const override;

 protected:
  using Numbers = std::vector<std::pair<const char*, std::int64_t>>;

  // `numbers` are the operator's scalars except those in `call`, which are common to all connections. Constructors call
  // finish() at the end.
  LoihiConnection(const char* op, std::int64_t slots, Numbers numbers, const LoihiConnectionOptions& call);
  void finish(std::int64_t in, bool persistent_state);
  at::Tensor register_copy(const char* name, const at::Tensor& tensor);

  virtual Arrivals send(const at::Tensor& x, const std::optional<at::Tensor>& buffer) const = 0;
  virtual std::int64_t out() const = 0;

  Tensors advance(at::TensorList inputs, std::int64_t steps) override;
  void set_own_state(std::size_t i, at::Tensor value) override;

 private:
  std::vector<std::int64_t> buffer_shape(const at::Tensor& x) const;

  const char* op_;
  std::int64_t slots_;
  Numbers numbers_;
  Names tensors_;  // the names of the operator's tensors, in its order
  at::Tensor buffer_;
};

// The operator loihi_dense.
class SPIKEFORGE_API LoihiDenseImpl : public LoihiConnection {
 public:
  explicit LoihiDenseImpl(LoihiDenseOptions options);
  const LoihiDenseOptions& options() const { return options_; }

  at::Tensor weight;

 protected:
  const char* kind() const override { return "LoihiDense"; }
  Arrivals send(const at::Tensor& x, const std::optional<at::Tensor>& buffer) const override;
  std::int64_t out() const override { return weight.size(0); }
  std::shared_ptr<Stateful> fresh() const override { return std::make_shared<LoihiDenseImpl>(options_); }

 private:
  LoihiDenseOptions options_;
};
TORCH_MODULE(LoihiDense);

// The operator loihi_sparse.
class SPIKEFORGE_API LoihiSparseImpl : public LoihiConnection {
 public:
  explicit LoihiSparseImpl(LoihiSparseOptions options);
  const LoihiSparseOptions& options() const { return options_; }

  at::Tensor crow_indices, col_indices, values;

 protected:
  const char* kind() const override { return "LoihiSparse"; }
  Arrivals send(const at::Tensor& x, const std::optional<at::Tensor>& buffer) const override;
  std::int64_t out() const override { return crow_indices.size(0) - 1; }
  std::shared_ptr<Stateful> fresh() const override { return std::make_shared<LoihiSparseImpl>(options_); }

 private:
  LoihiSparseOptions options_;
};
TORCH_MODULE(LoihiSparse);

// The operator loihi_delay_dense.
class SPIKEFORGE_API LoihiDelayDenseImpl : public LoihiConnection {
 public:
  explicit LoihiDelayDenseImpl(LoihiDelayDenseOptions options);
  const LoihiDelayDenseOptions& options() const { return options_; }

  at::Tensor weight, delays;

 protected:
  const char* kind() const override { return "LoihiDelayDense"; }
  Arrivals send(const at::Tensor& x, const std::optional<at::Tensor>& buffer) const override;
  std::int64_t out() const override { return weight.size(0); }
  std::shared_ptr<Stateful> fresh() const override { return std::make_shared<LoihiDelayDenseImpl>(options_); }

 private:
  LoihiDelayDenseOptions options_;
};
TORCH_MODULE(LoihiDelayDense);

}  // namespace spikeforge::nn
