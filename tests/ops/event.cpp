// Products of sparse matrices and events against loops, for what the sanitizers may have to say about them.
#include "ops/common/library.h"
#include "ops/event/product.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/catch.h"

namespace spikeforge::test {
namespace {

using at::Tensor;
namespace sparse = ops::sparse;

constexpr unsigned event_seed = 20261122;

struct Matrix {
  std::vector<std::int64_t> begins = {0};
  std::vector<std::int32_t> columns;
  std::int64_t cols = 0;

  std::int64_t rows() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  // Allocates exactly as much memory as there are elements, so that a read beyond them is seen.
  Tensor indices() const {
    Tensor t = at::empty({static_cast<std::int64_t>(columns.size())}, at::kInt);
    std::copy(columns.begin(), columns.end(), t.mutable_data_ptr<std::int32_t>());
    return t;
  }
  Tensor indptr(bool wide) const {
    const Tensor t = at::empty({rows() + 1}, at::kLong);
    std::copy(begins.begin(), begins.end(), t.mutable_data_ptr<std::int64_t>());
    return wide ? t : t.to(at::kInt);
  }
};

Matrix random_matrix(std::mt19937& random, const std::vector<int>& lengths, std::int64_t cols) {
  Matrix matrix;
  matrix.cols = cols;
  for (const int length : lengths) {
    for (int k = 0; k < length; ++k)
      matrix.columns.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(cols)));
    matrix.begins.push_back(static_cast<std::int64_t>(matrix.columns.size()));
  }
  return matrix;
}

std::vector<Matrix> matrices() {
  std::mt19937 random(event_seed);
  std::vector<int> ragged(97);
  for (int& length : ragged) length = static_cast<int>(random() % 40);
  ragged[0] = 0;
  ragged[13] = 5000;
  ragged[96] = 0;
  return {random_matrix(random, ragged, 301),
          random_matrix(random, {0, 0, 0}, 5),
          random_matrix(random, {}, 5),
          random_matrix(random, {777}, 64),
          random_matrix(random, std::vector<int>(200, 1), 1),
          random_matrix(random, std::vector<int>(40, 500), 33)};  // more work than one thread's, many duplicates
}

double contribution(double x, sparse::Values values) {
  if (values == sparse::Values::number) return x;
  if (!(x > 0)) return 0;
  return values == sparse::Values::event ? 1 : x;
}

std::vector<double> expected_product(const Matrix& matrix, const std::vector<double>& weights,
                                     const std::vector<double>& x, bool transpose, sparse::Values values) {
  std::vector<double> y(static_cast<std::size_t>(transpose ? matrix.cols : matrix.rows()));
  for (std::int64_t i = 0; i < matrix.rows(); ++i)
    for (std::int64_t k = matrix.begins[static_cast<std::size_t>(i)];
         k < matrix.begins[static_cast<std::size_t>(i) + 1]; ++k) {
      const std::int64_t j = matrix.columns[static_cast<std::size_t>(k)];
      const double w = weights.size() == 1 ? weights[0] : weights[static_cast<std::size_t>(k)];
      y[static_cast<std::size_t>(transpose ? j : i)] +=
          w * contribution(x[static_cast<std::size_t>(transpose ? i : j)], values);
    }
  return y;
}

std::vector<double> numbers(const Tensor& t) {
  const Tensor doubles = t.to(at::kDouble).contiguous();
  const auto* const from = doubles.const_data_ptr<double>();
  return {from, from + doubles.numel()};
}

Tensor product(const Tensor& weights, const Matrix& matrix, bool wide, const Tensor& x, bool transpose, bool columns,
               sparse::Values values) {
  static const auto op = ops::find_operator<sparse::ProductSchema>("spikeforge::csr_product");
  return op.call(weights, matrix.indices(), matrix.indptr(wide), x, matrix.rows(), matrix.cols, transpose, columns,
                 std::vector<const char*>{"event", "graded", "number"}[static_cast<std::size_t>(values)], false, false);
}

// NaN and negative numbers among the events.
Tensor random_entries(std::int64_t n, sparse::Values values) {
  Tensor x = at::rand({n}, at::kDouble) - 0.5;
  return values == sparse::Values::number ? x : at::where(x < -0.4, NAN, x);
}

double distance(const Tensor& actual, const std::vector<double>& expected) {
  REQUIRE(actual.numel() == static_cast<std::int64_t>(expected.size()));
  const std::vector<double> values = numbers(actual);
  double largest = 1e-30;
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    worst = std::max(worst, std::abs(values[i] - expected[i]));
  }
  return worst / largest;
}

