// The key mask as bits in shared memory. A CTA reads each element once, thousands ahead of the tiles that need them:
// the wait for memory is paid once in kKeys keys, by loads that wait together. What is known ahead can be left out: the
// walk ends where the last visible key is (padding costs nothing), and tiles without a hole are plain ones.
#pragma once

#include "cuda/common/mask.cuh"
#include "cuda/common/scheduler.cuh"

namespace flashcute::cuda {

struct KeyBits {
  static constexpr int kKeys = 4096;
  uint32_t words[kKeys / 32];
  int chunk;  // the keys from kKeys * chunk on; -1: none yet
};

// Every thread of the CTA calls show() and trimmed(), whole warps the others. Of no use where `mask.data` is null.
template <int kBlockN, int kThreads>
class KeyMask {
  static constexpr int kTiles = KeyBits::kKeys / kBlockN;  // of a chunk
  static constexpr int kWordsPerTile = kBlockN / 32;

 public:
  // Tiles outside `range` are not read.
  __device__ __forceinline__ KeyMask(const Params& params, const TileIndex& tile, const Member& member,
                                     const KeyRange& range, KeyBits& bits)
      : mask_(params.key_mask), tile_(tile), member_(member), range_(range), bits_(bits) {}

  // Before the other calls about tile n.
  __device__ __forceinline__ void show(int n) const {
    if (bits_.chunk == n / kTiles) return;
    __syncthreads();  // the chunk before is no longer read
    fill(n / kTiles);
    if (threadIdx.x == 0) bits_.chunk = n / kTiles;
    __syncthreads();
  }

  __device__ __forceinline__ Columns<kBlockN> columns(int n) const {
    Columns<kBlockN> columns;
#pragma unroll
    for (int i = 0; i < kWordsPerTile; ++i) columns.words[i] = bits_.words[n % kTiles * kWordsPerTile + i];
    return columns;
  }

  // The end of the run of tiles without a hole that starts at n: at most `end`, and no further than is known.
  __device__ __forceinline__ int whole_until(int n, int end) const {
    return first_tile(n, min(end, chunk_end(n)), [&](int tile) { return !columns(tile).all(); });
  }

  // The range without the tiles at both ends that have no visible key.
  __device__ __forceinline__ KeyRange trimmed() const {
    KeyRange range = range_;
    const auto visible = [&](int tile) { return columns(tile).any(); };
    for (bool found = false; !found && range.begin < range.end;) {
      show(range.end - 1);
      const int first = max(range.begin, (range.end - 1) / kTiles * kTiles);
      range.end = end_of_last_tile(first, range.end, visible);
      found = range.end > first;
    }
    for (bool found = false; !found && range.begin < range.end;) {
      show(range.begin);
      const int end = min(range.end, chunk_end(range.begin));
      range.begin = first_tile(range.begin, end, visible);
      found = range.begin < end;
    }
    range.clamp_seeds();
    return range;
  }

 private:
  __device__ __forceinline__ static int chunk_end(int n) { return (n / kTiles + 1) * kTiles; }

  __device__ __forceinline__ void fill(int chunk) const {
    constexpr int kTogether = 8;  // words of a warp whose loads are under way together
    const int lane = threadIdx.x % 32, first_tile = chunk * kTiles;
    const int begin = max(range_.begin - first_tile, 0) * kWordsPerTile / kTogether * kTogether;
    const int end = min(range_.end - first_tile, kTiles) * kWordsPerTile;
    const int size = mask_.element_size;
    const int64_t step = mask_.key * size;
    const uint8_t* first =
        static_cast<const uint8_t*>(mask_.data) + (tile_.batch * mask_.batch + member_.first_k * mask_.key) * size;
#pragma unroll 1
    for (int word = begin + int(threadIdx.x / 32) * kTogether; word < end; word += kThreads / 32 * kTogether) {
      const int key = chunk * KeyBits::kKeys + 32 * word + lane;
      uint32_t values[kTogether] = {};
#pragma unroll 1
      for (int byte = 0; byte < size; ++byte) {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {  // no branch, no wait
          values[i] |= first[min(key + 32 * i, member_.len_k - 1) * step + byte];
        }
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const uint32_t bits = __ballot_sync(0xffffffffu, values[i] != 0 && key + 32 * i < member_.len_k);
        if (lane == 0) bits_.words[word + i] = bits;
      }
    }
  }

  // The first tile in [begin, end) for which `is` holds, otherwise `end`. Lanes look at a tile each.
  template <class Predicate>
  __device__ __forceinline__ int first_tile(int begin, int end, Predicate is) const {
#pragma unroll 1
    for (; begin < end; begin += 32) {
      const int tile = begin + int(threadIdx.x % 32);
      const uint32_t found = __ballot_sync(0xffffffffu, tile < end && is(tile));
      if (found != 0) return begin + __ffs(int(found)) - 1;
    }
    return end;
  }

  // One past the last tile in [begin, end) for which `is` holds, otherwise `begin`.
  template <class Predicate>
  __device__ __forceinline__ int end_of_last_tile(int begin, int end, Predicate is) const {
#pragma unroll 1
    for (; end > begin; end -= 32) {
      const int tile = end - 1 - int(threadIdx.x % 32);
      const uint32_t found = __ballot_sync(0xffffffffu, tile >= begin && is(tile));
      if (found != 0) return end - __ffs(int(found)) + 1;
    }
    return begin;
  }

  const KeyMaskView& mask_;
  const TileIndex& tile_;
  const Member& member_;
  const KeyRange& range_;
  KeyBits& bits_;
};

}  // namespace flashcute::cuda
