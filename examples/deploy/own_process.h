#pragma once

#include <functional>
#include <string>

// Runs the function in a process of its own, and returns its status: a saved network is a stranger's, and no file may
// crash the program. `name`: of the program, before the line that says so.
int in_own_process(const std::string& name, const std::function<int()>& function);
