// Reading and writing rows: W neighbouring neurons of one step in one access.
#pragma once

#include <spikeforge/cuda/half.cuh>

namespace spikeforge {

// Where a tensor that a kernel reads comes from.
enum class Source { absent, f16, bf16, f32, f64 };

// One step after another of a [T, N] sequence; the stride is in elements and may be 0.
struct Rows {
  const void* data;
  long long time_stride;
};

// The value of neuron i is data[(i / inner) % count], or the number.
struct ParamSource {
  const void* data;
  double number;
  long long inner;
  long long count;
};

template <class T, int W>
struct alignas(sizeof(T) * W) Pack {
  T lane[W];
};

// `sum().backward()` sends one element for a whole row: it is read once and spread.
template <class T, int W>
__device__ __forceinline__ Pack<T, W> load_row(const Rows& rows, int t, long long i, bool one_element = false) {
  const T* row = static_cast<const T*>(rows.data) + t * rows.time_stride;
  if (!one_element) return *reinterpret_cast<const Pack<T, W>*>(row + i);
  Pack<T, W> pack;
#pragma unroll
  for (int k = 0; k < W; ++k) pack.lane[k] = *row;
  return pack;
}

template <class T, int W>
__device__ __forceinline__ void store_row(void* data, long long offset, const Pack<T, W>& pack) {
  *reinterpret_cast<Pack<T, W>*>(static_cast<T*>(data) + offset) = pack;
}

template <class F>
__device__ __forceinline__ F load_as(Source source, const void* data, long long i) {
  switch (source) {
    case Source::f16:
      return convert<F>(convert<float>(static_cast<const f16*>(data)[i]));
    case Source::bf16:
      return convert<F>(convert<float>(static_cast<const bf16*>(data)[i]));
    case Source::f32:
      return convert<F>(static_cast<const float*>(data)[i]);
    case Source::f64:
      return convert<F>(static_cast<const double*>(data)[i]);
    default:
      return F(0);
  }
}

template <class F>
__device__ __forceinline__ void store_as(Source target, void* data, long long i, F value) {
  switch (target) {
    case Source::f16:
      static_cast<f16*>(data)[i] = convert<f16>(convert<float>(value));
      return;
    case Source::bf16:
      static_cast<bf16*>(data)[i] = convert<bf16>(convert<float>(value));
      return;
    case Source::f32:
      static_cast<float*>(data)[i] = convert<float>(value);
      return;
    case Source::f64:
      static_cast<double*>(data)[i] = convert<double>(value);
      return;
    default:
      return;
  }
}

template <class F>
__device__ __forceinline__ F load_param(Source source, const ParamSource& param, long long i, long long neurons) {
  if (source == Source::absent) return static_cast<F>(param.number);
  long long at = 0;
  if (param.count == neurons && param.inner == 1) {
    at = i;
  } else if (param.count > 1) {
    // 64-bit division costs ten times the 32-bit one.
    at = neurons <= 0xffffffffll
             ? (static_cast<unsigned>(i) / static_cast<unsigned>(param.inner)) % static_cast<unsigned>(param.count)
             : (i / param.inner) % param.count;
  }
  return load_as<F>(source, param.data, at);
}

}  // namespace spikeforge
