// What the user can mend: it ends the program with this one line and exit code 1.
#pragma once

#include <stdexcept>

struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
