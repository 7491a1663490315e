#include "ops/frames/event_frames.h"
#include "csrc/cpu/frames/frames.h"
#include "csrc/jit/recorder.h"
#include "ops/common/checks.h"
#include "ops/common/layout.h"
#include "ops/common/library.h"
#include "ops/common/result_memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>

namespace spikeforge::ops::frames {
namespace {

using spikeforge::frames::Column;
using spikeforge::frames::FramesArguments;
using spikeforge::frames::FramesLaunch;
using spikeforge::frames::Int;
using spikeforge::frames::Values;

constexpr const char* op = "event_frames";
using MaybeTensor = std::optional<at::Tensor>;

SPIKEFORGE_SCHEMAS(library) {
  library.def(
      "event_frames(Tensor t, Tensor x, Tensor? y, Tensor? p, Tensor offsets, *, int[3] size, int steps, "
      "int? window=None, Tensor? start=None, str bins=\"time\", str values=\"count\", float tau=1., int[2]? crop=None, "
      "Tensor? origin=None, Tensor? flip=None, int downsample=1, Tensor? ignored=None, Tensor? keep=None, "
      "ScalarType? dtype=None) -> Tensor");
}

std::optional<Column> column_of(c10::ScalarType type) {
  switch (type) {
    case at::kBool:
    case at::kByte: return Column::u8;
    case at::kChar: return Column::i8;
    case at::kUInt16: return Column::u16;
    case at::kShort: return Column::i16;
    case at::kUInt32: return Column::u32;
    case at::kInt: return Column::i32;
    case at::kLong: return Column::i64;
    default: return std::nullopt;
  }
}

Values values_of(std::string_view name) {
  if (name == "normalised") return Values::count;
  constexpr std::array<std::string_view, 5> names = {"count", "binary", "bits", "voxel", "surface"};
  const auto* const found = std::ranges::find(names, name);
  TORCH_CHECK_VALUE(found != names.end(), op,
                    ": values must be count, binary, normalised, bits, voxel or surface, but is ", name);
  return static_cast<Values>(found - names.begin());
}

// Keeps contiguous tensors of a call, and returns the addresses of their data.
class Holder {
 public:
  Holder(const at::Tensor& t, std::vector<at::Tensor>& held) : t_(t), held_(held) {}

  // A column [events] of integers.
  const void* column(const char* name, const at::Tensor& column, Column& type) const {
    const auto known = column_of(column.scalar_type());
    TORCH_CHECK_TYPE(known, op, ": ", name,
                     " must be bool, uint8, int8, uint16, int16, uint32, int32 or int64, but is ",
                     column.scalar_type());
    TORCH_CHECK_VALUE(column.dim() == 1 && column.sym_size(0) == t_.sym_size(0), op, ": ", name, " must have shape [",
                      t_.sym_size(0), "], one number for each event of t, but has ", column.sym_sizes());
    type = *known;
    return data(name, column);
  }
  const void* column(const char* name, const MaybeTensor& given, Column& type) const {
    return given ? column(name, *given, type) : nullptr;
  }

  // A tensor of one of these shapes; `what` describes the dimensions.
  template <class T>
  const T* other(const char* name, const MaybeTensor& given, c10::ScalarType type,
                 std::initializer_list<std::vector<c10::SymInt>> shapes, const char* what) const {
    if (!given) return nullptr;
    TORCH_CHECK_TYPE(given->scalar_type() == type, op, ": ", name, " must be ", type == at::kBool ? "bool" : "int64",
                     ", but is ", given->scalar_type());
    const bool fits = std::ranges::any_of(shapes, [&](const auto& shape) { return given->sym_sizes().equals(shape); });
    TORCH_CHECK_VALUE(fits, op, ": ", name, " must have shape ", c10::SymIntArrayRef(*shapes.begin()), ", ", what,
                      ", but has ", given->sym_sizes());
    return static_cast<const T*>(data(name, *given));
  }

 private:
  const void* data(const char* name, const at::Tensor& given) const {
    check_dense(op, name, given);
    check_device({op, "t", t_}, name, given);
    if (given.is_meta()) return nullptr;
    held_.push_back(given.contiguous());
    return held_.back().const_data_ptr();
  }

