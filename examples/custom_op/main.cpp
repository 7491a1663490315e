// Calls the operators of this project from C++ by name, like any operator of torch.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdio>
#include <cstdlib>

namespace {

using EventSum = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, c10::SymInt);
using Boltzmann = at::Tensor(const at::Tensor&, const at::Tensor&, double);

template <class Signature> auto find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "use_mine: %s\n", what);
  std::exit(1);
}

}  // namespace

int main() {
  // Three neurons with 3, 3 and 1 connections to five others; the first two fire.
  const at::Tensor weight = at::tensor({1.f, 2.f, 3.f, 4.f, 5.f, 6.f, 7.f}).requires_grad_();
  const at::Tensor indices = at::tensor({2, 3, 4, 0, 2, 4, 1}, at::kInt), indptr = at::tensor({0, 3, 6, 7}, at::kInt);
  const at::Tensor events = at::tensor({1.f, 1.f, 0.f});

  const auto event_sum = find<EventSum>("mine::event_sum");
  const at::Tensor y = event_sum.call(events, indices, indptr, weight, 5);
  require(at::equal(y, at::tensor({4.f, 0.f, 6.f, 2.f, 9.f})), "event_sum must be 4 0 6 2 9");

  const at::Tensor gradient = torch::autograd::grad({y}, {weight}, {at::ones({5})})[0];
  require(at::equal(gradient, at::tensor({1.f, 1.f, 1.f, 1.f, 1.f, 1.f, 0.f})), "only rows that fired learn");

  const at::Tensor half = find<Boltzmann>("mine::boltzmann").call(at::tensor({-40.}), at::tensor({-40.}), 5);
  require(half.item<double>() == 0.5, "at v_half, half of the gates are open");
  std::puts("use_mine: ok");
}
