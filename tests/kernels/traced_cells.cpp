// The table of cells created from text: its size in bytes is bounded, and cells in use are not removed.
#include "csrc/autodiff/vjp.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/text.h"
#include "csrc/kernels/multistep/channel_sums.h"
#include "csrc/kernels/multistep/plan.h"
#include "csrc/kernels/multistep/predefined_cells.h"
#include "csrc/kernels/multistep/traced_cell.h"
#include "csrc/kernels/multistep/typical_kernels.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace spikeforge::test {
namespace {

// Returns texts of equal length, each of a different neuron.
std::string text_number(int i) {
  return fmt::format(
      "neuron n(x; v) {{ h = 0.{:05} * v + x; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }}", 10000 + i);
}

// Returns the size in bytes of this number of cells.
std::size_t room_for(std::size_t count) { return count * TracedCell(text_number(0)).bytes() + 100; }

std::string chain(int divisions) {
  std::string body = "a0 = x + v\n";
  for (int i = 1; i <= divisions; ++i) body += fmt::format("a{} = a{} / (1.5 + a{})\n", i, i - 1, i - 1);
  return fmt::format("neuron chain(x; v) {{ {} s = spike(a{} - 1, atan(2)); return s; v' = select(s, 0, a{}) }}", body,
                     divisions, divisions);
}

}  // namespace

TEST_CASE("a new neuron replaces the least recently used of those without a reference") {
  TracedCells cells(room_for(3));
  std::vector<std::weak_ptr<const TracedCell>> seen;
  for (int i = 0; i < 3; ++i) seen.push_back(cells.intern(text_number(i)));
  cells.intern(text_number(0));  // makes text 0 the most recently used
  cells.intern(text_number(3));
  CHECK_FALSE(seen[0].expired());
  CHECK(seen[1].expired());
  CHECK_FALSE(seen[2].expired());
  CHECK(cells.size() == 3);
}

TEST_CASE("a neuron that is held stays, and its text finds it again, however many others come") {
  TracedCells cells(room_for(4));
  const auto held = cells.intern(text_number(0));
  for (int i = 1; i < 2000; ++i) {
    cells.intern(text_number(i));
    REQUIRE(cells.bytes() <= room_for(4));
  }
  CHECK(cells.intern(text_number(0)) == held);
  CHECK(cells.size() == 4);
}

TEST_CASE("derivatives of surrogates that leave no room are counted, not built") {
  const auto text = [](const char* function, int sites) {
    std::string body = "a0 = x\n";
    for (int i = 1; i <= sites; ++i)
      body += fmt::format("a{} = a{} + {}(surrogate_gradient(a{}, squarewave_fourier(100, 8)))\n", i, i - 1, function,
                          i - 1);
    return fmt::format("neuron waves(x) {{ {} return a{} }}", body, sites);
  };
  // The estimate is close to the size of the graph that would be built.
  const graph::Graph few = graph::parse(text("abs", 3)).graph();
  const auto count = static_cast<double>(autodiff::count_slopes(few)),
             built = static_cast<double>(autodiff::vjp(few).size());
  CHECK(count > .8 * built);
  CHECK(count < 1.2 * built);
  TracedCells cells(std::size_t{4} << 20);
  CHECK(cells.intern(text("abs", 3)) != nullptr);
  CHECK_THAT(
      message_of<NoRoomForCell>([&] { cells.intern(text("abs", 300)); }),
      has_text("the derivatives of the surrogates of neuron waves need") && has_text("SPIKEFORGE_NEURONS_LIMIT_MB"));
  // Constants have no derivative.
  CHECK(cells.intern(text("detach", 300)) != nullptr);
}

TEST_CASE("the error of a full table names the table and the solution") {
  TracedCells cells(room_for(2));
  const auto first = cells.intern(text_number(0));
  auto second = cells.intern(text_number(1));
  const std::string words = message_of<NoRoomForCell>([&] { cells.intern(text_number(2)); });
  CHECK_THAT(words, has_text("the 2 neurons in use need") && has_text("SPIKEFORGE_NEURONS_LIMIT_MB"));
  CHECK(cells.intern(text_number(1)) == second);
  second.reset();
  CHECK(cells.intern(text_number(2)) != nullptr);
  CHECK_THAT(message_of<NoRoomForCell>([] { TracedCells(100).intern(text_number(0)); }),
             has_text("the 0 neurons in use"));
}

