#include "csrc/nir/write.h"
#include "csrc/nir/hdf5_library.h"
#include "csrc/nir/interpret.h"
#include "csrc/nir/refuse.h"
#include "csrc/nir/replacement_file.h"
#include "csrc/nir/shapes.h"
#include "csrc/nir/validate.h"

#include <algorithm>
#include <stdexcept>

namespace spikeforge::nir {
namespace {

constexpr std::size_t least_compressed = 4096;            // in bytes: chunks need an index of about 2 KB
constexpr std::size_t most_chunk = std::size_t{1} << 20;  // in bytes: a chunk is inflated as a whole

template <class Id> Id made(hid_t id, const char* what) {
  if (id < 0) fail("libhdf5 cannot make {}: {}", what, hdf5_reason());
  return Id(id);
}

TypeId copy_of(hid_t type) { return made<TypeId>(h5().H5Tcopy(type), "a type"); }

TypeId half_type() {
  TypeId type = copy_of(h5().H5T_IEEE_F32LE_g);
  const bool done = h5().H5Tset_fields(type.get(), 15, 10, 5, 0, 10) >= 0 && h5().H5Tset_size(type.get(), 2) >= 0 &&
                    h5().H5Tset_ebias(type.get(), 15) >= 0;
  if (!done) fail("libhdf5 cannot make the type float16");
  return type;
}

TypeId boolean_type() {
  TypeId type = made<TypeId>(h5().H5Tenum_create(h5().H5T_STD_I8LE_g), "the type bool");
  const std::int8_t no = 0, yes = 1;
  h5().H5Tenum_insert(type.get(), "FALSE", &no);
  h5().H5Tenum_insert(type.get(), "TRUE", &yes);
  return type;
}

TypeId type_of(DType dtype) {
  switch (dtype) {
    case DType::boolean: return boolean_type();
    case DType::int8: return copy_of(h5().H5T_STD_I8LE_g);
    case DType::int16: return copy_of(h5().H5T_STD_I16LE_g);
    case DType::int32: return copy_of(h5().H5T_STD_I32LE_g);
    case DType::int64: return copy_of(h5().H5T_STD_I64LE_g);
    case DType::uint8: return copy_of(h5().H5T_STD_U8LE_g);
    case DType::uint16: return copy_of(h5().H5T_STD_U16LE_g);
    case DType::uint32: return copy_of(h5().H5T_STD_U32LE_g);
    case DType::uint64: return copy_of(h5().H5T_STD_U64LE_g);
    case DType::float16: return half_type();
    case DType::float32: return copy_of(h5().H5T_IEEE_F32LE_g);
    case DType::float64: return copy_of(h5().H5T_IEEE_F64LE_g);
  }
  __builtin_unreachable();
}

TypeId string_type() {
  TypeId type = copy_of(h5().H5T_C_S1_g);
  h5().H5Tset_size(type.get(), H5T_VARIABLE);
  h5().H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

SpaceId space_of(const Shape& shape) {
  const std::vector<hsize_t> sizes(shape.begin(), shape.end());
  return made<SpaceId>(h5().H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr), "a shape");
}

class TreeWriter {
 public:
  explicit TreeWriter(int compression)
      : compression_(compression),
        link_(made<PropertiesId>(h5().H5Pcreate(h5().H5P_CLS_LINK_CREATE_ID_g), "properties")) {
    h5().H5Pset_char_encoding(link_.get(), H5T_CSET_UTF8);
  }

  void group(hid_t into, const Group& group) {
    for (const Member& member : group.members)
      std::visit([&](const auto& value) { write(into, member.name, value); }, member.value);
  }

 private:
  void write(hid_t into, const std::string& name, const Group& value) {
    const GroupId id =
        made<GroupId>(h5().H5Gcreate2(into, name.c_str(), link_.get(), H5P_DEFAULT, H5P_DEFAULT), "a group");
    group(id.get(), value);
  }

  void write(hid_t into, const std::string& name, const Array& value) {
    PropertiesId properties = made<PropertiesId>(h5().H5Pcreate(h5().H5P_CLS_DATASET_CREATE_ID_g), "properties");
    if (compression_ > 0 && value.byte_count() >= least_compressed && !value.shape().empty()) {
      const std::vector<hsize_t> chunk = chunk_of(value);
      if (h5().H5Pset_chunk(properties.get(), static_cast<int>(chunk.size()), chunk.data()) < 0 ||
          h5().H5Pset_deflate(properties.get(), static_cast<unsigned>(compression_)) < 0)
        fail("libhdf5 cannot compress: {}", hdf5_reason());
    }
    dataset(into, name, type_of(value.dtype()), value.shape(), properties.get(), value.bytes().data(), value.count());
  }

  void write(hid_t into, const std::string& name, const Strings& value) {
    std::vector<const char*> texts;
    for (const std::string& text : value.values) texts.push_back(text.c_str());
    dataset(into, name, string_type(), value.shape, H5P_DEFAULT, texts.data(), static_cast<std::int64_t>(texts.size()));
  }

  void dataset(hid_t into, const std::string& name, const TypeId& type, const Shape& shape, hid_t properties,
               const void* data, std::int64_t count) {
    if (shape.size() > H5S_MAX_RANK) fail("{} has more than 32 dimensions", printable(name));
    const SpaceId space = space_of(shape);
    DatasetId id = made<DatasetId>(
        h5().H5Dcreate2(into, name.c_str(), type.get(), space.get(), link_.get(), properties, H5P_DEFAULT),
        "a dataset");
    const bool done = count == 0 || h5().H5Dwrite(id.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0;
    if (!done || !id.close()) fail("libhdf5 cannot write {}: {}", printable(name), hdf5_reason());
  }

  // Returns a chunk of as many complete rows of the last dimensions as fit.
  static std::vector<hsize_t> chunk_of(const Array& array) {
    std::vector<hsize_t> chunk(array.shape().begin(), array.shape().end());
    std::size_t bytes = array.byte_count();
    for (hsize_t& size : chunk) {
      if (bytes <= most_chunk) break;
      const std::size_t row = bytes / size;
      size = std::max<std::size_t>(most_chunk / row, 1);
      bytes = row * size;
    }
    return chunk;
  }

  int compression_;
  PropertiesId link_;
};

// Writes a tree of values as an HDF5 file for version 1.6 and later: strings of variable length in UTF-8, booleans in
// h5py's format, little-endian numbers. `compression` is the deflate level, 0 to 9. Throws Error or std::runtime_error.
void write_tree(const Group& root, const std::string& path, int compression) {
  const Hdf5Session session;
  const PropertiesId access = made<PropertiesId>(h5().H5Pcreate(h5().H5P_CLS_FILE_ACCESS_ID_g), "properties");
  h5().H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  FileId file = made<FileId>(h5().H5Fcreate(path.c_str(), open_to_replace, H5P_DEFAULT, access.get()), "the file");
  TreeWriter(compression).group(file.get(), root);
  if (!file.close()) fail("libhdf5 cannot finish the file: {}", hdf5_reason());
}

}  // namespace

void write(Graph graph, const std::string& file, const WriteOptions& options) {
  try {
    if (options.compression < 0 || options.compression > 9)
      fail("compression must be from 0 to 9, but is {}", options.compression);
    validate(graph);
    fill_in_shapes(graph);
    ReplacementFile replacement(file);
    write_tree(group_of(graph), replacement.path(), options.compression);
    replacement.replace();
  } catch (const Error& error) {
    throw error.in_file(file);
  } catch (const std::runtime_error& error) {
    throw Error(file, "", "", error.what());
  }
}

}  // namespace spikeforge::nir
