// Which keys a tile of query rows sees: the range of key tiles it must visit, the part of them that every row sees
// whole (which the plain body may take), and the columns of one tile that take part.
#pragma once

#include "cuda/common/params.h"
#include "cuda/common/seqlen.cuh"

namespace flashcute::cuda {

// Key tiles [begin, end); those in [plain_begin, plain_end) need no mask.
struct KeyRange {
  int begin, plain_begin, plain_end, end;
};

__device__ __forceinline__ bool nonzero_at(const void* data, int64_t index, int element_size) {
  switch (element_size) {
    case 1:
      return static_cast<const uint8_t*>(data)[index] != 0;
    case 2:
      return static_cast<const uint16_t*>(data)[index] != 0;
    case 4:
      return static_cast<const uint32_t*>(data)[index] != 0;
    default:
      return static_cast<const uint64_t*>(data)[index] != 0;
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

// The first tile is never plain: it sets the reference that the plain body keeps (softmax.cuh).
template <int kBlockN>
__device__ __forceinline__ KeyRange key_range(const RowBand& rows) {
  if (rows.any_begin >= rows.any_end) return {0, 0, 0, 0};
  KeyRange range;
  range.begin = rows.any_begin / kBlockN;
  range.end = (rows.any_end + kBlockN - 1) / kBlockN;
  range.plain_begin = min(max((rows.all_begin + kBlockN - 1) / kBlockN, range.begin + 1), range.end);
  range.plain_end = max(max(rows.all_end, 0) / kBlockN, range.plain_begin);
  return range;
}

// One bit for each column of a key tile: set when the key exists and the key mask lets it take part. Called by whole
// warps; every lane gets all bits.
template <int kBlockN>
struct Columns {
  static constexpr int kWords = (kBlockN + 31) / 32;
  uint32_t words[kWords];

  __device__ __forceinline__ bool any() const {
    uint32_t united = 0;
    for (int i = 0; i < kWords; ++i) united |= words[i];
    return united != 0;
  }
  __device__ __forceinline__ bool all() const {
    bool full = true;
    for (int i = 0; i < kWords; ++i) {
      const int columns = kBlockN - 32 * i;
      full &= words[i] == (columns >= 32 ? ~0u : (1u << (columns % 32)) - 1);
    }
    return full;
  }
};

template <int kBlockN>
__device__ __forceinline__ Columns<kBlockN> visible_columns(const KeyMaskView& mask, int64_t mask_base, int len_k,
                                                            int first_key) {
  Columns<kBlockN> columns;
#pragma unroll
  for (int i = 0; i < Columns<kBlockN>::kWords; ++i) {
    const int column = 32 * i + int(threadIdx.x % 32), key = first_key + column;
    bool visible = column < kBlockN && key < len_k;
    if (mask.data != nullptr && visible) {
      visible = nonzero_at(mask.data, mask_base + int64_t(key) * mask.key, mask.element_size);
    }
    columns.words[i] = __ballot_sync(0xffffffffu, visible);
  }
  return columns;
}

}  // namespace flashcute::cuda
