// Products of a random matrix that is drawn again at every call, beneath jit_csrmv and jit_csrmm.
#pragma once

#include <spikeforge/kernels/event/random_rows.h>
#include <spikeforge/ops/event/product.h>
#include <spikeforge/kernels/event/jit_spec.h>

#include <type_traits>

namespace spikeforge::ops::sparse {

using spikeforge::event::Law;
using spikeforge::event::RandomRows;

struct Draw {
  double prob = 0;
  std::int64_t seed = 0;
  Law law{};
};

// The arguments of jit_product.
struct JitCall {
  Form form;
  Draw draw;
};
JitCall parse_jit(c10::SymInt rows, c10::SymInt cols, double prob, std::int64_t seed, std::string_view law,
                  bool transpose, bool matrix, std::string_view values, bool deterministic);

Law parse_law(const char* op, std::string_view name);
std::string_view name_of(Law law);

const char* jit_name(bool matrix);

// Every check of a product: all that kernels take for granted.
void check_jit(const at::Tensor& weights, const at::Tensor& x, const Form& form, const Draw& draw);
// Of the matrix alone; `op` begins the message.
void check_draw(const char* op, const at::Tensor& weights, const c10::SymInt& rows, const c10::SymInt& cols,
                const Draw& draw);

// A matrix that has connections: prob > 0.
RandomRows random_rows(const Draw& draw, std::int64_t rows, std::int64_t cols);

// The kernel that draws it on a GPU and multiplies.
jit::EventJitSpec gpu_jit(const at::Tensor& weights, const at::Tensor& x, const Form& form, const Draw& draw,
                              const RandomRows& matrix);
// And the one that ends a product by columns.
jit::EventSpec gpu_jit_finish(const jit::EventJitSpec& spec);

// The lowered operator, through the dispatcher.
using JitSchema = at::Tensor(const at::Tensor& weights, const at::Tensor& x, c10::SymInt rows, c10::SymInt cols,
                             double prob, std::int64_t seed, c10::string_view law, bool transpose, bool matrix,
                             c10::string_view values, bool deterministic);
at::Tensor call_jit(const at::Tensor& weights, const at::Tensor& x, const Form& form, const Draw& draw);

// Calls f(std::integral_constant<Law, law>()).
template <class F>
void with_law(Law law, F&& f) {
  switch (law) {
    case Law::constant:
      return f(std::integral_constant<Law, Law::constant>());
    case Law::uniform:
      return f(std::integral_constant<Law, Law::uniform>());
    case Law::normal:
      return f(std::integral_constant<Law, Law::normal>());
  }
}

}  // namespace spikeforge::ops::sparse
