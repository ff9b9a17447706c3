// The sm90 family's tiles, layouts, barriers and register budgets: everything a kernel's shape follows from.
#pragma once

#include <cute/arch/mma_sm90.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cute/tensor.hpp>
#include <type_traits>

#include "core/kernel.h"
#include "cuda/common/mask.cuh"
#include "cuda/common/scheduler.cuh"
#include "cuda/common/seqlen.cuh"
#include "cuda/sm90/ptx.cuh"

namespace flashcute::cuda::sm90 {

using namespace cute;

struct TileShape {
  int warpgroups;  // of the math; each has 64 query rows
  int block_n, stages;
  int chunks_out;     // of the output, 64 or 32 channels each, that have a place in shared memory at a time
  int early_columns;  // of a thread, weighed while the product before is under way
};

// By measurement on an H100: docs/perf-log.md. The output, a tile of scores and their rounded weights must fit a
// thread's registers with some 30 to spare, K and V with their stages shared memory.
constexpr TileShape tile_shape(int head_dim, int head_dim_v, bool extras) {
  if (head_dim <= 64) return extras ? TileShape{2, 128, 3, 1, 16} : TileShape{3, 128, 3, 1, 0};
  if (head_dim <= 96) return {2, 128, 3, 3, 16};
  if (head_dim <= 128) return {2, 128, 2, 2, 16};
  if (head_dim <= 192) return head_dim_v < head_dim ? TileShape{2, 96, 2, 2, 8} : TileShape{2, 64, 2, 3, 8};
  return {2, 64, 2, 2, extras ? 0 : 8};
}

// Places of items of work: warpgroups may be on two, and keys of a third are under way.
inline constexpr int kItems = 3;

enum class WorkKind {
  kTile,
  kAgain,  // a tile again, for the rows that failed
  kNothing,
  kEnd,
};

// How a tile's keys are taken in. Rows that fail are computed again by the next pass.
enum class Pass {
  kFixed,      // the first key tile's row max stays the reference while no weight outgrows it
  kOnline,     // the reference is the row max: finite scores cannot fail
  kNonfinite,  // also keeps the nonfinite values of V from rows that do not see their keys
};

// Beside an item, for mask class any.
struct Walk {
  KeyRange range;    // the order of the tiles seen, and which of them may be plain
  float slope_log2;  // ALiBi's, times log2(e)
};

// An item. Only the planner looks at lengths on the device: they may change meanwhile, and warps must not disagree
// about them.
template <int kWarpgroups>
struct Work {
  WorkKind kind;
  Pass pass;
  TileIndex tile;
  Member member;
  BandTiles seen, seen_by[kWarpgroups];  // by all the tile's rows, and by each warpgroup's
};

template <class Element_, int kHeadDim_, MaskClass kMask_, TileKind kKind = TileKind::kUsual>
struct Config {
  using Element = Element_;
  // Buckets: channels beyond the tensors' own are zeros.
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kKind == TileKind::kValues128 ? 128 : kHeadDim;
  static constexpr MaskClass kMask = kMask_;
  static constexpr bool kBanded = kMask != MaskClass::kFull, kExtras = kMask == MaskClass::kAny;
  static_assert(kKind == TileKind::kUsual || kKind == TileKind::kValues128);

  static constexpr TileShape kTile = tile_shape(kHeadDim, kHeadDimV, kExtras);
  static constexpr int kWarpgroups = kTile.warpgroups, kMathWarps = 4 * kWarpgroups, kMathThreads = 32 * kMathWarps;
  static constexpr int kThreads = kMathThreads + 128;  // and the producer
  static constexpr int kRowsPerWarp = 16, kRowsPerWarpgroup = 64, kBlockM = kWarpgroups * kRowsPerWarpgroup,
                       kBlockN = kTile.block_n;
  static constexpr int kStages = kTile.stages;
  static constexpr int kEarlyColumns = kTile.early_columns;
  static constexpr int kColumnWords = (kBlockN + 31) / 32;  // one bit a column
  // Of a thread: together no more than the CTA is launched with, or those who ask for more wait for ever.
  static constexpr int kProducerRegisters = kWarpgroups == 2 ? 40 : 32, kMathRegisters = kWarpgroups == 2 ? 232 : 160,
                       kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static_assert(128 * kProducerRegisters + kMathThreads * kMathRegisters <= kThreads * kLaunchRegisters);

