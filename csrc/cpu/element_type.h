// The element types of floating-point tensors, and the types of the arithmetic on them.
#pragma once

#include "csrc/base/dtype.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <type_traits>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

template <class Element> using Compute = std::conditional_t<std::is_same_v<Element, double>, double, float>;

// Calls f with a value of an element's type, which is floating point.
template <class F> auto with_element(DType type, F&& f) {
  switch (type) {
    case DType::f16: return f(c10::Half());
    case DType::bf16: return f(c10::BFloat16());
    case DType::f32: return f(float());
    default: return f(double());
  }
}

// The same with a value of the arithmetic's type, float32 or float64.
template <class F> auto with_arithmetic(DType type, F&& f) { return type == DType::f64 ? f(double()) : f(float()); }

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
