// Runs a saved network on samples: prints the class of each one, and the time. It needs only the library of spikeforge,
// which has the operators of the network's neurons, and no Python.
#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spikeforge/base/confinement.h>
#include <spikeforge/base/own_process.h>
#include <spikeforge/base/printable.h>
#include <torch/cuda.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "error.h"
#include "network.h"
#include "samples.h"

namespace {

struct Options {
  std::string network, samples, scores, device = "cpu", type = "float32";
  std::int64_t batch = 1, sample_dim = 0;
  int rounds = 1, threads = 1;
  bool classes_last = false, json = false;
};

const std::map<std::string, at::ScalarType>& types() {
  static const std::map<std::string, at::ScalarType> all = {
      {"float16", at::kHalf}, {"bfloat16", at::kBFloat16}, {"float32", at::kFloat}, {"float64", at::kDouble}};
  return all;
}

void add_options(CLI::App& app, Options& options) {
  const CLI::Range positive(1, 1'000'000, "POSITIVE");
  app.add_option("network", options.network, "TorchScript (.pt), or a package of AOTInductor (.pt2)")->required();
  app.add_option("samples", options.samples, "An array (.npy), or a table (.csv) with a sample in each line")
      ->required();
  app.add_flag("--classes-last", options.classes_last, "A table's last column is the class: print the accuracy");
  app.add_option("--batch", options.batch, "Samples in a call")->check(positive)->capture_default_str();
  app.add_option("--sample-dim", options.sample_dim,
                 "Dimension of the array that counts the samples; 1 for sequences [T, samples, ...]")
      ->check(CLI::Range(0, 1))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "Passes over all samples, to measure")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--device", options.device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--dtype", options.type, "Of what the network takes: float16, bfloat16, float32 or float64")
      ->check(CLI::IsMember(types()).description(""))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Threads of the CPU")->check(positive)->capture_default_str();
  app.add_option("--scores", options.scores, "Write each sample's scores here, a line for each");
  app.add_flag("--json", options.json, "Print what was measured for a program to read");
}

// Returns scores [samples, classes]: for a sequence [T, samples, classes] the sum over steps, the spikes of each class.
at::Tensor scores_of(const at::Tensor& result, std::int64_t samples) {
  const at::Tensor scores = result.dim() == 3 ? result.sum(0) : result;
  if (scores.dim() != 2 || scores.size(0) != samples || scores.size(1) < 1)
    throw UserError(
        fmt::format("the network gives [{}] for {} samples, expected scores [samples, classes] or "
                    "[T, samples, classes]",
                    fmt::join(result.sizes(), ", "), samples));
  return scores.to(at::kFloat).cpu();
}

struct Measured {
  at::Tensor scores;              // of the last round
  std::vector<double> latencies;  // of each call, in milliseconds
  double samples_a_second = 0;
};

Measured run(const Network& network, const Samples& samples, const Options& options) {
  using Clock = std::chrono::steady_clock;
  const at::Device device(options.device);
  const std::vector<at::Tensor> batches = samples.values.split(options.batch, options.sample_dim);
  // The latency of a call: copy to the device, run the network, and copy back.
  const auto call = [&](const at::Tensor& batch) {
    const at::Tensor input = batch.to(device, types().at(options.type)).contiguous();
    network.reset();
    return scores_of(network.run(input), batch.size(options.sample_dim));
  };
  constexpr int warm_up_calls = 3;  // TorchScript optimises after the second call
  for (int i = 0; i < warm_up_calls; ++i) call(batches[0]);

  Measured measured;
  std::vector<at::Tensor> scores;
  const Clock::time_point start = Clock::now();
  for (int round = 0; round < options.rounds; ++round) {
    scores.clear();
    for (const at::Tensor& batch : batches) {
      const Clock::time_point before = Clock::now();
      scores.push_back(call(batch));
      measured.latencies.push_back(std::chrono::duration<double, std::milli>(Clock::now() - before).count());
    }
  }
  const std::chrono::duration<double> time = Clock::now() - start;
  measured.scores = at::cat(scores).contiguous();
  measured.samples_a_second = options.rounds * static_cast<double>(measured.scores.size(0)) / time.count();
  std::sort(measured.latencies.begin(), measured.latencies.end());
  return measured;
}

// Returns the smallest latency that this percentage of the calls does not exceed.
double percentile(const std::vector<double>& sorted, int percent) {
  const auto rank = static_cast<std::size_t>(std::ceil(percent / 100.0 * static_cast<double>(sorted.size())));
  return sorted[std::max<std::size_t>(rank, 1) - 1];
}

// A file that is opened before the network is loaded and written after it has run: in between, this process must not
// open files for writing.
class ScoresFile {
 public:
  explicit ScoresFile(const std::string& path) : path_(path) {
    if (path.empty()) return;
    file_.reset(std::fopen(path.c_str(), "ae"));  // an old one stays as it is, until there are scores
    if (!file_) fail(std::strerror(errno));
  }