  const at::Tensor& t_;
  std::vector<at::Tensor>& held_;
};

std::int64_t checked(const char* name, std::int64_t number, std::int64_t least, std::int64_t most) {
  TORCH_CHECK_VALUE(number >= least && number <= most, op, ": ", name, " must be in [", least, ", ", most, "], but is ",
                    number);
  return number;
}

constexpr std::int64_t most = std::numeric_limits<int>::max();

// Sets the sizes of the sensor, the cropped window and the frames.
void set_sizes(FramesArguments& a, const FrameOptions& options, Values values) {
  const auto [channels, height, width] = options.size;
  TORCH_CHECK_VALUE((channels == 1 || channels == 2) && height > 0 && width > 0 && height <= most / 2 / width, op,
                    ": size must be the channels (1 or 2), height and width of the sensor, but is [", channels, ", ",
                    height, ", ", width, "]");
  a.channels = static_cast<int>(channels);
  a.height = static_cast<int>(height);
  a.width = static_cast<int>(width);
  const auto [crop_height, crop_width] = options.crop.value_or(std::array{height, width});
  TORCH_CHECK_VALUE(crop_height > 0 && crop_width > 0 && crop_height <= height && crop_width <= width, op,
                    ": crop must be a height and width within those of the sensor, [", height, ", ", width,
                    "], but is [", crop_height, ", ", crop_width, "]");
  a.crop_height = static_cast<int>(crop_height);
  a.crop_width = static_cast<int>(crop_width);
  a.row = (a.height - a.crop_height) / 2;
  a.column = (a.width - a.crop_width) / 2;
  a.downsample = static_cast<int>(checked("downsample", options.downsample, 1, std::max(height, width)));
  a.out_height = (a.crop_height - 1) / a.downsample + 1;
  a.out_width = (a.crop_width - 1) / a.downsample + 1;
  a.row_words = (a.out_width - 1) / 32 + 1;
  a.cells = Int{a.channels} * a.out_height * (values == Values::bits ? a.row_words : a.out_width);
}

void set_steps(FramesArguments& a, const FrameOptions& options, Values values) {
  a.steps = static_cast<int>(checked("steps", options.steps, 1, 1 << 30));
  TORCH_CHECK_VALUE(options.bins == "time" || options.bins == "count", op, ": bins must be time or count, but is ",
                    options.bins);
  a.by_count = options.bins == "count" ? 1 : 0;
  // Voxels are sums of numbers up to the window.
  const std::int64_t longest = values == Values::voxel ? std::int64_t{1} << 40 : (std::int64_t{1} << 62) / a.steps;
  a.window = options.window ? checked("window", *options.window, 1, longest) : 0;
  TORCH_CHECK_VALUE(a.by_count == 0 || (!options.start && !spikeforge::frames::has_second_pass(values)), op,
                    ": bins=count accepts neither start nor values ", options.values);
  TORCH_CHECK_VALUE(!options.start || options.window, op, ": start needs window, the ticks of a step");
  TORCH_CHECK_VALUE(options.tau > 0, op, ": tau must be above 0, but is ", options.tau);
  a.tau = options.tau;
}

}  // namespace

FramesCall prepare_frames(const Events& events, const FrameOptions& options) {
  FramesCall call;
  FramesLaunch& launch = call.launch;
  FramesArguments& a = launch.arguments;
  launch = {.values = values_of(options.values), .columns = {}, .type = DType::f32, .arguments = {}};
  const at::Tensor& t = events.t;
  TORCH_CHECK_VALUE(t.dim() == 1, op, ": t must have shape [events], but has ", t.sym_sizes());
  const Holder holder(t, call.held);
  a.t = holder.column("t", t, launch.columns.t);
  a.x = holder.column("x", events.x, launch.columns.x);
  a.y = holder.column("y", events.y, launch.columns.y);
  a.p = holder.column("p", events.p, launch.columns.p);
  const at::Tensor& offsets = events.offsets;
  TORCH_CHECK_VALUE(offsets.dim() == 1 && offsets.sym_size(0) >= 1, op,
                    ": offsets must have shape [B + 1], the first event of each sample and the end, but has ",
                    offsets.sym_sizes());
  const c10::SymInt samples = offsets.sym_size(0) - 1;
  a.offsets =
      holder.other<Int>("offsets", offsets, at::kLong, {{samples + 1}}, "the first event of each sample and the end");
  set_sizes(a, options, launch.values);
  set_steps(a, options, launch.values);
  using Byte = unsigned char;
  a.start = holder.other<Int>("start", options.start, at::kLong, {{samples}}, "one time for each sample");
  a.origin = holder.other<Int>("origin", options.origin, at::kLong, {{samples, 2}}, "a row and column for each sample");
  TORCH_CHECK_VALUE(!options.origin || options.crop, op, ": origin needs crop");
  a.flip = holder.other<Byte>("flip", options.flip, at::kBool, {{samples, 2}}, "two for each sample");
  a.ignored = holder.other<Byte>("ignored", options.ignored, at::kBool,
                                 {{a.height, a.width}, {samples, a.height, a.width}}, "one for each pixel");
  a.ignored_stride = options.ignored && options.ignored->dim() == 3 ? Int{a.height} * a.width : 0;
  a.keep = holder.other<Byte>("keep", options.keep, at::kBool, {{t.sym_size(0)}}, "one for each event");

  const c10::ScalarType type = call.type = options.dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
  TORCH_CHECK_TYPE(is_supported(type), op, ": dtype must be float16, bfloat16, float32 or float64, but is ", type);
  launch.type = type == at::kDouble ? DType::f64 : DType::f32;
  const c10::ScalarType number = scalar_type_of(launch.type);
  const bool finishes = spikeforge::frames::has_second_pass(launch.values), is_bits = launch.values == Values::bits;
  const std::array<c10::SymInt, 5> shape{a.steps, samples, a.channels, a.out_height,
                                         is_bits ? a.row_words : a.out_width};
  const auto empty = [&](c10::ScalarType of) {
    if (!t.is_cpu()) return at::empty_symint(shape, t.options().dtype(of));
    constexpr c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
    const at::IntArrayRef sizes = c10::asIntArrayRefSlow(shape, __FILE__, __LINE__);
    return at::Tensor(at::detail::empty_generic(sizes, result_allocator(), cpu, of, std::nullopt));
  };
  call.sums = empty(finishes ? at::kLong : is_bits ? at::kInt : number);
  call.numbers = finishes ? empty(number) : call.sums;
  if (t.is_meta()) return call;
  a.events = t.numel();
  a.samples = static_cast<int>(checked("the number of samples", offsets.numel() - 1, 0, most - 1));
  a.out = call.sums.mutable_data_ptr();
  a.numbers = call.numbers.mutable_data_ptr();
  return call;
}

at::Tensor finished_frames(const FramesCall& call, const FrameOptions& options) {
  at::Tensor frames = call.numbers;
  if (frames.scalar_type() == at::kInt) return frames;
  if (options.values == "normalised" && frames.sym_numel() != 0)
    frames.div_(frames.amax({-3, -2, -1}, /*keepdim=*/true).clamp_min_(1));
  return frames.to(call.type);
}

namespace {

at::Tensor frames_meta(const Events& events, const FrameOptions& options) {
  return finished_frames(prepare_frames(events, options), options);
}

void check_offsets(const FramesArguments& a) {
  const Int* const wrong = std::is_sorted_until(a.offsets, a.offsets + a.samples + 1);
  TORCH_CHECK_VALUE(a.offsets[0] == 0 && wrong == a.offsets + a.samples + 1 && a.offsets[a.samples] == a.events, op,
                    ": offsets must begin with 0, never decrease, and end with the number of events, ", a.events,
                    ", but are ",
                    at::IntArrayRef(reinterpret_cast<const std::int64_t*>(a.offsets),
                                    static_cast<std::size_t>(std::min(a.samples + 1, 16))));
}

// Throws the error for an event that is not on the sensor, or before the first one.
[[noreturn]] void refuse(const Events& events, const FramesArguments& a, int sample, Int event) {
  const auto number = [&](const MaybeTensor& column) {
    return column ? column->select(0, event).to(at::kLong).item<std::int64_t>() : 0;
  };
  const std::int64_t first = events.t.select(0, a.offsets[sample]).to(at::kLong).item<std::int64_t>();
  const std::int64_t t = number(events.t), x = number(events.x), y = number(events.y), p = number(events.p);
  const std::string name = c10::str("event ", event - a.offsets[sample], " of sample ", sample);
  TORCH_CHECK_VALUE(x >= 0 && x < a.width && y >= 0 && y < a.height, op, ": ", name, " has x = ", x, " and y = ", y,
                    ", which are not on the sensor of height ", a.height, " and width ", a.width);
  TORCH_CHECK_VALUE(p >= -1 && p <= 1, op, ": p must be 0 or 1, or -1 or 1, but is ", p, " for ", name);
  TORCH_CHECK_VALUE(t >= first, op, ": ", name, " has t = ", t, ", before the sample's first event, t = ", first,
                    "; sort the events by time, or pass start");
  TORCH_CHECK_VALUE(false, op, ": ", name, " has t = ", t, ", too far after the sample's first event, t = ", first,
                    ", for 64 bits");
}

at::Tensor frames_cpu(const Events& events, const FrameOptions& options) {
  const FramesCall call = prepare_frames(events, options);
  const FramesLaunch& launch = call.launch;
  const FramesArguments& a = launch.arguments;
  jit::note_by_arch([&](const jit::Device&, const jit::Want& want) {
    for (jit::KernelSource& source : spikeforge::frames::sources_of(launch)) want(std::move(source));
  });
  check_offsets(a);
  // With fewer samples than threads, several threads add the events of a sample, to different steps.
  const int parts = std::clamp(a.samples == 0 ? 1 : at::get_num_threads() / a.samples, 1, a.steps);
  std::vector<Int> wrong(static_cast<std::size_t>(a.samples), -1);
  at::parallel_for(0, std::int64_t{a.samples} * parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const int sample = static_cast<int>(task / parts), part = static_cast<int>(task % parts);
      const auto edge = [&](int i) { return static_cast<int>(Int{a.steps} * i / parts); };
      const Int found = cpu::add_events(launch, sample, edge(part), edge(part + 1));
      if (part == 0) wrong[static_cast<std::size_t>(sample)] = found;
    }
  });
  for (int sample = 0; sample < a.samples; ++sample)
    if (const Int event = wrong[static_cast<std::size_t>(sample)]; event >= 0) refuse(events, a, sample, event);
  if (spikeforge::frames::has_second_pass(launch.values))
    at::parallel_for(0, a.samples * a.cells, 1024, [&](std::int64_t begin, std::int64_t end) {
      for (Int at = begin; at < end;) {
        const Int sample = at / a.cells, last = std::min<Int>({end, (sample + 1) * a.cells, at + 1024});
        cpu::finish_frames(launch, static_cast<int>(sample), at - sample * a.cells, last - sample * a.cells);
        at = last;
      }
    });
  if (launch.values == Values::surface) call.numbers.exp_();
  return finished_frames(call, options);
}

