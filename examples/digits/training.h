// Trains the network, or evaluates one that was saved.
#pragma once

#include <cstdint>
#include <string>

struct Options {
  std::string data = "build/data/digits.csv";
  std::string output = "build/digits";
  std::string load;  // a checkpoint: evaluate it, do not train
  std::string neuron = "lif";
  int64_t steps = 8;
  int64_t epochs = 30;
  int64_t batch_size = 64;
  double learning_rate = 5e-3;
  int64_t seed = 0;
  std::string device = "auto";
  int threads = 1;  // of the CPU
  bool quiet = false;
};

// Trains and saves the network, and tests the saved one. Returns false if its accuracy differs.
bool train(const Options& options);

void evaluate(const Options& options);
