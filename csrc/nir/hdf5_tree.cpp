#include "csrc/nir/hdf5_tree.h"
#include "csrc/nir/hdf5_dataset.h"
#include "csrc/nir/object_index.h"
#include "csrc/nir/refuse.h"

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>

namespace spikeforge::nir {
namespace {

struct Link {
  std::string name;
  H5L_type_t type;
  haddr_t address;  // of the object, if the link is hard
};

struct Listing {
  std::vector<Link> links;
  std::uint64_t links_left;
  std::size_t longest_name;
  const char* refused = nullptr;
};

// A callback of libhdf5. It must not throw, because libhdf5 is a C library.
herr_t list_link(hid_t, const char* name, const H5L_info_t* info, void* data) {
  auto& listing = *static_cast<Listing*>(data);
  const std::size_t length = strnlen(name, listing.longest_name + 1);
  if (length > listing.longest_name) listing.refused = "a name in it is longer than the limit";
  if (listing.links_left == 0) listing.refused = "the file has more groups and datasets than the limit";
  if (listing.refused) return 1;
  --listing.links_left;
  try {
    const haddr_t address = info->type == H5L_TYPE_HARD ? info->u.address : HADDR_UNDEF;
    listing.links.push_back({{name, length}, info->type, address});
  } catch (...) {
    listing.refused = "there is not enough memory";
    return 1;
  }
  return 0;
}

class TreeReader {
 public:
  TreeReader(ReadingState& state, const FileLayout& layout, const Limits& limits,
             std::span<const char* const> attributes)
      : state_(state),
        limits_(limits),
        attributes_(attributes),
        index_(state.source, layout),
        links_left_(limits.nodes) {}

  Group group(hid_t id) {
    check_group(id);
    if (path_.empty()) check_index(address_);  // the root has no link
    Group group;
    for (Link& link : links_of(id)) {
      path_.push_back(link.name);
      check_link(link);
      check_index(link.address);
      const ObjectId object(h5().H5Oopen(id, link.name.c_str(), H5P_DEFAULT));
      if (!object) refuse("libhdf5 cannot open it: {}", hdf5_reason());
      Value value = read(object.get());
      path_.pop_back();
      group.members.push_back({std::move(link.name), std::move(value)});
    }
    for (const char* name : attributes_)
      if (const std::optional<double> number = attribute(id, name)) {
        if (group.find(name)) refuse("{} is a member and an attribute", name);
        group.members.push_back({name, Array::scalar(*number)});
      }
    return group;
  }

 private:
  Value read(hid_t object) {
    switch (type_of(object)) {
      case H5O_TYPE_GROUP: return group(object);
      case H5O_TYPE_DATASET: break;
      default: refuse("it is neither a group nor a dataset");
    }
    try {
      return read_dataset(object, state_);
    } catch (const std::runtime_error& error) {
      refuse("{}", error.what());
    } catch (const std::bad_alloc&) {
      refuse("there is not enough memory for it");
    }
  }

  // Reads a scalar attribute.
  std::optional<double> attribute(hid_t object, const char* name) {
    if (h5().H5Aexists(object, name) <= 0) return {};
    const AttributeId attribute(h5().H5Aopen(object, name, H5P_DEFAULT));
    if (!attribute) refuse("libhdf5 cannot open its attribute {}: {}", name, hdf5_reason());
    const TypeId type(h5().H5Aget_type(attribute.get()));
    const SpaceId space(h5().H5Aget_space(attribute.get()));
    const H5T_class_t kind = type ? h5().H5Tget_class(type.get()) : H5T_NO_CLASS;
    const bool is_number = (kind == H5T_INTEGER || kind == H5T_FLOAT) && h5().H5Tget_size(type.get()) <= sizeof(double);
    if (!is_number || !space || h5().H5Sget_simple_extent_ndims(space.get()) != 0)
      refuse("its attribute {} is not a single number", name);
    double value = 0;
    if (h5().H5Aread(attribute.get(), h5().H5T_IEEE_F64LE_g, &value) < 0)
      refuse("libhdf5 cannot read its attribute {}: {}", name, hdf5_reason());
    return value;
  }

  H5O_type_t type_of(hid_t object) {
    H5O_info_t info;
    if (h5().H5Oget_info2(object, &info, H5O_INFO_BASIC) < 0) refuse("libhdf5 cannot read it: {}", hdf5_reason());
    address_ = info.addr;
    return info.type;
  }

  // Checks an object before libhdf5 opens it and follows its addresses.
  void check_index(haddr_t address) {
    try {
      index_.check(address);
    } catch (const std::runtime_error& error) {
      refuse("{}", error.what());
    }
  }

  void check_group(hid_t id) {
    // Each graph has two groups: the node, and its group "nodes".
    if (path_.size() > 2 * static_cast<std::size_t>(limits_.depth) + 3)
      refuse("it is nested more than {} levels deep", limits_.depth);
    type_of(id);
    if (!groups_.insert(address_).second)
      refuse("the same group is linked from two places: hard links that form a cycle, or a shared node");
  }

