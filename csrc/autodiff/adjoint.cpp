#include "csrc/autodiff/adjoint.h"

namespace spikeforge::autodiff {
namespace {

using graph::Value;

bool same(const Value& a, const Value& b) {
  const graph::Recording& recording = graph::Recording::current("vjp");
  return recording.id(a, "vjp") == recording.id(b, "vjp");
}

}  // namespace

Value Adjoint::value() const { return mask_ ? graph::apply(graph::Op::where, {*mask_, value_, 0}) : value_; }

Adjoint Adjoint::operator+(const Adjoint& other) const {
  if (mask_ && other.mask_) {
    if (same(*mask_, *other.mask_)) return {value_ + other.value_, mask_};
    // The two branches of one `where`.
    if (same(!*mask_, *other.mask_)) return Adjoint(graph::apply(graph::Op::where, {*mask_, value_, other.value_}));
  }
  return Adjoint(value() + other.value());
}

Adjoint Adjoint::where(const Value& condition) const { return {value_, mask_ ? *mask_ && condition : condition}; }

}  // namespace spikeforge::autodiff
