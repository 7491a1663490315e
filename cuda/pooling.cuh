// Maxima and means over windows of images [count, height, width, channels], and their gradients. Plain images have one
// channel; where channels are neighbours in memory a thread takes W of them. A thread makes `strip` results below each
// other, which share what they read.
#pragma once

#include <spikeforge/kernels/layer/arguments.h>
#include <spikeforge/cuda/rows.cuh>

namespace spikeforge {
namespace layers {

__device__ __forceinline__ unsigned quotient(unsigned n, const Divisor& by) {
  return (__umulhi(n, by.factor) + n) >> by.shift;
}

// What a thread takes.
struct Item {
  long long image;
  int down, across, channel;

  template <int W>
  __device__ __forceinline__ bool find(const PoolArguments& a) {
    const unsigned item = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned column = quotient(item, a.lanes), row = quotient(column, a.across);
    const unsigned of_image = quotient(row, a.down);
    image = of_image;
    down = static_cast<int>(row - of_image * a.down.divisor);
    across = static_cast<int>(column - row * a.across.divisor);
    channel = static_cast<int>(item - column * a.lanes.divisor) * W;
    return item < a.items;
  }
};

// Shape has
//   static constexpr Window down, across;
//   static constexpr int strip;
//   static constexpr bool is_mean;
template <class T, class F, int W, class Shape>
struct Pooling {
  using Lane = Lanes<W, true>;
  static constexpr Window down = Shape::down, across = Shape::across;
  static constexpr int strip = Shape::strip;
  // Loops over places of a window are unrolled where it is small.
  static constexpr int unrolled = down.size * across.size <= 64 ? 64 : 1;

  static __device__ __forceinline__ bool is_within(int i, int size) {
    return static_cast<unsigned>(i) < static_cast<unsigned>(size);
  }

  // Whether a window has a place so far from its begin.
  static __device__ __forceinline__ constexpr bool has_place(const Window& window, int distance) {
    return distance >= 0 && distance % window.dilation == 0 && distance / window.dilation < window.size;
  }

  static __device__ __forceinline__ void load(const T* from, bool is_there, F otherwise, F (&values)[W]) {
    Pack<T, W, true> pack;
    if (is_there)
      pack = Lane::load(from);
    else
      pack.fill(convert<T>(otherwise));
    pack.unpack(values);
  }

  // `starts`: nothing that came before lies within the image. Of equal numbers the first one is taken, and NaN before
  // any number, as torch does.
  static __device__ __forceinline__ void take(F& so_far, int& place, F next, int next_place, bool starts) {
    if (Shape::is_mean) {
      so_far = starts ? next : so_far + next;
    } else if (starts || next > so_far || next != next) {
      so_far = next;
      place = next_place;
    }
  }

  // What the sum of a window is divided by.
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

  static __device__ __forceinline__ void forward(const PoolArguments& a) {
    Item at;
    if (!at.find<W>(a)) return;
    const T* const image = static_cast<const T*>(a.from) + at.image * a.height * a.width * a.channels + at.channel;
    const int first = at.down * strip;
    const int top = first * down.stride - down.padding, left = at.across * across.stride - across.padding;
    constexpr int rows = (strip - 1) * down.stride + (down.size - 1) * down.dilation + 1;
    const F nothing = Shape::is_mean ? F(0) : -static_cast<F>(__int_as_float(0x7f800000));
    F result[strip][W];
    int which[strip][W];
#pragma unroll unrolled
    for (int y = 0; y < rows; ++y) {
      const int h = top + y;
      F row[W];
      int place[W];
#pragma unroll unrolled
      for (int kx = 0; kx < across.size; ++kx) {
        const int w = left + kx * across.dilation;
        F values[W];
        load(image + (static_cast<long long>(h) * a.width + w) * a.channels,
             is_within(h, a.height) && is_within(w, a.width), nothing, values);
        const bool starts = kx == 0 || w < across.dilation;
#pragma unroll
        for (int k = 0; k < W; ++k) take(row[k], place[k], values[k], kx, starts);
      }
#pragma unroll
      for (int r = 0; r < strip; ++r) {
        if (!has_place(down, y - r * down.stride)) continue;
        const int ky = (y - r * down.stride) / down.dilation;
        const bool starts = ky == 0 || h < down.dilation;
#pragma unroll
        for (int k = 0; k < W; ++k) take(result[r][k], which[r][k], row[k], ky * across.size + place[k], starts);
      }
    }
#pragma unroll
    for (int r = 0; r < strip; ++r) {
      const int i = first + r;
      if (i >= a.out_height) return;
      const long long to = ((at.image * a.out_height + i) * a.out_width + at.across) * a.channels + at.channel;
      if (Shape::is_mean) {
        const F divisor = divisor_of(a, i, at.across);
#pragma unroll
        for (int k = 0; k < W; ++k) result[r][k] /= divisor;
      }
      Pack<T, W, true> pack;
      pack.pack(result[r]);
      Lane::store(static_cast<T*>(a.to) + to, pack);
      if (!Shape::is_mean && a.which != nullptr) {
        Pack<unsigned char, W, true> places;
        places.pack(which[r]);
        Lane::store(a.which + to, places);
      }
    }
  }

