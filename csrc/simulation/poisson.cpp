#include <spikeforge/neuron/draws.h>
#include <spikeforge/simulation/internal/poisson.h>

#include <ATen/ops/full.h>

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>

namespace spikeforge::simulation {
namespace {

// Rates above it are drawn by the operation poisson, whose time does not grow with them.
constexpr double largest_tabled = 4;
constexpr std::size_t thresholds_together = 8;  // those of a text are a multiple of it: many rates share one

// P(count <= k) for k = 0, 1, ..., as far as a uniform number of the type tells them from 1.
std::vector<double> thresholds_of(double rate, at::ScalarType type) {
  const double end = 1 - (type == at::kDouble ? 0x1p-53 : 0x1p-24);
  std::vector<double> below;
  double term = exp_of(-rate), sum = term;  // not libm's, which differs from machine to machine
  for (int count = 1; sum < end && term > 0x1p-60; ++count) {
    below.push_back(sum);
    term *= rate / count;
    sum += term;
  }
  return below;
}

// Inversion: as many as there are thresholds below a uniform number.
std::string text_of_thresholds(std::size_t count) {
  std::ostringstream names, sum;
  for (std::size_t k = 0; k < count; ++k) {
    names << ", t" << k;
    sum << (k == 0 ? "" : " + ") << "where(u > t" << k << ", 1, 0)";
  }
  return "neuron poisson_input(x;; weight" + names.str() + ") { u = uniform(); return x + weight * (" + sum.str() +
         ") }";
}

PoissonInput by_thresholds(double rate, double weight, const at::TensorOptions& options) {
  const at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
  std::vector<double> thresholds = thresholds_of(rate, type);
  constexpr double never = 2;
  while (thresholds.size() % thresholds_together != 0) thresholds.push_back(never);
  const auto number = [&](double value) { return at::full({}, value, at::TensorOptions(type)); };
  PoissonInput input{Neuron(text_of_thresholds(thresholds.size())), {number(weight)}};
  for (const double threshold : thresholds) input.params.push_back(number(threshold));
  return input;
}

}  // namespace

std::optional<PoissonInput> poisson_input(const at::Tensor& rates, double weight, const at::TensorOptions& options) {
  if (rates.numel() == 0) return {};
  const auto least = rates.min().item<double>(), most = rates.max().item<double>();
  if (most == 0) return {};
  if (least == most && most <= largest_tabled) return by_thresholds(most, weight, options);
  const at::Tensor given = least == most ? at::full({}, most, options.device(c10::kCPU)) : rates.to(options);
  return PoissonInput{Neuron("neuron poisson_input(x;; weight, rate) { return x + weight * poisson(rate) }"),
                      {at::full({}, weight, options.device(c10::kCPU)), given}};
}

}  // namespace spikeforge::simulation
