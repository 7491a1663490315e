#include "csrc/nir/hdf5_dataset.h"
#include "csrc/nir/array_values.h"
#include "csrc/nir/filters.h"
#include "csrc/nir/hdf5_number.h"
#include "csrc/nir/refuse.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

namespace spikeforge::nir {
namespace {

static_assert(std::endian::native == std::endian::little);

void require(bool done, const char* what) {
  if (!done) fail("libhdf5 cannot read {}: {}", what, hdf5_reason());
}

struct Layout {
  H5D_layout_t kind;
  Shape chunk;  // the chunk shape of a chunked dataset
  std::vector<Filter> filters;
};

Layout layout_of(hid_t dataset) {
  const PropertiesId properties(h5().H5Dget_create_plist(dataset));
  require(static_cast<bool>(properties), "its properties");
  Layout layout{h5().H5Pget_layout(properties.get()), {}, {}};
  if (layout.kind == H5D_VIRTUAL) fail("its data are in other files (a virtual dataset)");
  if (layout.kind != H5D_COMPACT && layout.kind != H5D_CONTIGUOUS && layout.kind != H5D_CHUNKED)
    fail("its storage is of an unknown kind");
  const int external = h5().H5Pget_external_count(properties.get());
  require(external >= 0, "where its data are");
  if (external > 0) fail("its data are in another file (external storage)");

  const int filter_count = h5().H5Pget_nfilters(properties.get());
  require(filter_count >= 0, "its filters");
  for (int i = 0; i < filter_count; ++i) {
    unsigned flags = 0, config = 0;
    unsigned values[8] = {};
    std::size_t value_count = std::size(values);
    char name[1] = {};
    const H5Z_filter_t id =
        h5().H5Pget_filter2(properties.get(), static_cast<unsigned>(i), &flags, &value_count, values, 0, name, &config);
    require(id >= 0, "a filter");
    if (const std::string unknown = unknown_filter(id); !unknown.empty())
      fail("it is stored with the filter {}, but only deflate, lzf, szip, shuffle and fletcher32 are supported",
           unknown);
    layout.filters.push_back({id, value_count > 0 ? values[0] : 0});
    if (id == szip) {
      // The values are options, pixels per block, bits per pixel, and pixels per scan line.
      const bool is_sound = value_count == 4 && values[1] >= 2 && values[1] <= 32 && values[1] % 2 == 0 &&
                            values[2] >= 1 && values[2] <= 64 && values[3] >= values[1] && values[3] <= 4096;
      if (!is_sound) fail("the arguments of its szip filter are not valid");
    }
  }
  if (filter_count > 0 && layout.kind != H5D_CHUNKED) fail("it has filters but no chunks");

  if (layout.kind == H5D_CHUNKED) {
    hsize_t sizes[H5S_MAX_RANK] = {};
    const int rank = h5().H5Pget_chunk(properties.get(), H5S_MAX_RANK, sizes);
    require(rank > 0 && rank <= H5S_MAX_RANK, "the shape of its chunks");
    for (int d = 0; d < rank; ++d) {
      if (sizes[d] == 0 || sizes[d] > UINT32_MAX)
        fail("its chunks have {} elements in a dimension; 1 to 2^32 - 1 are supported", sizes[d]);
      layout.chunk.push_back(static_cast<std::int64_t>(sizes[d]));
    }
  }
  return layout;
}

Shape shape_of(hid_t dataset) {
  const SpaceId space(h5().H5Dget_space(dataset));
  require(static_cast<bool>(space), "its shape");
  switch (h5().H5Sget_simple_extent_type(space.get())) {
    case H5S_SCALAR: return {};
    case H5S_NULL: fail("it is empty (a null dataspace)");
    case H5S_SIMPLE: break;
    default: fail("its shape is of an unknown kind");
  }
  const int rank = h5().H5Sget_simple_extent_ndims(space.get());
  require(rank >= 0 && rank <= H5S_MAX_RANK, "its shape");
  hsize_t sizes[H5S_MAX_RANK] = {};
  require(h5().H5Sget_simple_extent_dims(space.get(), sizes, nullptr) == rank, "its shape");
  Shape shape;
  for (int d = 0; d < rank; ++d) {
    if (sizes[d] > INT64_MAX) fail("a dimension is {}", sizes[d]);
    shape.push_back(static_cast<std::int64_t>(sizes[d]));
  }
  return shape;
}

std::uint64_t byte_count(const Shape& shape, std::uint64_t element_size) {
  std::uint64_t bytes = 0;
  try {
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(count_of(shape)), element_size, &bytes)) bytes = UINT64_MAX;
  } catch (const std::overflow_error&) {
    bytes = UINT64_MAX;
  }
  return bytes;
}

