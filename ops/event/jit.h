// Products of a random matrix that is redrawn in every call: the implementation of jit_csrmv and jit_csrmm.
#pragma once

#include "csrc/kernels/event/random_rows.h"
#include "ops/event/product.h"

namespace spikeforge::ops::sparse {

using event::Distribution;
using event::RandomRows;

struct Draw {
  double prob = 0;
  std::int64_t seed = 0;
  Distribution distribution{};
};

struct JitCall {
  const at::Tensor& weights;
  const at::Tensor& x;
  Options options;
  Draw draw;
};

Distribution parse_distribution(const char* op, std::string_view name, const char* argument = "law");
// Returns the number of parameters of a distribution.
inline std::int64_t numbers_of(Distribution law) { return law == Distribution::constant ? 1 : 2; }

const char* jit_name(bool matrix);

// Runs all checks of a product. Kernels have none.
void check_jit(const char* op, const JitCall& call);

// True if the matrix or the result has no elements: the result is zeros.
bool is_empty(const JitCall& call);

// Describes a matrix with connections for the kernels.
RandomRows random_rows(const JitCall& call);

// Returns the GPU kernel that draws the matrix and multiplies.
event::KernelSpec gpu_jit(const JitCall& call, const RandomRows& matrix);
// Returns the GPU kernel that ends a product by columns.
event::KernelSpec gpu_jit_finish(event::KernelSpec spec);

// Calls the lowered operator through the dispatcher.
at::Tensor call_jit(const JitCall& call);

// Converts `run` to a kernel for the dispatcher.
template <at::Tensor (*run)(const JitCall&)>
at::Tensor jit_kernel(const at::Tensor& weights, const at::Tensor& x, c10::SymInt rows, c10::SymInt cols, double prob,
                      std::int64_t seed, std::string_view law, bool transpose, bool matrix, std::string_view values,
                      bool deterministic) {
  const char* const op = jit_name(matrix);
  // A named variable, because GCC 12 destroys nested braces twice if a later part of the call throws.
  const Draw draw{prob, seed, parse_distribution(op, law)};
  return run({weights,
              x,
              {std::move(rows), std::move(cols), transpose, matrix, parse_values(values, op), deterministic},
              draw});
}

}  // namespace spikeforge::ops::sparse
