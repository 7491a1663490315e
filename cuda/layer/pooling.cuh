// Maxima and means over windows of images [count, height, width, channels], and their gradients. A thread computes
// neighbouring results, which share inputs: `strip` results along the height and, along the width, `columns` results
// or, if channels are neighbours in memory, the results of W channels.
//
// Short names: T stored type; F type of the arithmetic; W numbers per access.
#pragma once

#include "csrc/kernels/layer/arguments.h"
#include "cuda/divisor.cuh"
#include "cuda/rows.cuh"

namespace spikeforge {
namespace layers {

// The results of a thread.
struct Item {
  long long image;
  int down, across, channel;

  template <int W> __device__ __forceinline__ bool find(const PoolArguments& a) {
    const unsigned item = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned column = quotient(item, a.lanes), row = quotient(column, a.across);
    const unsigned of_image = quotient(row, a.down);
    image = of_image;
    down = static_cast<int>(row - of_image * a.down.divisor);
    across = static_cast<int>(column - row * a.across.divisor);
    channel = static_cast<int>(item - column * a.lanes.divisor) * W;
    return item < a.items;
  }

  // The channel of the thread's first value.
  __device__ __forceinline__ unsigned channel_of(const PoolArguments& a) const {
    return channel + (a.first + static_cast<unsigned>(image)) % a.cycle;
  }
};

// Shape has
//   static constexpr Window down, across;
//   static constexpr int strip, columns;
//   static constexpr int vector_in, vector_out;   columns of x's and of y's rows that are one access
//   static constexpr bool is_mean, is_normalised;   is_normalised: a maximum that a normalisation follows
template <class T, class F, int W, class Shape> struct Pooling {
  static constexpr Window down = Shape::down, across = Shape::across;
  static constexpr int strip = Shape::strip, columns = Shape::columns;

  static __device__ __forceinline__ bool is_within(int i, int size) {
    return static_cast<unsigned>(i) < static_cast<unsigned>(size);
  }

  // True if a window has an element at this distance from its start.
  static __device__ __forceinline__ constexpr bool has_place(const Window& window, int distance) {
    return distance >= 0 && distance % window.dilation == 0 && distance / window.dilation < window.size;
  }

  template <int n, class Stored, class Number>
  static __device__ __forceinline__ void load(const Stored* from, bool is_there, Number otherwise,
                                              Number (&values)[n]) {
    Pack<Stored, n, true> pack;
    if (is_there)
      pack = Lanes<n, true>::load(from);
    else
      pack.fill(convert<Stored>(otherwise));
    pack.unpack(values);
  }

  template <int n> static __device__ __forceinline__ void store(T* to, const F (&values)[n]) {
    Pack<T, n, true> pack;
    pack.pack(values);
    Lanes<n, true>::store(to, pack);
  }

  // Columns [first - left, first + body + right) of a row, W channels each; `otherwise` outside of the image.
  template <int left, int body, int right, int vector, class Stored, class Number>
  static __device__ __forceinline__ void load_row(const Stored* row, long long channels, int first, int size,
                                                  bool is_there, Number otherwise,
                                                  Number (&values)[left + body + right][W]) {
#pragma unroll
    for (int x = 0; x < left + body + right; ++x) {
      const int column = first + x - left;
      const bool is_inside = is_there && is_within(column, size);
      if (W > 1 || vector == 1 || x < left || x >= left + body) {
        load(row + column * channels, is_inside, otherwise, values[x]);
      } else if ((x - left) % vector == 0) {
        Number some[vector];
        load(row + column, is_inside, otherwise, some);
#pragma unroll
        for (int k = 0; k < vector; ++k) values[x + k][0] = some[k];
      }
    }
  }

  // Columns [first, first + body).
  template <int body, int vector>
  static __device__ __forceinline__ void store_row(T* row, long long channels, int first, int size,
                                                   const F (&values)[body][W]) {
#pragma unroll
    for (int x = 0; x < body; ++x) {
      if (!is_within(first + x, size)) return;
      if (W > 1 || vector == 1) {
        store(row + (first + x) * channels, values[x]);
      } else if (x % vector == 0) {
        F some[vector];
#pragma unroll
        for (int k = 0; k < vector; ++k) some[k] = values[x + k][0];
        store(row + first + x, some);
      }
    }
  }

  static __device__ __forceinline__ F nothing() {
    return Shape::is_mean ? F(0) : -static_cast<F>(__int_as_float(0x7f800000));
  }

  // Adds the next value to a maximum or a sum. `starts`: true if no earlier value is within the image. The first of
  // equal values is chosen, and NaN over any number, as in torch.
  static __device__ __forceinline__ void take(F& so_far, int& place, F next, int next_place, bool starts) {
    if (Shape::is_mean) {
      so_far = starts ? next : so_far + next;
    } else if (starts || next > so_far || next != next) {
      so_far = next;
      place = next_place;
    }
  }

  // For each of a thread's channels: -1 if x will be multiplied by a number below 0, else 1.
  struct Signs {
    F of[W];

    __device__ __forceinline__ Signs(const PoolArguments& a, const Item& at) {
      if (!Shape::is_normalised) return;
      const F* const weight = static_cast<const F*>(a.weight) + at.channel_of(a);
#pragma unroll
      for (int k = 0; k < W; ++k) of[k] = weight[k] < F(0) ? F(-1) : F(1);
    }
    __device__ __forceinline__ void apply(F (&values)[W]) const {
      if (!Shape::is_normalised) return;
#pragma unroll
      for (int k = 0; k < W; ++k) values[k] *= of[k];
    }
  };

  // The divisor of a window's sum.
  static __device__ __forceinline__ F divisor_of(const PoolArguments& a, int i, int j) {
    if (a.divisor != 0) return static_cast<F>(a.divisor);
    int top = i * down.stride - down.padding, left = j * across.stride - across.padding;
    int bottom = min(top + down.size, a.height + down.padding),
        right = min(left + across.size, a.width + across.padding);
    if (!a.counts_padding) {
      top = max(top, 0), bottom = min(bottom, a.height);
      left = max(left, 0), right = min(right, a.width);
    }
    return static_cast<F>((bottom - top) * (right - left));
  }

  // The window sums of `count` neighbours that begin at column j.
  template <int count, int vector>
  static __device__ __forceinline__ void store_results(const PoolArguments& a, const Item& at, int i, int j,
                                                       F (&result)[count][W], const int (&which)[count][W]) {
    const long long row = (at.image * a.out_height + i) * a.out_width * a.channels + at.channel;
    if (Shape::is_mean) {
#pragma unroll
      for (int c = 0; c < count; ++c) {
        const F divisor = divisor_of(a, i, j + c);
#pragma unroll
        for (int k = 0; k < W; ++k) result[c][k] /= divisor;
      }
    }
    store_row<count, vector>(static_cast<T*>(a.to) + row, a.channels, j, a.out_width, result);
    if (Shape::is_mean || a.which == nullptr) return;
#pragma unroll
    for (int c = 0; c < count; ++c) {
      if (!is_within(j + c, a.out_width)) return;
      constexpr int n = W > 1 ? W : vector;
      if (W == 1 && c % vector != 0) continue;
      Pack<unsigned char, n, true> places;
#pragma unroll
      for (int k = 0; k < n; ++k)
        places.lane[k] = static_cast<unsigned char>(W > 1 ? which[c][k % W] : which[c + k % vector][0]);
      Lanes<n, true>::store(a.which + row + (j + c) * a.channels, places);
    }
  }

  static __device__ __forceinline__ void forward(const PoolArguments& a) {
    Item at;
    if (!at.find<W>(a)) return;
    constexpr int rows = (strip - 1) * down.stride + (down.size - 1) * down.dilation + 1;
    constexpr int left = across.padding, body = columns * across.stride;
    constexpr int reach = (columns - 1) * across.stride + (across.size - 1) * across.dilation + 1;
    constexpr int right = reach > left + body ? reach - left - body : 0;
    const T* const image = static_cast<const T*>(a.from) + at.image * a.height * a.width * a.channels + at.channel;
    const int i = at.down * strip, j = at.across * columns;
    const Signs signs(a, at);
    F result[strip][columns][W];
    int which[strip][columns][W];
#pragma unroll
    for (int y = 0; y < rows; ++y) {
      const int h = i * down.stride - down.padding + y;
      F x[left + body + right][W];
      load_row<left, body, right, Shape::vector_in>(image + static_cast<long long>(h) * a.width * a.channels,
                                                    a.channels, j * across.stride, a.width, is_within(h, a.height),
                                                    nothing(), x);
#pragma unroll
      for (int c = 0; c < left + body + right; ++c)
        if (is_within(h, a.height) && is_within(j * across.stride + c - left, a.width)) signs.apply(x[c]);
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        F row[W];
        int place[W];
#pragma unroll
        for (int kx = 0; kx < across.size; ++kx) {
          const int w = (j + c) * across.stride - left + kx * across.dilation;
          const bool starts = kx == 0 || w < across.dilation;
#pragma unroll
          for (int k = 0; k < W; ++k)
            take(row[k], place[k], x[c * across.stride + kx * across.dilation][k], kx, starts);
        }
#pragma unroll
        for (int r = 0; r < strip; ++r) {
          if (!has_place(down, y - r * down.stride)) continue;
          const int ky = (y - r * down.stride) / down.dilation;
          const bool starts = ky == 0 || h < down.dilation;
#pragma unroll
          for (int k = 0; k < W; ++k)
            take(result[r][c][k], which[r][c][k], row[k], ky * across.size + place[k], starts);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < strip; ++r) {
#pragma unroll
      for (int c = 0; c < columns; ++c) signs.apply(result[r][c]);
      if (i + r < a.out_height) store_results<columns, Shape::vector_out>(a, at, i + r, j, result[r], which[r]);
    }
  }

  // The gradients of windows [j - left, j + body + right) of row i. For maxima, also the place in the window that each
  // gradient belongs to; for means, each gradient is divided by the window's divisor.
  template <int left, int body, int right> struct Upstream {
    F grad[left + body + right][W];
    int which[left + body + right][W];

    __device__ __forceinline__ void load(const PoolArguments& a, const Item& at, int i, int j) {
      const bool is_there = is_within(i, a.out_height);
      const long long row = (at.image * a.out_height + i) * a.out_width * a.channels + at.channel;
      load_row<left, body, right, Shape::vector_out>(static_cast<const T*>(a.from) + row, a.channels, j, a.out_width,
                                                     is_there, F(0), grad);
      if (!Shape::is_mean) {
        load_row<left, body, right, Shape::vector_out>(static_cast<const unsigned char*>(a.which) + row, a.channels, j,
                                                       a.out_width, is_there, 0, which);
        return;
      }
#pragma unroll
      for (int m = 0; m < left + body + right; ++m) {
        if (!is_there || !is_within(j + m - left, a.out_width)) continue;
        const F divisor = divisor_of(a, i, j + m - left);
#pragma unroll
        for (int k = 0; k < W; ++k) grad[m][k] /= divisor;
      }
    }

    __device__ __forceinline__ void add_to(F (&sum)[W], int m, int place) const {
#pragma unroll
      for (int k = 0; k < W; ++k)
        if (Shape::is_mean || which[m][k] == place) sum[k] += grad[m][k];
    }
  };

  // The part of x's gradient that comes from the statistics: an affine function of x.
  struct Share {
    F mean[W], offset[W], slope[W];

    __device__ __forceinline__ Share(const PoolArguments& a, const Item& at) {
      const unsigned channel = at.channel_of(a);
#pragma unroll
      for (int k = 0; k < W; ++k) {
        mean[k] = static_cast<const F*>(a.mean)[channel + k];
        offset[k] = static_cast<const F*>(a.offset)[channel + k];
        slope[k] = static_cast<const F*>(a.slope)[channel + k];
      }
    }
    static __device__ __forceinline__ const T* row(const PoolArguments& a, const Item& at, int h) {
      return static_cast<const T*>(a.x) + (at.image * a.height + h) * a.width * a.channels + at.channel;
    }
    __device__ __forceinline__ void replace(F (&x)[W]) const {
#pragma unroll
      for (int k = 0; k < W; ++k) x[k] = offset[k] + slope[k] * (x[k] - mean[k]);
    }
  };

  // For each of its windows, a thread computes the gradients of stride x stride elements of x.
  static __device__ __forceinline__ void backward(const PoolArguments& a) {
    Item at;
    if (!at.find<W>(a)) return;
    // Windows before the thread's own that contain its elements, and after.
    constexpr int above = ((down.size - 1) * down.dilation - down.padding) / down.stride;
    constexpr int below = (down.stride - 1 + down.padding) / down.stride;
    constexpr int left = ((across.size - 1) * across.dilation - across.padding) / across.stride;
    constexpr int right = (across.stride - 1 + across.padding) / across.stride;
    constexpr int rows = strip * down.stride, body = columns * across.stride;
    const int i = at.down * strip, j = at.across * columns;
    F sum[rows][body][W] = {};
    if (Shape::is_normalised) {
      const Share share(a, at);
#pragma unroll
      for (int y = 0; y < rows; ++y) {
        const int h = i * down.stride + y;
        load_row<0, body, 0, Shape::vector_in>(share.row(a, at, h), a.channels, j * across.stride, a.width,
                                               h < a.height, F(0), sum[y]);
#pragma unroll
        for (int x = 0; x < body; ++x) share.replace(sum[y][x]);
      }
    }
#pragma unroll
    for (int u = -above; u < strip + below; ++u) {
      Upstream<left, columns, right> windows;
      windows.load(a, at, i + u, j);
#pragma unroll
      for (int y = 0; y < rows; ++y) {
        const int down_it = y - u * down.stride + down.padding;
        if (!has_place(down, down_it)) continue;
#pragma unroll
        for (int x = 0; x < body; ++x) {
#pragma unroll
          for (int m = -left; m < columns + right; ++m) {
            const int across_it = x - m * across.stride + across.padding;
            if (!has_place(across, across_it)) continue;
            windows.add_to(sum[y][x], m + left, down_it / down.dilation * across.size + across_it / across.dilation);
          }
        }
      }
    }
#pragma unroll
    for (int y = 0; y < rows; ++y) {
      const int h = i * down.stride + y;
      if (h >= a.height) return;
      store_row<body, Shape::vector_in>(
          static_cast<T*>(a.to) + (at.image * a.height + h) * a.width * a.channels + at.channel, a.channels,
          j * across.stride, a.width, sum[y]);
    }
  }

  // ---- for windows with many or distant elements: a thread computes one result, or one element of the gradient, at a
  // time ----

  static __device__ __forceinline__ void forward_of_large_windows(const PoolArguments& a) {
    Item at;
    if (!at.find<W>(a)) return;
    const T* const image = static_cast<const T*>(a.from) + at.image * a.height * a.width * a.channels + at.channel;
    F result[1][W];
    int which[1][W];
    const Signs signs(a, at);
    bool starts = true;
#pragma unroll
    for (int k = 0; k < W; ++k) result[0][k] = nothing(), which[0][k] = 0;
#pragma unroll 1
    for (int ky = 0; ky < down.size; ++ky) {
      const int h = at.down * down.stride - down.padding + ky * down.dilation;
      if (!is_within(h, a.height)) continue;
#pragma unroll 1
      for (int kx = 0; kx < across.size; ++kx) {
        const int w = at.across * across.stride - across.padding + kx * across.dilation;
        if (!is_within(w, a.width)) continue;
        F x[W];
        load(image + (static_cast<long long>(h) * a.width + w) * a.channels, true, nothing(), x);
        signs.apply(x);
#pragma unroll
        for (int k = 0; k < W; ++k) take(result[0][k], which[0][k], x[k], ky * across.size + kx, starts);
        starts = false;
      }
    }
    signs.apply(result[0]);
    store_results<1, 1>(a, at, at.down, at.across, result, which);
  }

  static __device__ __forceinline__ void backward_of_large_windows(const PoolArguments& a) {
    Item at;
    if (!at.find<W>(a)) return;
    const int h = at.down + down.padding, w = at.across + across.padding;
    constexpr int taller = (down.size - 1) * down.dilation, wider = (across.size - 1) * across.dilation;
    F sum[1][W] = {};
    if (Shape::is_normalised) {
      const Share share(a, at);
      load(share.row(a, at, at.down) + at.across * a.channels, true, F(0), sum[0]);
      share.replace(sum[0]);
    }
#pragma unroll 1
    for (int i = h / down.stride; i >= 0 && h - i * down.stride <= taller; --i) {
      if (!has_place(down, h - i * down.stride)) continue;
#pragma unroll 1
      for (int j = w / across.stride; j >= 0 && w - j * across.stride <= wider; --j) {
        if (!has_place(across, w - j * across.stride)) continue;
        Upstream<0, 1, 0> window;
        window.load(a, at, i, j);
        window.add_to(sum[0], 0,
                      (h - i * down.stride) / down.dilation * across.size + (w - j * across.stride) / across.dilation);
      }
    }
    store_row<1, 1>(static_cast<T*>(a.to) + (at.image * a.height + at.down) * a.width * a.channels + at.channel,
                    a.channels, at.across, a.width, sum);
  }
};

}  // namespace layers
}  // namespace spikeforge
