// Products of a random matrix whose results arrive later, the base of jit_csrmv_delayed: weights and delays are drawn.
#pragma once

#include "ops/event/delays.h"
#include "ops/event/jit.h"

#include <string_view>

namespace spikeforge::ops::sparse {

// The law of delays, and its parameters: [d] for "constant", [first, last] for "uniform", [mean, deviation] for
// "normal".
struct DelayLaw {
  Distribution distribution{};
  double first = 0, second = 0;
};
DelayLaw parse_delay_law(const char* op, std::string_view name, at::ArrayRef<double> numbers);

// The arguments of jit_deliver.
struct JitDeliverCall {
  JitCall product;
  DelayLaw delays;
  const at::Tensor& buffer;  // as in csr_deliver
  const at::Tensor& step;

  const char* name() const { return "jit_csrmv_delayed"; }
  // Returns the same call with other entries and another buffer.
  JitDeliverCall with(const at::Tensor& x, const at::Tensor& other) const {
    return {{product.weights, x, product.options, product.draw}, delays, other, step};
  }
};

constexpr const char* jit_deliver_name = "jit_csrmv_delayed";

void check_deliver(const JitDeliverCall& call);

event::RandomDelays random_delays(const JitDeliverCall& call);

// Returns the GPU kernels in their order.
std::vector<event::KernelSpec> gpu_jit_delivery(const JitDeliverCall& call, const RandomRows& matrix);

// Runs a checked call with connections and a contiguous buffer.
void jit_deliver_cpu(const JitDeliverCall& call);
void jit_deliver_cuda(const JitDeliverCall& call);

// Call the lowered operators through the dispatcher.
at::Tensor call_deliver(const JitDeliverCall& call);
void call_deliver_(const JitDeliverCall& call);

// Converts `run` to a kernel for the dispatcher.
template <class Result, Result (*run)(const JitDeliverCall&)>
Result jit_deliver_kernel(const at::Tensor& weights, const at::Tensor& x, const at::Tensor& buffer,
                          const at::Tensor& step, c10::SymInt rows, c10::SymInt cols, double prob, std::int64_t seed,
                          at::ArrayRef<double> delays, std::string_view law, std::string_view delay_law, bool transpose,
                          std::string_view values, bool deterministic) {
  const char* const op = jit_deliver_name;
  const Draw draw{prob, seed, parse_distribution(op, law)};  // as in jit_kernel
  const DelayLaw delayed = parse_delay_law(op, delay_law, delays);
  return run({{weights,
               x,
               {std::move(rows), std::move(cols), transpose, false, parse_values(values, op), deterministic},
               draw},
              delayed,
              buffer,
              step});
}

}  // namespace spikeforge::ops::sparse
