// Text that grows line by line.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>

namespace spikeforge::codegen {

class Lines {
 public:
  template <class... Args> void operator()(fmt::format_string<Args...> format, Args&&... values) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(values)...);
    text_ += '\n';
  }

  Lines& operator+=(const std::string& text) {
    text_ += text;
    return *this;
  }

  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace spikeforge::codegen
