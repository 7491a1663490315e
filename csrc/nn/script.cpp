#include "csrc/nn/script.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <string_view>

namespace spikeforge::script {
namespace {

// Python's keywords, and names that exist in every script.
constexpr std::string_view taken[] = {
    "False",    "None",     "True",   "and",    "as",     "assert",   "async",   "await", "break",        "class",
    "continue", "def",      "del",    "elif",   "else",   "except",   "finally", "for",   "from",         "global",
    "if",       "import",   "in",     "is",     "lambda", "nonlocal", "not",     "or",    "pass",         "raise",
    "return",   "try",      "while",  "with",   "yield",  "print",    "forward", "reset", "detach_state", "training",
    "start",    "start_at", "number", "sum_of", "later",  "waiting",  "torch",   "ops",   "moved",        "at_rest"};
// Names that are used in the bodies of methods.
constexpr std::string_view used[] = {"self",    "torch", "ops",   "float",  "int",  "len",      "range",
                                     "getattr", "t",     "steps", "Tensor", "List", "Optional", "Tuple"};

bool is_one_of(const std::string& name, at::ArrayRef<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_word(const std::string& name) {
  const auto is_letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  return !name.empty() && !std::isdigit(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), is_letter);
}

template <class Values> std::string joined(Values values) {
  std::string text = "[";
  for (const auto& value : values) text += (text.size() > 1 ? ", " : "") + number(value);
  return text + "]";
}

}  // namespace

std::string number(double value) {
  if (std::isnan(value)) return "float('nan')";
  if (std::isinf(value)) return value > 0 ? "float('inf')" : "-float('inf')";
  std::array<char, 32> text;
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(text.data(), text.size(), "%.*g", digits, value);
    if (std::strtod(text.data(), nullptr) == value) break;
  }
  const std::string digits = text.data();
  return digits.find_first_of(".e") == std::string::npos ? digits + ".0" : digits;
}

std::string number(std::int64_t value) { return std::to_string(value); }

std::string boolean(bool value) { return value ? "True" : "False"; }

std::string quoted(const std::string& text) {
  std::string all = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') all += '\\';
    if (c == '\n')
      all += "\\n";
    else
      all += c;
  }
  return all + "\"";
}

std::string list(at::ArrayRef<std::int64_t> values) { return joined(values); }
std::string list(at::ArrayRef<double> values) { return joined(values); }

// Replaces non-ASCII bytes: TorchScript writes them in a form that it cannot read back.
std::string attribute(const std::string& name) {
  std::string ascii;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80)
      ascii += c;
    else
      for (const unsigned digit : {byte / 16U, byte % 16U}) ascii += "0123456789abcdef"[digit];
  }
  return is_one_of(ascii, taken) ? ascii + "_" : ascii;
}

std::string identifier(const std::string& name) {
  std::string word = name;
  for (char& c : word)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  if (!is_word(word)) return "part_" + word;
  return is_one_of(word, taken) || is_one_of(word, used) ? word + "_" : word;
}

std::string member(const std::string& name, const std::string& of) {
  const std::string own = attribute(name);
  return is_word(own) ? of + "." + own : "getattr(" + of + ", " + quoted(own) + ")";
}

std::string indented(const std::string& body) {
  std::istringstream lines(body);
  std::string all;
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) all += "  " + line + "\n";
  return all;
}

std::string optional_state(const std::string& state) {
  return state + ": Optional[Tensor] = self." + state + "\nif self." + state + ".size() == [0]:\n  " + state +
         " = None\n";
}

// The type is `number`, not float: a large float is saved as digits without a decimal point.
const char* const start = R"(
def start(self, state: Tensor, x: Tensor, value: number) -> Tensor:
  if state.size() == [0]:
    return torch.full(x.size()[1:], value, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
  return state
)";

const char* const start_at = R"(
def start_at(self, state: Tensor, x: Tensor, value: Tensor) -> Tensor:
  if state.size() == [0]:
    return value.to(device=x.device, dtype=torch.promote_types(x.dtype, torch.float32)).expand(x.size()[1:])
  return state
)";

const char* const number_of = R"(
def number(self, value: number, x: Tensor) -> Tensor:
  return torch.scalar_tensor(value, dtype=torch.promote_types(x.dtype, torch.float32))
)";

}  // namespace spikeforge::script
