#include "csrc/nn/stateful.h"
#include "csrc/nn/internal/scoped_samples.h"
#include "csrc/nn/recording.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <torch/serialize/input-archive.h>

#include <algorithm>

namespace spikeforge::nn {
namespace {

using torch::nn::Module;

template <class Function> void for_all_stateful(Module& module, Function&& function) {
  module.apply([&](Module& m) {
    if (auto* stateful = dynamic_cast<Stateful*>(&m)) function(*stateful);
  });
}

// Returns the module at a path below `module`, or null.
const Module* descend(const Module& module, std::string_view path) {
  const Module* at = &module;
  while (!path.empty()) {
    const std::size_t dot = path.find('.');
    const auto children = at->named_children();
    const auto* child = children.find(std::string(path.substr(0, dot)));
    if (!child) return nullptr;
    at = child->get();
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  }
  return at;
}

// Returns the module that owns the state with a dotted name, and the index of the state.
std::pair<Stateful*, std::size_t> find_state(const Stateful& root, const std::string& name) {
  const std::size_t dot = name.rfind('.');
  const std::string path = dot == std::string::npos ? "" : name.substr(0, dot);
  const auto* owner = dynamic_cast<const Stateful*>(descend(root, path));
  TORCH_CHECK_VALUE(owner, root.title(), ": there is no module with states at '", path, "'");
  const Names names = owner->state_names();
  const auto found = std::find(names.begin(), names.end(), dot == std::string::npos ? name : name.substr(dot + 1));
  TORCH_CHECK_VALUE(found != names.end(), root.title(), ": there is no state '", name, "'; ", owner->title(),
                    names.empty() ? " has none" : " has ", c10::Join(", ", names));
  return {const_cast<Stateful*>(owner), found - names.begin()};  // NOLINT: callers have write access
}

// Returns the value without its history. After inference mode, its tensors are copied, because autograd cannot save
// them.
at::Tensor detached(const at::Tensor& value) {
  const bool is_left_over = value.is_inference() && !c10::InferenceMode::is_enabled();
  return is_left_over ? value.clone() : value.detach();
}

}  // namespace

at::Tensor Stateful::forward(const at::Tensor& x_seq, const Samples& samples) {
  TORCH_CHECK_VALUE(x_seq.defined() && x_seq.dim() >= 1, title(), ": x_seq must be [T, *shape], but is ",
                    x_seq.defined() ? "0-dimensional" : "undefined");
  Tensors outputs = run({&x_seq, 1}, x_seq.size(0), samples);
  TORCH_CHECK_VALUE(!outputs.empty(), title(), ": it has no output");
  return std::move(outputs[0]);
}

at::Tensor Stateful::step(const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.defined(), title(), ": x is undefined");
  at::Tensor y = forward(x.unsqueeze(0));
  // A view cannot be detached in place, and a tensor with other owners must keep its shape: these are copied.
  return y.use_count() == 1 && !y.is_view() ? y.squeeze_(0) : y.squeeze(0).clone();
}

Tensors Stateful::run(at::TensorList inputs, std::int64_t steps, const Samples& samples) {
  if (samples.any()) {
    const ScopedSamples scope(*this, samples, inputs, steps);
    return run(inputs, steps);
  }
  Tensors outputs = recordings_.empty() ? advance(inputs, steps) : run_and_record(inputs, steps);
  write_buffers();
  return outputs;
}

Tensors Stateful::at_rest(at::TensorList inputs) {
  if (state_names().empty() && !draws()) return advance(inputs, 1);
  return Tensors(output_names().size(), inputs.empty() ? at::Tensor() : at::zeros_like(inputs[0]));
}

void Stateful::expect(std::int64_t steps) {
  for (const auto& attached : recordings_)
    if (const auto recording = attached.lock()) recording->expect(steps);
}

