// Results that other nodes need not save for the backward pass, because the node that computed them can recompute them.
// Only files that register Autograd kernels include this header, since autograd's headers compile slowly.
#pragma once

#include "ops/common/record.h"

#include <ATen/TensorUtils.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace spikeforge::ops::autograd {

class Recomputable {
 public:
  virtual ~Recomputable() = default;
  // True if the call that recorded the node allowed recomputing its result.
  virtual bool may_recompute() const = 0;
  // Recomputes the result from the node's saved tensors. Throws if they were released, or changed in place.
  virtual at::Tensor again() = 0;
};

// The node of a rule that defines `static at::Tensor again(AutogradContext*)`. saved_data["recompute"] is true if the
// call allowed recomputing.
template <class Rule> class RecomputableNode final : public RuleNode<Rule>, public Recomputable {
 public:
  bool may_recompute() const override { return this->ctx_.saved_data.at("recompute").toBool(); }
  at::Tensor again() override {
    // Saved tensors are already cast.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    return Rule::again(&this->ctx_);
  }
};

// A shared pointer, or since torch 2.15 an intrusive one.
using NodePointer = std::remove_cvref_t<decltype(std::declval<const at::Tensor&>().grad_fn())>;

// The saved form, in another node, of a recomputable node's result or of a view of it.
class Recomputed : public torch::CustomClassHolder {
 public:
  // Returns the tensor to save for t: t itself, or an undefined tensor if restored() can recompute it by the key.
  static at::Tensor keep(AutogradContext* ctx, const std::string& key, const at::Tensor& t) {
    // Writes to a result are detected by the graph or the version.
    const at::TensorBase& whole = t.is_view() ? t._base() : t;
    const NodePointer& node = whole.grad_fn();
    if (!node || t._version() != 0 || t.scalar_type() != whole.scalar_type()) return t;
    auto* const recomputable = dynamic_cast<Recomputable*>(node.get());
    if (recomputable == nullptr || !recomputable->may_recompute()) return t;
    ctx->saved_data[key] = c10::IValue::make_capsule(c10::make_intrusive<Recomputed>(node, recomputable, whole, t));
    return {};
  }

  static at::Tensor restored(AutogradContext* ctx, const std::string& key, const at::Tensor& saved) {
    if (saved.defined()) return saved;
    const auto found = ctx->saved_data.find(key);
    if (found == ctx->saved_data.end()) return saved;
    return c10::static_intrusive_pointer_cast<Recomputed>(found->second.toCapsule())->again();
  }

  // Used by keep().
  Recomputed(NodePointer node, Recomputable* recomputable, const at::TensorBase& whole, const at::Tensor& t)
      : node_(std::move(node)),
        recomputable_(recomputable),
        strides_of_whole_(whole.sym_strides().vec()),
        sizes_(t.sym_sizes().vec()),
        strides_(t.sym_strides().vec()),
        offset_(t.sym_storage_offset() - whole.sym_storage_offset()) {}

 private:
  at::Tensor again() const {
    at::Tensor whole = recomputable_->again();
    if (whole.sym_strides() != c10::SymIntArrayRef(strides_of_whole_))
      whole = at::empty_strided_symint(whole.sym_sizes(), strides_of_whole_, whole.options()).copy_(whole);
    // Inductor may give the recomputed result another layout than its strides say, so that only a view is right.
    if (offset_ == 0 && at::detail::computeStride(whole.sym_sizes(), whole.sym_strides(), c10::SymDimVector(sizes_)) ==
                            c10::SymDimVector(strides_))
      return whole.view_symint(sizes_);
    return whole.as_strided_symint(sizes_, strides_, whole.sym_storage_offset() + offset_);
  }

  // The node that reads the result has an edge to this node too, so the pointer makes no cycle and does not extend a
  // lifetime.
  NodePointer node_;
  Recomputable* recomputable_;
  std::vector<c10::SymInt> strides_of_whole_, sizes_, strides_;
  c10::SymInt offset_;
};

}  // namespace spikeforge::ops::autograd
