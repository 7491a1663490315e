// An error of the user: it ends the program with this line and exit code 2.
#pragma once

#include <stdexcept>

struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
