#include "csrc/nn/checkpointed.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

namespace spikeforge {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The current states of the default generators of the CPU and of a GPU.
class RandomState {
 public:
  explicit RandomState(std::optional<at::Device> gpu) {
    keep(at::Device(at::kCPU));
    if (gpu) keep(*gpu);
  }
  void restore() const {
    for (const auto& [device, state] : kept_) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state);
    }
  }

 private:
  void keep(at::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    kept_.emplace_back(device, generator.get_state());
  }

  std::vector<std::pair<at::Device, at::Tensor>> kept_;
};

std::optional<at::Device> gpu_among(const variable_list& tensors) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.is_cuda(); });
  return found == tensors.end() ? std::nullopt : std::optional(found->device());
}

// One call of `run`.
struct Call : torch::CustomClassHolder {
  Call(SegmentRun run, std::int64_t number, std::int64_t n_states, RandomState random)
      : run(std::move(run)), number(number), n_states(n_states), random(std::move(random)) {}

  variable_list operator()(const variable_list& states) const {
    Segment segment = run(number, states);
    variable_list results{std::move(segment.output)};
    std::move(segment.states.begin(), segment.states.end(), std::back_inserter(results));
    return results;
  }

  SegmentRun run;
  std::int64_t number, n_states;
  RandomState random;  // the generators before the first call
};

// The autograd function of a segment. Its inputs are the states before the segment, followed by the parameters.
struct SegmentRule : torch::autograd::Function<SegmentRule> {
  static variable_list forward(AutogradContext* ctx, const c10::intrusive_ptr<Call>& call, at::TensorList given) {
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    ctx->save_for_backward(given.vec());
    ctx->set_materialize_grads(false);
    return (*call)(variable_list(given.begin(), given.begin() + call->n_states));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(), "checkpointed: second derivatives are not implemented");
    const auto call = c10::static_intrusive_pointer_cast<Call>(ctx->saved_data.at("call").toCapsule());
    variable_list given = ctx->get_saved_variables();
    for (std::int64_t i = 0; i < call->n_states; ++i) {
      at::Tensor& state = given[static_cast<std::size_t>(i)];
      state = state.detach().requires_grad_(state.requires_grad());
    }
    variable_list wanted, found;
    for (const at::Tensor& t : given)
      if (t.requires_grad()) wanted.push_back(t);
    {
      const at::AutoGradMode with_gradients(true);
      variable_list all = again(*call, given);
      variable_list results, came;  // those that a gradient came for
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (!grads[i].defined() || !all[i].requires_grad()) continue;
        results.push_back(all[i]);
        came.push_back(grads[i]);
      }
      all.clear();  // the others are not kept meanwhile
      if (!results.empty())
        found = torch::autograd::grad(results, wanted, came, /*retain_graph=*/false, /*create_graph=*/false,
                                      /*allow_unused=*/true);
    }
    variable_list all(1);  // no gradient for `call`
    auto next = found.begin();
    for (const at::Tensor& t : given) all.push_back(t.requires_grad() && !found.empty() ? *next++ : at::Tensor());
    return all;
  }

 private:
  static variable_list again(const Call& call, const variable_list& given) {
    const RandomState now(gpu_among(given));
    call.random.restore();
    variable_list results = call(variable_list(given.begin(), given.begin() + call.n_states));
    now.restore();
    return results;
  }
};

}  // namespace

Segment checkpointed(SegmentRun run, std::int64_t segments, const std::vector<at::Tensor>& parameters,
                     const CheckpointedOptions& options) {
  TORCH_CHECK_VALUE(segments >= 1, "checkpointed: segments must be 1 or more, but is ", segments);
  Segment all{{}, options.states};
  for (std::int64_t number = 0; number < segments; ++number) {
    variable_list given;
    for (const at::Tensor& state : all.states) given.push_back(options.truncated ? state.detach() : state);
    given.insert(given.end(), parameters.begin(), parameters.end());
    const auto n_states = static_cast<std::int64_t>(all.states.size());
    const auto call = c10::make_intrusive<Call>(run, number, n_states, RandomState(gpu_among(given)));
    variable_list results = SegmentRule::apply(call, at::TensorList(given));
    TORCH_CHECK_VALUE(number == 0 || results.size() == all.states.size() + 1, "checkpointed: segment ", number,
                      " returned ", results.size() - 1, " states, but earlier ones ", all.states.size());
    all.output = all.output.defined() ? all.output + results[0] : results[0];
    all.states.assign(results.begin() + 1, results.end());
  }
  return all;
}

}  // namespace spikeforge
