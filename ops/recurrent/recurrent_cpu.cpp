#include "ops/multistep/cpu_tiles.h"
#include "ops/recurrent/call.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace spikeforge::ops::recurrent {
namespace {

// The minimum number of samples of a tile: a read of the matrix from the cache serves several samples.
constexpr std::int64_t least_samples = 12;

// Converts a matrix to [panels, rows, columns of a panel], in the type of the arithmetic.
at::Tensor in_panels(const at::Tensor& matrix) {
  const at::Tensor numbers = matrix.to(state_type(matrix.scalar_type()));
  const std::int64_t columns = cpu::panel_bytes / numbers.element_size();
  const std::int64_t missing = (columns - numbers.size(1) % columns) % columns;
  const at::Tensor padded = missing > 0 ? at::constant_pad_nd(numbers, {0, missing}) : numbers;
  return padded.view({padded.size(0), padded.size(1) / columns, columns}).transpose(0, 1).contiguous();
}

template <class AnyLaunch> Tiles tiles_of_call(const AnyLaunch& launch, const cpu::Program& program) {
  const Recurrence& recurrence = launch.recurrence;
  const std::int64_t samples =
      std::max<std::int64_t>(program.largest_tile / std::max<std::int64_t>(recurrence.width, 1), least_samples);
  return tiles_of_samples(recurrence.batch, recurrence.width, launch.steps, samples);
}

// Returns the list of views with the view at one index replaced.
c10::SmallVector<SequenceView, 4> replaced(std::span<const SequenceView> views, std::size_t at,
                                           const SequenceView& view) {
  c10::SmallVector<SequenceView, 4> list(views.begin(), views.end());
  list[at] = view;
  return list;
}

}  // namespace

RecurrentResults forward_cpu(const RecurrentCall& call, bool save) {
  const Prepared prepared = prepare_samples(call);
  check_lengths(call);
  RecurrentResults results = allocate(call, prepared, save);
  DescribedForward described(call, prepared, results);
  RecurrentForwardLaunch& launch = described.launch;
  kernels::note(launch);
  const at::Tensor matrix = in_panels(call.w);
  // Memory for the current of one step, if currents are not saved.
  const at::Tensor row = save ? at::Tensor() : at::empty({launch.neurons}, prepared.options);
  cpu::Feedback feedback{.width = launch.recurrence.width,
                         .delay = launch.recurrence.delay,
                         .matrix = matrix.const_data_ptr(),
                         .fed_back = {.data = launch.outputs[0], .time_stride = launch.neurons},
                         .before = launch.spikes,
                         .added = launch.inputs[launch.recurrence.into],
                         .steps = launch.steps,
                         .sum = save ? launch.current : row.mutable_data_ptr(),
                         .sum_stride = save ? launch.neurons : 0};
  const auto inputs =
      replaced(launch.inputs, launch.recurrence.into, {.data = feedback.sum, .time_stride = feedback.sum_stride});
  launch.inputs = inputs;
  cpu::Program program = cpu::program_of(launch);
  choose_feedback(launch.type, feedback);
  program.context.feedback = &feedback;
  run_tiles(call, tiles_of_call(launch, program), launch, program, program.loop.forward_scratch, program.loop.forward);
  return results;
}

Tensors backward_cpu(const RecurrentBackwardCall& call) {
  const Prepared prepared = prepare_samples(call);
  const Gradients gradients = check_and_allocate(call, prepared);
  DescribedBackward described(call, prepared, gradients);
  RecurrentBackwardLaunch& launch = described.launch;
  kernels::note(launch);
  const at::Tensor matrix = in_panels(call.w.t());
  const at::Tensor row = at::empty({launch.neurons}, prepared.options);
  cpu::Feedback feedback{
      .width = launch.recurrence.width,
      .delay = -launch.recurrence.delay,
      .matrix = matrix.const_data_ptr(),
      .fed_back = {.data = launch.grad_inputs[launch.recurrence.into], .time_stride = launch.neurons},
      .before = {},
      .added = launch.grad_outputs[0],
      .steps = launch.steps,
      .sum = row.mutable_data_ptr(),
      .sum_stride = 0};
  const auto grad_outputs = replaced(launch.grad_outputs, 0, {.data = feedback.sum, .time_stride = 0});
  launch.grad_outputs = grad_outputs;
  cpu::Program program = cpu::program_of(launch);
  choose_feedback(launch.type, feedback);
  program.context.feedback = &feedback;
  run_tiles(call, tiles_of_call(launch, program), launch, program, program.loop.backward_scratch,
            program.loop.backward);
  return reduce_and_list(call, gradients);
}

}  // namespace spikeforge::ops::recurrent
