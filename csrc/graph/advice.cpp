#include "csrc/graph/internal/advice.h"

#include <cstddef>

namespace spikeforge::graph {
namespace {

struct Advice {
  std::string_view text;
  std::string_view words;  // between blanks
};

constexpr Advice all_advice[] = {
    {"; write where(condition, a, b) for a choice", " if else elif then ? "},
    {"; the text is one step, which the operator repeats over time: it has no loops", " for while "},
    {"; write normal(), uniform(), bernoulli(p) or poisson(rate) for a random number",
     " randn rand randint random randn_like rand_like gauss "},
    {"; write x * draw_once(bernoulli(keep)) / keep for dropout with one mask in all steps", " dropout "},
    {"; a neuron computes element by element: compute the product outside, and pass it as an input",
     " @ matmul mm bmm dot einsum linear conv conv1d conv2d conv3d "},
    {"; a neuron computes element by element and sees no other neuron: reduce outside, and pass the result as an input",
     " sum mean std var prod cumsum softmax norm amax amin "},
    {"; a neuron sees one element of each argument: pass what is indexed as an input of its own", " [ ] "},
    {"; write pow(a, b) for a power", " ** ^ power "},
    {"; write remainder(a, b), or fmod(a, b)", " % mod "},
    {"; write and", " & && logical_and "},
    {"; write or", " | || logical_or "},
    {"; write not", " ! ~ logical_not "},
    {"; write maximum(a, b) or minimum(a, b)", " max min fmax fmin "},
    {"; write spike(x, atan(2)), whose last word is a surrogate", " heaviside "},
};

}  // namespace

std::string_view advice_about(std::string_view word) {
  for (const Advice& advice : all_advice)
    for (std::size_t at = advice.words.find(word); at != std::string_view::npos; at = advice.words.find(word, at + 1))
      if (!word.empty() && advice.words[at - 1] == ' ' && advice.words[at + word.size()] == ' ') return advice.text;
  return "";
}

}  // namespace spikeforge::graph
