// The block mask of a tile of queries: which blocks of kMaskBlock keys all of its rows see. A hidden block is no part
// of the walk, which goes over runs of tiles between hidden ones; inside a run nothing is asked any more.
#pragma once

#include "cuda/common/mask.cuh"
#include "cuda/common/mask_bits.cuh"
#include "cuda/common/scheduler.cuh"

namespace flashcute::cuda {

// An element for each block of keys. row: any of the tile's query rows.
__device__ __forceinline__ MaskRow block_mask_row(const Params& params, const TileIndex& tile, int row) {
  const BlockMaskView& mask = params.extras.block_mask;
  const int size = mask.element_size;
  const int64_t offset = tile.batch * mask.batch + tile.head_q * mask.head + row / int(kMaskBlock) * mask.row;
  return {static_cast<const uint8_t*>(mask.data) + offset * size, mask.key * size, size, mask.keys};
}

// Every thread of the CTA makes every call. Of no use where the mask's `data` is null.
template <int kBlockM, int kBlockN, int kThreads>
class BlockMask {
  static_assert(kMaskBlock % kBlockM == 0 && kMaskBlock % kBlockN == 0, "a tile lies in one block");
  static constexpr int kTiles = kMaskBlock / kBlockN;  // of a block

 public:
  // Tiles outside `range` are not read.
  __device__ __forceinline__ BlockMask(const Params& params, const TileIndex& tile, const KeyRange& range,
                                       MaskBits& bits)
      : params_(params), tile_(tile), range_(range), bits_(bits) {}

  // The first run of visible tiles in [begin, end), empty where there is none. It ends where no more is known, too.
  __device__ __forceinline__ KeyRun first_run(int begin, int end) const {
    const int first = first_tile(begin, end);
    if (first == end) return {end, end};
    const int block = first / kTiles, stop = min(block_end(end), chunk_end(block)), stop_word = (stop + 31) / 32;
    const auto hidden = [&](int word) { return bits_in(word, block, stop, false); };
    const int word = first_of(block / 32, stop_word, [&](int w) { return hidden(w) != 0; });
    return {first, min(end, kTiles * (word < stop_word ? 32 * word + __ffs(int(hidden(word))) - 1 : stop))};
  }

  // The range without the hidden tiles at both ends. Seeds that are hidden give way to the nearest visible tiles on
  // either side, so that no row walks on without a reference.
  __device__ __forceinline__ KeyRange trimmed() const {
    KeyRange range = range_;
    range.begin = first_tile(range.begin, range.end);
    range.end = end_of_last_tile(range.begin, range.end);
    range.clamp_seeds();
    if (range.begin >= range.end) return range;
    // where a seed is hidden, the range's ends, which are visible, lie beyond it
    range.start = end_of_last_tile(range.begin, range.start + 1) - 1;
    range.seed_end = first_tile(range.seed_end - 1, range.end) + 1;
    return range;
  }

 private:
  __device__ __forceinline__ static int block_end(int tile_end) { return (tile_end + kTiles - 1) / kTiles; }

  __device__ __forceinline__ static int chunk_end(int block) {
    return (block / MaskBits::kElements + 1) * MaskBits::kElements;
  }

  // The first visible tile in [begin, end), otherwise `end`.
  __device__ __forceinline__ int first_tile(int begin, int end) const {
    int block = begin / kTiles;
#pragma unroll 1
    for (const int last = block_end(end); begin < end && block < last;) {
      show(block);
      const int stop = min(last, chunk_end(block)), stop_word = (stop + 31) / 32;
      const auto matches = [&](int word) { return bits_in(word, block, stop, true); };
      const int word = first_of(block / 32, stop_word, [&](int w) { return matches(w) != 0; });
      if (word < stop_word) return max(begin, (32 * word + __ffs(int(matches(word))) - 1) * kTiles);
      block = stop;
    }
    return end;
  }

  // One past the last visible tile in [begin, end), otherwise `begin`.
  __device__ __forceinline__ int end_of_last_tile(int begin, int end) const {
    int block = block_end(end);
#pragma unroll 1
    for (const int first = begin / kTiles; block > first;) {
      show(block - 1);
      const int stop = max(first, (block - 1) / MaskBits::kElements * MaskBits::kElements);
      const auto matches = [&](int word) { return bits_in(word, stop, block, true); };
      const int word_end = end_of_last(stop / 32, (block + 31) / 32, [&](int w) { return matches(w) != 0; });
      if (word_end > stop / 32)
        return max(min((32 * word_end - __clz(int(matches(word_end - 1)))) * kTiles, end), begin);
      block = stop;
    }
    return begin;
  }

  // Those of word `word` of the row that are blocks of [begin, end) and visible, or hidden.
  __device__ __forceinline__ uint32_t bits_in(int word, int begin, int end, bool visible) const {
    uint32_t bits = bits_.words[word % MaskBits::kWords] ^ (visible ? 0u : ~0u);
    const int below = begin - 32 * word, above = 32 * word + 32 - end;
    if (below > 0) bits &= ~0u << below;
    if (above > 0) bits &= ~0u >> above;
    return bits;
  }

  // Before the other calls about a block.
  __device__ __forceinline__ void show(int block) const {
    show_chunk(bits_, block / MaskBits::kElements, [&](int chunk) {
      const int first = chunk * MaskBits::kElements;
      const int begin = max(range_.begin / kTiles - first, 0) / 32;
      const int end = (min(block_end(range_.end) - first, MaskBits::kElements) + 31) / 32;
      fill_bits<kThreads>(bits_, block_mask_row(params_, tile_, tile_.m * kBlockM), chunk, begin, end);
    });
  }

  const Params& params_;
  const TileIndex& tile_;
  const KeyRange& range_;
  MaskBits& bits_;
};

}  // namespace flashcute::cuda