// Reads the elements in the format of the file, unfiltered and in the order of the array.
class RawReader {
 public:
  RawReader(hid_t dataset, ReadingState& state, const Layout& layout, const Shape& shape, std::size_t element_size)
      : dataset_(dataset), state_(state), layout_(layout), shape_(shape), element_size_(element_size) {}

  // `into` has exactly their size, which is already subtracted from the limit.
  void read(std::span<std::byte> into, hid_t file_type) {
    if (into.empty()) return;
    switch (layout_.kind) {
      case H5D_CONTIGUOUS: return contiguous(into);
      case H5D_COMPACT: return compact(into, file_type);
      default: break;
    }
    if (std::ranges::any_of(layout_.filters, [](const Filter& f) { return f.id == szip; }))
      by_libhdf5(into, file_type);
    else
      chunked(into);
  }

  // Checks, before the result is allocated, that the compression ratio is possible with the filters.
  void check_stored_size(std::uint64_t bytes) const {
    if (bytes == 0) return;
    const std::uint64_t stored = h5().H5Dget_storage_size(dataset_);
    if (stored > state_.source.size()) fail("its stored size is {} bytes, more than the file has", stored);
    // The maximum ratio of deflate is 1032 : 1, and that of lzf is not higher; it applies to each filter.
    std::uint64_t ratio = 1;
    for (const Filter& filter : layout_.filters)
      if (filter.id != shuffle && filter.id != fletcher32) ratio = std::min<std::uint64_t>(ratio * 1100, 1100 * 1100);
    std::uint64_t most = 0;
    if (__builtin_mul_overflow(stored + 64 * (ratio > 1), ratio, &most)) return;
    if (bytes > most) fail("its size is {} bytes, but {} are stored", bytes, stored);
  }

 private:
  void contiguous(std::span<std::byte> into) {
    const haddr_t offset = h5().H5Dget_offset(dataset_);
    if (offset == HADDR_UNDEF) fail("its data were never written");
    if (!state_.source.read(offset, into)) fail("its data are beyond the end of the file");
  }

  void compact(std::span<std::byte> into, hid_t file_type) {
    if (h5().H5Dget_storage_size(dataset_) != into.size()) fail("the size of its data does not match its shape");
    by_libhdf5(into, file_type);
  }

  void by_libhdf5(std::span<std::byte> into, hid_t file_type) {
    if (layout_.kind == H5D_CHUNKED) {
      if (layout_.filters.size() != 1) fail("it is stored with szip and another filter at once");
      // libhdf5 allocates the size in the first four bytes of a chunk.
      for_each_chunk([&](std::span<const hsize_t>, std::vector<std::byte>& stored, unsigned skipped) {
        if (skipped) return;
        if (stored.size() < 4 || little_endian(stored.data(), 4) != chunk_bytes()) fail("a chunk's size is wrong");
      });
    }
    require(h5().H5Dread(dataset_, file_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, into.data()) >= 0, "its data");
  }

  std::uint64_t chunk_bytes() const { return byte_count(layout_.chunk, element_size_); }

  template <class Function> void for_each_chunk(Function&& function) {
    const std::size_t rank = shape_.size();
    if (layout_.chunk.size() != rank) fail("its chunks and its shape have different numbers of dimensions");
    if (chunk_bytes() >= UINT32_MAX) fail("its chunks are too large");
    std::vector<hsize_t> at(rank, 0);
    std::vector<std::byte> stored;
    while (true) {
      // H5Dread_chunk writes the number of bytes in the index, which may differ from H5Dget_chunk_storage_size without
      // filters.
      hsize_t size = 0;
      haddr_t address = HADDR_UNDEF;
      unsigned mask = 0;
      if (h5().H5Dget_chunk_info_by_coord(dataset_, at.data(), &mask, &address, &size) < 0)
        fail("a chunk is missing: {}", hdf5_reason());
      if (size == 0 || address == HADDR_UNDEF) fail("a chunk is missing: the shape is larger than the data");
      if (size > state_.source.size()) fail("a chunk is larger than the file");
      if (size > chunk_bytes() + chunk_bytes() / 8 + 4096) fail("a chunk is larger in the file than in memory");
      stored.resize(size);
      std::uint32_t skipped = 0;
      require(h5().H5Dread_chunk(dataset_, H5P_DEFAULT, at.data(), &skipped, stored.data()) >= 0, "a chunk");
      function(std::span<const hsize_t>(at), stored, skipped);
      std::size_t d = rank;
      while (d > 0) {
        --d;
        at[d] += static_cast<hsize_t>(layout_.chunk[d]);
        if (at[d] < static_cast<hsize_t>(shape_[d])) break;
        at[d] = 0;
        if (d == 0) return;
      }
    }
  }

