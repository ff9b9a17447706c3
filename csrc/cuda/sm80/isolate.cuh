// For rows that are done again with care: an inf or NaN in V must not reach, as 0 * NaN, the rows that do not see its
// key. Tiles that hold one are found (holds_nonfinite), their infs and NaNs added to the rows that see them, and taken
// out of the tile before the product. Slow, rare, and with few registers: its presence must not cost the fast path any.
#pragma once

#include "cuda/sm80/gemm.cuh"

namespace flashcute::cuda::sm80 {

// Two elements in a word.
template <class Element>
struct HalfBits {
  static constexpr uint32_t kExponents = std::is_same_v<Element, cutlass::half_t> ? 0x7C007C00u : 0x7F807F80u;
  static constexpr uint32_t kCarry = std::is_same_v<Element, cutlass::half_t> ? 0x04000400u : 0x00800080u;

  // All bits of each half that is inf or NaN: its exponent, all ones, carries into the sign bit.
  CUTE_DEVICE static uint32_t nonfinite(uint32_t word) {
    return ((((word & kExponents) + kCarry) & 0x80008000u) >> 15) * 0xFFFFu;
  }
};

// This thread's share of a tile, as 16-byte vectors.
template <class C, class Visit>
CUTE_DEVICE void for_each_vector(typename C::Element* v, Visit visit) {
  constexpr int kVectors = cosize_v<typename C::LayoutKV> / 8;
  static_assert(kVectors % C::kThreads == 0);
  CUTE_UNROLL
  for (int i = 0; i < kVectors / C::kThreads; ++i) visit(reinterpret_cast<uint4*>(v)[threadIdx.x + i * C::kThreads]);
}

template <class C>
CUTE_DEVICE bool holds_nonfinite(typename C::Element* v) {
  using Bits = HalfBits<typename C::Element>;
  uint32_t found = 0;
  for_each_vector<C>(v, [&](const uint4& x) {
    found |= Bits::nonfinite(x.x) | Bits::nonfinite(x.y) | Bits::nonfinite(x.z) | Bits::nonfinite(x.w);
  });
  return found != 0;
}

template <class C>
CUTE_DEVICE void clear_nonfinite(typename C::Element* v) {
  using Bits = HalfBits<typename C::Element>;
  for_each_vector<C>(v, [](uint4& x) {
    x = {x.x & ~Bits::nonfinite(x.x), x.y & ~Bits::nonfinite(x.y), x.z & ~Bits::nonfinite(x.z),
         x.w & ~Bits::nonfinite(x.w)};
  });
}

// Notes in shared memory which keys of the tile each row of this warp sees, one bit each.
// scores: (rows, columns), -inf where the row does not see the key. A quad holds a row.
template <class C, class Scores>
CUTE_DEVICE void note_seen_keys(typename C::SharedStorage& shared, const Scores& scores) {
  CUTE_UNROLL
  for (int r = 0; r < C::kRowsPerThread; ++r) {
    uint32_t words[C::kColumnWords] = {};
    CUTE_UNROLL
    for (int c = 0; c < size<1>(scores); ++c) {
      const int column = 8 * (c / 2) + c % 2;
      words[column / 32] |= uint32_t(scores(r, c) != -INFINITY) << (column % 32);
    }
    CUTE_UNROLL
    for (int i = 0; i < C::kColumnWords; ++i) {
      words[i] <<= 2 * (threadIdx.x % 4);
      words[i] |= __shfl_xor_sync(0xffffffffu, words[i], 1);
      words[i] |= __shfl_xor_sync(0xffffffffu, words[i], 2);
      shared.seen_keys[C::row_of_thread(threadIdx.x) + 8 * r][i] = words[i];
    }
  }
  __syncwarp();
}

// Notes which weights of the tile dropout drops, in the same way. By rows of a lane's own, in rolled loops, beside an
// output in registers.
template <class C, class Extras>
CUTE_DEVICE void note_dropped_keys(typename C::SharedStorage& shared, const Extras& extras, int first_warp_row,
                                   int first_key) {
  uint32_t* words = shared.dropped_keys[threadIdx.x / 32 * C::kRowsPerWarp];
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < C::kRowsPerWarp * C::kColumnWords; i += 32) {
    const int row = first_warp_row + i / C::kColumnWords, key = first_key + 32 * (i % C::kColumnWords);
    uint32_t word = 0;
#pragma unroll 1
    for (int column = 0; column < 32; column += 4) word |= extras.dropped(row, key + column) << column;
    words[i] = word;
  }
  __syncwarp();
}

// Of the keys noted as seen by the rows of this warp, leaves those that dropout drops.
template <class C>
CUTE_DEVICE void keep_dropped_keys(typename C::SharedStorage& shared) {
  uint32_t* seen = shared.seen_keys[threadIdx.x / 32 * C::kRowsPerWarp];
  const uint32_t* dropped = shared.dropped_keys[threadIdx.x / 32 * C::kRowsPerWarp];
  __syncwarp();
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < C::kRowsPerWarp * C::kColumnWords; i += 32) seen[i] &= dropped[i];
  __syncwarp();
}

// output: (rows, columns) += the infs and NaNs of the keys each row sees. A dropped weight times inf is NaN, and so is
// what is left when the inf is taken away again.
template <class C, class Output>
CUTE_DEVICE void add_nonfinite(Output& output, typename C::SharedStorage& shared, const typename C::Element* v,
                               bool drops) {
  Tensor sV = make_tensor(make_smem_ptr(v), typename C::LayoutKV{});  // (BLOCK_N, D)
#pragma unroll 1
  for (float sign = 1.f;; sign = -1.f) {
#pragma unroll 1
    for (int key = 0; key < C::kBlockN; ++key) {
      CUTE_UNROLL
      for (int n = 0; n < C::kHeadDim / 8; ++n) {
        const auto* pair = &sV(key, 8 * n + 2 * int(threadIdx.x % 4));
        const uint32_t nonfinite = HalfBits<typename C::Element>::nonfinite(*reinterpret_cast<const uint32_t*>(pair));
        if (nonfinite == 0) continue;
        const float low = nonfinite & 0xFFFFu ? sign * float(pair[0]) : 0.f;
        const float high = nonfinite >> 16 ? sign * float(pair[1]) : 0.f;
        CUTE_UNROLL
        for (int r = 0; r < C::kRowsPerThread; ++r) {
          if (!((shared.seen_keys[C::row_of_thread(threadIdx.x) + 8 * r][key / 32] >> (key % 32)) & 1)) continue;
          output(r, 2 * n) += low;
          output(r, 2 * n + 1) += high;
        }
      }
    }
    if (!C::kExtras || !drops || sign < 0.f) return;
    keep_dropped_keys<C>(shared);
  }
}

}  // namespace flashcute::cuda::sm80
