// Trains a spiking network to read handwritten digits, saves it, and checks the accuracy of the saved network.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "error.h"
#include "training.h"

namespace {

void add_options(CLI::App& app, Options& options) {
  const CLI::Range positive(1, 1'000'000, "POSITIVE");
  app.add_option("--data", options.data, "The digits, as scripts/prepare_digits.py writes them")->capture_default_str();
  app.add_option("--output", options.output, "Folder for the checkpoint and the records")->capture_default_str();
  app.add_option("--load", options.load, "Only evaluate this checkpoint");
  app.add_option("--neuron", options.neuron, "The neurons of every layer")
      ->check(CLI::IsMember({"if", "lif", "plif", "qif", "eif", "izhikevich"}))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Time steps for each image")->check(positive)->capture_default_str();
  app.add_option("--epochs", options.epochs, "Passes over the training digits")->check(positive)->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Images in a batch")->check(positive)->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate, "Adam's, at the start")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "For the first weights and the order of the digits")->capture_default_str();
  app.add_option("--device", options.device, "auto takes a GPU when there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Threads of the CPU")->check(positive)->capture_default_str();
  app.add_flag("--quiet", options.quiet, "Only print the result");
}

int fail(int code, const std::string& message) {
  fmt::print(stderr, "digits: {}\n", message.substr(0, message.find('\n')));
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a spiking network to read handwritten digits.", "digits");
  add_options(app, options);
  try {
    app.parse(argc, argv);
    if (!options.load.empty()) {
      evaluate(options);
      return 0;
    }
    return train(options) ? 0 : 1;
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return fail(2, fmt::format("{} (--help lists the options)", error.what()));
  } catch (const UserError& error) {
    return fail(2, error.what());
  } catch (const c10::Error& error) {
    return fail(1, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(1, error.what());
  }
}
