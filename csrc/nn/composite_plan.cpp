#include "csrc/nn/composite_plan.h"
#include "csrc/base/graph_order.h"
#include "ops/common/library.h"

#include <ATen/core/List.h>

namespace spikeforge::nn {

std::vector<Stage> plan_stages(int parts, const std::vector<PlannedEdge>& edges) {
  Successors successors(parts);
  for (const PlannedEdge& e : edges)
    if (e.from >= 0 && e.to >= 0) successors[e.from].push_back(e.to);
  const std::vector<std::size_t> component = strong_components(successors);
  constexpr int none = -1;
  std::vector<int> stage_of_component(parts, none), stage_of(parts);
  std::vector<std::size_t> place(parts);  // the index of each part in its stage
  std::vector<std::vector<int>> members;  // the parts of each stage; stages are ordered by their first parts
  for (int part = 0; part < parts; ++part) {
    int& stage = stage_of_component[component[part]];
    if (stage == none) {
      stage = static_cast<int>(members.size());
      members.emplace_back();
    }
    stage_of[part] = stage;
    place[part] = members[stage].size();
    members[stage].push_back(part);
  }

  Successors after(members.size());
  std::vector<Successors> instant(members.size());  // edges without a delay inside each stage
  for (std::size_t stage = 0; stage < members.size(); ++stage) instant[stage].resize(members[stage].size());
  std::vector<Stage> stages(members.size());
  for (int number = 0; number < static_cast<int>(edges.size()); ++number) {
    const PlannedEdge& e = edges[number];
    const int from = e.from < 0 ? none : stage_of[e.from], to = e.to < 0 ? none : stage_of[e.to];
    if (from != to) {
      if (from != none) stages[from].edges_from.push_back(number);
      if (to != none) stages[to].edges_into.push_back(number);
      if (from != none && to != none) after[from].push_back(to);
    } else if (from != none) {
      stages[from].is_loop = true;
      stages[from].edges_within.push_back(number);
      if (!e.is_delayed) instant[from][place[e.from]].push_back(place[e.to]);
    }
  }
  std::vector<Stage> plan;
  for (const std::size_t stage : in_order(after)) {
    for (const std::size_t member : in_order(instant[stage])) stages[stage].nodes.push_back(members[stage][member]);
    plan.push_back(std::move(stages[stage]));
  }
  return plan;
}

namespace {

// `connections` has the source, target and delay of each connection. Returns for each stage: is_loop, the number of
// parts, and the parts; for a loop also the number of connections from and to its parts, and these connections.
std::vector<std::int64_t> network_plan(std::int64_t parts, at::IntArrayRef connections) {
  TORCH_CHECK_VALUE(parts >= 0 && connections.size() % 3 == 0, "network_plan: expects 3 numbers for each connection, ",
                    "but got ", connections.size(), " numbers");
  std::vector<PlannedEdge> edges;
  for (std::size_t i = 0; i < connections.size(); i += 3) {
    const auto [from, to] = std::pair(connections[i], connections[i + 1]);
    TORCH_CHECK_VALUE(from >= -1 && from < parts && to >= -1 && to < parts, "network_plan: connection ", i / 3,
                      " is from part ", from, " to part ", to, ", but there are ", parts);
    edges.push_back({static_cast<int>(from), static_cast<int>(to), connections[i + 2] > 0});
  }
  std::vector<std::int64_t> plan;
  const auto append = [&](const std::vector<int>& numbers) { plan.insert(plan.end(), numbers.begin(), numbers.end()); };
  for (const Stage& stage : plan_stages(static_cast<int>(parts), edges)) {
    plan.push_back(stage.is_loop);
    plan.push_back(static_cast<std::int64_t>(stage.nodes.size()));
    append(stage.nodes);
    if (!stage.is_loop) continue;
    const auto touching = stage.edges_into.size() + stage.edges_within.size() + stage.edges_from.size();
    plan.push_back(static_cast<std::int64_t>(touching));
    for (const auto* edges_of_loop : {&stage.edges_into, &stage.edges_within, &stage.edges_from})
      append(*edges_of_loop);
  }
  return plan;
}

}  // namespace

SPIKEFORGE_REGISTERED(TORCH_LIBRARY_FRAGMENT(spikeforge_nn, given), torch::Library& library, C10_UID) {
  library.def("network_plan(int parts, int[] connections) -> int[]", &network_plan);
  // Hides the call from tracers: its result is a constant of the module.
  for (const auto tracer : {c10::DispatchKey::Tracer, c10::DispatchKey::Python, c10::DispatchKey::PreDispatch})
    library.impl("network_plan", torch::dispatch(tracer, torch::CppFunction::makeFallthrough()));
}

}  // namespace spikeforge::nn
