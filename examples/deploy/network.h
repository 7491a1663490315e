// A saved network: TorchScript (.pt), or a package that AOTInductor compiled (.pt2), which is machine code: run only
// packages that you would run as programs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

struct Network {
  std::function<at::Tensor(const at::Tensor&)> run;
  std::function<void()> reset;  // resets the states, if the network has a method for it
};

bool is_package(const std::string& path);

// Throws UserError for a file that is not there, not whole, or for another device, and for TorchScript that is refused;
Network load_network(const std::string& path, c10::Device device);

// Returns torch's message of an error in one line.
std::string one_line(const std::string& message);
