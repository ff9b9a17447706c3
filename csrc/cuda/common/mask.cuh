// Which keys a tile of query rows sees: the range of key tiles it must visit and in which order, the part of them that
// every row sees whole (which the plain body may take), and the columns of one tile that take part.
#pragma once

#include "cuda/common/params.h"
#include "cuda/common/seqlen.cuh"

namespace flashcute::cuda {

// Key tiles [begin, end), walked from `start` to the end and then, where there are any, from the beginning up to it.
// The seed tiles, [start, seed_end), set the references that the plain body keeps (softmax.cuh) and are never plain;
// of the others, those in [plain_begin, plain_end) need no mask.
struct KeyRange {
  int begin, end, plain_begin, plain_end, start, seed_end;

  // After a change of begin, end or seeds.
  __device__ __forceinline__ void clamp_seeds() {
    start = max(min(start, end - 1), begin);
    seed_end = max(min(seed_end, end), start + 1);
  }
};

// Key tiles [begin, end) that the walk takes one after the other; empty where begin == end.
struct KeyRun {
  int begin, end;
};

// Calls use(pointer) with the mask's true type: any integer's, by its size.
template <class Use>
__device__ __forceinline__ void with_mask_type(const void* data, int element_size, Use use) {
  switch (element_size) {
    case 1:
      return use(static_cast<const uint8_t*>(data));
    case 2:
      return use(static_cast<const uint16_t*>(data));
    case 4:
      return use(static_cast<const uint32_t*>(data));
    default:
      return use(static_cast<const uint64_t*>(data));
  }
}

// The band of keys seen by rows [first_row, last_row] of a member, in key positions. Bounds lie below 2^29
// (sm80::refuse), open sides at 2^30: no sum here overflows.
struct RowBand {
  int all_begin, all_end;  // keys that every row sees
  int any_begin, any_end;  // keys that some row sees
};

template <bool kBanded>
__device__ __forceinline__ RowBand row_band(const BandView& band, const Member& member, int first_row, int last_row) {
  if constexpr (kBanded) {
    const int first = first_row + member.diagonal, last = last_row + member.diagonal;
    return {max(0, last - band.left), min(member.len_k, first + band.right + 1), max(0, first - band.left),
            min(member.len_k, last + band.right + 1)};
  } else {
    return {0, member.len_k, 0, member.len_k};
  }
}

// The tiles, of kBlockN keys, of which some row sees a key, and those that every row sees whole.
struct BandTiles {
  int any_begin, any_end, all_begin, all_end;
};

template <int kBlockN>
__device__ __forceinline__ BandTiles tiles_of(const RowBand& rows) {
  if (rows.any_begin >= rows.any_end) return {};
  return {rows.any_begin / kBlockN, (rows.any_end + kBlockN - 1) / kBlockN, (rows.all_begin + kBlockN - 1) / kBlockN,
          max(rows.all_end, 0) / kBlockN};
}

// The first tile that every row sees whole. Where others come before, a row may still wait for its first key, which
// makes its reference: that tile is not plain either.
__device__ __forceinline__ int first_plain(const BandTiles& tiles) {
  return tiles.all_begin + (tiles.all_begin > tiles.any_begin ? 1 : 0);
}

__device__ __forceinline__ KeyRange key_range(const BandTiles& tiles) {
  return {tiles.any_begin, tiles.any_end, first_plain(tiles), tiles.all_end, tiles.any_begin, tiles.any_begin + 1};
}

// One bit for each column of a key tile: set when the key mask lets the key take part.
template <int kBlockN>
struct Columns {
  static_assert(kBlockN % 32 == 0);
  static constexpr int kWords = kBlockN / 32;
  uint32_t words[kWords];

  __device__ __forceinline__ static Columns full() {
    Columns columns;
#pragma unroll
    for (int i = 0; i < kWords; ++i) columns.words[i] = ~0u;
    return columns;
  }
  __device__ __forceinline__ bool any() const {
    uint32_t united = 0;
#pragma unroll
    for (int i = 0; i < kWords; ++i) united |= words[i];
    return united != 0;
  }
  // Those of one of kBlockN / kColumns parts.
  template <int kColumns>
  __device__ __forceinline__ Columns<kColumns> part(int index) const {
    Columns<kColumns> columns;
#pragma unroll
    for (int i = 0; i < Columns<kColumns>::kWords; ++i) {
#pragma unroll
      for (int j = i; j < kWords; j += Columns<kColumns>::kWords) {
        if (j == i || j / Columns<kColumns>::kWords == index) columns.words[i] = words[j];
      }
    }
    return columns;
  }
  __device__ __forceinline__ bool all() const {
    uint32_t shared = ~0u;
#pragma unroll
    for (int i = 0; i < kWords; ++i) shared &= words[i];
    return shared == ~0u;
  }
};

}  // namespace flashcute::cuda
