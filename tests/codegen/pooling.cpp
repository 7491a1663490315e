// Compares the pooling kernels, compiled for the host, with a plain loop over the elements of each window.
#include "csrc/kernels/layer/pooling.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/catch.h"
#include "tests/codegen/host_kernel.h"

namespace spikeforge::test {
namespace {

using namespace layers;

// Runs the kernels of a call, in the order of their launches on a device.
void run_on_host(const PoolLaunch& call) {
  const HostCompiled code(
      host_as_device + source_of(call).text + host_runner("spikeforge::layers::PoolArguments", "spikeforge_pool"),
      "-w");
  for (const PoolPart& part : parts_of(call))
    code.function<void(const void*, unsigned long, unsigned, unsigned)>("run")(&part.arguments, sizeof part.arguments,
                                                                               part.blocks, pool_threads);
}

struct Place {
  int number;
  std::int64_t h, w;
};

// The positions of window (i, j) that are inside the image.
std::vector<Place> places_of(const Pool& pool, const Images& images, std::int64_t i, std::int64_t j) {
  std::vector<Place> places;
  for (int ky = 0; ky < pool.down.size; ++ky)
    for (int kx = 0; kx < pool.across.size; ++kx) {
      const std::int64_t h = i * pool.down.stride - pool.down.padding + ky * pool.down.dilation;
      const std::int64_t w = j * pool.across.stride - pool.across.padding + kx * pool.across.dilation;
      if (h >= 0 && h < images.height && w >= 0 && w < images.width)
        places.push_back({ky * pool.across.size + kx, h, w});
    }
  return places;
}

std::int64_t count_of(std::int64_t size, const Window& window) {
  return (size + 2 * window.padding - window.dilation * (window.size - 1) - 1) / window.stride + 1;
}

// `normalised`: the pooling precedes a normalisation whose weight is negative in every second channel, and the gradient
// of x includes that of the statistics.
void check_pool(const Pool& pool, std::int64_t channels, std::int64_t height, std::int64_t width,
                bool normalised = false) {
  const Images images{3, height, width, channels, count_of(height, pool.down), count_of(width, pool.across)};
  INFO(pool.down.size << "x" << pool.across.size << ", channels " << channels << ", " << height << "x" << width);
  const auto inside = static_cast<std::size_t>(images.count * height * width * channels);
  const auto outside = static_cast<std::size_t>(images.count * images.out_height * images.out_width * channels);
  std::mt19937 random(7);
  std::uniform_int_distribution<int> small(-3, 3);
  std::vector<float> x(inside), y(outside), upstream(outside), grad(inside, -1), expected_grad(inside);
  std::vector<std::uint8_t> which(outside, 99);
  for (float& number : x) number = static_cast<float>(small(random));
  for (float& number : upstream) number = static_cast<float>(small(random));

  // In plain layout an image has one channel; three channels alternate.
  const std::int64_t cycle = channels == 1 ? 3 : 1, n_numbers = channels * cycle;
  const auto channel_of = [&](std::int64_t image, std::int64_t c) {
    return static_cast<std::size_t>(channels == 1 ? image % cycle : c);
  };
  std::vector<float> weight, mean, offset, slope;
  for (std::int64_t c = 0; c < n_numbers; ++c) {
    weight.push_back(c % 2 == 0 ? 2 : -1);
    for (std::vector<float>* const numbers : {&mean, &offset, &slope})
      numbers->push_back(static_cast<float>(small(random)));
  }
  const auto sign = [&](std::size_t channel) { return normalised && weight[channel] < 0 ? -1.F : 1.F; };

  PoolLaunch call{pool, images, DType::f32, PoolPass::forward, x.data(), y.data(), which.data()};
  if (normalised) call.normalised = {.weight = weight.data(), .cycle = cycle};
  run_on_host(call);
  call = {pool, images, DType::f32, PoolPass::backward, upstream.data(), grad.data(), which.data()};
  if (normalised)
    call.normalised = {
        .x = x.data(), .mean = mean.data(), .offset = offset.data(), .slope = slope.data(), .cycle = cycle};
  run_on_host(call);

  std::size_t wrong = 0, at = 0;
  for (std::int64_t image = 0; image < images.count; ++image)
    for (std::int64_t i = 0; i < images.out_height; ++i)
      for (std::int64_t j = 0; j < images.out_width; ++j)
        for (std::int64_t c = 0; c < channels; ++c, ++at) {
          const auto index = [&](const Place& place) {
            return static_cast<std::size_t>(((image * height + place.h) * width + place.w) * channels + c);
          };
          const std::vector<Place> places = places_of(pool, images, i, j);
          if (pool.is_mean) {
            const auto divisor = static_cast<float>(places.size());
            float sum = 0;
            for (const Place& place : places) {
              sum += x[index(place)];
              expected_grad[index(place)] += upstream[at] / divisor;
            }
            wrong += std::abs(y[at] - sum / divisor) > 1e-6F;
          } else if (!places.empty()) {
            const Place* best = &places[0];
            const float turned = sign(channel_of(image, c));
            for (const Place& place : places)
              if (turned * x[index(place)] > turned * x[index(*best)]) best = &place;
            wrong += y[at] != x[index(*best)] || which[at] != best->number;
            expected_grad[index(*best)] += upstream[at];
          }
        }
  CHECK(wrong == 0);
  const auto of_an_image = static_cast<std::size_t>(height * width * channels);
  for (std::size_t k = 0; normalised && k < inside; ++k) {
    const std::size_t c =
        channel_of(static_cast<std::int64_t>(k / of_an_image), static_cast<std::int64_t>(k) % channels);
    expected_grad[k] += offset[c] + slope[c] * (x[k] - mean[c]);
  }
  for (std::size_t k = 0; k < inside; ++k) wrong += std::abs(grad[k] - expected_grad[k]) > 1e-5F;
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("the kernels of pooling compute their windows") {
  const Pool pools[] = {{.down = {2, 2, 0, 1}, .across = {2, 2, 0, 1}}, {.down = {3, 2, 1, 1}, .across = {3, 2, 1, 1}},
                        {.down = {3, 1, 1, 1}, .across = {2, 3, 0, 1}}, {.down = {2, 3, 1, 2}, .across = {3, 1, 1, 3}},
                        {.down = {9, 3, 4, 1}, .across = {8, 8, 2, 1}}, {.down = {1, 2, 0, 1}, .across = {5, 4, 2, 1}}};
  bool by_twos = false;
  for (Pool pool : pools)
    for (const bool is_mean : {false, true}) {
      if (is_mean && (pool.down.dilation > 1 || pool.across.dilation > 1)) continue;
      pool.is_mean = is_mean;
      pool.counts_padding = false;
      check_pool(pool, 1, 11, 13);
      by_twos = !by_twos;
      if (by_twos)
        check_pool(pool, 6, 17, 9);
      else
        check_pool(pool, 4, 9, 10);
      if (is_mean) continue;
      check_pool(pool, 1, 11, 13, /*normalised=*/true);
      check_pool(pool, 4, 9, 10, /*normalised=*/true);
    }
}

}  // namespace spikeforge::test
