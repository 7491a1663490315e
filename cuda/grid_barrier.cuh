// A barrier for all blocks of a cooperative launch.
#pragma once

namespace spikeforge {

// Returns the word that the driver allocates for the barriers of a cooperative launch. Its lower 31 bits are 0 before
// and after each barrier. Its address is part of the ABI since CUDA 9 (cooperative_groups/details/driver_abi.h).
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

// The same barrier with one memory access less: the word's initial value is read at the start of the kernel, since it
// does not change before this block arrives. It has two halves, arrive() and wait(): writes of a block between them
// need not be visible to other blocks.
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

  // Waits until all blocks have arrived as often as this block.
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
  unsigned before_;  // only the highest bit is compared
};

}  // namespace spikeforge
