// Spellings of other libraries, and their replacement in neuron text.
#pragma once

#include <string_view>

namespace spikeforge::graph {

// About a name or a symbol that neuron text does not have, to follow an error: "; write where(...) ..."; empty:
// nothing.
std::string_view advice_about(std::string_view word);

}  // namespace spikeforge::graph