Tensors Stateful::run_and_record(at::TensorList inputs, std::int64_t steps) {
  std::erase_if(recordings_, [](const auto& r) { return r.expired(); });
  const bool records_states =
      std::any_of(recordings_.begin(), recordings_.end(), [](const auto& r) { return r.lock()->is_state(); });
  const bool stored = records_states && stores_states();
  if (records_states && !stored && steps > 1) {
    TORCH_CHECK_VALUE(!samples_.any(), title(), ": takes neither lengths nor start while its states are recorded");
    std::vector<Tensors> rows;
    for (std::int64_t t = 0; t < steps; ++t) {
      Tensors row;
      for (const at::Tensor& input : inputs) row.push_back(input.narrow(0, t, 1));
      rows.push_back(run_and_record(row, 1));
    }
    Tensors outputs;
    for (std::size_t k = 0; k < rows[0].size(); ++k) {
      Tensors column;
      for (Tensors& row : rows) column.push_back(std::move(row[k]));
      outputs.push_back(at::cat(column));
    }
    return outputs;
  }
  const bool before = store_states_;
  store_states_ = before || stored;
  Tensors outputs = advance(inputs, steps);
  store_states_ = before;
  for (const auto& attached : recordings_) {
    const auto recording = attached.lock();
    const std::size_t i = recording->index();
    if (!recording->is_state())
      recording->add(outputs.at(i));
    else
      recording->add(stored ? own_sequence(i) : own_state(i).unsqueeze(0));
  }
  return outputs;
}

void reset_state(Module& module) {
  for_all_stateful(module, [](Stateful& m) {
    for (std::size_t i = m.state_names().size(); i-- > 0;) m.set_state(m.state_names()[i], {});
  });
}

void detach_state(Module& module) {
  for_all_stateful(module, [](Stateful& m) {
    for (const std::string& name : m.state_names())
      if (const at::Tensor value = m.state(name); value.defined()) m.set_state(name, detached(value));
  });
}

void Stateful::reset() { reset_state(*this); }

void Stateful::detach_state() { nn::detach_state(*this); }

NamedTensors Stateful::state() const {
  NamedTensors all;
  apply([&](const std::string& path, const Module& module) {
    const auto* stateful = dynamic_cast<const Stateful*>(&module);
    if (!stateful) return;
    const Names names = stateful->state_names();
    for (std::size_t i = 0; i < names.size(); ++i)
      if (const at::Tensor value = stateful->own_state(i); value.defined())
        all.insert(path.empty() ? names[i] : path + "." + names[i], value);
  });
  return all;
}

at::Tensor Stateful::state(const std::string& name) const {
  const auto [owner, i] = find_state(*this, name);
  return owner->own_state(i);
}

void Stateful::set_state(const std::string& name, at::Tensor value) {
  const auto [owner, i] = find_state(*this, name);
  owner->set_own_state(i, std::move(value));
  owner->write_buffers();
}

at::Tensor Stateful::state_sequence(const std::string& name) const {
  const auto [owner, i] = find_state(*this, name);
  return owner->own_sequence(i);
}

Script Stateful::script() const {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "it has no TorchScript form; override script() to define one");
}

std::string Stateful::title() const { return path_.empty() ? kind() : std::string(kind()) + " '" + path_ + "'"; }

void Stateful::make_persistent(const std::string& name) {
  buffers_of_states_.push_back(register_buffer(name, at::empty({0})));
}

void Stateful::write_buffers() {
  for (std::size_t i = 0; i < buffers_of_states_.size(); ++i) {
    const at::Tensor value = own_state(i);
    buffers_of_states_[i].set_data(value.defined() ? value.detach() : at::empty({0}));
  }
}

void Stateful::read_buffers() {
  for (std::size_t i = 0; i < buffers_of_states_.size(); ++i) {
    const at::Tensor& buffer = buffers_of_states_[i];
    set_own_state(i, buffer.sizes() == c10::IntArrayRef{0} ? at::Tensor() : buffer.detach());
  }
}

void Stateful::load(torch::serialize::InputArchive& archive) {
  Module::load(archive);
  // torch keeps the type of an existing tensor when it reads into it, but a state must get the saved type.
  const Names names = state_names();
  for (std::size_t i = 0; i < buffers_of_states_.size(); ++i) {
    at::Tensor saved;
    archive.read(names[i], saved, /*is_buffer=*/true);
    buffers_of_states_[i].set_data(saved);
  }
  read_buffers();
}

