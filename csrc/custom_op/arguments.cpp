#include "csrc/custom_op/arguments.h"

#include <c10/util/Exception.h>

namespace spikeforge::custom_op {

std::size_t Arguments::position(Which which) const {
  const auto& arguments = schema_.arguments();
  if (which.name_.empty()) {
    TORCH_CHECK_VALUE(which.position_ < values_.size(), schema_.name(), ": there is no argument ", which.position_,
                      "; there are ", values_.size(), " arguments");
    return which.position_;
  }
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == which.name_) return i;
  TORCH_CHECK_VALUE(false, schema_.name(), ": there is no argument ", which.name_, " in its schema, ", schema_);
}

const c10::Argument& Arguments::described(Which which) const { return schema_.arguments()[position(which)]; }

#define SPIKEFORGE_CHECK_KIND(holds, what)                                                                     \
  TORCH_CHECK_VALUE(holds, schema_.name(), ": argument ", described(which).name(), " was requested as ", what, \
                    ", but is ", value(which).tagKind())

const c10::IValue& Arguments::value(Which which) const { return values_[position(which)]; }

bool Arguments::has(Which which) const { return !value(which).isNone(); }

const at::Tensor& Arguments::tensor(Which which) const {
  const c10::IValue& found = value(which);
  SPIKEFORGE_CHECK_KIND(found.isTensor(), "a tensor");
  return found.toTensor();
}

std::vector<at::Tensor> Arguments::tensors(Which which) const {
  const c10::IValue& found = value(which);
  SPIKEFORGE_CHECK_KIND(found.isTensorList(), "a list of tensors");
  return found.toTensorVector();
}

std::int64_t Arguments::integer(Which which) const {
  const c10::IValue& found = value(which);
  SPIKEFORGE_CHECK_KIND(found.isInt() || found.isSymInt(), "an integer");
  return found.toInt();
}

c10::SymInt Arguments::symbol(Which which) const {
  const c10::IValue& found = value(which);
  SPIKEFORGE_CHECK_KIND(found.isInt() || found.isSymInt(), "an integer");
  return found.toSymInt();
}

double Arguments::number(Which which) const {
  const c10::IValue& found = value(which);
  SPIKEFORGE_CHECK_KIND(found.isDouble() || found.isSymFloat() || found.isInt() || found.isBool(), "a number");
  if (found.isDouble() || found.isSymFloat()) return found.toDouble();
  return found.toScalar().toDouble();
}

bool Arguments::flag(Which which) const {
  const c10::IValue& found = value(which);
  SPIKEFORGE_CHECK_KIND(found.isBool() || found.isSymBool(), "a bool");
  return found.toBool();
}

const std::string& Arguments::text(Which which) const {
  const c10::IValue& found = value(which);
  SPIKEFORGE_CHECK_KIND(found.isString(), "a text");
  return found.toStringRef();
}

c10::SymIntArrayRef Arguments::sizes(Which which) const { return tensor(which).sym_sizes(); }

c10::SymInt Arguments::size(Which which, std::int64_t dim) const {
  const at::Tensor& t = tensor(which);
  const std::int64_t from_start = dim < 0 ? dim + t.dim() : dim;
  TORCH_CHECK_VALUE(from_start >= 0 && from_start < t.dim(), schema_.name(), ": ", described(which).name(),
                    " must have a dimension ", dim, ", but has shape ", t.sym_sizes());
  return t.sym_size(from_start);
}

c10::ScalarType Arguments::dtype(Which which) const { return tensor(which).scalar_type(); }

bool Arguments::wants_gradient(Which which) const {
  const std::size_t i = position(which);
  TORCH_CHECK_VALUE(!wanted_.empty(), schema_.name(), ": wants_gradient is for a vjp");
  return wanted_[i] != 0;
}

const at::Tensor& Arguments::result(std::size_t i) const {
  TORCH_CHECK_VALUE(
      i < results_.size(), schema_.name(), ": there is no result ", i,
      results_.empty() ? " here: a vjp finds the results where the operator was given save_results()" : "");
  return results_[i];
}

bool Arguments::is_mapped(Which which) const {
  const std::size_t i = position(which);
  TORCH_CHECK_VALUE(!mapped_.empty(), schema_.name(), ": is_mapped is for a batching rule");
  return mapped_[i] != 0;
}

}  // namespace spikeforge::custom_op
