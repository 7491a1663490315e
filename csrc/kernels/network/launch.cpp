#include "csrc/kernels/network/launch.h"
#include "csrc/codegen/lines.h"
#include "csrc/kernels/event/spec.h"
#include "csrc/kernels/multistep/arguments.h"
#include "csrc/kernels/multistep/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace spikeforge::kernels {
namespace {

const char* name_of(network::Sending sending) {
  constexpr const char* names[] = {"own", "own_and_later", "later", "together", "in_rounds"};
  return names[static_cast<int>(sending)];
}

// Returns the spec of a step. The neurons of a thread are a warp apart, so that the lanes of a warp access neighbours.
KernelSpec spec_of_step(const ForwardLaunch& launch, std::int64_t width) {
  KernelSpec spec = spec_of(launch, {.width = static_cast<std::uint8_t>(width), .neighbours = width == 1});
  for (Place& place : params_of(spec))  // the neurons of a warp may have two channels here
    if (place.spread == Spread::by_warp) place.spread = Spread::by_channel;
  return spec;
}

// Returns the spec by which a network's kernels read its connections.
event::KernelSpec matrix_of(const NetworkLaunch& launch) {
  return {.kernel = event::Kernel::scatter,
          .weight = launch.weights.type,
          .entry = event::EntryType::boolean,
          .values = event::Values::event,
          .homogeneous = launch.weights.homogeneous,
          .indptr_bytes = sizeof(event::Int),
          .sums = event::Sums::floats,
          .transpose = true,
          .delays = launch.delays};
}

// GroupArguments of cuda/network/network.cuh, followed by draws.
class GroupWords : public ArgumentWords {
 public:
  GroupWords(const NetworkGroup& group, const NetworkPlan::Share& share) {
    add(group.launch->neurons);
    add(group.begin);
    add(share.first_block);
    add(share.blocks);
    add(share.neurons);
    add(share.chunks);
    add_cell(*group.launch);
    add_list(group.launch->states);
    add_draws(*group.launch);
  }
};

}  // namespace

jit::KernelSource print_source(const NetworkLaunch& launch, const NetworkPlan& plan) {
  const bool in_rounds = plan.is_in_rounds();
  const char* const steps = in_rounds ? "GroupRounds" : "GroupSteps";
  codegen::Lines line;
  line("#include <spikeforge/cuda/network/{}.cuh>", in_rounds ? "rounds" : "network");
  for (std::size_t g = 0; g < launch.groups.size(); ++g) {
    const ForwardLaunch& step = *launch.groups[g].launch;
    const KernelSpec spec = spec_of_step(step, plan.width_of(step.neurons));
    const CellText cell = spec.cell->device_text(spec.loop.form);
    line("#define Neuron Neuron{}  // every cell is printed by this name", g);
    line += cell.text;
    line("");
    line("namespace spikeforge {{");
    line("struct Spec{} {{", g);
    line += print_members(spec, cell);
    line("}};");
    line("}}  // namespace spikeforge");
    line("#undef Neuron");
  }
  line("");
  line("namespace spikeforge {{");
  line("namespace event {{");
  line("using MatrixOfNetwork = {};", event::print_type(matrix_of(launch)));
  line("}}");
  line("namespace network {{");
  line("using Kernel = Plan<event::MatrixOfNetwork, {}, Sending::{}, {}, {}, {}, {}, {}, {}, {}>;", launch.drives,
       name_of(plan.sending), plan.resident, plan.threads, plan.threads * plan.width, launch.has_peers(),
       launch.has_copies(), in_rounds ? launch.arriving : 0, plan.skips);
  line("struct Args {{");
  line("  Arguments network;");
  for (std::size_t g = 0; g < launch.groups.size(); ++g) line("  GroupOf<Spec{0}::Cell>::type group{0};", g);
  line("}};");
  line("extern \"C\" __global__ void __launch_bounds__({}, 1) spikeforge_network(const __grid_constant__ Args args) {{",
       plan.threads);
  line("  __shared__ {}Shared<Kernel> shared;", in_rounds ? "Rounds" : "");
  for (std::size_t g = 0; g < launch.groups.size(); ++g) {
    if (g + 1 < launch.groups.size())
      line("  if (blockIdx.x < {0}) return {1}<Spec{2}, Kernel>::run(args.network, args.group{2}, shared);",
           plan.groups[g + 1].first_block, steps, g);
    else
      line("  {0}<Spec{1}, Kernel>::run(args.network, args.group{1}, shared);", steps, g);
  }
  line("}}");
  line("}}  // namespace network");
  line("}}  // namespace spikeforge");
  return {.name = "network", .entry = "spikeforge_network", .text = line.take()};
}

