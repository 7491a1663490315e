// A random matrix that is not stored: each use redraws its connections. They are the same on every device, in both
// orders and for any number of vectors. C++17 for the host compiler and NVRTC.
//
// Every entry is a connection with probability `prob`, independently of the others. Rows are cut into pieces of `width`
// columns (a power of two, set by prob), each with a separate stream of random numbers (PCG32, O'Neill 2014), whose
// initial state is a hash of seed, row and piece. The distance from one connection to the next is
//   1 + floor(surprise(u) * columns_a_bit)      surprise(u) = -log2(u), columns_a_bit = -1 / log2(1 - prob)
// columns: the geometric distribution. The random numbers of a weight and of a delay are the halves of a hash of the
// piece and the column. The computation uses only integers and the operations of neuron/random.h.
#pragma once

#include "csrc/kernels/event/arguments.h"
#include "csrc/neuron/random.h"

namespace spikeforge {
namespace event {

// A hash in which all 64 bits depend on all bits of x: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA
// 2014).
SPIKEFORGE_PLAIN_FN unsigned long long mixed(unsigned long long x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr unsigned long long golden = 0x9e3779b97f4a7c15ULL;  // 2^64 divided by the golden ratio, odd

struct Stream {
  unsigned long long state;

  SPIKEFORGE_FN unsigned next() {
    const unsigned long long old = state;
    state = old * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto x = static_cast<unsigned>(((old >> 18) ^ old) >> 27);
    const auto turn = static_cast<unsigned>(old >> 59);
    return x >> turn | x << ((32 - turn) & 31);
  }
};

struct Connection {
  Int column;
  unsigned long long key;  // of the piece
  float drawn;             // the random number of the weight; 0 for constant weights
};

SPIKEFORGE_PLAIN_FN unsigned long long hash_of(unsigned long long key, Int column) {
  return mixed(key ^ (golden * static_cast<unsigned long long>(column + 1)));
}

template <Distribution distribution> SPIKEFORGE_FN float draw(unsigned long long key, Int column) {
  if constexpr (distribution == Distribution::constant) {
    return 0.0F;
  } else {
    const float u = uniform_of(static_cast<unsigned>(hash_of(key, column) >> 32));
    return distribution == Distribution::normal ? normal_of(u) : u;
  }
}

template <Distribution distribution, class C> SPIKEFORGE_FN C weight_of(C first, C second, float drawn) {
  if constexpr (distribution == Distribution::constant)
    return first;
  else if constexpr (distribution == Distribution::uniform)
    return first + (second - first) * static_cast<C>(drawn);
  else
    return first + second * static_cast<C>(drawn);
}

SPIKEFORGE_PLAIN_FN int delay_of(const RandomDelays& delays, const Connection& connection) {
  if (delays.distribution == Distribution::constant) return static_cast<int>(delays.first);
  const float u = uniform_of(static_cast<unsigned>(hash_of(connection.key, connection.column)));
  const bool uniform = delays.distribution == Distribution::uniform;
  const float x = uniform ? delays.first + (delays.second - delays.first + 1.0F) * u
                          : delays.first + delays.second * normal_of(u) + 0.5F;
  const float most = uniform ? delays.second : static_cast<float>(delays.most);
  return x < 0.0F ? 0 : x < most ? static_cast<int>(x) : static_cast<int>(most);
}

// Calls visit(connection) for every Connection of a piece, in the order of columns.
template <Distribution distribution, class Visit>
SPIKEFORGE_FN void for_each_connection(const RandomRows& matrix, Int row, Int piece, Visit&& visit) {
  const unsigned long long of_row = mixed(matrix.seed + golden * static_cast<unsigned long long>(row + 1));
  const unsigned long long key = mixed(of_row + golden * static_cast<unsigned long long>(piece + 1));
  Stream stream{key};
  const Int first = piece * matrix.width;
  const Int end = first + matrix.width < matrix.cols ? first + matrix.width : matrix.cols;
  Int column = first;
  while (true) {
    const float gap = surprise(stream.next()) * matrix.columns_a_bit;
    if (!(gap < static_cast<float>(end - column))) return;
    column += static_cast<Int>(gap);
    if (column >= end) return;
    visit(Connection{column, key, draw<distribution>(key, column)});
    ++column;
  }
}

}  // namespace event
}  // namespace spikeforge