  // Written with enough digits to read the same float again.
  void write(const at::Tensor& scores) {
    if (!file_) return;
    bool good = ::ftruncate(::fileno(file_.get()), 0) == 0 || errno == EINVAL;  // EINVAL: it is a pipe
    for (std::int64_t row = 0; row < scores.size(0); ++row) {
      const float* numbers = scores.const_data_ptr<float>() + row * scores.size(1);
      const std::string line = fmt::format("{}\n", fmt::join(numbers, numbers + scores.size(1), ","));
      good = good && std::fputs(line.c_str(), file_.get()) >= 0;
    }
    if (!good || std::fflush(file_.get()) != 0) fail(std::strerror(errno));
  }

 private:
  [[noreturn]] void fail(const char* why) const { throw UserError(fmt::format("cannot write {}: {}", path_, why)); }

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

// The paths to which a GPU's driver must be able to write.
std::vector<std::string> device_files(const std::string& device) {
  std::vector<std::string> files;
  if (device != "cuda") return files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored))
    if (entry.path().filename().string().starts_with("nvidia")) files.push_back(entry.path());
  return files;
}

void print(const Measured& measured, const Samples& samples, const Options& options) {
  const at::Tensor classes = measured.scores.argmax(1);
  const c10::ArrayRef<std::int64_t> numbers(classes.const_data_ptr<std::int64_t>(),
                                            static_cast<std::size_t>(classes.numel()));
  const auto latency = [&](int percent) { return percentile(measured.latencies, percent); };
  if (options.json) {
    fmt::print(
        "{{\"classes\": [{}], \"calls\": {}, \"batch\": {}, \"p50_ms\": {:.6}, \"p90_ms\": {:.6}, \"p99_ms\": "
        "{:.6}, \"samples_per_s\": {:.6}}}\n",
        fmt::join(numbers, ", "), measured.latencies.size(), options.batch, latency(50), latency(90), latency(99),
        measured.samples_a_second);
    return;
  }
  fmt::print("classes     {}\n", fmt::join(numbers, " "));
  if (samples.classes) {
    const double right = classes.eq(*samples.classes).sum().item<double>();
    fmt::print("accuracy    {:.2f}% of {}\n", 100 * right / static_cast<double>(numbers.size()), numbers.size());
  }
  fmt::print("latency     p50 {:.3f} ms, p90 {:.3f} ms, p99 {:.3f} ms ({} calls of {})\n", latency(50), latency(90),
             latency(99), measured.latencies.size(), options.batch);
  fmt::print("throughput  {:.0f} samples/s\n", measured.samples_a_second);
}

// Starts the driver, which opens sockets and files, before the process loses the rights to do so. The driver's threads
// keep their rights.
void start_gpu() {
  if (!torch::cuda::is_available()) throw UserError("torch finds no CUDA device here");
  at::empty({1}, at::kCUDA);
}

// A package is machine code, and writes some of it into a folder to run it: run only packages that you trust.
void give_up_rights(const Options& options) {
  if (is_package(options.network)) return;
  const spikeforge::Confinement in_force = spikeforge::confine(device_files(options.device));
  if (!in_force.files || !in_force.calls)
    fmt::print(stderr,
               "deploy: warning: this kernel has no {}: a network that breaks out of torch has your rights to {}\n",
               in_force.files ? "seccomp" : "Landlock", in_force.files ? "start programs" : "write files");
}

void deploy(const Options& options) {
  ScoresFile scores(options.scores);
  if (options.device == "cuda") start_gpu();
  give_up_rights(options);
  const c10::InferenceMode inference;
  at::set_num_threads(options.threads);
  const Samples samples = read_samples(options.samples, options.classes_last);
  if (samples.values.dim() <= options.sample_dim || samples.values.numel() == 0)
    throw UserError(
        fmt::format("{}: there is no sample in [{}]", options.samples, fmt::join(samples.values.sizes(), ", ")));
  const Network network = load_network(options.network, at::Device(options.device));
  const Measured measured = [&] {
    try {
      return run(network, samples, options);
    } catch (const c10::Error& error) {
      throw UserError(one_line(error.what_without_backtrace()));
    } catch (const std::exception& error) {
      throw UserError(one_line(error.what()));
    }
  }();
  scores.write(measured.scores);
  print(measured, samples, options);
}

int fail(int code, const std::string& message) {
  fmt::print(stderr, "deploy: {}\n", spikeforge::printable(message.substr(0, message.find('\n'))));
  return code;
}

}  // namespace

// 0: done. 1: a file is refused, or the network fails, with one line on standard error. 2: the command line is wrong.
int main(int argc, char** argv) {
  Options options;
  CLI::App app("Runs a saved network on samples, without Python.", "deploy");
  add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return fail(2, fmt::format("{} (--help lists the options)", error.what()));
  }
  std::error_code nothing;
  const bool has_scores = !options.scores.empty() && std::filesystem::exists(options.scores, nothing);
  const int status = spikeforge::in_own_process("deploy", "the network crashed", [&] {
    try {
      deploy(options);
      return 0;
    } catch (const std::bad_alloc&) {
      return fail(1, "there is not enough memory");
    } catch (const c10::Error& error) {
      return fail(1, one_line(error.what_without_backtrace()));
    } catch (const std::exception& error) {
      return fail(1, error.what());
    }
  });
  if (status != 0 && !has_scores && std::filesystem::is_regular_file(options.scores, nothing))
    std::filesystem::remove(options.scores, nothing);  // which it has opened and not written
  return status;
}
