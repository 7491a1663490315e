// Writes the data that scripts/plot_digits.py draws: the learning curve (CSV) and the spikes of one image (JSON).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

struct Epoch {
  int64_t number;
  double train_loss, train_accuracy, test_loss, test_accuracy, samples_per_second;
};

struct Layer {
  std::string name;
  at::Tensor spikes;  // [T, neurons]
};

// The image [8, 8], the digit it shows, and the spikes of each layer, the last one being the ten classes.
struct Raster {
  at::Tensor image;
  int64_t label;
  std::vector<Layer> layers;
};

// Makes the folder and opens a file in it, so that a folder that cannot be written is known before training.
void check_writable(const std::string& folder);

void write_learning_curve(const std::string& path, const std::vector<Epoch>& epochs);
void write_raster(const std::string& path, const Raster& raster);
