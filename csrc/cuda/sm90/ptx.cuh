// Hopper's instructions that the kernels write by hand: barriers in shared memory, tensor copies, registers moved
// between warpgroups. Matrix instructions are CuTe's.
#pragma once

#include "cuda/common/ptx.cuh"

namespace flashcute::cuda::ptx {

using Barrier = uint64_t;  // an mbarrier in shared memory

__device__ __forceinline__ void init(Barrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void fence_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// Arrives; the phase ends once `bytes` more have been copied.
__device__ __forceinline__ void arrive_expecting(Barrier& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
}

// Waits for the end of a phase of that parity.
__device__ __forceinline__ void wait(Barrier& barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "retry:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra retry;\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

// What this thread wrote to shared memory becomes visible to the tensor cores and the copy engine.
__device__ __forceinline__ void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// threadIdx.x, read again: what follows from it need not wait in registers that the accumulators want.
__device__ __forceinline__ int thread_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// `count` ones from bit `first` on.
__device__ __forceinline__ uint32_t bits(int first, int count) {
  uint32_t mask;
  asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(mask) : "r"(first), "r"(count));
  return mask;
}

// How long L2 should keep what a copy reads.
enum class Keep : uint64_t { kFirstOut = 0x12F0000000000000, kLastOut = 0x14F0000000000000 };

// One box of a 4-d tensor to shared memory; its bytes count for `barrier`.
__device__ __forceinline__ void copy_box(void* shared, const void* map, Barrier& barrier, Keep keep, int channel,
                                         int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(&barrier)), "r"(channel), "r"(row), "r"(head), "r"(batch),
      "l"(static_cast<uint64_t>(keep))
      : "memory");
}

// One box of a 4-d tensor from shared memory, which what wrote it must have fenced (fence_async).
__device__ __forceinline__ void store_box(const void* map, const void* shared, int channel, int row, int head,
                                          int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(shared_address(shared)), "r"(channel), "r"(row), "r"(head), "r"(batch)
               : "memory");
}

__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// This thread's groups of boxes have left shared memory, but for the kUnderWay last ones.
template <int kUnderWay = 0>
__device__ __forceinline__ void await_stores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kUnderWay) : "memory");
}

// Four 8x8 matrices of 16-bit elements, a word of each to a thread; address: of row lane % 8 of matrix lane / 8.
__device__ __forceinline__ void store_matrices(uint32_t address, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(w0), "r"(w1),
               "r"(w2), "r"(w3)
               : "memory");
}

__device__ __forceinline__ void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace flashcute::cuda::ptx
