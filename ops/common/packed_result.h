// Results whose autograd node also stores them as bits, so that a product that reads them need not pack them. Only
// files that register Autograd kernels include this header, since autograd's headers compile slowly.
#pragma once

#include "ops/common/record.h"
#include "ops/common/spike_bits.h"

#include <cstdint>
#include <utility>

namespace spikeforge::ops::autograd {

class PackedResult {
 public:
  virtual ~PackedResult() = default;
  // Returns the node's first result with `bits` bits per value, or undefined tensors if the node does not have it.
  virtual Packed packed(std::int64_t bits) const = 0;

  // The same for the node that computed x. Undefined unless x is the unchanged result, or a view of all of it.
  static Packed of(const at::Tensor& x, std::int64_t bits) {
    const at::TensorBase& whole = x.is_view() ? x._base() : x;
    const auto* const node = dynamic_cast<const PackedResult*>(whole.grad_fn().get());
    // A dense view with the same number of elements has the same order. In-place changes are detected by the graph and
    // the version.
    if (node == nullptr || whole.output_nr() != 0 || x._version() != 0 || x.scalar_type() != whole.scalar_type() ||
        x.sym_numel() != whole.sym_numel() || x.sym_storage_offset() != whole.sym_storage_offset() ||
        !x.is_non_overlapping_and_dense())
      return {};
    return node->packed(bits);
  }
};

// The node of a rule whose forward pass may also save its result as bits.
template <class Rule> class PackedResultNode final : public RuleNode<Rule>, public PackedResult {
 public:
  void keep(Packed packed, std::int64_t bits) {
    packed_ = std::move(packed);
    bits_ = bits;
  }

  Packed packed(std::int64_t bits) const override { return bits == bits_ ? packed_ : Packed{}; }

  void release_variables() override {
    RuleNode<Rule>::release_variables();
    keep({}, /*bits=*/0);
  }

 private:
  Packed packed_;
  std::int64_t bits_ = 0;
};

}  // namespace spikeforge::ops::autograd
