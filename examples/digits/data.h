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

// Reads what scripts/prepare_digits.py writes: a line for each digit, 64 pixels (0 to 16) and the label, with commas
// between.
Digits read_digits(const std::string& path);

// Four fifths to train with, and one fifth that training never sees. It is the same split every time.
struct Split {
  Digits train, test;
};
Split split(const Digits& digits);
