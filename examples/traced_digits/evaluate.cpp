// Runs a saved network on the rows of a table and prints how many it gets right:
//   evaluate network.pt held_out.csv [scores.csv]
// The network is TorchScript (.pt) or a package that AOTInductor compiled (.pt2); it takes numbers [rows, columns] and
// gives scores [rows, classes]. A row of the table is its numbers, then its class. Whatever neurons the network has,
// this program knows none of them: they are operators of libspikeforge, which it is linked with.
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// What the user can mend.
struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Table {
  std::vector<float> numbers;  // [rows, columns]
  std::vector<std::int64_t> classes;

  at::Tensor tensor() {
    const auto rows = static_cast<std::int64_t>(classes.size());
    return at::from_blob(numbers.data(), {rows, static_cast<std::int64_t>(numbers.size()) / rows}, at::kFloat);
  }
};

// "3,0.5,1" -> {3, 0.5, 1}; empty where something else than numbers and commas stands.
std::vector<float> parse_row(const std::string& line) {
  std::vector<float> row;
  const char* position = line.c_str();
  while (true) {
    char* end = nullptr;
    row.push_back(std::strtof(position, &end));
    if (end == position || (*end != ',' && *end != '\0')) return {};
    if (*end == '\0') return row;
    position = end + 1;
  }
}

Table read_table(const std::string& path) {
  std::ifstream file(path);
  Table table;
  std::size_t columns = 0;
  for (std::string line; std::getline(file, line);) {
    const std::vector<float> row = parse_row(line);
    if (columns == 0) columns = row.size();
    if (row.size() != columns || columns < 2)
      throw UserError(path + ":" + std::to_string(table.classes.size() + 1) +
                      ": expected as many numbers as in the line before, with commas between, the class last");
    table.numbers.insert(table.numbers.end(), row.begin(), row.end() - 1);
    table.classes.push_back(static_cast<std::int64_t>(row.back()));
  }
  if (table.classes.empty()) throw UserError("cannot read " + path + ", or it is empty");
  return table;
}

using Network = std::function<at::Tensor(const at::Tensor&)>;

Network load_torchscript(const std::string& path) {
  auto module = std::make_shared<torch::jit::Module>(torch::jit::load(path));
  module->eval();
  return [module](const at::Tensor& x) { return module->forward({x}).toTensor(); };
}

Network load_package(const std::string& path) {
  auto loader = std::make_shared<torch::inductor::AOTIModelPackageLoader>(path);
  return [loader](const at::Tensor& x) { return loader->run({x}).at(0); };
}

Network load_network(const std::string& path) {
  if (!std::ifstream(path)) throw UserError("cannot read " + path);
  try {
    return path.ends_with(".pt2") ? load_package(path) : load_torchscript(path);
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    throw UserError("cannot load " + path + ": " + message.substr(0, message.find('\n')));
  }
}

// With as many digits as it takes to read the same float again.
void write_scores(const at::Tensor& scores, const std::string& path) {
  std::ofstream file(path);
  file.precision(9);
  for (std::int64_t row = 0; row < scores.size(0); ++row)
    for (std::int64_t i = 0; i < scores.size(1); ++i)
      file << scores.const_data_ptr<float>()[row * scores.size(1) + i] << (i + 1 < scores.size(1) ? ',' : '\n');
  if (!file) throw UserError("cannot write " + path);
}

void evaluate(const std::string& network_path, const std::string& table_path, const std::string& scores_path) {
  const c10::InferenceMode inference;
  Table table = read_table(table_path);
  const Network network = load_network(network_path);
  const at::Tensor scores = network(table.tensor()).contiguous();
  const at::Tensor expected =
      at::from_blob(table.classes.data(), {static_cast<std::int64_t>(table.classes.size())}, at::kLong);
  const double right = scores.argmax(1).eq(expected).sum().item<double>();
  std::printf("accuracy %.2f%% of %zu rows\n", 100 * right / static_cast<double>(table.classes.size()),
              table.classes.size());
  if (!scores_path.empty()) write_scores(scores, scores_path);
}

int fail(int code, const std::string& message) {
  std::fprintf(stderr, "evaluate: %s\n", message.c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) return fail(2, "usage: evaluate NETWORK.pt|NETWORK.pt2 TABLE.csv [SCORES.csv]");
  try {
    evaluate(argv[1], argv[2], argc > 3 ? argv[3] : "");
    return 0;
  } catch (const UserError& error) {
    return fail(2, error.what());
  } catch (const c10::Error& error) {
    return fail(1, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(1, error.what());
  }
}
