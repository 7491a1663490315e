// The inputs of a network: a table of numbers as text (.csv), or an array of NumPy (.npy).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

struct Samples {
  at::Tensor values;
  std::optional<at::Tensor> classes;  // int64 [samples]
};

// classes_last: of a table, the last column is the sample's class. Throws UserError with the line, where there is one.
Samples read_samples(const std::string& path, bool classes_last);