  void chunked(std::span<std::byte> into) {
    state_.take(2 * chunk_bytes());  // for the chunk before and after inflation; returned below
    std::vector<std::byte> chunk(chunk_bytes());
    for_each_chunk([&](std::span<const hsize_t> at, std::vector<std::byte>& stored, unsigned skipped) {
      if (const std::string wrong = unfilter(layout_.filters, skipped, stored, chunk); !wrong.empty())
        fail("{}", wrong);
      place(chunk, at, into);
    });
    state_.bytes_left += 2 * chunk_bytes();
  }

  // One dimension of a copy: the count, and the strides in the chunk and in the array, in bytes.
  struct Axis {
    std::size_t count, from, to;
  };

  // Copies the part of a chunk that is within the shape. A row spans the trailing dimensions in which the chunk is
  // complete.
  void place(std::span<const std::byte> chunk, std::span<const hsize_t> at, std::span<std::byte> into) const {
    std::vector<Axis> axes;
    std::size_t from = element_size_, to = element_size_, row = element_size_, first = 0;
    bool is_row = true;
    for (std::size_t d = shape_.size(); d-- > 0;) {
      const auto size = static_cast<std::size_t>(shape_[d]), reach = static_cast<std::size_t>(layout_.chunk[d]);
      const std::size_t count = std::min(reach, size - static_cast<std::size_t>(at[d]));
      first += at[d] * to;
      if (is_row)
        row *= count;
      else
        axes.insert(axes.begin(), {count, from, to});
      is_row = is_row && reach == size;
      from *= reach;
      to *= size;
    }
    copy(axes, row, chunk.data(), into.data() + first);
  }

  static void copy(std::span<const Axis> axes, std::size_t row, const std::byte* from, std::byte* to) {
    if (axes.empty()) {
      std::memcpy(to, from, row);
      return;
    }
    const Axis& axis = axes[0];
    const bool is_last = axes.size() == 1;
    for (std::size_t i = 0; i < axis.count; ++i, from += axis.from, to += axis.to)
      if (is_last && row == sizeof(float))
        std::memcpy(to, from, sizeof(float));
      else if (is_last)
        std::memcpy(to, from, row);
      else
        copy(axes.subspan(1), row, from, to);
  }

  hid_t dataset_;
  ReadingState& state_;
  const Layout& layout_;
  const Shape& shape_;
  std::size_t element_size_;
};

// Reads the raw elements into a new buffer.
std::vector<std::byte> raw_bytes(hid_t dataset, ReadingState& state, const Layout& layout, const Shape& shape,
                                 std::size_t element_size, hid_t file_type) {
  RawReader reader(dataset, state, layout, shape, element_size);
  const std::uint64_t bytes = byte_count(shape, element_size);
  reader.check_stored_size(bytes);
  state.take(bytes);
  std::vector<std::byte> raw(bytes);
  reader.read(raw, file_type);
  return raw;
}

Array read_numbers(hid_t dataset, ReadingState& state, const Layout& layout, const Shape& shape, hid_t type) {
  const NumberType number = number_type(type);
  if (number.is_native) {
    // The elements are read directly into the array.
    const std::uint64_t bytes = byte_count(shape, number.size);
    RawReader reader(dataset, state, layout, shape, number.size);
    reader.check_stored_size(bytes);
    state.take(bytes);
    Array array(number.dtype, shape);
    reader.read(array.writable_bytes(), type);
    to_native(number, array.writable_bytes());
    return array;
  }
  state.take(byte_count(shape, size_of(number.dtype)));
  const std::vector<std::byte> raw = raw_bytes(dataset, state, layout, shape, number.size, type);
  Array array(number.dtype, shape);
  convert(number, raw, array);
  state.bytes_left += raw.size();
  return array;
}

