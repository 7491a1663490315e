#include <spikeforge/nn/npy.h>

#include <c10/util/Exception.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace spikeforge::nn {
namespace {

static_assert(std::endian::native == std::endian::little, "files are written as '<'");

const char* type_text(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return "|b1";
    case at::kByte:
      return "|u1";
    case at::kChar:
      return "|i1";
    case at::kShort:
      return "<i2";
    case at::kInt:
      return "<i4";
    case at::kLong:
      return "<i8";
    case at::kHalf:
      return "<f2";
    case at::kFloat:
      return "<f4";
    case at::kDouble:
      return "<f8";
    default:
      return nullptr;
  }
}

}  // namespace

void write_npy(const std::string& file, const at::Tensor& tensor) {
  at::Tensor values = tensor.detach().cpu();
  if (values.scalar_type() == at::kBFloat16) values = values.to(at::kFloat);
  values = values.contiguous();
  const char* type = type_text(values.scalar_type());
  TORCH_CHECK_TYPE(type, "write_npy: NumPy has no type for ", values.scalar_type());

  std::string shape;
  for (const std::int64_t size : values.sizes()) shape += std::to_string(size) + ", ";
  std::string header = std::string("{'descr': '") + type + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  constexpr std::size_t before = 10, alignment = 64;  // magic, version and length come before the header
  header.resize((before + header.size() + 1 + alignment - 1) / alignment * alignment - before, ' ');
  header.back() = '\n';

  std::ofstream out(file, std::ios::binary);
  const char start[before] = {'\x93',
                              'N',
                              'U',
                              'M',
                              'P',
                              'Y',
                              1,
                              0,
                              static_cast<char>(header.size() & 0xff),
                              static_cast<char>(header.size() >> 8)};
  out.write(start, before);
  out.write(header.data(), static_cast<std::streamsize>(header.size()));
  out.write(static_cast<const char*>(values.const_data_ptr()), static_cast<std::streamsize>(values.nbytes()));
  out.flush();
  if (!out) throw std::runtime_error("cannot write " + file + ": " + std::strerror(errno));
}

}  // namespace spikeforge::nn