TEST_CASE("a text that is not legal takes no room") {
  TracedCells cells(room_for(2));
  CHECK(!message_of<graph::GraphError>([&] { cells.intern("neuron n(x) { return y }"); }).empty());
  CHECK(cells.size() == 0);
  CHECK(cells.bytes() == 0);
}

TEST_CASE("objects kept for a cell are freed with it") {
  struct Kept {
    std::shared_ptr<int> count;
  };
  const auto count = std::make_shared<int>(0);
  {
    const TracedCell cell(text_number(0));
    const Kept& made = cell.cpu_program.get<Kept>([&] { return Kept{count}; });
    CHECK(&cell.cpu_program.get<Kept>([]() -> Kept { throw 7; }) == &made);
    CHECK(count.use_count() == 2);
  }
  CHECK(count.use_count() == 1);
}

TEST_CASE("a neuron whose compilation would take minutes is refused in words, and runs on the CPU all the same") {
  const TracedCell usual(chain(150)), too_long(chain(400));
  CHECK(!usual.is_too_long());
  CHECK(usual.device_text({}).text.size() > 1000);
  CHECK_THAT(message_of<graph::GraphError>([&] { (void)too_long.device_text({}); }),
             has_text("a step of neuron chain and its derivative need about") && has_text("at most 8000") &&
                 has_text("run it on the CPU"));
}

TEST_CASE("the backward kernel that is compiled ahead is the one that a training step needs") {
  const auto somewhere_else = [] {
    alignas(64) static char memory[64];
    return static_cast<void*>(memory);
  };
  const auto held = intern(
      "neuron adaptive(x, y; v, w; tau) { h = v + (x - v - w) / tau; s = spike(h - 1, atan(2))\n"
      " return s, h * y\n v' = h - s; w' = 0.9 * w + s }");
  for (const Cell* const cell :
       {static_cast<const Cell*>(&predefined_cell(NeuronKind::lif)),
        static_cast<const Cell*>(&predefined_cell(NeuronKind::izhikevich)), static_cast<const Cell*>(held.get())})
    for (const DType type : {DType::f32, DType::f16, DType::f64})
      for (const std::int64_t steps : {4, 32, 1000})
        for (const std::int64_t neurons : {37, 4096, 1 << 20}) {
          INFO(cell->name << " T = " << steps << ", N = " << neurons);
          ForwardLaunch launch;
          launch.cell = cell;
          launch.type = type;
          launch.steps = steps;
          launch.neurons = neurons;
          launch.checkpoint_length = cell->checkpoint_length(type);
          const std::vector<SequenceView> inputs(cell->inputs.size(), {somewhere_else(), neurons});
          const std::vector<StateView> initial(cell->states.size());
          const std::vector<ParamView> params(cell->params.size());
          launch.inputs = inputs;
          launch.initial = initial;
          launch.params = params;
          launch.to_come.is_wanted = [](const void*, std::size_t) { return true; };
          CHECK(kernels::foretold_backward(launch, 132) ==
                kernels::typical_kernels(*cell, {.type = type,
                                                 .steps = steps,
                                                 .neurons = neurons,
                                                 .tensors = kernels::Tensors::none,
                                                 .multiprocessors = 132})
                    .backward);
          launch.to_come.is_wanted = [](const void*, std::size_t argument) { return argument != 0; };
          CHECK_FALSE(kernels::foretold_backward(launch, 132).places.items()[0].wanted);
        }
}

TEST_CASE("a call without neurons has no loop over neurons and nothing to sum") {
  const auto cell = intern("neuron n(x; v; tau) { h = v + x / tau; s = spike(h - 1, atan(2)); return s; v' = h }");
  for (const std::int64_t inner : {0, 1}) {
    const float number = 0;
    const std::vector<ParamView> params{{.data = &number, .inner = inner, .count = 4}};
    BackwardLaunch launch;
    launch.cell = cell.get();
    launch.type = DType::f32;
    launch.steps = 4;
    launch.checkpoint_length = cell->checkpoint_length(DType::f32);
    launch.params = params;
    launch.any_grad_param = true;
    const kernels::Schedule schedule = kernels::schedule_of(launch, 132);
    CHECK(kernels::neurons_at_once(launch, schedule, 132) == 0);
    CHECK(kernels::partial_sums(launch, params[0], schedule, 0).size() == 0);
  }
}

}  // namespace spikeforge::test