Strings fixed_strings(hid_t dataset, ReadingState& state, const Layout& layout, const Shape& shape, hid_t type) {
  const std::size_t size = h5().H5Tget_size(type);
  if (size == 0 || size > state.limits.string)
    fail("its strings have {} bytes; the limit is {}", size, state.limits.string);
  const H5T_str_t padding = h5().H5Tget_strpad(type);
  const std::vector<std::byte> raw = raw_bytes(dataset, state, layout, shape, size, type);
  Strings strings{shape, {}};
  state.take((raw.size() / size) * sizeof(std::string) + raw.size());
  for (std::size_t at = 0; at < raw.size(); at += size) {
    std::string_view text(reinterpret_cast<const char*>(&raw[at]), size);
    text = text.substr(0, text.find('\0'));
    if (padding == H5T_STR_SPACEPAD) text = text.substr(0, text.find_last_not_of(' ') + 1);
    strings.values.emplace_back(text);
  }
  return strings;
}

Strings variable_strings(hid_t dataset, ReadingState& state, const Layout& layout, const Shape& shape, hid_t type) {
  if (layout.kind == H5D_COMPACT) fail("strings of variable length within their header are not supported");
  if (std::ranges::any_of(layout.filters, [](const Filter& f) { return f.id == szip; }))
    fail("strings under szip are not supported");
  // Each string is stored as its length, the address of a heap collection, and its index in the collection.
  const std::size_t address_size = state.size_of_addresses;
  const std::size_t size = 4 + address_size + 4;
  const std::vector<std::byte> raw = raw_bytes(dataset, state, layout, shape, size, type);
  Strings strings{shape, {}};
  state.take((raw.size() / size) * sizeof(std::string));
  for (std::size_t at = 0; at < raw.size(); at += size) {
    const auto length = static_cast<std::uint32_t>(little_endian(&raw[at], 4));
    const std::uint64_t address = little_endian(&raw[at + 4], address_size);
    const auto index = static_cast<std::uint32_t>(little_endian(&raw[at + 4 + address_size], 4));
    if (length > state.limits.string) fail("a string has {} bytes; the limit is {}", length, state.limits.string);
    state.take(length);
    std::string text = state.heap.read(address, index, length);
    text.resize(std::min(text.size(), text.find('\0')));
    strings.values.push_back(std::move(text));
  }
  return strings;
}

}  // namespace

void ReadingState::take(std::uint64_t bytes) {
  if (bytes > bytes_left) fail("the file needs more than {} bytes of memory, the limit", limits.bytes);
  bytes_left -= bytes;
}

Value read_dataset(hid_t dataset, ReadingState& state) {
  const Layout layout = layout_of(dataset);  // before its shape, which is in other files for a virtual dataset
  const Shape shape = shape_of(dataset);
  const TypeId type(h5().H5Dget_type(dataset));
  require(static_cast<bool>(type), "its type");
  switch (h5().H5Tget_class(type.get())) {
    case H5T_INTEGER:
    case H5T_FLOAT:
    case H5T_ENUM: return read_numbers(dataset, state, layout, shape, type.get());
    case H5T_STRING: {
      const htri_t is_variable = h5().H5Tis_variable_str(type.get());
      require(is_variable >= 0, "its type");
      if (is_variable) return variable_strings(dataset, state, layout, shape, type.get());
      return fixed_strings(dataset, state, layout, shape, type.get());
    }
    case H5T_COMPOUND: fail("it is of a compound type (complex numbers are one): expected numbers or text");
    case H5T_VLEN: fail("it is of a type of variable length: expected numbers or text");
    case H5T_ARRAY: fail("it is of an array type: expected numbers or text");
    case H5T_REFERENCE: fail("it is of a reference type: expected numbers or text");
    case H5T_OPAQUE: fail("it is of an opaque type: expected numbers or text");
    case H5T_BITFIELD: fail("it is of a bit field type: expected numbers or text");
    default: fail("its type is of an unknown kind: expected numbers or text");
  }
}

}  // namespace spikeforge::nir
