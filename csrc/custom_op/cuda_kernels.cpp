#include "csrc/custom_op/internal/cuda_kernels.h"
#include "csrc/custom_op/internal/call_of_user.h"
#include "csrc/custom_op/internal/source_parameters.h"
#include "csrc/jit/recorder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <limits>

namespace spikeforge::custom_op {
namespace {

// The layout of Array in cuda/custom_op.cuh.
struct ArrayArgument {
  const void* data;
  long long numel;
  long long dim;
  std::array<long long, 8> sizes;
};

// Kernel parameters in the memory layout of the device.
class Buffer {
 public:
  template <class T> void add(const T& value) {
    const std::size_t begin = (bytes_.size() + alignof(T) - 1) / alignof(T) * alignof(T);
    bytes_.resize(begin + sizeof(T));
    std::memcpy(bytes_.data() + begin, &value, sizeof(T));
  }
  const void* data() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }

 private:
  c10::SmallVector<char, 512> bytes_;
};

void add_tensor(Buffer& buffer, const Operator& op, const std::string& name, const at::Tensor& t, bool is_result) {
  ArrayArgument array{};
  if (t.defined()) {
    TORCH_CHECK_VALUE(t.dim() <= static_cast<std::int64_t>(array.sizes.size()), op.name, ": ", name, " has ", t.dim(),
                      " dimensions, but a CUDA kernel takes at most ", array.sizes.size());
    array.data = is_result ? t.mutable_data_ptr() : t.const_data_ptr();
    array.numel = t.numel();
    array.dim = t.dim();
    std::copy(t.sizes().begin(), t.sizes().end(), array.sizes.begin());
  }
  buffer.add(array);
}

unsigned checked(const Operator& op, const char* what, std::int64_t count, std::int64_t most) {
  TORCH_CHECK_VALUE(count >= 0 && count <= most, op.name, ": its ", what, " must have 0 to ", most,
                    " in a dimension, but has ", count);
  return static_cast<unsigned>(count);
}

std::array<unsigned, 3> checked(const Operator& op, const char* what, const Dim3& size) {
  constexpr std::int64_t most_x = std::numeric_limits<std::int32_t>::max(), most_other = 65535;
  return {checked(op, what, size.x, most_x), checked(op, what, size.y, most_other),
          checked(op, what, size.z, most_other)};
}

bool is_empty(const std::array<unsigned, 3>& size) { return size[0] == 0 || size[1] == 0 || size[2] == 0; }

// Returns a name such as "mine_scaled", the prefix of cache files and of the program in errors.
std::string file_stem(std::string name) {
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  name.erase(std::unique(name.begin(), name.end(), [](char a, char b) { return a == '_' && b == '_'; }), name.end());
  return name;
}

}  // namespace

CudaKernels::CudaKernels(const CudaKernel& kernel, const Operator& op) : kernel_(kernel), op_(op) {
  TORCH_CHECK_VALUE(
      !kernel.source.empty() && !kernel.entry.empty(), op.name,
      ": its CUDA kernel needs a source, and an entry, the name of an extern \"C\" __global__ function in it");
  TORCH_CHECK_VALUE(!kernel.grid.is_empty(), op.name, ": the grid of its CUDA kernel is an empty function");
  TORCH_CHECK_VALUE(!kernel.block.is_empty(), op.name, ": the block of its CUDA kernel is an empty function");
  op.check_no_lists("a CUDA source", "A host function, .cuda(function), takes any");
  op.check_names_of_types();
}

template <class Use> decltype(auto) CudaKernels::with_source(const Arguments& in, Tensors out, Use&& use) const {
  const std::vector<CudaParameter> parameters = parameters_of(op_, out, in, &ElementType::cuda, "CUDA kernels");
  // The types are included before the source by a compiler option, so that the source keeps its line numbers.
  const std::string types = print_types("spikeforge/cuda/custom_op.cuh", kernel_.source, parameters);
  jit::KernelSource source{.name = file_stem(op_.name),
                           .entry = kernel_.entry,
                           .text = print_program(kernel_.source, kernel_.entry, parameters),
                           .options = kernel_.options};
  source.options.push_back(std::string("--pre-include=") + cuda_types_header);
  for (const auto& [name, text] : kernel_.headers) source.headers.push_back({name.c_str(), text.c_str()});
  source.headers.push_back({cuda_types_header, types.c_str()});
  return use(source);
}

void CudaKernels::compile(const Arguments& in, Tensors out, const std::string& arch) const {
  with_source(in, out, [&](const jit::KernelSource& source) { jit::KernelCache::get().image(source, arch); });
}

void CudaKernels::note(const Arguments& in, Tensors out) const {
  if (const auto recorder = jit::recorder())
    with_source(in, out, [&](const jit::KernelSource& source) { recorder->add_compiled(source); });
}

void CudaKernels::launch(const Arguments& in, Tensors out, const jit::Device& device, void* stream) const {
  const auto extent = [&](const char* what, const Extent& size) {
    return checked(op_, what,
                   call_of_user(op_.name, "a function of its CUDA kernel's size", [&] { return size(in, out); }));
  };
  const std::array<unsigned, 3> grid = extent("grid", kernel_.grid);
  const std::array<unsigned, 3> block = extent("block", kernel_.block);
  if (is_empty(grid) || is_empty(block)) return;

  const int arch = 10 * device.major + device.minor;
  const std::string known_as = key_of_dtypes(op_, out, in) + static_cast<char>(arch);
  const jit::LoadedKernel* kernel = loaded_.find(known_as);
  if (kernel == nullptr)
    kernel = &loaded_.insert(known_as, with_source(
                                           in, out, [&](const jit::KernelSource& source) -> auto& {
                                             return jit::KernelCache::get().get(source, "sm_" + std::to_string(arch));
                                           }));

  Buffer buffer;
  for (std::size_t i = 0; i < op_.argument_count(); ++i) {
    switch (op_.kinds[i]) {
      case ArgumentKind::integer: buffer.add(static_cast<long long>(in.integer(i))); break;
      case ArgumentKind::number: buffer.add(in.number(i)); break;
      case ArgumentKind::truth: buffer.add(in.flag(i)); break;
      default: add_tensor(buffer, op_, op_.argument_name(i), tensor_or_none(in.value(i)), /*is_result=*/false);
    }
  }
  for (std::size_t i = 0; i < out.size(); ++i) add_tensor(buffer, op_, op_.result_name(i), out[i], /*is_result=*/true);
  kernel->launch(grid, block, checked(op_, "shared_bytes", kernel_.shared_bytes, 1 << 20), stream, buffer.data(),
                 buffer.size());
}

}  // namespace spikeforge::custom_op
