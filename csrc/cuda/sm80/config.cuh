// The sm80 family's tiles, layouts and shared-memory plan: everything a kernel's shape follows from.
#pragma once

#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/tensor.hpp>
#include <type_traits>

#include "core/kernel.h"
#include "cuda/common/block_mask.cuh"
#include "cuda/common/key_mask.cuh"
#include "cuda/common/mask.cuh"
#include "cuda/common/scheduler.cuh"
#include "cuda/common/seqlen.cuh"

namespace flashcute::cuda::sm80 {

using namespace cute;

// What a CTA has to do. In shared memory: registers are for the accumulators.
struct Work {
  bool present;  // false: no tile is left for this CTA
  TileIndex tile;
  Member member;
  KeyRange range;
  float slope_log2;  // of ALiBi, times log2(e); 0 without
};

// Of class any, whose walk is made of runs. In shared memory, once for all loop bodies: registers again.
struct RunState {
  int first_end;           // where the first run ends
  KeyRun next;             // the run after the one under way
  int64_t skip_k, skip_v;  // bytes from there on to that
  MaskBits key_bits, block_bits;
};
struct NoRunState {};

struct TileShape {
  int warps, rows_per_warp;
  // Warps that share their rows: each makes the scores of its part of the keys and the output of its part of the
  // channels. Without that, 32 rows of head_dim 256 do not fit registers.
  int parts;
  int block_n;
  // Two stages: the next tile loads under this one, one barrier a tile. One stage, where two would not fit twice on an
  // A100: V loads under QK, the next K under PV, two barriers a tile.
  int stages;
  int min_blocks;  // CTAs that a multiprocessor holds at least
  // Of the steps of QK, 16 keys by 16 channels, those that a plain tile takes before it asks for the next loads: their
  // addresses are many instructions, for which the tensor cores would wait. In class any that cost registers up to
  // head_dim 128.
  int loads_after;
};

// 32 query rows to a warp, so that each fragment of K and V feeds two MMAs, as far as the accumulators fit registers.
// By measurement on an H100: docs/perf-log.md. The small tile fits the 99 KB of sm_86 and sm_89.
constexpr TileShape tile_shape(int head_dim, MaskClass mask, TileKind kind) {
  const bool any = mask == MaskClass::kAny;
  if (head_dim <= 64) return {4, 32, 1, 64, 2, 2, any ? 0 : 5};
  // any: with its many plain loops, 64 keys spill in each of them
  if (head_dim <= 96) return {4, 32, 1, any ? 32 : 64, 2, 2, any ? 0 : 8};
  if (head_dim <= 128) return {4, 32, 1, 32, 2, 2, any ? 0 : 1};
  if (head_dim <= 192) return {8, 16, 1, 64, 1, 1, 0};
  if (kind == TileKind::kSmall) return {4, 16, 1, 64, 1, 1, 8};
  return kind == TileKind::kShort ? TileShape{4, 32, 2, 64, 1, 2, 12} : TileShape{8, 32, 2, 64, 1, 1, 8};
}

constexpr int min_of(int a, int b) {
  return a < b ? a : b;
}

constexpr int power_of_two_from(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

template <class Element_, int kHeadDim_, MaskClass kMask_, TileKind kKind = TileKind::kUsual>
struct Config {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;  // bucket: channels of Q, K and V are padded to it with zeros
  static constexpr MaskClass kMask = kMask_;
  static constexpr bool kBanded = kMask != MaskClass::kFull;
  static constexpr bool kExtras = kMask == MaskClass::kAny;

  static constexpr TileShape kTile = tile_shape(kHeadDim, kMask, kKind);
  static constexpr int kWarps = kTile.warps, kThreads = 32 * kWarps, kParts = kTile.parts;
  static constexpr int kRowsPerWarp = kTile.rows_per_warp, kBlockM = kWarps / kParts * kRowsPerWarp;
  static constexpr int kBlockN = kTile.block_n;
  // Keys up to which this tile beats the usual one where a multiprocessor holds two of its CTAs; 0: never.
  static constexpr int kShortKeys =
      kKind == TileKind::kShort || (kKind == TileKind::kSmall && kMask == MaskClass::kBanded) ? 1024 : 0;
  static constexpr int kKeysPerPart = kBlockN / kParts, kChannelsPerPart = kHeadDim / kParts;
  static constexpr int kStages = kTile.stages, kMinBlocks = kTile.min_blocks;
  static constexpr int kBlocksM = kRowsPerWarp / 16;  // MMAs that a warp's rows take
  static constexpr int kRowsPerThread = 2 * kBlocksM;
  static constexpr int kColumnWords = kKeysPerPart / 32;  // one bit a column
  static_assert(kKeysPerPart % 32 == 0);

  // A row's 16-byte chunks, and the threads that move them: some idle where chunks are no power of two, and a thread
  // moves several where a pass would have fewer than eight rows, after which a swizzle repeats.
  static constexpr int kChunks = kHeadDim / 8, kThreadsPerRow = min_of(power_of_two_from(kChunks), kThreads / 8);
  static constexpr int kChunksPerThread = (kChunks + kThreadsPerRow - 1) / kThreadsPerRow;
  static constexpr int kRowsPerPass = kThreads / kThreadsPerRow;  // that all threads move at once

  static_assert(kHeadDim % 32 == 0 && kHeadDim <= 256);
  static_assert(kBlocksM == 1 || kBlocksM == 2);

  using MmaOp = std::conditional_t<std::is_same_v<Element, cutlass::half_t>, SM80_16x8x16_F32F16F16F32_TN,
                                   SM80_16x8x16_F32BF16BF16F32_TN>;
  // Warps w kParts to w kParts + kParts - 1 own the rows from kRowsPerWarp w on, as blocks of 16.
  using TiledMma =
      TiledMMA<MMA_Atom<MmaOp>, Layout<Shape<Int<kWarps / kParts>, Int<kParts>, _1>, Stride<Int<kParts>, _1, _0>>>;
  static_assert(size(TiledMma{}) == kThreads);

  // 8 rows of 128 or 64 bytes, their 16-byte chunks permuted so that eight rows of one column hit eight different bank
  // groups.
  static constexpr int kAtomColumns = kHeadDim % 64 == 0 ? 64 : 32;
  using LayoutAtom = decltype(composition(Swizzle<kAtomColumns == 64 ? 3 : 2, 3, 3>{},
                                          Layout<Shape<_8, Int<kAtomColumns>>, Stride<Int<kAtomColumns>, _1>>{}));
  using LayoutQ = decltype(tile_to_shape(LayoutAtom{}, Shape<Int<kBlockM>, Int<kHeadDim>>{}));   // (BLOCK_M, D)
  using LayoutKV = decltype(tile_to_shape(LayoutAtom{}, Shape<Int<kBlockN>, Int<kHeadDim>>{}));  // (BLOCK_N, D)
  using LayoutP = decltype(tile_to_shape(LayoutAtom{}, Shape<Int<kBlockM>, Int<64>>{}));         // (BLOCK_M, BLOCK_N)
  static_assert(kParts == 1 || (kBlockN == 64 && kChannelsPerPart % kAtomColumns == 0));
  using LayoutO = LayoutQ;

  // The first row, within the tile, of an accumulator that a thread holds: its others are 8 apart.
  CUTE_HOST_DEVICE static constexpr int row_of_thread(int thread) {
    return thread / (32 * kParts) * kRowsPerWarp + thread % 32 / 4;
  }
  CUTE_HOST_DEVICE static constexpr int part_of_thread(int thread) { return thread / 32 % kParts; }

  // What warps that share rows tell each other.
  template <int kSharers, class = void>
  struct Exchange {
    cute::array_aligned<Element, cosize_v<LayoutP>, 128> weights;
    float rows[kSharers][kBlockM];  // maxima, or sums
  };
  template <class Nothing>
  struct Exchange<0, Nothing> {};

  struct KeyValueStage {
    cute::array_aligned<Element, cosize_v<LayoutKV>, 128> k, v;
  };
  struct SharedStorage {
    cute::array_aligned<Element, cosize_v<LayoutQ>, 128> q;
    union {
      KeyValueStage stages[kStages];
      cute::array_aligned<Element, cosize_v<LayoutO>, 128> o;  // after the last tile
    };
    Work work;
    BandTiles warp_tiles[kWarps];                        // those that the warp's rows see
    uint32_t redo_rows[kWarps];                          // one bit a row
    uint32_t seen_keys[kBlockM][kParts * kColumnWords];  // one bit a key: isolate.cuh
    uint32_t dropped_keys[kExtras ? kBlockM : 1][kParts * kColumnWords];
    Exchange<kParts == 1 ? 0 : kParts> exchange;
    std::conditional_t<kExtras, RunState, NoRunState> runs;
  };
  static_assert(sizeof(KeyValueStage) * kStages >= sizeof(Element) * cosize_v<LayoutO>);

  // (MMA = (2, 2), MMA_M, MMA_N)
  using ScoreFragment = decltype(make_tensor<float>(Shape<_4, Int<kBlocksM>, Int<kKeysPerPart / 8>>{}));
  static_assert(size(ScoreFragment{}) * kThreads == kBlockM * kBlockN);
  using OutputFragment = decltype(make_tensor<float>(Shape<_4, Int<kBlocksM>, Int<kChannelsPerPart / 8>>{}));
  // The rows' denominators: one accumulator. Where a warp has two M blocks, the even columns are the first one's and
  // the odd ones the second's. (MMA = (2, 2)) -> (row), as rows_and_columns counts them
  using DenominatorFragment = decltype(make_tensor<float>(Shape<_4>{}));
  using DenominatorRows = Layout<Shape<Shape<_2, Int<kBlocksM>>>, Stride<Stride<_2, _1>>>;
};

// An accumulator as (rows, columns): row r of a thread is 8 r below its first, columns come in pairs, 8 apart.
template <class Fragment>
CUTE_DEVICE auto rows_and_columns(Fragment& fragment) {
  static_assert(decltype(size<0>(fragment))::value == 4);
  constexpr int kM = decltype(size<1>(fragment))::value, kN = decltype(size<2>(fragment))::value;
  // from ((column, row), MMA_M, MMA_N)
  return make_tensor(fragment.data(), make_layout(make_layout(Shape<_2, Int<kM>>{}, Stride<_2, _4>{}),
                                                  make_layout(Shape<_2, Int<kN>>{}, Stride<_1, Int<4 * kM>>{})));
}

}  // namespace flashcute::cuda::sm80
