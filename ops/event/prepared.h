// The prepared arguments of a product on the CPU: entries as bits or numbers, and the rows that contribute.
#pragma once

#include "csrc/cpu/event/kernels.h"
#include "ops/event/product.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace spikeforge::ops::sparse {

using event::Rows;

// The minimum work per thread.
inline constexpr std::int64_t least_share = 1 << 14;

inline bool is_event(Truth x) { return x > 0; }
inline bool is_event(float x) { return x > 0; }
inline bool is_event(double x) { return x > 0; }

// Packs up to 32 events into a word, without branches.
template <class T> std::uint32_t pack_word(const T* x, std::int64_t stride, std::int64_t n) {
  std::uint32_t word = 0;
  for (std::int64_t b = 0; b < n; ++b) word |= static_cast<std::uint32_t>(is_event(x[b * stride])) << b;
  return word;
}

// Packs 32 contiguous events: as bytes of 0 and 1, eight of which a multiplication packs into one byte.
template <class T> std::uint32_t pack_word(const T* x) {
  std::uint8_t bytes[32];
  for (int b = 0; b < 32; ++b) bytes[b] = is_event(x[b]) ? 1 : 0;
  std::uint32_t word = 0;
  for (int part = 0; part < 4; ++part) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, bytes + 8 * part, 8);
    word |= static_cast<std::uint32_t>(eight * 0x0102040810204080U >> 56) << 8 * part;
  }
  return word;
}

using Bits = std::vector<std::uint32_t>;

inline Bits pack(const at::Tensor& x, const Vectors& vectors, std::int64_t v) {
  Bits bits(static_cast<std::size_t>((vectors.length + 31) / 32));
  with_entries(x, [&](const auto* entries) {
    const auto* const from = entries + vectors.offset(v);
    const std::int64_t stride = vectors.stride();
    for (std::size_t w = 0; w < bits.size(); ++w) {
      const std::int64_t first = static_cast<std::int64_t>(w) * 32;
      const std::int64_t n = std::min<std::int64_t>(32, vectors.length - first);
      if (stride == 1 && n == 32)
        bits[w] = pack_word(from + first);
      else
        bits[w] = pack_word(from + first * stride, stride, n);
    }
  });
  return bits;
}

template <class C, class T> C contribution(T x, Values values) {
  if (values == Values::number) return static_cast<C>(x);
  if (!is_event(x)) return C(0);
  return values == Values::event ? C(1) : static_cast<C>(x);
}

// Converts vectors [first, first + n) to [length, n] in the compute type.
template <class C>
std::vector<C> contributions(const at::Tensor& x, const Vectors& vectors, Values values, std::int64_t first,
                             std::int64_t n) {
  std::vector<C> entries(static_cast<std::size_t>(vectors.length * n));
  for (std::int64_t v = 0; v < n; ++v)
    with_entries(x, [&](const auto* begin) {
      const auto* const from = begin + vectors.offset(first + v);
      for (std::int64_t i = 0; i < vectors.length; ++i)
        entries[static_cast<std::size_t>(i * n + v)] = contribution<C>(from[i * vectors.stride()], values);
    });
  return entries;
}

// The same, without a copy of numbers that have this form.
template <class C> class Contributions {
 public:
  Contributions(const at::Tensor& x, const Vectors& vectors, Values values, std::int64_t first, std::int64_t n) {
    if (values == Values::number && x.scalar_type() == c10::CppTypeToScalarType<C>::value && n == vectors.count() &&
        vectors.batches == 1) {
      data_ = x.const_data_ptr<C>();
    } else {
      copy_ = contributions<C>(x, vectors, values, first, n);
      data_ = copy_.data();
    }
  }
  const C* data() const { return data_; }

 private:
  std::vector<C> copy_;
  const C* data_;
};

// The rows that contribute, the begins of their nonzeros, and the number of nonzeros before each.
struct Active {
  std::vector<std::int32_t> rows;
  std::vector<std::int64_t> begins, starts;

  explicit Active(std::int64_t expected) {
    rows.reserve(static_cast<std::size_t>(expected));
    begins.reserve(static_cast<std::size_t>(expected));
    starts.reserve(static_cast<std::size_t>(expected) + 1);
  }

  void add(const Rows& matrix, std::int64_t row) { add(row, matrix.begin(row), matrix.end(row)); }
  void add(std::int64_t row, std::int64_t begin, std::int64_t end) {
    rows.push_back(static_cast<std::int32_t>(row));
    begins.push_back(begin);
    starts.push_back(total);
    total += end - begin;
  }
  cpu::Share share(std::int64_t part, std::int64_t parts) const {
    const auto until = [&](std::int64_t p) { return total / parts * p + std::min(p, total % parts); };
    return {rows.data(), begins.data(),  starts.data(), static_cast<std::int64_t>(rows.size()),
            until(part), until(part + 1)};
  }
  void finish() { starts.push_back(total); }

  std::int64_t total = 0;
};

inline Active active_rows(const Rows& matrix, const Bits& bits) {
  std::int64_t count = 0;
  for (const std::uint32_t word : bits) count += __builtin_popcount(word);
  Active active(count);
  for (std::size_t w = 0; w < bits.size(); ++w)
    for (std::uint32_t word = bits[w]; word != 0; word &= word - 1)
      active.add(matrix, static_cast<std::int64_t>(w) * 32 + __builtin_ctz(word));
  active.finish();
  return active;
}

template <class C> Active active_rows(const Rows& matrix, const std::vector<C>& entries, Values values) {
  Active active(matrix.rows);
  for (std::int64_t i = 0; i < matrix.rows; ++i)
    if (values == Values::number || entries[static_cast<std::size_t>(i)] != 0) active.add(matrix, i);
  active.finish();
  return active;
}

inline std::int64_t parts_for(std::int64_t work) {
  return std::clamp<std::int64_t>(work / least_share, 1, at::in_parallel_region() ? 1 : at::get_num_threads());
}

// Calls f(begin, end) for ranges of rows with equal shares of nonzeros.
template <class F> void for_rows(const Rows& matrix, std::int64_t vectors, F&& f) {
  const std::int64_t parts = parts_for((matrix.nnz + matrix.rows) * vectors);
  const auto boundary = [&](std::int64_t part) {
    if (part == parts) return matrix.rows;
    // The work of a range includes its rows, because empty rows cost time too.
    const std::int64_t wanted = (matrix.nnz + matrix.rows) / parts * part;
    std::int64_t low = 0;
    std::int64_t high = matrix.rows;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (matrix.begin(middle) - matrix.begin(0) + middle < wanted)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  };
  at::parallel_for(0, parts, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first; part < last; ++part) {
      const std::int64_t begin = boundary(part);
      const std::int64_t end = std::max(begin, boundary(part + 1));
      if (begin < end) f(begin, end);
    }
  });
}

}  // namespace spikeforge::ops::sparse
