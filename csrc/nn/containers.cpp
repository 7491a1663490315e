#include "csrc/nn/containers.h"

namespace spikeforge::nn {

void SequentialImpl::build(std::initializer_list<Part> parts) {
  for (const Part& part : parts) push_back(std::to_string(parts_.size()), part);
}

void SequentialImpl::push_back(const std::string& name, Part part) {
  const std::string in = name + "." + part.input_names().at(0), out = name + "." + part.output_names().at(0);
  add(name, std::move(part));
  if (parts_.empty())
    connect("in", in);
  else {
    disconnect(parts_.back(), "out");
    connect(parts_.back(), in);
  }
  connect(out, "out");
  parts_.push_back(out);
}

std::shared_ptr<Stateful> SequentialImpl::fresh() const {
  auto copy = std::make_shared<SequentialImpl>();
  copy->copy_network(*this);
  copy->parts_ = parts_;
  return copy;
}

RecurrentImpl::RecurrentImpl(const Part& cell, const Part& module, CompositeOptions options) : CompositeImpl(options) {
  const std::string in = "cell." + cell.input_names().at(0), out = "cell." + cell.output_names().at(0);
  add("cell", cell);
  add("module", module);
  connect("in", in);
  connect(out, "module." + module.input_names().at(0), {.delay = 1});
  connect("module." + module.output_names().at(0), in);
  connect(out, "out");
}

std::shared_ptr<Stateful> RecurrentImpl::fresh() const {
  std::shared_ptr<RecurrentImpl> copy(new RecurrentImpl(CompositeOptions()));
  copy->copy_network(*this);
  return copy;
}

}  // namespace spikeforge::nn
