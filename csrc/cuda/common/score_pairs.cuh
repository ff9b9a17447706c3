// Tensors with a value for each pair of query and key, as a thread meets them: it holds pairs of adjacent columns, so
// it reads two values in one word where the tensor's strides allow (ScoreView::pairs). No value outside the problem is
// read: rows and keys beyond the end read the last one, and nobody looks at what became of them.
#pragma once

#include <cstring>
#include <type_traits>

#include "cuda/common/score_mask.cuh"

namespace flashcute::cuda {

template <int kRows, int kColumns>
struct ElementBits {
  static_assert(kRows * kColumns <= 64);
  using Word = std::conditional_t<kRows * kColumns <= 32, uint32_t, uint64_t>;
  Word bits = 0;
  __device__ __forceinline__ bool operator()(int r, int c) const { return (bits >> (r * kColumns + c)) & 1; }
};

template <int kRows, int kColumns>
__device__ __forceinline__ ElementBits<kRows, kColumns> all_elements() {
  using Word = typename ElementBits<kRows, kColumns>::Word;
  return {Word(~Word(0)) >> (8 * sizeof(Word) - kRows * kColumns)};
}

template <class Element>
__device__ __forceinline__ float load_float(const void* data, int64_t index, bool float32) {
  return float32 ? static_cast<const float*>(data)[index]
                 : static_cast<float>(static_cast<const Element*>(data)[index]);
}

// visit(r, c, value as float) for every element. `base`: the offset of row 0, key 0 of the tile's head.
template <class T, int kRows, int kColumns, class Visit>
__device__ __forceinline__ void for_each_value(const ScoreView& view, int64_t base, const Member& member,
                                               ElementPlace place, Visit visit) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4);
  using PairWord = std::conditional_t<sizeof(T) == 4, uint64_t, uint32_t>;
  const T* data = static_cast<const T*>(view.data) + base;
  const auto row_at = [&](int r) { return data + int64_t(min(place.row(r), member.len_q - 1)) * view.row; };
  if (view.pairs && place.key(kColumns - 1) < member.len_k) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const PairWord* row = reinterpret_cast<const PairWord*>(row_at(r) + place.first_key);
#pragma unroll
      for (int c = 0; c < kColumns; c += 2) {
        const PairWord word = row[4 * (c / 2)];  // 8 keys on
        T values[2];
        memcpy(values, &word, sizeof(word));
        visit(r, c, float(values[0]));
        visit(r, c + 1, float(values[1]));
      }
    }
  } else {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (place.row(r) >= member.len_q) break;
      const T* row = row_at(r);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        // branches, so that no more loads are under way than the registers hold addresses of
        if (c % 8 == 0 && place.key(c) >= member.len_k) break;
        visit(r, c, float(row[int64_t(min(place.key(c), member.len_k - 1)) * view.key]));
      }
    }
  }
}

// The elements at which a mask is not zero.
template <int kRows, int kColumns>
__device__ __forceinline__ ElementBits<kRows, kColumns> mask_bits(const ScoreView& mask, int64_t base,
                                                                  const Member& member, ElementPlace place) {
  using Bits = ElementBits<kRows, kColumns>;
  Bits seen;
  if (mask.element_size == 1 && mask.pairs && place.key(kColumns - 1) < member.len_k) {
    const uint8_t* data = static_cast<const uint8_t*>(mask.data) + base + place.first_key;
    typename Bits::Word row_bits = 0;
    const auto read_row = [&](int r) {
      const uint8_t* row = data + int64_t(min(place.row(r), member.len_q - 1)) * mask.row;
      row_bits = 0;
#pragma unroll
      for (int c = 0; c < kColumns; c += 2) {
        const uint32_t pair = reinterpret_cast<const uint16_t*>(row)[4 * (c / 2)];  // 8 keys on
        row_bits |= typename Bits::Word((pair & 0xFF) != 0) << c | typename Bits::Word(pair > 0xFF) << (c + 1);
      }
    };
    if (mask.row == 0) {
      read_row(0);
#pragma unroll
      for (int r = 0; r < kRows; ++r) seen.bits |= row_bits << (r * kColumns);
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        read_row(r);
        seen.bits |= row_bits << (r * kColumns);
      }
    }
    return seen;
  }
  with_mask_type(mask.data, mask.element_size, [&](auto* data) {
#pragma unroll 8
    for (int e = 0; e < kRows * kColumns; ++e) {
      const int row = min(place.row(e / kColumns), member.len_q - 1);
      const int key = min(place.key(e % kColumns), member.len_k - 1);
      const bool visible = data[base + int64_t(row) * mask.row + int64_t(key) * mask.key] != 0;
      seen.bits |= typename Bits::Word(visible) << e;
    }
  });
  return seen;
}

}  // namespace flashcute::cuda
