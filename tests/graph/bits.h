// Bitwise equality of numbers, except that all NaNs are equal.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace spikeforge::test {

template <class F> bool same_bits(F a, F b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

template <class F> bool same_bits(const std::vector<F>& a, const std::vector<F>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!same_bits(a[i], b[i])) return false;
  return true;
}

// Numbers that reveal differences between similar expressions.
template <class F> std::vector<F> hard_numbers() {
  const F inf = F(HUGE_VAL), tiny = std::nextafter(F(0), F(1));
  return {F(0),  F(-0.), F(1),   F(-1),  F(.1), F(-.3), F(2.5), F(-2.5), F(3),
          F(20), F(21),  F(1e7), F(-80), tiny,  -tiny,  inf,    -inf,    F(std::nan(""))};
}

}  // namespace spikeforge::test