void launch_network(const NetworkLaunch& launch, const NetworkPlan& plan, const jit::LoadedKernel& kernel,
                    void* stream) {
  network::Arguments arguments = launch.arguments;
  arguments.own_threads = plan.own_threads;
  arguments.pieces = plan.pieces;
  arguments.round = plan.round;
  std::vector<std::byte> bytes(sizeof arguments);
  std::memcpy(bytes.data(), &arguments, sizeof arguments);
  for (std::size_t g = 0; g < launch.groups.size(); ++g) {
    const GroupWords words(launch.groups[g], plan.groups[g]);
    const auto* const first = static_cast<const std::byte*>(words.data());
    bytes.insert(bytes.end(), first, first + words.bytes());
  }
  kernel.launch_together(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.threads), 0, stream,
                         bytes.data());
}

// ---- spikes of other ranks ----

constexpr unsigned send_threads = 256;

jit::KernelSource print_send(const NetworkLaunch& launch) {
  return {.name = "network_send",
          .entry = "spikeforge_network_send",
          .text = fmt::format(R"(#include <spikeforge/cuda/network/exchange.cuh>
namespace spikeforge {{
namespace event {{
using MatrixOfNetwork = {};
}}
extern "C" __global__ void __launch_bounds__({})
spikeforge_network_send(const __grid_constant__ network::ExchangeArguments args) {{
  network::send<event::MatrixOfNetwork>(args);
}}
}}  // namespace spikeforge
)",
                              event::print_type(matrix_of(launch)), send_threads)};
}

void send(const NetworkLaunch& launch, const network::ExchangeArguments& exchange, const jit::Device& device,
          void* stream) {
  network::ExchangeArguments arguments = exchange;
  constexpr std::int64_t of_a_warp = 128;  // connections in flight per warp
  const std::int64_t of_a_row = arguments.network.matrix.nnz / std::max<std::int64_t>(arguments.network.whole, 1);
  arguments.network.pieces = std::clamp<std::int64_t>((of_a_row + of_a_warp - 1) / of_a_warp, 1, 1024);
  const unsigned blocks = 2 * static_cast<unsigned>(device.multiprocessors);
  jit::KernelCache::get()
      .get(print_send(launch), jit::name_of_arch(device))
      .launch({blocks, 1, 1}, send_threads, 0, stream, &arguments, sizeof arguments);
}

// ---- the order of connections ----

namespace {

constexpr unsigned near_threads = 256;

const char* whole_number_of(int bytes) {
  switch (bytes) {
    case 2: return "unsigned short";
    case 4: return "unsigned";
    case 8: return "unsigned long long";
    default: return "unsigned char";
  }
}

}  // namespace

jit::KernelSource print_near_first(int weight_bytes, int delay_bytes) {
  return {.name = "network_near_first",
          .entry = "spikeforge_near_first",
          .text = fmt::format(R"(#include <spikeforge/cuda/network/near_first.cuh>
extern "C" __global__ void __launch_bounds__({}) spikeforge_near_first(const spikeforge::network::NearArguments args) {{
  spikeforge::network::near_first<{}, {}>(args);
}}
)",
                              near_threads, whole_number_of(weight_bytes), whole_number_of(delay_bytes))};
}

void bring_near_first(const network::NearArguments& arguments, int weight_bytes, int delay_bytes,
                      const jit::Device& device, void* stream) {
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(arguments.rows, 8LL * device.multiprocessors));
  if (blocks == 0) return;
  jit::KernelCache::get()
      .get(print_near_first(weight_bytes, delay_bytes), jit::name_of_arch(device))
      .launch({blocks, 1, 1}, near_threads, 0, stream, &arguments, sizeof arguments);
}

}  // namespace spikeforge::kernels