// The kernel of the schema that calls `kernel`.
template <at::Tensor (*kernel)(const Events&, const FrameOptions&)>
at::Tensor of_schema(const at::Tensor& t, const at::Tensor& x, const MaybeTensor& y, const MaybeTensor& p,
                     const at::Tensor& offsets, at::IntArrayRef size, std::int64_t steps,
                     std::optional<std::int64_t> window, const MaybeTensor& start, std::string_view bins,
                     std::string_view values, double tau, at::OptionalIntArrayRef crop, const MaybeTensor& origin,
                     const MaybeTensor& flip, std::int64_t downsample, const MaybeTensor& ignored,
                     const MaybeTensor& keep, std::optional<at::ScalarType> dtype) {
  TORCH_CHECK_VALUE(size.size() == 3, op, ": size must be channels, height and width, but is ", size);
  FrameOptions options{.size = {size[0], size[1], size[2]},
                       .steps = steps,
                       .window = window,
                       .start = start,
                       .bins = bins,
                       .values = values,
                       .tau = tau,
                       .origin = origin,
                       .flip = flip,
                       .downsample = downsample,
                       .ignored = ignored,
                       .keep = keep,
                       .dtype = dtype};
  if (crop) {
    TORCH_CHECK_VALUE(crop->size() == 2, op, ": crop must be a height and a width, but is ", *crop);
    options.crop = {(*crop)[0], (*crop)[1]};
  }
  return kernel({t, x, y, p, offsets}, options);
}

SPIKEFORGE_KERNELS(CPU, library) { library.impl(op, TORCH_FN(of_schema<frames_cpu>)); }
SPIKEFORGE_KERNELS(Meta, library) { library.impl(op, TORCH_FN(of_schema<frames_meta>)); }
#if defined(SPIKEFORGE_WITH_CUDA)
SPIKEFORGE_KERNELS(CUDA, library) { library.impl(op, TORCH_FN(of_schema<frames_cuda>)); }
#endif

}  // namespace
}  // namespace spikeforge::ops::frames

namespace spikeforge {

at::Tensor event_frames(const Events& events, const FrameOptions& options) {
  using ops::frames::of_schema;
  static const auto handle =
      ops::find_operator<decltype(of_schema<ops::frames::frames_meta>)>("spikeforge::event_frames");
  const auto& [t, x, y, p, offsets] = events;
  const std::optional<at::IntArrayRef> crop =
      options.crop ? std::optional(at::IntArrayRef(*options.crop)) : std::nullopt;
  return handle.call(t, x, y, p, offsets, options.size, options.steps, options.window, options.start, options.bins,
                     options.values, options.tau, crop, options.origin, options.flip, options.downsample,
                     options.ignored, options.keep, options.dtype);
}

}  // namespace spikeforge
