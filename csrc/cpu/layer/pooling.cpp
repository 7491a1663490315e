// Compiled once for each instruction set (CPU_CAPABILITY), under the rule of predefined_loops.cpp.
#include "csrc/cpu/layer/pooling.h"
#include "csrc/cpu/element_type.h"

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

using layers::Images;
using layers::Pool;
using layers::PoolLaunch;
using layers::Window;

std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
std::int64_t larger(std::int64_t a, std::int64_t b) { return a < b ? b : a; }

// The windows among [0, count) for which the element at this distance from the start of the window is within the image.
struct Range {
  std::int64_t first, last;

  Range(const Window& window, std::int64_t offset, std::int64_t size, std::int64_t count)
      : first(larger(0, (window.padding - offset + window.stride - 1) / window.stride)),
        last(smaller(count, (larger(0, size + window.padding - offset) + window.stride - 1) / window.stride)) {}
};

// Returns the divisor of a window's sum.
double divisor_of(const Pool& pool, const Images& images, std::int64_t i, std::int64_t j) {
  if (pool.divisor != 0) return pool.divisor;
  const auto count = [&](const Window& window, std::int64_t at, std::int64_t size) {
    std::int64_t first = at * window.stride - window.padding,
                 last = smaller(first + window.size, size + window.padding);
    if (!pool.counts_padding) first = larger(first, 0), last = smaller(last, size);
    return last - first;
  };
  return static_cast<double>(count(pool.down, i, images.height) * count(pool.across, j, images.width));
}

