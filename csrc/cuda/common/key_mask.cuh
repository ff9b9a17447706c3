// The key mask of a tile of queries. What is known ahead can be left out: the walk ends where the last visible key is
// (padding costs nothing), and tiles without a hole are plain ones.
#pragma once

#include "cuda/common/mask.cuh"
#include "cuda/common/mask_bits.cuh"
#include "cuda/common/scheduler.cuh"

namespace flashcute::cuda {

// Of a member, from its first key on.
__device__ __forceinline__ MaskRow key_mask_row(const KeyMaskView& mask, const TileIndex& tile, const Member& member) {
  const int size = mask.element_size;
  const int64_t step = mask.key * size;
  const uint8_t* first =
      static_cast<const uint8_t*>(mask.data) + (tile.batch * mask.batch + member.first_k * mask.key) * size;
  return {first, step, size, member.len_k};
}

// Is one of elements [4 * group, 4 * group + 4) set? Their loads wait together; the row has elements.
__device__ __forceinline__ bool any_of_four(const MaskRow& row, int group) {
  uint32_t value = 0;
#pragma unroll 1
  for (int byte = 0; byte < row.element_size; ++byte) {
#pragma unroll
    for (int i = 0; i < 4; ++i) value |= row.data[min(4 * group + i, row.length - 1) * row.step + byte];
  }
  return value != 0;
}

// By one warp: the range ends where the first and the last tile are that have a visible key.
template <int kBlockN>
__device__ __forceinline__ void trim_keys(const MaskRow& row, KeyRange& range) {
  constexpr int kGroups = kBlockN / 4;
  const auto visible = [&](int group) { return any_of_four(row, group); };
  const int begin = range.begin * kGroups, end = end_of_last(begin, range.end * kGroups, visible);
  range.end = (end + kGroups - 1) / kGroups;
  range.begin = first_of(begin, end, visible) / kGroups;
  range.clamp_seeds();
}

// By one warp: the columns of tile n that take part.
template <int kBlockN>
__device__ __forceinline__ Columns<kBlockN> read_columns(const MaskRow& row, int n) {
  constexpr int kWords = Columns<kBlockN>::kWords;
  const int first = n * kBlockN + int(threadIdx.x % 32);
  uint32_t values[kWords] = {};
#pragma unroll 1
  for (int byte = 0; byte < row.element_size; ++byte) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) values[i] |= row.data[min(first + 32 * i, row.length - 1) * row.step + byte];
  }
  Columns<kBlockN> columns;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    columns.words[i] = __ballot_sync(0xffffffffu, values[i] != 0 && first + 32 * i < row.length);
  }
  return columns;
}

// Every thread of the CTA calls show() and trimmed(), whole warps the others. Of no use where `mask.data` is null.
template <int kBlockN, int kThreads>
class KeyMask {
  static constexpr int kTiles = MaskBits::kElements / kBlockN;  // of a chunk
  static constexpr int kWordsPerTile = kBlockN / 32;

 public:
  // Tiles outside `range` are not read.
  __device__ __forceinline__ KeyMask(const Params& params, const TileIndex& tile, const Member& member,
                                     const KeyRange& range, MaskBits& bits)
      : mask_(params.key_mask), tile_(tile), member_(member), range_(range), bits_(bits) {}

  // Before the other calls about tile n.
  __device__ __forceinline__ void show(int n) const {
    show_chunk(bits_, n / kTiles, [&](int chunk) { fill(chunk); });
  }

  __device__ __forceinline__ Columns<kBlockN> columns(int n) const {
    Columns<kBlockN> columns;
#pragma unroll
    for (int i = 0; i < kWordsPerTile; ++i) columns.words[i] = bits_.words[n % kTiles * kWordsPerTile + i];
    return columns;
  }

  // The end of the run of tiles without a hole that starts at n: at most `end`, and no further than is known.
  __device__ __forceinline__ int whole_until(int n, int end) const {
    return first_of(n, min(end, chunk_end(n)), [&](int tile) { return !columns(tile).all(); });
  }

  // The same of tiles with a visible key.
  __device__ __forceinline__ int visible_until(int n, int end) const {
    return first_of(n, min(end, chunk_end(n)), [&](int tile) { return !columns(tile).any(); });
  }

  // The range without the tiles at both ends that have no visible key.
  __device__ __forceinline__ KeyRange trimmed() const {
    KeyRange range = range_;
    const auto visible = [&](int tile) { return columns(tile).any(); };
    for (bool found = false; !found && range.begin < range.end;) {
      show(range.end - 1);
      const int first = max(range.begin, (range.end - 1) / kTiles * kTiles);
      range.end = end_of_last(first, range.end, visible);
      found = range.end > first;
    }
    for (bool found = false; !found && range.begin < range.end;) {
      show(range.begin);
      const int end = min(range.end, chunk_end(range.begin));
      range.begin = first_of(range.begin, end, visible);
      found = range.begin < end;
    }
    range.clamp_seeds();
    return range;
  }

 private:
  __device__ __forceinline__ static int chunk_end(int n) { return (n / kTiles + 1) * kTiles; }

  __device__ __forceinline__ void fill(int chunk) const {
    const int first_tile = chunk * kTiles;
    const int begin = max(range_.begin - first_tile, 0) * kWordsPerTile;
    const int end = min(range_.end - first_tile, kTiles) * kWordsPerTile;
    fill_bits<kThreads>(bits_, key_mask_row(mask_, tile_, member_), chunk, begin, end);
  }

  const KeyMaskView& mask_;
  const TileIndex& tile_;
  const Member& member_;
  const KeyRange& range_;
  MaskBits& bits_;
};

}  // namespace flashcute::cuda
