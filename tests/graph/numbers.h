// Lists of numbers as arguments for the evaluation of a graph.
#pragma once

#include <initializer_list>
#include <vector>

namespace spikeforge::test {

template <class F> using Numbers = std::vector<F>;

template <class F> Numbers<F> joined(std::initializer_list<Numbers<F>> parts) {
  Numbers<F> all;
  for (const Numbers<F>& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace spikeforge::test