  std::vector<Link> links_of(hid_t id) {
    H5G_info_t info;
    if (h5().H5Gget_info(id, &info) < 0) refuse("libhdf5 cannot read the group: {}", hdf5_reason());
    Listing listing{{}, links_left_, limits_.string, nullptr};
    hsize_t index = 0;
    const herr_t listed = h5().H5Literate(id, H5_INDEX_NAME, H5_ITER_NATIVE, &index, list_link, &listing);
    if (listing.refused) refuse("{}", listing.refused);
    if (listed < 0) refuse("libhdf5 cannot list the group: {}", hdf5_reason());
    links_left_ = listing.links_left;
    std::ranges::sort(listing.links, {}, &Link::name);
    for (std::size_t i = 1; i < listing.links.size(); ++i)
      if (listing.links[i].name == listing.links[i - 1].name)
        refuse("two members are called {}", printable(listing.links[i].name));
    return std::move(listing.links);
  }

  void check_link(const Link& link) {
    switch (link.type) {
      case H5L_TYPE_HARD: break;
      case H5L_TYPE_SOFT: refuse("it is a soft link");
      case H5L_TYPE_EXTERNAL: refuse("it is an external link, to another file");
      default: refuse("it is a link of an unknown kind");
    }
    // libhdf5 interprets a name as a path.
    if (link.name.empty() || link.name == "." || link.name.find('/') != std::string::npos) refuse("this is not a name");
  }

  // Throws an Error with node and field: /node/nodes/a/nodes/b/tau is field tau of node a/b.
  template <class... Arguments>
  [[noreturn]] void refuse(fmt::format_string<Arguments...> reason, Arguments&&... arguments) {
    std::string node, field;
    auto part = path_.begin();
    if (part != path_.end() && *part == "node") ++part;
    while (path_.end() - part >= 2 && *part == "nodes") {
      node = in_node(node, part[1]);
      part += 2;
    }
    for (; part != path_.end(); ++part) field += (field.empty() ? "" : "/") + *part;
    nir::refuse(node.empty() ? "/" : node, field, reason, std::forward<Arguments>(arguments)...);
  }

  ReadingState& state_;
  const Limits& limits_;
  std::span<const char* const> attributes_;
  ObjectIndexChecker index_;
  std::uint64_t links_left_;
  std::vector<std::string> path_;
  std::set<haddr_t> groups_;
  haddr_t address_ = HADDR_UNDEF;
};

FileId open_file(const ByteSource& source) {
  const PropertiesId access(h5().H5Pcreate(h5().H5P_CLS_FILE_ACCESS_ID_g));
  h5().H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  if (h5().set_file_locking) h5().set_file_locking(access.get(), false, true);
  if (source.path().empty()) {
    constexpr std::size_t growth = 4096;
    const std::span<const std::byte> bytes = source.bytes();
    // With an empty image, libhdf5 would open a file of this name.
    if (bytes.empty()) throw std::runtime_error("is empty");
    if (h5().H5Pset_fapl_core(access.get(), growth, false) < 0 ||
        h5().H5Pset_file_image(access.get(), const_cast<std::byte*>(bytes.data()), bytes.size()) < 0)
      fail("cannot be read from memory: {}", hdf5_reason());
  }
  const std::string name = source.path().empty() ? "bytes in memory" : source.path();
  FileId file(h5().H5Fopen(name.c_str(), open_to_read, access.get()));
  if (!file) fail("is not an HDF5 file that libhdf5 reads: {}", hdf5_reason());
  return file;
}

}  // namespace

Group read_tree(const ByteSource& source, const Limits& limits, std::span<const char* const> attributes) {
  check_superblock(source);
  const Hdf5Session session;
  const FileId file = open_file(source);
  const PropertiesId creation(h5().H5Fget_create_plist(file.get()));
  hsize_t user_block = 0;
  FileLayout layout;
  const bool is_known = creation && h5().H5Pget_userblock(creation.get(), &user_block) >= 0 &&
                        h5().H5Pget_sizes(creation.get(), &layout.address_size, &layout.length_size) >= 0 &&
                        h5().H5Pget_sym_k(creation.get(), &layout.group_tree_k, &layout.symbols_k) >= 0 &&
                        h5().H5Pget_istore_k(creation.get(), &layout.chunk_tree_k) >= 0;
  const auto is_size = [](std::size_t size) { return size == 2 || size == 4 || size == 8; };
  if (!is_known || !is_size(layout.address_size) || !is_size(layout.length_size))
    throw std::runtime_error("has a superblock of unknown sizes");
  layout.base = user_block;

  ReadingState state{source,      limits, user_block, layout.address_size, {source, user_block, layout.length_size},
                     limits.bytes};
  const ObjectId root(h5().H5Oopen(file.get(), "/", H5P_DEFAULT));
  if (!root) fail("libhdf5 cannot open its root: {}", hdf5_reason());
  return TreeReader(state, layout, limits, attributes).group(root.get());
}

}  // namespace spikeforge::nir
