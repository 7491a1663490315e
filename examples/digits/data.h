// The handwritten digits: grey images of 8 x 8 pixels, and which digit each one shows.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

struct Digits {
  at::Tensor images;  // float [count, 1, 8, 8], 0 (paper) to 1 (ink)
  at::Tensor labels;  // int64 [count], 0 to 9

  int64_t count() const { return labels.numel(); }
  Digits select(const at::Tensor& indices) const;
  Digits to(at::Device device) const;
};

// Reads a file of scripts/prepare_digits.py: a line for each digit, 64 pixels (0 to 16) and the label, separated by
// commas.
Digits read_digits(const std::string& path);

// Splits into four fifths for training and one fifth that is held out. The split is fixed.
struct Split {
  Digits train, test;
};
Split split(const Digits& digits);
