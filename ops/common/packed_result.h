// Results that the node which gave them has as bits too, so that a product that reads them need not pack them.
// Included where operators register their Autograd kernels, since autograd's headers are dear.
#pragma once

#include <spikeforge/ops/common/record.h>
#include <spikeforge/ops/common/spike_bits.h>

#include <cstdint>
#include <utility>

namespace spikeforge::ops::autograd {

class PackedResult {
 public:
  virtual ~PackedResult() = default;
  // The node's first result in so many bits a number; undefined where it has none such.
  virtual Packed packed(std::int64_t bits) const = 0;

  // Undefined unless x is such a result as the node gave it, or a view of all of it.
  static Packed of(const at::Tensor& x, std::int64_t bits) {
    const at::TensorBase& whole = x.is_view() ? x._base() : x;
    const auto* const node = dynamic_cast<const PackedResult*>(whole.grad_fn().get());
    // A dense view of as many numbers of its memory has them in the same order. Of a result that has been written to
    // since, the graph or its version tells.
    if (node == nullptr || whole.output_nr() != 0 || x._version() != 0 || x.scalar_type() != whole.scalar_type() ||
        x.sym_numel() != whole.sym_numel() || x.sym_storage_offset() != whole.sym_storage_offset() ||
        !x.is_non_overlapping_and_dense())
      return {};
    return node->packed(bits);
  }

  static void keep(AutogradContext* ctx, Packed packed, std::int64_t bits) {
    ctx->saved_data[key_of_numbers] = std::move(packed.numbers);
    ctx->saved_data[key_of_valid] = std::move(packed.valid);
    ctx->saved_data[key_of_bits] = bits;
  }

 protected:
  static constexpr const char *key_of_numbers = "packed", *key_of_valid = "packed_valid", *key_of_bits = "packed_bits";
};

// Of a rule that keeps what keep() is given, or nothing.
template <class Rule>
class PackedResultNode final : public torch::autograd::CppNode<Rule>, public PackedResult {
 public:
  Packed packed(std::int64_t bits) const override {
    const auto& data = this->ctx_.saved_data;
    const auto kept = data.find(key_of_bits);
    if (kept == data.end() || kept->second.toInt() != bits) return {};
    return {data.at(key_of_numbers).toTensor(), data.at(key_of_valid).toTensor()};
  }

  void release_variables() override {
    torch::autograd::CppNode<Rule>::release_variables();
    for (const char* const key : {key_of_numbers, key_of_valid, key_of_bits}) this->ctx_.saved_data.erase(key);
  }
};

}  // namespace spikeforge::ops::autograd
