// Compares products of sparse matrices and events with dense products, for the sanitizers.
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
  // Allocates exactly the memory of the elements, so that a sanitizer detects an out-of-bounds read.
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

// Returns the dense matrix. The weights of repeated connections are summed.
Tensor dense(const Matrix& matrix, const Tensor& weights) {
  const Tensor row = at::arange(matrix.rows()).repeat_interleave(matrix.indptr(true).diff());
  return at::zeros({matrix.rows(), matrix.cols}, at::kDouble)
      .index_put({row, matrix.indices().to(at::kLong)}, weights.to(at::kDouble).expand(row.sizes()),
                 /*accumulate=*/true);
}

// Returns the value with which each entry contributes to the product.
Tensor contribution(const Tensor& x, sparse::Values values) {
  if (values == sparse::Values::number) return x;
  return at::where(x > 0, values == sparse::Values::event ? at::ones_like(x) : x, 0);
}

Tensor expected_product(const Matrix& matrix, const Tensor& weights, const Tensor& x, bool transpose,
                        sparse::Values values) {
  const Tensor a = dense(matrix, weights);
  return (transpose ? a.t() : a).matmul(contribution(x, values));
}

Tensor product(const Tensor& weights, const Matrix& matrix, bool wide, const Tensor& x, bool transpose, bool columns,
               sparse::Values values) {
  static const auto op = ops::find_operator<sparse::ProductSchema>("spikeforge::csr_product");
  return op.call(weights, matrix.indices(), matrix.indptr(wide), x, matrix.rows(), matrix.cols, transpose, columns,
                 std::vector<const char*>{"event", "graded", "number"}[static_cast<std::size_t>(values)], false, false);
}

// Returns random entries. Events include NaN and negative numbers.
Tensor random_entries(std::int64_t n, sparse::Values values) {
  Tensor x = at::rand({n}, at::kDouble) - 0.5;
  return values == sparse::Values::number ? x : at::where(x < -0.4, NAN, x);
}

void check_close(const Tensor& actual, const Tensor& expected, double bound) {
  REQUIRE(actual.sizes() == expected.sizes());
  if (expected.numel() == 0) return;
  const double largest = expected.abs().max().item<double>();
  CHECK((actual.to(at::kDouble) - expected).abs().max().item<double>() <= bound * largest);
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

TEST_CASE("products of ragged, empty and duplicate-laden matrices are those of dense ones") {
  for_each_case([](const Matrix& matrix, const Tensor& weights, bool transpose, sparse::Values values) {
    const Tensor x = random_entries(transpose ? matrix.rows() : matrix.cols, values);
    const Tensor expected = expected_product(matrix, weights, x, transpose, values);
    for (const bool wide : {false, true})
      check_close(product(weights, matrix, wide, x, transpose, false, values), expected, 1e-12);
    const Tensor floats = weights.to(at::kFloat);
    check_close(product(floats, matrix, true, x, transpose, false, values),
                expected_product(matrix, floats, x, transpose, values), 1e-5);
  });
}

TEST_CASE("several vectors at once are those vectors one by one") {
  for_each_case([](const Matrix& matrix, const Tensor& weights, bool transpose, sparse::Values values) {
    for (const std::int64_t n : {1, 3, 37}) {
      const std::int64_t size = transpose ? matrix.rows() : matrix.cols;
      const Tensor x = random_entries(size * n, values).view({size, n});
      check_close(product(weights, matrix, false, x, transpose, true, values),
                  expected_product(matrix, weights, x, transpose, values), 1e-12);
    }
  });
}

TEST_CASE("a weight's gradient is the product of its connection's input and its upstream gradient") {
  static const auto op = ops::find_operator<sparse::WeightGradSchema>("spikeforge::csr_weight_grad");
  at::manual_seed(event_seed);
  for (const Matrix& matrix : matrices())
    for (const bool transpose : {false, true}) {
      const Tensor x = random_entries(transpose ? matrix.rows() : matrix.cols, sparse::Values::graded);
      const Tensor g = at::rand({transpose ? matrix.cols : matrix.rows()}, at::kDouble);
      const Tensor row = at::arange(matrix.rows()).repeat_interleave(matrix.indptr(true).diff());
      const Tensor column = matrix.indices().to(at::kLong);
      check_close(op.call(x, g, matrix.indices(), matrix.indptr(false), matrix.rows(), matrix.cols, transpose, false,
                          "graded", false),
                  contribution(x, sparse::Values::graded).index({transpose ? row : column}) *
                      g.index({transpose ? column : row}),
                  1e-12);
    }
}

}  // namespace spikeforge::test