  // A box of the copy engine is a chunk of the channels, as wide as a swizzle, of all of a tile's rows.
  static constexpr int kChunk = kHeadDim % 64 == 0 ? 64 : 32, kChunks = kHeadDim / kChunk,
                       kChunksV = kHeadDimV / kChunk;
  static constexpr int kChunksOut = kTile.chunks_out;
  static_assert(kHeadDim % kChunk == 0 && kHeadDimV % kChunk == 0 && kHeadDim <= 256 && kHeadDimV <= 256);
  static_assert(kBlockN % 16 == 0 && kBlockN <= 256);

  using AtomK = std::conditional_t<kChunk == 64, GMMA::Layout_K_SW128_Atom<Element>, GMMA::Layout_K_SW64_Atom<Element>>;
  using AtomMN =
      std::conditional_t<kChunk == 64, GMMA::Layout_MN_SW128_Atom<Element>, GMMA::Layout_MN_SW64_Atom<Element>>;
  using LayoutQ = decltype(tile_to_shape(AtomK{}, Shape<Int<kRowsPerWarpgroup>, Int<kHeadDim>>{}));  // (64, D)
  using LayoutK = decltype(tile_to_shape(AtomK{}, Shape<Int<kBlockN>, Int<kHeadDim>>{}));            // (BLOCK_N, D)
  using LayoutV = decltype(tile_to_shape(AtomK{}, Shape<Int<kBlockN>, Int<kHeadDimV>>{}));           // (BLOCK_N, DV)
  // The tensor cores sum a row's weights too, where an instruction has room for 8 more columns: beside V's channels
  // lies a chunk of ones, of which they take the first 8.
  static constexpr bool kSums = kHeadDimV + 8 <= 256;
  static constexpr int kColumns = kHeadDimV + (kSums ? 8 : 0),
                       kOnes = kSums ? kBlockN * kChunk : 0;  // of the output; in shared memory
  using LayoutVt = decltype(tile_to_shape(AtomMN{}, Shape<Int<kHeadDimV + (kSums ? kChunk : 0)>, Int<kBlockN>>{},
                                          Step<_2, _1>{}));  // (DV and the ones, BLOCK_N)
  static_assert(cosize_v<LayoutQ> == kRowsPerWarpgroup * kHeadDim && cosize_v<LayoutK> == kBlockN * kHeadDim &&
                cosize_v<LayoutV> == kBlockN * kHeadDimV);

  // A warpgroup's products: Q from shared memory, weights from registers.
  using MmaScores =
      decltype(make_tiled_mma(GMMA::ss_op_selector<Element, Element, float, Shape<_64, Int<kBlockN>, Int<kHeadDim>>,
                                                   GMMA::Major::K, GMMA::Major::K>()));
  using MmaValues =
      decltype(make_tiled_mma(GMMA::rs_op_selector<Element, Element, float, Shape<_64, Int<kColumns>, Int<kBlockN>>,
                                                   GMMA::Major::K, GMMA::Major::MN>()));
  static_assert(size(MmaScores{}) == 128 && size(MmaValues{}) == 128);
  // One instruction is as wide as the tile. Sums beside the output take CuTe's full list of shapes, which the build
  // asks for (CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED).
  static_assert(tile_size<1>(MmaScores{}) == kBlockN && tile_size<1>(MmaValues{}) == kColumns);

  // (MMA = (2, 2, N / 8), MMA_M = 1, MMA_N = 1)
  using ScoreFragment = decltype(partition_fragment_C(MmaScores{}, Shape<_64, Int<kBlockN>>{}));
  using OutputFragment = decltype(partition_fragment_C(MmaValues{}, Shape<_64, Int<kColumns>>{}));
  static_assert(size(ScoreFragment{}) == kBlockN / 2 && size(OutputFragment{}) == kColumns / 2);
  // The scores' registers, rounded, are the A operand: (MMA = (2, 2, 2), MMA_M = 1, MMA_K = BLOCK_N / 16)
  using WeightFragment = decltype(make_tensor<Element>(
      Layout<Shape<Shape<_2, _2, _2>, _1, Int<kBlockN / 16>>, Stride<Stride<_1, _2, _4>, _0, _8>>{}));

