// The uninterpreted contents of a NIR file: groups of numbers, strings and groups. Metadata are stored in this form.
#pragma once
#include "csrc/nir/array.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace spikeforge::nir {

struct Strings {
  Shape shape;  // [] for one string
  std::vector<std::string> values;

  static Strings one(std::string text) { return {{}, {std::move(text)}}; }
  bool operator==(const Strings&) const = default;
};

struct Member;

struct SPIKEFORGE_API Group {
  std::vector<Member> members;  // names are unique

  // Returns null if there is none.
  const Member* find(std::string_view name) const;
  bool empty() const { return members.empty(); }
  friend bool operator==(const Group& a, const Group& b);
};

using Value = std::variant<Array, Strings, Group>;

struct Member {
  std::string name;
  Value value;
  bool operator==(const Member&) const = default;
};

inline const Member* Group::find(std::string_view name) const {
  const auto found = std::ranges::find(members, name, &Member::name);
  return found == members.end() ? nullptr : &*found;
}

inline bool operator==(const Group& a, const Group& b) { return a.members == b.members; }

}  // namespace spikeforge::nir
