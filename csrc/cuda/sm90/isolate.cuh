// For rows that are done again with care: an inf or NaN in V must not reach, as 0 * NaN, the rows that do not see its
// key. Tiles that hold one are found, their infs and NaNs added to the rows that see them, and taken out of the tile
// before the product. Slow, rare, and with few registers. All math threads take part: they share the tile.
#pragma once

#include "cuda/common/half_bits.cuh"
#include "cuda/sm90/config.cuh"

namespace flashcute::cuda::sm90 {

// This thread's share of a tile, as 16-byte vectors.
template <class C, class Visit>
CUTE_DEVICE void for_each_vector(typename C::Element* v, Visit visit) {
#pragma unroll 1
  for (int i = ptx::thread_again(); i < int(cosize_v<typename C::LayoutV>) / 8; i += C::kMathThreads) {
    visit(reinterpret_cast<uint4*>(v)[i]);
  }
}

template <class C>
CUTE_DEVICE bool holds_nonfinite(typename C::Element* v) {
  uint32_t found = 0;
  for_each_vector<C>(v, [&](const uint4& x) { found |= HalfBits<typename C::Element>::nonfinite(x); });
  return found != 0;
}

template <class C>
CUTE_DEVICE void clear_nonfinite(typename C::Element* v) {
  for_each_vector<C>(v, [](uint4& x) { x = HalfBits<typename C::Element>::finite(x); });
  ptx::fence_async();
}

// Notes in shared memory which keys of the tile each row of this warp sees, one bit each.
// scores: (rows, columns), -inf where the row does not see the key. A quad holds a row.
template <class C, class Scores>
CUTE_DEVICE void note_seen_keys(typename C::SharedStorage& shared, const Scores& scores) {
  CUTE_UNROLL
  for (int r = 0; r < 2; ++r) {
    uint32_t words[C::kColumnWords] = {};
    CUTE_UNROLL
    for (int c = 0; c < size<1>(scores); ++c) {
      const int column = 8 * (c / 2) + c % 2;
      words[column / 32] |= uint32_t(scores(r, c) != -INFINITY) << (column % 32);
    }
    CUTE_UNROLL
    for (int i = 0; i < C::kColumnWords; ++i) {
      words[i] <<= C::column_of_thread(ptx::thread_again());
      words[i] |= __shfl_xor_sync(0xffffffffu, words[i], 1);
      words[i] |= __shfl_xor_sync(0xffffffffu, words[i], 2);
      shared.seen_keys[C::row_of_thread(ptx::thread_again()) + 8 * r][i] = words[i];
    }
  }
  __syncwarp();
}

// output: (rows, columns) += the infs and NaNs of the keys each row sees.
template <class C, class Output>
CUTE_DEVICE void add_nonfinite(Output& output, const typename C::SharedStorage& shared, const typename C::Element* v) {
  using Element = typename C::Element;
  Tensor sV = make_tensor(make_smem_ptr(v), typename C::LayoutV{});  // (BLOCK_N, DV)
#pragma unroll 1
  for (int key = 0; key < C::kBlockN; ++key) {
    const auto sees = [&](int r) {
      return bool((shared.seen_keys[C::row_of_thread(ptx::thread_again()) + 8 * r][key / 32] >> (key % 32)) & 1);
    };
    const bool sees_first = sees(0), sees_second = sees(1);
    CUTE_UNROLL
    for (int n = 0; n < C::kHeadDimV / 8; ++n) {
      const Element* pair = &sV(key, 8 * n + C::column_of_thread(ptx::thread_again()));
      const uint32_t nonfinite = HalfBits<Element>::nonfinite(*reinterpret_cast<const uint32_t*>(pair));
      if (nonfinite == 0) continue;
      const float low = nonfinite & 0xFFFFu ? float(pair[0]) : 0.f, high = nonfinite >> 16 ? float(pair[1]) : 0.f;
      output(0, 2 * n) += sees_first ? low : 0.f;
      output(0, 2 * n + 1) += sees_first ? high : 0.f;
      output(1, 2 * n) += sees_second ? low : 0.f;
      output(1, 2 * n + 1) += sees_second ? high : 0.f;
    }
  }
}

}  // namespace flashcute::cuda::sm90
