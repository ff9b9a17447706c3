// For rows that are done again with care: an inf or NaN in V must not reach, as 0 * NaN, the rows that do not see its
// key. Tiles that hold one are found (holds_nonfinite), their infs and NaNs added to the rows that see them, and taken
// out of the tile before the product. Slow, rare, and with few registers: its presence must not cost the fast path any.
#pragma once

#include "cuda/common/half_bits.cuh"
#include "cuda/sm80/parts.cuh"

namespace flashcute::cuda::sm80 {

// This thread, in a way that nothing made of it is made ahead of the loops.
CUTE_DEVICE int rare_thread() {
  int thread = threadIdx.x;
  ptx::forget_origin(thread);
  return thread;
}

// This thread's share of a tile, as 16-byte vectors.
template <class C, class Visit>
CUTE_DEVICE void for_each_vector(typename C::Element* v, Visit visit) {
  constexpr int kVectors = cosize_v<typename C::LayoutKV> / 8;
  static_assert(kVectors % C::kThreads == 0);
  const int thread = rare_thread();
  CUTE_UNROLL
  for (int i = 0; i < kVectors / C::kThreads; ++i) visit(reinterpret_cast<uint4*>(v)[thread + i * C::kThreads]);
}

template <class C>
CUTE_DEVICE bool holds_nonfinite(typename C::Element* v) {
  using Bits = HalfBits<typename C::Element>;
  uint32_t found = 0;
  for_each_vector<C>(v, [&](const uint4& x) { found |= Bits::nonfinite(x); });
  return found != 0;
}

template <class C>
CUTE_DEVICE void clear_nonfinite(typename C::Element* v) {
  using Bits = HalfBits<typename C::Element>;
  for_each_vector<C>(v, [](uint4& x) { x = Bits::finite(x); });
}

// Notes in shared memory which keys of the tile each row of this warp sees, one bit each.
// scores: (rows, columns), -inf where the row does not see the key. A quad holds a row, or a part of one.
template <class C, class Scores>
CUTE_DEVICE void note_seen_keys(typename C::SharedStorage& shared, const Scores& scores) {
  const int thread = rare_thread();
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
      words[i] <<= 2 * (thread % 4);
      words[i] |= __shfl_xor_sync(0xffffffffu, words[i], 1);
      words[i] |= __shfl_xor_sync(0xffffffffu, words[i], 2);
      shared.seen_keys[C::row_of_thread(thread) + 8 * r][C::part_of_thread(thread) * C::kColumnWords + i] = words[i];
    }
  }
  sync_sharers<C>();
}

// visit(row, word) for this warp's share of the words that note keys: its rows, and of their keys its part.
template <class C, class Visit>
CUTE_DEVICE void for_each_word(Visit visit) {
  const int thread = rare_thread(), lane = thread % 32;
#pragma unroll 1
  for (int i = lane; i < C::kRowsPerWarp * C::kColumnWords; i += 32) {
    visit(C::row_of_thread(thread - lane) + i / C::kColumnWords,
          C::part_of_thread(thread) * C::kColumnWords + i % C::kColumnWords);
  }
}

// Notes which weights of the tile dropout drops, in rolled loops beside an output in registers. first_row, first_key:
// of the tile.
template <class C, class Extras>
CUTE_DEVICE void note_dropped_keys(typename C::SharedStorage& shared, const Extras& extras, int first_row,
                                   int first_key) {
  for_each_word<C>([&](int row, int word) {
    uint32_t dropped = 0;
#pragma unroll 1
    for (int column = 0; column < 32; column += 4) {
      dropped |= extras.dropped(first_row + row, first_key + 32 * word + column) << column;
    }
    shared.dropped_keys[row][word] = dropped;
  });
}

// Of the keys noted as seen, leaves those that dropout drops.
template <class C>
CUTE_DEVICE void keep_dropped_keys(typename C::SharedStorage& shared) {
  sync_sharers<C>();
  for_each_word<C>([&](int row, int word) { shared.seen_keys[row][word] &= shared.dropped_keys[row][word]; });
  sync_sharers<C>();
}

// output: (rows, columns) += the infs and NaNs of the keys each row sees. A dropped weight times inf is NaN, and so is
// what is left when the inf is taken away again.
template <class C, class Output>
CUTE_DEVICE void add_nonfinite(Output& output, typename C::SharedStorage& shared, const typename C::Element* v,
                               bool drops) {
  Tensor sV = make_tensor(make_smem_ptr(v), typename C::LayoutKV{});  // (BLOCK_N, D)
  const int thread = rare_thread();
#pragma unroll 1
  for (float sign = 1.f;; sign = -1.f) {
#pragma unroll 1
    for (int key = 0; key < C::kBlockN; ++key) {
      CUTE_UNROLL
      for (int n = 0; n < C::kChannelsPerPart / 8; ++n) {
        const int channel = C::part_of_thread(thread) * C::kChannelsPerPart + 8 * n + 2 * (thread % 4);
        const auto* pair = &sV(key, channel);
        const uint32_t nonfinite = HalfBits<typename C::Element>::nonfinite(*reinterpret_cast<const uint32_t*>(pair));
        if (nonfinite == 0) continue;
        const float low = nonfinite & 0xFFFFu ? sign * float(pair[0]) : 0.f;
        const float high = nonfinite >> 16 ? sign * float(pair[1]) : 0.f;
        CUTE_UNROLL
        for (int r = 0; r < C::kRowsPerThread; ++r) {
          if (!((shared.seen_keys[C::row_of_thread(thread) + 8 * r][key / 32] >> (key % 32)) & 1)) continue;
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
