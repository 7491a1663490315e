// What the host hands to the kernels of layers around neurons, and both of them read: C++17 for the host compiler and
// NVRTC.
#pragma once

namespace spikeforge {
namespace layers {

// A window of pooling along one dimension: it begins stride * i - padding, and has `size` places, `dilation` apart.
struct Window {
  int size, stride, padding, dilation;
};

// n / divisor for 0 <= n < 2^31, without a division (Granlund and Montgomery 1994, figure 4.1).
struct Divisor {
  unsigned divisor, factor, shift;
};

// Images [count, height, width, channels] and what their windows give, [count, out_height, out_width, channels]. A
// thread takes some of them: `items` threads, numbered as [count, down, across, lanes].
struct PoolArguments {
  const void* from;
  void* to;
  unsigned char* which;  // of maxima: the place in its window that each is from; null where nobody asks
  int height, width, out_height, out_width;
  long long channels;
  unsigned items;
  Divisor down, across, lanes;
  double divisor;  // of means; 0: how many places there are
  bool counts_padding;
};

// `count` numbers, bits each, and a byte that becomes 0 where one of them is none that `bits` can hold.
struct BitsArguments {
  const void* from;
  void* to;
  unsigned char* valid;
  long long count;
};

}  // namespace layers
}  // namespace spikeforge