// Computes rows of results, or of gradients, one at a time. A row is stored as [columns, channels]; the loop runs over
// neighbours with equal treatment: the channels of a column, or, for plain images, the columns.
template <class Stored> class Rows {
 public:
  using Number = Compute<Stored>;

  Rows(const PoolLaunch& call, void* scratch)
      : call_(call),
        pool_(call.pool),
        images_(call.images),
        numbers_(static_cast<Number*>(scratch)),
        upstream_(numbers_ + longest_row(images_)),
        which_(reinterpret_cast<int*>(upstream_ + longest_row(images_))) {}

  void forward(std::int64_t row) {
    const std::int64_t image = row / images_.out_height, i = row % images_.out_height;
    const std::int64_t elements = images_.out_width * images_.channels;
    const auto* const x =
        static_cast<const Stored*>(call_.from) + image * images_.height * images_.width * images_.channels;
    for (std::int64_t k = 0; k < elements; ++k) {
      numbers_[k] = pool_.is_mean ? Number(0) : -static_cast<Number>(__builtin_inf());
      which_[k] = none;
    }
    for (int ky = 0; ky < pool_.down.size; ++ky) {
      const std::int64_t h = i * pool_.down.stride - pool_.down.padding + ky * pool_.down.dilation;
      if (h < 0 || h >= images_.height) continue;
      const bool is_first_row = ky == 0 || h < pool_.down.dilation;
      for (int kx = 0; kx < pool_.across.size; ++kx)
        over_columns(kx, [&](std::int64_t column, std::int64_t w, std::int64_t count, std::int64_t stride) {
          const bool starts = is_first_row && (kx == 0 || w < pool_.across.dilation) && images_.channels > 1;
          take(image, column, x + (h * images_.width + w) * images_.channels, count, stride,
               ky * pool_.across.size + kx, starts);
        });
    }
    if (pool_.is_mean) divide(numbers_, i);
    if (call_.is_normalised()) turn_back(image);
    auto* const y = static_cast<Stored*>(call_.to) + row * elements;
    for (std::int64_t k = 0; k < elements; ++k) y[k] = static_cast<Stored>(numbers_[k]);
    if (call_.which == nullptr || pool_.is_mean) return;
    for (std::int64_t k = 0; k < elements; ++k)
      call_.which[row * elements + k] = static_cast<std::uint8_t>(which_[k] == none ? 0 : which_[k]);
  }

  void backward(std::int64_t row) {
    const std::int64_t image = row / images_.height, h = row % images_.height;
    const std::int64_t elements = images_.width * images_.channels;
    if (call_.is_normalised())
      share(image, row * elements);
    else
      for (std::int64_t k = 0; k < elements; ++k) numbers_[k] = 0;
    for (int ky = 0; ky < pool_.down.size; ++ky) {
      const std::int64_t begin = h + pool_.down.padding - ky * pool_.down.dilation, i = begin / pool_.down.stride;
      if (begin < 0 || begin % pool_.down.stride != 0 || i >= images_.out_height) continue;
      read_upstream(image, i);
      for (int kx = 0; kx < pool_.across.size; ++kx)
        over_columns(kx, [&](std::int64_t column, std::int64_t w, std::int64_t count, std::int64_t stride) {
          give(column, w * images_.channels, count, stride, ky * pool_.across.size + kx);
        });
    }
    auto* const grad = static_cast<Stored*>(call_.to) + row * elements;
    for (std::int64_t k = 0; k < elements; ++k) grad[k] = static_cast<Stored>(numbers_[k]);
  }

 private:
  static constexpr int none = -1;

  // Calls f(first element of the windows in their row, column of their place kx in x's row, number of elements,
  // distance of columns) for all windows that have place kx.
  template <class F> void over_columns(int kx, const F& f) const {
    const Window& across = pool_.across;
    const std::int64_t offset = kx * across.dilation;
    const Range inside(across, offset, images_.width, images_.out_width);
    if (inside.first >= inside.last) return;
    const auto place = [&](std::int64_t j) { return j * across.stride - across.padding + offset; };
    if (images_.channels == 1)
      f(inside.first, place(inside.first), inside.last - inside.first, across.stride);
    else
      for (std::int64_t j = inside.first; j < inside.last; ++j) f(j * images_.channels, place(j), images_.channels, 1);
  }

  // A value per channel of an image, indexed by the element of a row.
  struct OfChannels {
    const Number* numbers;
    std::int64_t channels;

    OfChannels(const void* all, const Rows& rows, std::int64_t image)
        : numbers(static_cast<const Number*>(all) + image % rows.call_.normalised.cycle),
          channels(rows.images_.channels) {}
    Number operator[](std::int64_t k) const { return numbers[channels == 1 ? 0 : k % channels]; }
  };

  // Negates the values of channels with a negative weight: their maximum after normalisation is their minimum before
  // it.
  static Number turned(Number number, Number weight) { return weight < 0 ? -number : number; }

  void turn_back(std::int64_t image) {
    const OfChannels weight(call_.normalised.weight, *this, image);
    for (std::int64_t k = 0; k < images_.out_width * images_.channels; ++k)
      numbers_[k] = turned(numbers_[k], weight[k]);
  }

  // Sets the part of x's gradient that comes from the statistics, for the row that starts at this element.
  void share(std::int64_t image, std::int64_t from) {
    const auto& normalised = call_.normalised;
    const OfChannels mean(normalised.mean, *this, image), offset(normalised.offset, *this, image),
        slope(normalised.slope, *this, image);
    const auto* const x = static_cast<const Stored*>(normalised.x) + from;
    for (std::int64_t k = 0; k < images_.width * images_.channels; ++k)
      numbers_[k] = offset[k] + slope[k] * (static_cast<Number>(x[k]) - mean[k]);
  }

  // `starts` is true if these are the first elements of their windows. It is used if the elements are the channels of a
  // column. If they are the columns of a row, which_[k] == none marks the first element of window k.
  void take(std::int64_t image, std::int64_t first, const Stored* x, std::int64_t count, std::int64_t stride, int place,
            bool starts) {
    Number* const numbers = numbers_ + first;
    int* const which = which_ + first;
    const auto add = [&](std::int64_t k, Number number) { numbers[k] += number; };
    // Chooses the first of equal values, and NaN over any number, as torch does.
    const auto choose = [&](std::int64_t k, Number number) {
      const bool is_better = (which[k] == none) | (number > numbers[k]) | (number != number);
      numbers[k] = is_better ? number : numbers[k];
      which[k] = is_better ? place : which[k];
    };
    const auto each = [&](const auto& f) {
      if (call_.is_normalised()) {
        const OfChannels weight(call_.normalised.weight, *this, image);
        for (std::int64_t k = 0; k < count; ++k) f(k, turned(static_cast<Number>(x[k * stride]), weight[k]));
      } else if (stride == 1) {
        for (std::int64_t k = 0; k < count; ++k) f(k, static_cast<Number>(x[k]));
      } else {
        for (std::int64_t k = 0; k < count; ++k) f(k, static_cast<Number>(x[k * stride]));
      }
    };
    const auto choose_more = [&](std::int64_t k, Number number) {
      const bool is_better = (number > numbers[k]) | (number != number);
      numbers[k] = is_better ? number : numbers[k];
      which[k] = is_better ? place : which[k];
    };
    const auto choose_first = [&](std::int64_t k, Number number) {
      numbers[k] = number;
      which[k] = place;
    };
    if (pool_.is_mean)
      each(add);
    else if (images_.channels == 1)
      each(choose);
    else
      starts ? each(choose_first) : each(choose_more);
  }

  // Reads the gradients of the windows of row i: for means, divided by the number of elements; for maxima, together
  // with their places.
  void read_upstream(std::int64_t image, std::int64_t i) {
    const std::int64_t elements = images_.out_width * images_.channels;
    const std::int64_t from = (image * images_.out_height + i) * elements;
    const auto* const grad = static_cast<const Stored*>(call_.from) + from;
    for (std::int64_t k = 0; k < elements; ++k) upstream_[k] = static_cast<Number>(grad[k]);
    if (pool_.is_mean) return divide(upstream_, i);
    for (std::int64_t k = 0; k < elements; ++k) which_[k] = call_.which[from + k];
  }

  void give(std::int64_t first, std::int64_t to, std::int64_t count, std::int64_t stride, int place) {
    Number* const numbers = numbers_ + to;
    const Number* const upstream = upstream_ + first;
    const int* const which = which_ + first;
    const auto each = [&](const auto& gradient) {
      if (stride == 1)
        for (std::int64_t k = 0; k < count; ++k) numbers[k] += gradient(k);
      else
        for (std::int64_t k = 0; k < count; ++k) numbers[k * stride] += gradient(k);
    };
    if (pool_.is_mean)
      each([&](std::int64_t k) { return upstream[k]; });
    else
      each([&](std::int64_t k) { return which[k] == place ? upstream[k] : Number(0); });
  }

  void divide(Number* row, std::int64_t i) const {
    for (std::int64_t j = 0; j < images_.out_width; ++j) {
      const auto divisor = static_cast<Number>(divisor_of(pool_, images_, i, j));
      for (std::int64_t c = 0; c < images_.channels; ++c) row[j * images_.channels + c] /= divisor;
    }
  }

  const PoolLaunch& call_;
  const Pool& pool_;
  const Images& images_;
  Number *numbers_, *upstream_;
  int* which_;
};

template <bool is_forward> void run(const PoolLaunch& call, std::int64_t first, std::int64_t last, void* scratch) {
  with_element(call.type, [&](auto number) {
    Rows<decltype(number)> rows(call, scratch);
    for (std::int64_t row = first; row < last; ++row) is_forward ? rows.forward(row) : rows.backward(row);
  });
}

constexpr PoolingKernels table = {run<true>, run<false>};

}  // namespace
}  // namespace CPU_CAPABILITY

const PoolingKernels& SPIKEFORGE_OF_SET(pooling_kernels)() { return table; }

}  // namespace spikeforge::cpu