  // The gradient of a window, for each place what it is, and for maxima which place has it.
  struct Upstream {
    F grad[W];
    int which[W];

    __device__ __forceinline__ void load(const PoolArguments& a, const Item& at, int i, int j) {
      const bool is_there = is_within(i, a.out_height) && is_within(j, a.out_width);
      const long long from = ((at.image * a.out_height + i) * a.out_width + j) * a.channels + at.channel;
      Pooling::load(static_cast<const T*>(a.from) + from, is_there, F(0), grad);
      if (Shape::is_mean) {
        const F divisor = is_there ? divisor_of(a, i, j) : F(1);
#pragma unroll
        for (int k = 0; k < W; ++k) grad[k] /= divisor;
      } else {
        Pack<unsigned char, W, true> places;
        if (is_there)
          places = Lane::load(static_cast<const unsigned char*>(a.which) + from);
        else
          places.fill(0);
        places.unpack(which);
      }
    }

    __device__ __forceinline__ void add_to(F (&sum)[W], int place) const {
#pragma unroll
      for (int k = 0; k < W; ++k)
        if (Shape::is_mean || which[k] == place) sum[k] += grad[k];
    }
  };

  static __device__ __forceinline__ void store_gradient(const PoolArguments& a, const Item& at, int h, int w,
                                                        const F (&sum)[W]) {
    if (!is_within(h, a.height) || !is_within(w, a.width)) return;
    Pack<T, W, true> pack;
    pack.pack(sum);
    Lane::store(static_cast<T*>(a.to) + ((at.image * a.height + h) * a.width + w) * a.channels + at.channel, pack);
  }

  // A thread takes a patch of stride times stride places for each of its strip, which all lie in the same windows:
  // those that begin in the patch, and some before.
  static __device__ __forceinline__ void backward(const PoolArguments& a) {
    Item at;
    if (!at.find<W>(a)) return;
    constexpr int above = (down.size - 1) * down.dilation / down.stride;
    constexpr int before = (across.size - 1) * across.dilation / across.stride;
    const int first = at.down * strip;
    F sum[strip][down.stride][across.stride][W] = {};
#pragma unroll
    for (int u = 0; u < strip + above; ++u) {
#pragma unroll
      for (int m = 0; m <= before; ++m) {
        Upstream window;
        window.load(a, at, first - above + u, at.across - m);
#pragma unroll
        for (int r = 0; r < strip; ++r) {
#pragma unroll
          for (int y = 0; y < down.stride; ++y) {
            const int below = (r + above - u) * down.stride + y;
            if (!has_place(down, below)) continue;
#pragma unroll
            for (int x = 0; x < across.stride; ++x) {
              const int beside = m * across.stride + x;
              if (!has_place(across, beside)) continue;
              window.add_to(sum[r][y][x], below / down.dilation * across.size + beside / across.dilation);
            }
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < strip; ++r)
#pragma unroll
      for (int y = 0; y < down.stride; ++y)
#pragma unroll
        for (int x = 0; x < across.stride; ++x)
          store_gradient(a, at, (first + r) * down.stride + y - down.padding,
                         at.across * across.stride + x - across.padding, sum[r][y][x]);
  }

  // For windows of many places, or wide apart: a thread takes one place of the image.
  static __device__ __forceinline__ void backward_of_large_windows(const PoolArguments& a) {
    Item at;
    if (!at.find<W>(a)) return;
    const int h = at.down + down.padding, w = at.across + across.padding;
    constexpr int taller = (down.size - 1) * down.dilation, wider = (across.size - 1) * across.dilation;
    F sum[W] = {};
    for (int i = h / down.stride; i >= 0 && h - i * down.stride <= taller; --i) {
      if (!has_place(down, h - i * down.stride)) continue;
      for (int j = w / across.stride; j >= 0 && w - j * across.stride <= wider; --j) {
        if (!has_place(across, w - j * across.stride)) continue;
        Upstream window;
        window.load(a, at, i, j);
        window.add_to(sum,
                      (h - i * down.stride) / down.dilation * across.size + (w - j * across.stride) / across.dilation);
      }
    }
    store_gradient(a, at, at.down, at.across, sum);
  }
};

}  // namespace layers
}  // namespace spikeforge
