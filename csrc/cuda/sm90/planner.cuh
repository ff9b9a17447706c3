// The planner: one warp that finds a CTA's work, item by item, while the item before has some keys left to load.
//
// An item is an output tile and its queries, or a tile again for the rows that failed. When the queries of an item are
// all under way, every warpgroup has ended the item but one before: what rows failed kItems ago is known when the next
// one is planned, and they come first. Where two tiles of a few fail, others are likely to: the next ones start with
// the online pass, which costs a fifth more time than the fixed one, where a second pass costs all of it.
#pragma once

#include "cuda/common/key_mask.cuh"
#include "cuda/common/scores.cuh"
#include "cuda/sm90/config.cuh"
#include "cuda/sm90/launch.h"

namespace flashcute::cuda::sm90 {

template <class C>
class Planner {
  static constexpr int kFewTiles = 8, kOnlineTiles = 32;

 public:
  CUTE_DEVICE Planner(const KernelParams& given, typename C::SharedStorage& shared)
      : given_(given), params_(given.params), shared_(shared) {}

  // All lanes of one warp call it.
  CUTE_DEVICE void run() {
    for (auto& rows : shared_.failed_rows) {
      if (lane() < C::kMathWarps) rows[lane()] = 0;
    }
    __syncwarp();
    for (bool first = true;; first = false) {
      const WorkKind kind = plan();
      if (lane() == 0) shared_.work[item_.stage()].kind = kind;
      __syncwarp();
      if (first && !kSanitized) __syncthreads();  // with those who have made the barriers ready
      arrive_as_warp(shared_.planned);
      if (kind == WorkKind::kEnd) return;
      ptx::wait(shared_.plan_next, queries_parity(item_));
      item_.advance();
      if (kind == WorkKind::kTile) draw();
    }
  }

 private:
  // Of the next item; a tile is written to its place.
  CUTE_DEVICE WorkKind plan() {
    const bool failed = lane() < C::kMathWarps && shared_.failed_rows[item_.stage()][lane()] != 0;
    ++since_tile_;
    if (__any_sync(0xffffffffu, failed)) {
      since_tile_ = 0;  // it may fail once more
      plan_again();
      return WorkKind::kAgain;
    }
    while (true) {
      const unsigned position = __shfl_sync(0xffffffffu, drawn_, 0);
      // what failed is known once kItems are through
      if (position >= given_.tiles) return since_tile_ < kItems ? WorkKind::kNothing : WorkKind::kEnd;
      const TileIndex tile = tile_of_block<C::kBlockM>(params_, position);
      const Member member = member_of(params_, tile.batch);
      const int begin = tile.m * C::kBlockM, end = min(begin + C::kBlockM, member.len_q);
      if (tile.m >= 0 && begin < end) {
        write(tile, member, begin, end);
        if constexpr (C::kExtras) write_extras(tile, member);
        since_tile_ = 0;
        return WorkKind::kTile;
      }
      draw();  // a place without a tile
    }
  }

  CUTE_DEVICE void plan_again() {
    Pass& pass = shared_.work[item_.stage()].pass;
    const bool was_fixed = pass == Pass::kFixed;
    if (was_fixed) {
      if (tiles_since_failure_ < kFewTiles) online_tiles_ = kOnlineTiles;
      tiles_since_failure_ = 0;
    }
    __syncwarp();
    if (lane() == 0) {
      pass = was_fixed ? Pass::kOnline : Pass::kNonfinite;
      if constexpr (C::kExtras) shared_.walks[item_.stage()].range.plain_end = 0;
    }
  }

  CUTE_DEVICE void write(const TileIndex& tile, const Member& member, int begin, int end) {
    Work<C::kWarpgroups>& work = shared_.work[item_.stage()];
    const Pass pass = online_tiles_ > 0 ? Pass::kOnline : Pass::kFixed;
    online_tiles_ = max(online_tiles_ - 1, 0);
    if (pass == Pass::kFixed) ++tiles_since_failure_;
    if (lane() == 0) {
      work.pass = pass;
      work.tile = tile;
      work.member = member;
      work.seen = tiles_seen(member, begin, end);
    }
    const int own = begin + lane() * C::kRowsPerWarpgroup;
    if (lane() < C::kWarpgroups) {
      BandTiles tiles = own < end ? tiles_seen(member, own, min(own + C::kRowsPerWarpgroup, end)) : BandTiles{};
      if constexpr (C::kExtras) tiles.all_begin = first_plain(tiles);
      work.seen_by[lane()] = tiles;
    }
  }

  CUTE_DEVICE void write_extras(const TileIndex& tile, const Member& member) const {
    Work<C::kWarpgroups>& work = shared_.work[item_.stage()];
    __syncwarp();
    KeyRange range = key_range(work.seen);
    if (params_.key_mask.data != nullptr) {
      trim_keys<C::kBlockN>(key_mask_row(params_.key_mask, tile, member), range);
      __syncwarp();
      if (lane() == 0) clip(work.seen, range);
      if (lane() < C::kWarpgroups) clip(work.seen_by[lane()], range);
    }
    const float slope_log2 = slope_log2_of(params_.extras, tile);
    seed_plain<C::kBlockM, C::kBlockN>(params_.extras, tile.m, member, slope_log2, range);
    if (work.pass == Pass::kOnline) range.plain_end = 0;
    if (lane() == 0) shared_.walks[item_.stage()] = {range, slope_log2};
  }

  CUTE_DEVICE static void clip(BandTiles& tiles, const KeyRange& range) {
    tiles.any_begin = max(tiles.any_begin, range.begin);
    tiles.any_end = min(tiles.any_end, range.end);
  }

  // The position of this CTA's next tile, in the first lane. Tiles of equal weight go round in turn.
  CUTE_DEVICE void draw() {
    if (given_.ticket == nullptr) {
      drawn_ += gridDim.x;
    } else if (lane() == 0) {
      drawn_ = gridDim.x + atomicAdd(given_.ticket, 1u);
    }
  }

  // By rows [begin, end).
  CUTE_DEVICE BandTiles tiles_seen(const Member& member, int begin, int end) const {
    return tiles_of<C::kBlockN>(row_band<C::kBanded>(params_.band, member, begin, end - 1));
  }

  CUTE_DEVICE static int lane() { return threadIdx.x % 32; }

  const KernelParams& given_;
  const Params& params_;
  typename C::SharedStorage& shared_;
  unsigned drawn_ = blockIdx.x;
  int since_tile_ = 0;    // items
  int online_tiles_ = 0;  // that are still to come
  int tiles_since_failure_ = kFewTiles;
  StageIndex<kItems> item_;
};

}  // namespace flashcute::cuda::sm90
