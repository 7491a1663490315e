// Products of a matrix whose entries have a delay each (csrc/kernels/layer/arguments.h has the formulas). They are
// bound by loads, because each entry reads different values: a thread keeps a strip of `steps` consecutive steps of a
// sample in registers, and computes `taps` products from each value that it loads.
//
// The warps of a block process `rows_at_once` rows, all with the same columns, so that a column read by one warp is in
// the first-level cache for the others. With few rows, several warps share the sum of one and combine it in shared
// memory, in a fixed order. The strips of neighbouring threads belong to neighbouring samples.
//
// Short names: F type of the arithmetic.
#pragma once

#include "csrc/kernels/layer/arguments.h"

namespace spikeforge {
namespace layers {

// `columns`: columns of a warp that sums.
template <class F, int taps, int steps, int columns> struct DelayedProduct {
  static constexpr int warps = delayed_warps;
  static constexpr int window = steps + taps - 1;
  static constexpr int at_once = taps <= 2 ? 2 : 1;  // columns whose values are loaded together

  // The coefficients of an entry are loaded in the widest possible accesses.
  static constexpr int bytes = taps * sizeof(F);
  struct alignas(bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : sizeof(F)) Coefficients {
    F tap[taps];
  };

  // The part of a warp.
  struct Place {
    int lane, warp;
    int part, parts;  // the part of this warp among `parts` that share a sum
    int row;
    bool is_there;
    unsigned block;  // the index among blocks with the same rows

    __device__ __forceinline__ explicit Place(const DelayedArguments& a)
        : lane(static_cast<int>(threadIdx.x % 32)),
          warp(static_cast<int>(threadIdx.x / 32)),
          part(warp / a.rows_at_once),
          parts(warps / a.rows_at_once),
          block(blockIdx.x / a.row_blocks) {
      const long long first = static_cast<long long>(blockIdx.x % a.row_blocks) * a.rows_at_once;
      const long long wanted = first + warp % a.rows_at_once;
      is_there = wanted < a.rows_count;
      row = static_cast<int>(is_there ? wanted : a.rows_count - 1);  // the other warps read an existing row
    }
  };

  static __device__ __forceinline__ void load_window(const F* from, int lanes, F (&x)[window]) {
#pragma unroll
    for (int i = 0; i < window; ++i) x[i] = __ldg(from + static_cast<long long>(i) * lanes);
  }

  // Adds the products of `count` columns, which are `apart` elements apart, to a strip. All loads precede their uses.
  template <int count>
  static __device__ __forceinline__ void add_columns(const F* in, long long in_stride, const int* shifts,
                                                     const Coefficients* coefficients, int apart, int lanes,
                                                     F (&sum)[steps]) {
    int shift[count];
    Coefficients here[count];
    F x[count][window];
#pragma unroll
    for (int i = 0; i < count; ++i) {
      shift[i] = __ldg(shifts + i * apart);
      here[i] = coefficients[i * apart];
    }
#pragma unroll
    for (int i = 0; i < count; ++i) load_window(in + i * apart * in_stride + shift[i], lanes, x[i]);
#pragma unroll
    for (int i = 0; i < count; ++i)
#pragma unroll
      for (int n = 0; n < taps; ++n)
#pragma unroll
        for (int k = 0; k < steps; ++k) sum[k] = fma(here[i].tap[n], x[i][k + n], sum[k]);
  }

  static __device__ __forceinline__ void add(const DelayedArguments& a) {
    __shared__ F shared[warps][steps][32];
    const Place at(a);
    const unsigned wanted = at.block * 32 + static_cast<unsigned>(at.lane);
    const unsigned strip = min(wanted, a.strips - 1), lanes = static_cast<unsigned>(a.lanes);
    const int step = static_cast<int>(strip / lanes) * steps;
    const long long first = static_cast<long long>(step) * a.lanes + strip % lanes;
    const F* in = static_cast<const F*>(a.in) + at.row * a.in_of_row + at.part * a.in_stride + first;
    const long long entry = static_cast<long long>(at.row) * a.columns;
    const int* const shifts = a.shifts + entry;
    const Coefficients* const coefficients = static_cast<const Coefficients*>(a.coefficients) + entry;
    F sum[steps];
#pragma unroll
    for (int k = 0; k < steps; ++k) sum[k] = F(0);
    int c = at.part;
    for (; c + (at_once - 1) * at.parts < a.columns; c += at_once * at.parts) {
      add_columns<at_once>(in, a.in_stride, shifts + c, coefficients + c, at.parts, a.lanes, sum);
      in += at_once * at.parts * a.in_stride;
    }
    for (; c < a.columns; c += at.parts) {
      add_columns<1>(in, a.in_stride, shifts + c, coefficients + c, at.parts, a.lanes, sum);
      in += at.parts * a.in_stride;
    }

    if (at.parts > 1) {
      if (at.part > 0)
#pragma unroll
        for (int k = 0; k < steps; ++k) shared[at.warp][k][at.lane] = sum[k];
      __syncthreads();
    }
    if (at.part > 0 || !at.is_there || wanted >= a.strips) return;
    for (int part = 1; part < at.parts; ++part)
#pragma unroll
      for (int k = 0; k < steps; ++k) sum[k] += shared[part * a.rows_at_once + at.warp][k][at.lane];
    F* const row = static_cast<F*>(a.rows) + at.row * a.rows_stride + first;
#pragma unroll
    for (int k = 0; k < steps; ++k)
      if (step + k < a.steps) row[static_cast<long long>(k) * a.lanes] += sum[k];
  }

  // Adds the products of a strip to the sums of the columns that begin at `in`.
  static __device__ __forceinline__ void sum_strip(const F* row, const F* const (&in)[columns], int lanes,
                                                   F (&sum)[columns][taps]) {
    F of[steps];
#pragma unroll
    for (int k = 0; k < steps; ++k) of[k] = __ldg(row + static_cast<long long>(k) * lanes);
#pragma unroll
    for (int m = 0; m < columns; ++m) {
      F x[window];
      load_window(in[m], lanes, x);
#pragma unroll
      for (int k = 0; k < steps; ++k)
#pragma unroll
        for (int n = 0; n < taps; ++n) sum[m][n] = fma(of[k], x[k + n], sum[m][n]);
    }
  }

  // sum_strip for the first `left` steps only: beyond them `in` may hold any value, including NaN.
  static __device__ __forceinline__ void sum_last_strip(const F* row, const F* const (&in)[columns], int lanes,
                                                        int left, F (&sum)[columns][taps]) {
#pragma unroll 1
    for (long long at = 0; left > 0; --left, at += lanes) {
      const F of = __ldg(row + at);
#pragma unroll
      for (int m = 0; m < columns; ++m)
#pragma unroll
        for (int n = 0; n < taps; ++n)
          sum[m][n] = fma(of, __ldg(in[m] + at + static_cast<long long>(n) * lanes), sum[m][n]);
    }
  }

  static __device__ __forceinline__ void sums(const DelayedArguments& a) {
    static_assert(columns * taps <= 32, "a lane for each sum");
    __shared__ F shared[warps][32];
    const Place at(a);
    const long long entry = static_cast<long long>(at.row) * a.columns;
    const int column = static_cast<int>(at.block) * columns;
    const F* const row = static_cast<const F*>(a.rows) + at.row * a.rows_stride;
    const F* in[columns];
#pragma unroll
    for (int m = 0; m < columns; ++m) {
      const int c = min(column + m, a.columns - 1);
      in[m] = static_cast<const F*>(a.in) + at.row * a.in_of_row + c * a.in_stride + __ldg(a.shifts + entry + c);
    }
    F sum[columns][taps];
#pragma unroll
    for (int m = 0; m < columns; ++m)
#pragma unroll
      for (int n = 0; n < taps; ++n) sum[m][n] = F(0);

    // Avoids a division for each strip.
    const unsigned hop = static_cast<unsigned>(at.parts) * 32, lanes = static_cast<unsigned>(a.lanes);
    unsigned strip = static_cast<unsigned>(at.part * 32 + at.lane);
    unsigned sample = strip % lanes;
    long long step = static_cast<long long>(strip / lanes) * steps;
    const unsigned hop_samples = hop % lanes;
    const long long hop_steps = static_cast<long long>(hop / lanes) * steps;
    for (; strip < a.strips; strip += hop) {
      const long long first = step * a.lanes + sample;
      const F* from[columns];
#pragma unroll
      for (int m = 0; m < columns; ++m) from[m] = in[m] + first;
      const int left = a.steps - static_cast<int>(step);
      if (left >= steps)
        sum_strip(row + first, from, a.lanes, sum);
      else
        sum_last_strip(row + first, from, a.lanes, left, sum);
      step += hop_steps;
      sample += hop_samples;
      if (sample >= lanes) {
        sample -= lanes;
        step += steps;
      }
    }
    __syncwarp();

    F own = F(0);  // lane m * taps + n has sum[m][n]
#pragma unroll
    for (int m = 0; m < columns; ++m)
#pragma unroll
      for (int n = 0; n < taps; ++n) {
        F all = sum[m][n];
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) all += __shfl_xor_sync(~0u, all, distance);
        if (at.lane == m * taps + n) own = all;
      }
    if (at.parts > 1) {
      shared[at.warp][at.lane] = own;
      __syncthreads();
      for (int part = 1; part < at.parts; ++part)
        if (at.part == 0) own += shared[part * a.rows_at_once + at.warp][at.lane];
    }
    const bool is_sum = at.lane < columns * taps && column + at.lane / taps < a.columns;
    if (at.part == 0 && at.is_there && is_sum) static_cast<F*>(a.out)[(entry + column) * taps + at.lane] = own;
  }
};

}  // namespace layers
}  // namespace spikeforge
