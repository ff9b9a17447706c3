// A row of a mask as bits in shared memory. A CTA reads each element once, thousands ahead of the tiles that need them:
// the wait for memory is paid once in kElements, by loads that wait together.
#pragma once

#include <cstdint>

namespace flashcute::cuda {

// In global memory, of any integer type.
struct MaskRow {
  const uint8_t* data;  // of element 0
  int64_t step;         // bytes from one element to the next
  int element_size;
  const int& length;  // elsewhere: filling bits has better use for the register

  __device__ __forceinline__ bool is_set(int i) const {
    uint32_t value = 0;
#pragma unroll 1
    for (int byte = 0; byte < element_size; ++byte) value |= data[i * step + byte];
    return value != 0;
  }
};

struct MaskBits {
  static constexpr int kElements = 4096, kWords = kElements / 32;
  uint32_t words[kWords];
  int chunk;  // the elements from kElements * chunk on; -1: none yet
};

// Words [begin, end) become the bits of a chunk, zeros beyond the row's end. Every thread of the CTA calls it.
template <int kThreads>
__device__ __forceinline__ void fill_bits(MaskBits& bits, const MaskRow& row, int chunk, int begin, int end) {
  constexpr int kTogether = 8;  // words of a warp whose loads are under way together
  const int lane = threadIdx.x % 32;
  begin = begin / kTogether * kTogether;
#pragma unroll 1
  for (int word = begin + int(threadIdx.x / 32) * kTogether; word < end; word += kThreads / 32 * kTogether) {
    const int element = chunk * MaskBits::kElements + 32 * word + lane;
    uint32_t values[kTogether] = {};
#pragma unroll 1
    for (int byte = 0; byte < row.element_size; ++byte) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {  // no branch, no wait
        values[i] |= row.data[min(element + 32 * i, row.length - 1) * row.step + byte];
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const uint32_t set = __ballot_sync(0xffffffffu, values[i] != 0 && element + 32 * i < row.length);
      if (lane == 0) bits.words[word + i] = set;
    }
  }
}

// Makes `chunk` the one shown, by fill(chunk).
template <class Fill>
__device__ __forceinline__ void show_chunk(MaskBits& bits, int chunk, Fill fill) {
  if (bits.chunk == chunk) return;
  __syncthreads();  // the chunk before is no longer read
  fill(chunk);
  if (threadIdx.x == 0) bits.chunk = chunk;
  __syncthreads();
}

// The first i in [begin, end) for which `is` holds, otherwise `end`. Lanes look at one each: whole warps call it.
template <class Predicate>
__device__ __forceinline__ int first_of(int begin, int end, Predicate is) {
#pragma unroll 1
  for (; begin < end; begin += 32) {
    const int i = begin + int(threadIdx.x % 32);
    const uint32_t found = __ballot_sync(0xffffffffu, i < end && is(i));
    if (found != 0) return begin + __ffs(int(found)) - 1;
  }
  return end;
}

// One past the last i in [begin, end) for which `is` holds, otherwise `begin`.
template <class Predicate>
__device__ __forceinline__ int end_of_last(int begin, int end, Predicate is) {
#pragma unroll 1
  for (; end > begin; end -= 32) {
    const int i = end - 1 - int(threadIdx.x % 32);
    const uint32_t found = __ballot_sync(0xffffffffu, i >= begin && is(i));
    if (found != 0) return end - __ffs(int(found)) + 1;
  }
  return begin;
}

}  // namespace flashcute::cuda
