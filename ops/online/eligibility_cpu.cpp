// The update of traces for few steps, which is bound by memory: each trace is read once and written once, whereas
// torch's operators would access it twice.
#include "ops/common/library.h"
#include "ops/online/eligibility.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <vector>

namespace spikeforge::ops::online {
namespace {

// For more steps, torch's matrix product is faster, although it accesses the traces twice.
constexpr std::int64_t most_steps = 4;
constexpr std::int64_t grain = 1 << 14;  // the minimum number of elements per thread

// Computes e_k[r, :] = Σ_l transitions_kl[r] e_l[r, :] + Σ_t drives_k[t, r] x[t, r / N, :], for rows r = b N + n.
template <class T> struct Rows {
  std::vector<const T*> traces, transitions, drives;
  std::vector<T*> next;
  const T* x;
  std::int64_t steps, rows, neurons, inputs;

  void run(std::int64_t first, std::int64_t last) const {
    for (std::int64_t r = first; r < last; ++r)
      for (std::size_t k = 0; k < next.size(); ++k) row(r, k);
  }

 private:
  void row(std::int64_t r, std::size_t k) const {
    T* __restrict const to = next[k] + r * inputs;
    const std::int64_t samples = rows / neurons;
    for (std::int64_t t = 0; t < steps; ++t) {
      const T drive = drives[k][t * rows + r];
      const T* __restrict const z = x + (t * samples + r / neurons) * inputs;
      if (t == 0)
        for (std::int64_t i = 0; i < inputs; ++i) to[i] = drive * z[i];
      else
        for (std::int64_t i = 0; i < inputs; ++i) to[i] += drive * z[i];
    }
    for (std::size_t l = 0; l < traces.size(); ++l) {
      const T transition = transitions[k * next.size() + l][r];
      const T* __restrict const e = traces[l] + r * inputs;
      for (std::int64_t i = 0; i < inputs; ++i) to[i] += transition * e[i];
    }
  }
};

List advance_cpu(at::TensorList traces, at::TensorList transitions, at::TensorList drives,
                 const std::optional<at::Tensor>& x) {
  check_advance(traces, transitions, drives, x);
  if (!x.has_value() || !x->defined() || drives.empty() || drives[0].size(0) == 0 || drives[0].size(0) > most_steps)
    return advance_by_torch(traces, transitions, drives, x);
  const auto type = transitions[0].scalar_type();
  // Owns the memory of the pointers.
  List held;
  const auto keep = [&](const at::Tensor& t) { return held.emplace_back(t.to(type).contiguous()); };
  List next;
  AT_DISPATCH_FLOATING_TYPES(type, "advance_eligibility", [&] {
    Rows<scalar_t> rows;
    for (const at::Tensor& trace : traces) rows.traces.push_back(keep(trace).template const_data_ptr<scalar_t>());
    for (const at::Tensor& t : transitions) rows.transitions.push_back(keep(t).template const_data_ptr<scalar_t>());
    for (const at::Tensor& drive : drives) rows.drives.push_back(keep(drive).template const_data_ptr<scalar_t>());
    rows.x = keep(*x).template const_data_ptr<scalar_t>();
    rows.steps = drives[0].size(0);
    rows.rows = transitions[0].numel();
    rows.neurons = transitions[0].size(-1);
    rows.inputs = x->size(-1);
    at::DimVector shape(transitions[0].sizes());
    shape.push_back(rows.inputs);
    for (std::size_t k = 0; k < drives.size(); ++k) {
      next.push_back(at::empty(shape, transitions[0].options()));
      rows.next.push_back(next.back().mutable_data_ptr<scalar_t>());
    }
    at::parallel_for(0, rows.rows, std::max<std::int64_t>(1, grain / std::max<std::int64_t>(1, rows.inputs)),
                     [&](std::int64_t first, std::int64_t last) { rows.run(first, last); });
  });
  return next;
}

// Computes to[n, :] = Σ_b grad[b, n] trace[b, n, :], several samples at a time, so that the sum, which stays in a
// cache, is accessed less often than the traces.
template <class T>
void sum_over_samples(const T* grad, const T* trace, T* to, std::int64_t samples, std::int64_t neurons,
                      std::int64_t inputs, std::int64_t n) {
  constexpr std::int64_t at_once = 4;
  const std::int64_t stride = neurons * inputs;
  T* __restrict const sum = to + n * inputs;
  std::fill_n(sum, inputs, T(0));
  std::int64_t b = 0;
  for (; b + at_once <= samples; b += at_once) {
    const T* __restrict const e = trace + b * stride + n * inputs;
    const T* const g = grad + b * neurons + n;
    const T g0 = g[0], g1 = g[neurons], g2 = g[2 * neurons], g3 = g[3 * neurons];
    for (std::int64_t i = 0; i < inputs; ++i)
      sum[i] += (g0 * e[i] + g1 * e[i + stride]) + (g2 * e[i + 2 * stride] + g3 * e[i + 3 * stride]);
  }
  for (; b < samples; ++b) {
    const T* __restrict const e = trace + b * stride + n * inputs;
    const T g = grad[b * neurons + n];
    for (std::int64_t i = 0; i < inputs; ++i) sum[i] += g * e[i];
  }
}

at::Tensor gradient_cpu(const at::Tensor& grad, const at::Tensor& trace) {
  check_gradient(grad, trace);
  const auto type = grad.scalar_type();
  if (type != at::kFloat && type != at::kDouble) return gradient_by_torch(grad, trace);
  const at::Tensor g = grad.contiguous(), e = trace.contiguous();
  const std::int64_t neurons = trace.size(-2), inputs = trace.size(-1);
  const std::int64_t samples = c10::multiply_integers(grad.sizes().slice(0, static_cast<std::size_t>(grad.dim()) - 1));
  at::Tensor sum = at::empty({neurons, inputs}, grad.options());
  AT_DISPATCH_FLOATING_TYPES(type, "eligibility_gradient", [&] {
    at::parallel_for(0, neurons, std::max<std::int64_t>(1, grain / std::max<std::int64_t>(1, inputs * samples)),
                     [&](std::int64_t first, std::int64_t last) {
                       for (std::int64_t n = first; n < last; ++n)
                         sum_over_samples(g.const_data_ptr<scalar_t>(), e.const_data_ptr<scalar_t>(),
                                          sum.mutable_data_ptr<scalar_t>(), samples, neurons, inputs, n);
                     });
  });
  return sum;
}

SPIKEFORGE_KERNELS(CPU, library) {
  library.impl("advance_eligibility", TORCH_FN(advance_cpu));
  library.impl("eligibility_gradient", TORCH_FN(gradient_cpu));
}

}  // namespace
}  // namespace spikeforge::ops::online
