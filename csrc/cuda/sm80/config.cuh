// The sm80 family's tiles, layouts and shared-memory plan: everything a kernel's shape follows from.
#pragma once

#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/tensor.hpp>
#include <type_traits>

#include "core/kernel.h"
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
};

// One CTA: 4 warps, 128 query rows, 32 to a warp, so that each fragment of K and V feeds two MMAs.
// Tiles by measurement on an H100: docs/perf-log.md.
template <class Element_, int kHeadDim_, MaskClass kMask_>
struct Config {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;  // bucket: channels of Q, K and V are padded to it with zeros
  static constexpr MaskClass kMask = kMask_;
  static constexpr bool kBanded = kMask != MaskClass::kFull;
  static constexpr bool kExtras = kMask == MaskClass::kAny;

  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kBlockM = 128, kRowsPerWarp = kBlockM / kWarps;
  static constexpr int kBlockN = kHeadDim == 128 && kBanded ? 32 : 64;
  static constexpr int kColumnWords = (kBlockN + 31) / 32;  // one bit a column
  // Two stages: the next tile loads under this one, one barrier a tile. One stage, where two would not fit twice on an
  // A100: V loads under QK, the next K under PV, two barriers a tile.
  static constexpr int kStages = kHeadDim == 128 && !kBanded ? 1 : 2;
  static constexpr int kMinBlocks = 2;
  static constexpr int kRowsPerPass = kThreads / (kHeadDim / 8);  // that all threads load at once, 16 bytes each
  static constexpr int kRowsPerThread = 4;

  static_assert(kHeadDim == 64 || kHeadDim == 128);

  using MmaOp = std::conditional_t<std::is_same_v<Element, cutlass::half_t>, SM80_16x8x16_F32F16F16F32_TN,
                                   SM80_16x8x16_F32BF16BF16F32_TN>;
  // Warp w owns rows 32 w to 32 w + 31, as two blocks of 16.
  using TiledMma = TiledMMA<MMA_Atom<MmaOp>, Layout<Shape<Int<kWarps>, _1, _1>>,
                            Tile<Layout<Shape<_16, Int<kWarps>, _2>, Stride<_1, _32, _16>>, _16, _16>>;
  static_assert(size(TiledMma{}) == kThreads);

  // 8 rows of 128 bytes, their 16-byte chunks permuted so that eight rows of one column hit eight different bank
  // groups.
  using LayoutAtom = decltype(composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, _64>, Stride<_64, _1>>{}));
  using LayoutQ = decltype(tile_to_shape(LayoutAtom{}, Shape<Int<kBlockM>, Int<kHeadDim>>{}));   // (BLOCK_M, D)
  using LayoutKV = decltype(tile_to_shape(LayoutAtom{}, Shape<Int<kBlockN>, Int<kHeadDim>>{}));  // (BLOCK_N, D)
  using LayoutVt = decltype(composition(LayoutKV{}, make_layout(Shape<Int<kHeadDim>, Int<kBlockN>>{}, GenRowMajor{})));
  using LayoutVtPlain = decltype(get_nonswizzle_portion(LayoutVt{}));  // (D, BLOCK_N), for shapes only
  using LayoutO = LayoutQ;

  using LoadAtom = Copy_Atom<SM75_U32x4_LDSM_N, Element>;
  using LoadTransposedAtom = Copy_Atom<SM75_U16x8_LDSM_T, Element>;

  // The first row, within the tile, of an accumulator that a thread holds: it also has those 8, 16 and 24 below.
  CUTE_HOST_DEVICE static constexpr int row_of_thread(int thread) {
    return thread / 32 * kRowsPerWarp + thread % 32 / 4;
  }

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
    uint32_t redo_rows[kWarps];                 // one bit a row
    uint32_t seen_keys[kBlockM][kColumnWords];  // one bit a key: isolate.cuh
  };
  static_assert(sizeof(KeyValueStage) * kStages >= sizeof(Element) * cosize_v<LayoutO>);

  // (MMA = (2, 2), MMA_M = 2, MMA_N)
  using ScoreFragment = decltype(partition_fragment_C(TiledMma{}, Shape<Int<kBlockM>, Int<kBlockN>>{}));
  static_assert(size(ScoreFragment{}) * kThreads == kBlockM * kBlockN);
  using OutputFragment = decltype(partition_fragment_C(TiledMma{}, Shape<Int<kBlockM>, Int<kHeadDim>>{}));
  // The rows' denominators: one accumulator, of whose columns the even ones are the first M block's and the odd ones
  // the second's. (MMA = (2, 2)) -> (row), as rows_and_columns counts them
  using DenominatorFragment = decltype(make_tensor<float>(Shape<_4>{}));
  using DenominatorRows = Layout<Shape<Shape<_2, _2>>, Stride<Stride<_2, _1>>>;
};

// An accumulator as (rows, columns): row r of a thread is 8 r below its first, columns come in pairs, 8 apart.
template <class Fragment>
CUTE_DEVICE auto rows_and_columns(Fragment& fragment) {
  static_assert(decltype(size<0>(fragment))::value == 4 && decltype(size<1>(fragment))::value == 2);
  constexpr int kN = decltype(size<2>(fragment))::value;
  // from ((column, row), MMA_M, MMA_N)
  return make_tensor(fragment.data(), make_layout(make_layout(Shape<_2, _2>{}, Stride<_2, _4>{}),
                                                  make_layout(Shape<_2, Int<kN>>{}, Stride<_1, _8>{})));
}

}  // namespace flashcute::cuda::sm80
