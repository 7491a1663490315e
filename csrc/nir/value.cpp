#include "csrc/nir/value.h"

#include <algorithm>

namespace spikeforge::nir {

const Member* Group::find(std::string_view name) const {
  const auto found = std::ranges::find(members, name, &Member::name);
  return found == members.end() ? nullptr : &*found;
}

bool operator==(const Group& a, const Group& b) { return a.members == b.members; }

}  // namespace spikeforge::nir
