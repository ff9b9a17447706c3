// Every PTX instruction the kernels write by hand, each behind a name.
#pragma once

#include <cutlass/numeric_types.h>
#include <cstdint>

namespace flashcute::cuda::ptx {

// Copies 16 bytes to shared memory in the background; zeros, without a read, where the source is not `present`.
// (A number of bytes in place of the condition would cost five instructions more.)
__device__ __forceinline__ void cp_async_16(uint32_t shared, const void* global, bool present) {
  asm volatile(
      "{\n.reg .pred absent;\nsetp.eq.s32 absent, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, absent;\n}" ::"r"(shared),
      "l"(global), "r"(int(present))
      : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `kPending` committed groups of this thread are still under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// A barrier of `threads` of the CTA's.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same; does any of the threads say yes?
__device__ __forceinline__ bool named_any(int id, int threads, bool mine) {
  uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred mine, any;\n"
      "setp.ne.u32 mine, %3, 0;\n"
      "bar.red.or.pred any, %1, %2, mine;\n"
      "selp.u32 %0, 1, 0, any;\n"
      "}\n"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(uint32_t(mine))
      : "memory");
  return any != 0;
}

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Four 8 x 8 matrices of 16-bit elements, a row of 16 bytes from each lane's address, as two pairs of registers.
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(uint32_t shared, uint32_t* first, uint32_t* second) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(first[0]), "=r"(first[1]), "=r"(second[0]), "=r"(second[1])
                 : "r"(shared)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(first[0]), "=r"(first[1]), "=r"(second[0]), "=r"(second[1])
                 : "r"(shared)
                 : "memory");
  }
}

// 2^x on the special-function unit: exact at 0, 2 ulp elsewhere, 0 for -inf.
__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Where `condition` holds for a lane of the warp, which the compiler shall expect of none: what follows from it is kept
// out of the way.
__device__ __forceinline__ bool rarely_any(bool condition) {
  return __builtin_expect(__any_sync(0xffffffffu, condition), 0);
}

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats rounded to nearest in one 32-bit word, `low` in the lower half.
template <class Element>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t word;
  if constexpr (std::is_same_v<Element, cutlass::bfloat16_t>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    static_assert(std::is_same_v<Element, cutlass::half_t>, "16-bit elements only");
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

// The two halves of such a word.
template <class Element>
__device__ __forceinline__ float2 unpack(uint32_t word) {
  if constexpr (std::is_same_v<Element, cutlass::bfloat16_t>) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  } else {
    float2 halves;
    asm("{\n"
        ".reg .f16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.f32.f16 %0, low;\n"
        "cvt.f32.f16 %1, high;\n"
        "}\n"
        : "=f"(halves.x), "=f"(halves.y)
        : "r"(word));
    return halves;
  }
}

// A value that is the same in all lanes, so that the compiler knows it is: what depends on nothing else lives in
// uniform registers, and matrix descriptors of WGMMA made there need no moves on the way to the tensor cores.
__device__ __forceinline__ int uniform(int value) {
  return __reduce_max_sync(0xffffffffu, value);
}

// What is computed from `value` afterwards is computed there, not kept in registers across the loops before.
template <class Word>
__device__ __forceinline__ void forget_origin(Word& value) {
  if constexpr (std::is_same_v<Word, float>) {
    asm volatile("" : "+f"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
}

}  // namespace flashcute::cuda::ptx
