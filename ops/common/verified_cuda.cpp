#include "csrc/jit/spec_table.h"
#include "csrc/kernels/event/plan.h"
#include "ops/common/on_stream.h"
#include "ops/common/verified.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace spikeforge::ops {
namespace {

// Words of pinned memory, in blocks that are never freed: their allocation by the driver may wait for the GPU.
class PinnedWords {
 public:
  unsigned* take() {
    const std::scoped_lock lock(mutex_);
    if (free_.empty()) {
      constexpr std::int64_t words = 1024;
      blocks_.push_back(at::empty({words}, at::TensorOptions().dtype(at::kInt).pinned_memory(true)));
      auto* const begin = static_cast<unsigned*>(blocks_.back().mutable_data_ptr());
      for (std::int64_t i = 0; i < words; ++i) free_.push_back(begin + i);
    }
    unsigned* const word = free_.back();
    free_.pop_back();
    return word;
  }
  void give_back(unsigned* word) {
    const std::scoped_lock lock(mutex_);
    free_.push_back(word);
  }

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> blocks_;
  std::vector<unsigned*> free_;
};

PinnedWords& pinned_words() {
  static auto& words = *new PinnedWords;  // never destroyed: its tensors would outlive the allocators
  return words;
}

// One check, which may still be running.
class Check {
 public:
  Check(const StoredMatrix& matrix, void* stream, event::Answer answer)
      : op(matrix.op), device(matrix.indices->device()), stream(stream), answer_(pinned_words().take()) {
    *answer_ = static_cast<unsigned>(answer);
    if (answer == event::Answer::none) refused = at::zeros({2}, matrix.indices->options().dtype(at::kInt));
  }
  Check(const Check&) = delete;
  Check& operator=(const Check&) = delete;
  ~Check() { pinned_words().give_back(const_cast<unsigned*>(answer_)); }

  event::Answer read() const { return static_cast<event::Answer>(*answer_); }
  const unsigned* guard() const { return static_cast<const unsigned*>(refused.const_data_ptr()); }
  unsigned* answer_word() const { return const_cast<unsigned*>(answer_); }

  std::string op;
  c10::Device device;
  void* stream;
  at::Tensor refused;  // on the device: an error flag, and the count of finished blocks

 private:
  volatile unsigned* answer_;
};
using SharedCheck = std::shared_ptr<const Check>;

MatrixMemory<SharedCheck>& on_gpus() {
  static auto& verified = *new MatrixMemory<SharedCheck>;
  return verified;
}

// Checks whose results were not yet read. They own their memory until it is written.
class Unanswered {
 public:
  void add(SharedCheck check) {
    const std::scoped_lock lock(mutex_);
    checks_.push_back(std::move(check));
    count_ = checks_.size();
  }

  // Removes the completed checks. Returns one that found an illegal value, or null.
  SharedCheck take() {
    if (count_ == 0) return nullptr;
    const std::scoped_lock lock(mutex_);
    SharedCheck wrong;
    std::erase_if(checks_, [&](const SharedCheck& check) {
      const event::Answer answer = check->read();
      if (answer == event::Answer::wrong) wrong = check;
      return answer != event::Answer::none;
    });
    count_ = checks_.size();
    return wrong;
  }

 private:
  std::mutex mutex_;
  std::vector<SharedCheck> checks_;
  std::atomic<std::size_t> count_ = 0;
};

Unanswered& unanswered() {
  static auto& checks = *new Unanswered;
  return checks;
}

SharedCheck launch_check(const StoredMatrix& matrix, void* stream) {
  const at::Tensor& indices = *matrix.indices;
  const at::Tensor dense = indices.contiguous();
  const at::Tensor indptr = matrix.indptr == nullptr ? at::Tensor() : matrix.indptr->contiguous();
  const at::Tensor slots = matrix.slots == nullptr ? at::Tensor() : matrix.slots->contiguous();
  const at::Tensor delays = matrix.delays == nullptr ? at::Tensor() : matrix.delays->contiguous();
  auto check = std::make_shared<Check>(matrix, stream, event::Answer::none);
  const event::CheckArguments args{
      .product = {.indices = static_cast<const int*>(dense.const_data_ptr()),
                  .indptr = indptr.defined() ? indptr.const_data_ptr() : nullptr,
                  .rows = matrix.rows,
                  .cols = matrix.cols,
                  .nnz = dense.numel(),
                  .slots = slots.defined() ? static_cast<const event::Int*>(slots.const_data_ptr()) : nullptr,
                  .delays = delays.defined() ? delays.const_data_ptr() : nullptr,
                  .ring_slots = matrix.ring},
      .delays = delays.defined() ? delays.numel() : 0,
      .refused = static_cast<unsigned*>(check->refused.mutable_data_ptr()),
      .answer = check->answer_word()};
  constexpr std::int64_t block = 256;
  const jit::Device& device = gpu_of(indices);
  const std::int64_t blocks = std::clamp<std::int64_t>((std::max(dense.numel(), matrix.rows) + block - 1) / block, 1,
                                                       std::int64_t{8} * device.multiprocessors);
  const event::KernelSpec spec = check_kernel(matrix);
  jit::SpecTable<event::KernelSpec>::of(device)
      .get(spec, device)
      .launch({static_cast<unsigned>(blocks), 1, 1}, block, 0, stream, &args, sizeof args);
  return check;
}

bool is_capturing() { return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None; }

}  // namespace

void remember_on_gpu(const StoredMatrix& matrix, const MatrixKey& key) {
  on_gpus().set(key, matrix, std::make_shared<Check>(matrix, nullptr, event::Answer::right));
}

const unsigned* verify_on_gpu(const StoredMatrix& matrix) {
  const c10::cuda::OptionalCUDAGuard guard(matrix.indices->device());
  void* const stream = stream_of(*matrix.indices);
  const std::optional<MatrixKey> key = MatrixKey::of(matrix);
  const SharedCheck known = key ? on_gpus().find(*key).value_or(nullptr) : nullptr;
  const event::Answer answer = known ? known->read() : event::Answer::none;
  const SharedCheck wrong = unanswered().take();
  if (answer == event::Answer::wrong) {
    check_numbers(matrix, /*sorted=*/false);  // throws, with the position of the illegal value
    return nullptr;                           // it was changed without a new version, and is legal
  }
  TORCH_CHECK_VALUE(!wrong, matrix.op, ": an earlier call, ", wrong->op, " on ", wrong->device,
                    ", had a matrix with numbers that are out of range, and its result is undefined; csr_check reports "
                    "which they are");
  if (answer == event::Answer::right) return nullptr;
  if (known && known->stream == stream) return known->guard();
  if (is_capturing()) return nullptr;
  SharedCheck check = launch_check(matrix, stream);
  const unsigned* const refused = check->guard();
  unanswered().add(check);
  if (key && !known) on_gpus().set(*key, matrix, std::move(check));
  return refused;
}

}  // namespace spikeforge::ops
