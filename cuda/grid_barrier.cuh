// A barrier for all blocks of a cooperative launch.
#pragma once

namespace spikeforge {

// The word that the driver gives each cooperative launch for its barriers, 0 in its lower 31 bits before and after
// each. Its place is what programs are compiled to since CUDA 9 (cooperative_groups/details/driver_abi.h).
__device__ __forceinline__ unsigned* barrier_of_launch() {
  unsigned high, low;
  asm("mov.u32 %0, %%envreg1;" : "=r"(high));
  asm("mov.u32 %0, %%envreg2;" : "=r"(low));
  return reinterpret_cast<unsigned*>(static_cast<unsigned long long>(high) << 32 | low) + 1;
}

// Waits for all blocks of the grid: writes of blocks before the barrier are visible to all after it. Blocks are indexed
// by x. Each adds 1, and the first adds the rest of 2^31: the highest bit changes when all blocks have arrived.
__device__ __forceinline__ void wait_for_grid() {
  constexpr unsigned highest = 1u << 31;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned* const word = barrier_of_launch();
    const unsigned own = blockIdx.x == 0 ? highest - (gridDim.x - 1) : 1u;
    unsigned before, now;
    asm volatile("atom.add.acq_rel.gpu.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(own) : "memory");
    do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    while (((now ^ before) & highest) == 0);
  }
  __syncthreads();
}

// The same with a way to memory less, how the word stands before is read when the kernel begins, since it does not
// change until this block has come; and in two halves: what a block does between them need not be seen by the others.
class GridBarrier {
 public:
  __device__ __forceinline__ GridBarrier() {
    asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(before_) : "l"(barrier_of_launch()) : "memory");
  }

  // Makes the block's earlier writes visible to all blocks that wait.
  __device__ __forceinline__ void arrive() const {
    __syncthreads();
    if (threadIdx.x != 0) return;
    const unsigned own = blockIdx.x == 0 ? highest - (gridDim.x - 1) : 1u;
    asm volatile("red.release.gpu.add.u32 [%0], %1;" : : "l"(barrier_of_launch()), "r"(own) : "memory");
  }

  // Until all have arrived as often as this block.
  __device__ __forceinline__ void wait() {
    if (threadIdx.x == 0) {
      unsigned now;
      do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(barrier_of_launch()) : "memory");
      while (((now ^ before_) & highest) == 0);
    }
    before_ ^= highest;
    __syncthreads();
  }

 private:
  static constexpr unsigned highest = 1u << 31;
  unsigned before_;  // of which the highest bit counts
};

}  // namespace spikeforge