template <class To> void Stateful::move_states(const To& to) {
  const std::size_t n = state_names().size();
  for (std::size_t i = 0; i < n; ++i)
    if (const at::Tensor value = own_state(i); value.defined()) set_own_state(i, to(value));
  write_buffers();
}

// Preserves integer buffers: Module::to would convert a matrix of integers to floating point.
template <class Move> void Stateful::move_module(const Move& move) {
  Tensors integers, values;
  for (const at::Tensor& buffer : buffers(/*recurse=*/false))
    if (at::isIntegralType(buffer.scalar_type(), /*includeBool=*/true)) {
      integers.push_back(buffer);
      values.push_back(buffer.detach());
    }
  move();
  for (std::size_t i = 0; i < integers.size(); ++i) integers[i].set_data(values[i].to(integers[i].device()));
}

void Stateful::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  move_module([&] { Module::to(device, dtype, non_blocking); });
  move_states([&](const at::Tensor& v) {
    return v.to(device, v.is_floating_point() ? state_type(dtype) : v.scalar_type(), non_blocking);
  });
}

void Stateful::to(torch::Dtype dtype, bool non_blocking) {
  move_module([&] { Module::to(dtype, non_blocking); });
  move_states([&](const at::Tensor& v) { return v.is_floating_point() ? v.to(state_type(dtype), non_blocking) : v; });
}

void Stateful::to(torch::Device device, bool non_blocking) {
  Module::to(device, non_blocking);
  move_states([&](const at::Tensor& v) { return v.to(device, v.scalar_type(), non_blocking); });
}

std::shared_ptr<Module> Stateful::clone(const std::optional<torch::Device>& device) const {
  const std::shared_ptr<Stateful> copy = fresh();
  copy->assign(*this);
  if (device) copy->to(*device);
  return copy;
}

// Called on a child that a cloned parent constructed; `from` is the child to copy.
void Stateful::clone_(Module& from, const std::optional<torch::Device>& device) {
  const auto* same = dynamic_cast<const Stateful*>(&from);
  TORCH_CHECK_VALUE(same, title(), ": cannot become a copy of a module of another kind");
  assign(*same);
  if (device) to(*device);
}

void Stateful::assign(const Stateful& from) {
  const auto copy_tensors = [&](const auto& mine, const auto& theirs) {
    TORCH_CHECK_VALUE(mine.keys() == theirs.keys(), title(), ": cannot become a copy of a module that differs from it");
    for (const auto& item : theirs) {
      const at::Tensor& target = mine[item.key()];
      target.set_data(item.value().detach().clone());
      target.set_requires_grad(item.value().requires_grad());
    }
  };
  copy_tensors(named_parameters(), from.named_parameters());
  copy_tensors(named_buffers(), from.named_buffers());

  std::vector<Module*> mine;
  std::vector<const Module*> theirs;
  apply([&](Module& m) { mine.push_back(&m); });
  from.apply([&](const Module& m) { theirs.push_back(&m); });
  for (std::size_t k = 0; k < mine.size(); ++k) {
    mine[k]->train(theirs[k]->is_training());
    auto* to = dynamic_cast<Stateful*>(mine[k]);
    const auto* source = dynamic_cast<const Stateful*>(theirs[k]);
    if (!to || !source) continue;
    to->path_ = source->path_;
    to->store_states_ = source->store_states_;
    const std::size_t n = source->state_names().size();
    for (std::size_t i = 0; i < n; ++i) {
      const at::Tensor value = source->own_state(i);
      to->set_own_state(i, value.defined() ? value.detach().clone() : value);
    }
    to->write_buffers();
  }
}

at::ScalarType state_type(at::ScalarType input) {
  return input == at::kHalf || input == at::kBFloat16 ? at::kFloat : input;
}

}  // namespace spikeforge::nn
