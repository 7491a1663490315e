// Shared-memory communication between the blocks of a cluster, and barriers between warps: PTX instructions that CUDA
// C++ offers only in headers. Clusters need compute capability 9.0 or newer.
#pragma once

namespace spikeforge {

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Maps the result of address_in_block for this block to the same place in another block of the cluster.
__device__ __forceinline__ unsigned address_in_block(unsigned address, int rank) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// The same for a pointer to shared memory.
template <class T> __device__ __forceinline__ T* in_block(T* p, int rank) {
  T* there;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(rank));
  return there;
}

// Returns the number of blocks of a cluster; 1 on a device without clusters.
__device__ __forceinline__ int blocks_in_cluster() {
#if __CUDA_ARCH__ >= 900
  int blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
#else
  return 1;
#endif
}

__device__ __forceinline__ int rank_in_cluster() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Synchronises all threads of a cluster, with release and acquire semantics.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Synchronises `threads` threads of a block (whole warps). Barrier 0 is that of __syncthreads.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// A barrier (mbarrier) that counts the bytes that other blocks send. A phase ends when one thread of the block has set
// the expected number of bytes, and they have arrived.
struct ByteBarrier {
  unsigned address;

  __device__ __forceinline__ void init() const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address) : "memory");
  }
  // Makes the initialised barriers visible to other blocks. Called after the last initialisation.
  static __device__ __forceinline__ void publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __device__ __forceinline__ void expect(int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
  }
  // Waits until the phase of this parity has ended. In a new barrier, the phase of parity 1 has ended.
  __device__ __forceinline__ void wait(int parity) const {
    unsigned done = 0;
    while (done == 0)
      asm volatile("{.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;}"
                   : "=r"(done)
                   : "r"(address), "r"(parity)
                   : "memory");
  }
};

// Makes this thread's writes to memory visible to send_to_all of its warp, after the warp has synchronised.
__device__ __forceinline__ void publish_for_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
// The same for shared memory that copies will overwrite.
__device__ __forceinline__ void leave_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Copies `bytes` bytes of memory to the same address in each of the cluster's blocks, counted on the barrier at the
// same address of each. Addresses are those of this block.
template <int blocks>
__device__ __forceinline__ void send_to_all(bool wanted, unsigned to, const void* from, int bytes, unsigned barrier) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%1], [%2], %3, [%4], %5;}" ::"r"(wanted ? 1 : 0),
      "r"(to), "l"(from), "r"(bytes), "r"(barrier), "h"(static_cast<unsigned short>((1 << blocks) - 1))
      : "memory");
}

// Sends words to an address in a block of the cluster, counted on a barrier of that block.
__device__ __forceinline__ void send(unsigned to, const unsigned (&words)[1], unsigned barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %2, [%1];" ::"r"(to), "r"(barrier),
               "r"(words[0])
               : "memory");
}
__device__ __forceinline__ void send(unsigned to, const unsigned (&words)[2], unsigned barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%2, %3}, [%1];" ::"r"(to),
               "r"(barrier), "r"(words[0]), "r"(words[1])
               : "memory");
}
__device__ __forceinline__ void send(unsigned to, const unsigned (&words)[4], unsigned barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(to),
      "r"(barrier), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
      : "memory");
}

}  // namespace spikeforge