  static constexpr int kQueryBytes = sizeof(Element) * kRowsPerWarpgroup * kHeadDim;  // of a warpgroup
  static constexpr int kKeyBytes = sizeof(Element) * kBlockN * kHeadDim,
                       kValueBytes = sizeof(Element) * kBlockN * kHeadDimV;

  struct SharedStorage {
    cute::array_aligned<Element, cosize_v<LayoutQ>, 1024> q[kWarpgroups];
    cute::array_aligned<Element, cosize_v<LayoutK>, 1024> k[kStages];
    cute::array_aligned<Element, cosize_v<LayoutV> + kOnes, 1024> v[kStages];
    // Of each warp its rows, chunk by chunk, on their way to memory.
    cute::array_aligned<Element, kBlockM * kChunksOut * kChunk, 1024> out;
    // A warpgroup's queries, and its word that there is work.
    ptx::Barrier queries_full[kWarpgroups], queries_empty[kWarpgroups];
    ptx::Barrier planned, plan_next;  // the next item
    ptx::Barrier tail_full;
    ptx::Barrier over;  // its wait is over: mainloop.cuh
    ptx::Barrier k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
    Work<kWarpgroups> work[kItems];
    uint32_t failed_rows[kItems][kMathWarps];   // one bit a row: what the planner must offer again
    uint32_t seen_keys[kBlockM][kColumnWords];  // one bit a key: isolate.cuh
    // Of mask class any: beside the items, and beside the keys what the key mask lets take part of them.
    Walk walks[kItems];
    Columns<kBlockN> columns[kStages];
  };
  static_assert(sizeof(SharedStorage) <= 227 * 1024);

  // The first row, within the tile, of an accumulator that a math thread holds: its other is 8 below.
  CUTE_HOST_DEVICE static constexpr int row_of_thread(int thread) { return thread / 32 * 16 + thread % 32 / 4; }
  // And the first of its columns, of which it holds two in every 8.
  CUTE_HOST_DEVICE static constexpr int column_of_thread(int thread) { return 2 * (thread % 4); }
};

// Named barriers; 0 is __syncthreads.
enum NamedBarrier { kTurnOfFirst = 1, kAllMath = 4 };

// What compute-sanitizer does not understand (docs/testing.md), changed in a build for it alone: racecheck counts what
// a lane did before it arrives at a barrier, not what its warp did, so every lane arrives; synccheck wants a CTA to
// meet at one instruction, so all meet before they part, where otherwise a role is awaited no longer than it needs, 1%
// of short sequences; initcheck does not see what the copy engine stores, so threads do.
#ifdef FLASHCUTE_RACECHECK
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
inline constexpr int kArrivals = kSanitized ? 32 : 1;  // of a warp

// All lanes of a warp call it.
CUTE_DEVICE void arrive_as_warp(ptx::Barrier& barrier) {
  if (threadIdx.x % 32 < kArrivals) ptx::arrive(barrier);
}

// A warpgroup's accumulator as (rows, columns): row r of a thread is 8 r below its first, columns come in pairs, 8
// apart.
template <class Fragment>
CUTE_DEVICE auto rows_and_columns(Fragment& fragment) {
  constexpr int kPairs = decltype(size(fragment))::value / 4;
  return make_tensor(fragment.data(),
                     make_layout(make_layout(_2{}, _2{}), make_layout(Shape<_2, Int<kPairs>>{}, Stride<_1, _4>{})));
}

// Where a ring of stages stands, in one register: it goes round twice, once for each parity of its barriers' phases.
template <int kStages>
struct StageIndex {
  int position = 0;
  CUTE_DEVICE int stage() const { return position < kStages ? position : position - kStages; }
  CUTE_DEVICE uint32_t parity() const { return position >= kStages; }
  CUTE_DEVICE StageIndex before() const { return {position == 0 ? 2 * kStages - 1 : position - 1}; }
  CUTE_DEVICE void advance() { position = position == 2 * kStages - 1 ? 0 : position + 1; }
};

// To the copy engine, packed members are one batch.
CUTE_DEVICE int batch_of_map(const Params& params, int batch) {
  return params.lengths.cu_q != nullptr ? 0 : batch;
}

// Items take turns at three places, but at one buffer of queries.
CUTE_DEVICE uint32_t queries_parity(const StageIndex<kItems>& item) {
  return item.position % 2;
}

}  // namespace flashcute::cuda::sm90