template <class F> void for_each_case(F&& f) {
  at::manual_seed(event_seed);
  for (const Matrix& matrix : matrices())
    for (const bool shared : {false, true})
      for (const bool transpose : {false, true})
        for (const auto values : {sparse::Values::event, sparse::Values::graded, sparse::Values::number}) {
          const auto n = static_cast<std::int64_t>(matrix.columns.size());
          INFO("seed " << event_seed << ", " << matrix.rows() << " x " << matrix.cols << ", " << n
                       << " connections, shared " << shared << ", transpose " << transpose << ", values "
                       << static_cast<int>(values));
          f(matrix, at::rand({shared ? 1 : n}, at::kDouble) - 0.3, transpose, values);
        }
}

}  // namespace

TEST_CASE("products of ragged, empty and duplicate-laden matrices are those of loops") {
  for_each_case([](const Matrix& matrix, const Tensor& weights, bool transpose, sparse::Values values) {
    const Tensor x = random_entries(transpose ? matrix.rows() : matrix.cols, values);
    const std::vector<double> expected = expected_product(matrix, numbers(weights), numbers(x), transpose, values);
    for (const bool wide : {false, true})
      CHECK(distance(product(weights, matrix, wide, x, transpose, false, values), expected) < 1e-12);
    const Tensor floats = weights.to(at::kFloat);
    CHECK(distance(product(floats, matrix, true, x, transpose, false, values),
                   expected_product(matrix, numbers(floats), numbers(x), transpose, values)) < 1e-5);
  });
}

TEST_CASE("several vectors at once are those vectors one by one") {
  for_each_case([](const Matrix& matrix, const Tensor& weights, bool transpose, sparse::Values values) {
    for (const std::int64_t n : {1, 3, 37}) {
      const std::int64_t size = transpose ? matrix.rows() : matrix.cols;
      const Tensor x = random_entries(size * n, values).view({size, n});
      const Tensor y = product(weights, matrix, false, x, transpose, true, values);
      for (const std::int64_t c : {std::int64_t{0}, n - 1})
        CHECK(distance(y.select(1, c),
                       expected_product(matrix, numbers(weights), numbers(x.select(1, c)), transpose, values)) < 1e-12);
    }
  });
}

TEST_CASE("a weight's gradient is what its connection read times what arrived") {
  static const auto op = ops::find_operator<sparse::WeightGradSchema>("spikeforge::csr_weight_grad");
  at::manual_seed(event_seed);
  for (const Matrix& matrix : matrices())
    for (const bool transpose : {false, true}) {
      const Tensor x = random_entries(transpose ? matrix.rows() : matrix.cols, sparse::Values::graded);
      const Tensor g = at::rand({transpose ? matrix.cols : matrix.rows()}, at::kDouble);
      const Tensor result = op.call(x, g, matrix.indices(), matrix.indptr(false), matrix.rows(), matrix.cols, transpose,
                                    false, "graded", false);
      std::vector<double> expected;
      const std::vector<double> entries = numbers(x);
      const std::vector<double> upstream = numbers(g);
      for (std::size_t i = 0; i + 1 < matrix.begins.size(); ++i)
        for (auto k = static_cast<std::size_t>(matrix.begins[i]); k < static_cast<std::size_t>(matrix.begins[i + 1]);
             ++k) {
          const auto j = static_cast<std::size_t>(matrix.columns[k]);
          expected.push_back(contribution(entries[transpose ? i : j], sparse::Values::graded) *
                             upstream[transpose ? j : i]);
        }
      CHECK(distance(result, expected) < 1e-12);
    }
}

TEST_CASE("a matrix whose rows lie about themselves is refused before it is read") {
  const Tensor x = at::ones({3});
  for (const std::vector<std::int64_t>& begins :
       std::vector<std::vector<std::int64_t>>{{0, 900000000, 3}, {0, -5, 3}, {1, 2, 3}, {0, 2, 9}, {0, 2, 2}}) {
    const Matrix matrix{begins, {0, 1, 2}, 3};
    for (const bool wide : {false, true})
      CHECK_THROWS_WITH(product(at::ones({3}), matrix, wide, x, false, false, sparse::Values::event),
                        has_text("event_csrmv: indptr must begin with 0, never decrease and end with 3"));
  }
}

}  // namespace spikeforge::test
