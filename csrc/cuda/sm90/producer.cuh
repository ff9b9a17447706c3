// The producer: one warp that plans a CTA's work and keeps the copy engine ahead of the math warpgroups.
//
// An item of work is an output tile and its queries. Each is offered once the math is done with the queries of the item
// before, and so with all of the item before that: whose failed rows are known then, and offered again first.
#pragma once

#include "cuda/sm90/config.cuh"
#include "cuda/sm90/launch.h"

namespace flashcute::cuda::sm90 {

template <class C>
class Producer {
 public:
  CUTE_DEVICE Producer(const KernelParams& given, typename C::SharedStorage& shared)
      : given_(given), params_(given.params), shared_(shared), elected_(threadIdx.x % 32 == 0) {}

  // All lanes of one warp call it.
  CUTE_DEVICE void run() {
    drawn_ = blockIdx.x;
    plan_next();
    while (planned_) offer(WorkKind::kTile);  // which plans the next
    offer(WorkKind::kNothing);
    offer(WorkKind::kEnd);
  }

 private:
  using Work = sm90::Work<C::kWarpgroups>;

  // Of the position drawn. The plan waits in shared memory: this warp has few registers.
  CUTE_DEVICE void plan_next() {
    Work& work = shared_.planned;
    while (true) {
      const unsigned position = __shfl_sync(0xffffffffu, drawn_, 0);
      planned_ = position < given_.tiles;
      if (!planned_) return;
      const TileIndex tile = tile_of_block<C::kBlockM>(params_, position);
      const Member member = member_of(params_, tile.batch);
      const int begin = tile.m * C::kBlockM, end = min(begin + C::kBlockM, member.len_q);
      if (tile.m < 0 || begin >= end) {  // a place without a tile
        draw();
        continue;
      }
      if (elected_) {
        work.tile = tile;
        work.member = member;
        work.seen = tiles_seen(member, begin, end);
      }
      const int own = begin + lane() * C::kRowsPerWarpgroup;
      if (lane() < C::kWarpgroups) {
        work.seen_by[lane()] = own < end ? tiles_seen(member, own, min(own + C::kRowsPerWarpgroup, end)) : BandTiles{};
      }
      __syncwarp();
      return;
    }
  }

  // The position of this CTA's next tile, in the first lane. Tiles of equal weight go round in turn.
  CUTE_DEVICE void draw() {
    if (given_.ticket == nullptr) {
      drawn_ += gridDim.x;
    } else if (elected_) {
      drawn_ = gridDim.x + atomicAdd(given_.ticket, 1u);
    }
  }

  // By rows [begin, end).
  CUTE_DEVICE BandTiles tiles_seen(const Member& member, int begin, int end) const {
    return tiles_of<C::kBlockN>(row_band<C::kBanded>(params_.band, member, begin, end - 1));
  }

  CUTE_DEVICE void offer(WorkKind kind) {
    await_queries();
    while (failed()) {
      load(WorkKind::kCareful);
      await_queries();
    }
    Work& work = shared_.work[items_ % 2];
    for (int i = lane(); i < int(sizeof(Work) / sizeof(int)); i += 32) {
      reinterpret_cast<int*>(&work)[i] = reinterpret_cast<const int*>(&shared_.planned)[i];
    }
    load(kind);
  }

  // The math is done with the queries of the item before.
  CUTE_DEVICE void await_queries() const {
    if (items_ > 0) ptx::wait(shared_.queries_empty, (items_ - 1) % 2);
  }

  // Did a row of the item but one before fail?
  CUTE_DEVICE bool failed() const {
    return __any_sync(0xffffffffu, lane() < C::kMathWarps && shared_.failed_rows[items_ % 2][lane()] != 0);
  }

  // An item of that kind, of the work in its place.
  CUTE_DEVICE void load(WorkKind kind) {
    Work& work = shared_.work[items_++ % 2];
    const bool tile = kind == WorkKind::kTile, loads = tile || kind == WorkKind::kCareful;
    __syncwarp();
    if (elected_) {
      work.kind = kind;
      if (loads) {
        ptx::arrive_expecting(shared_.queries_full, C::kQueryBytes);
        load_queries(work);
      } else {
        ptx::arrive(shared_.queries_full);
      }
    }
    if (!loads) return;
    const int begin = work.seen.any_begin, end = work.seen.any_end;
    // Drawn late, lest this CTA hold a tile that another could begin; the answer comes under the last loads.
    const int drawing = max(begin, end - 2);
    if (begin < end) load_keys(work, begin);
    for (int n = begin; n < end; ++n) {
      if (tile && n == drawing) draw();
      if (n + 1 < end) load_keys(work, n + 1);
      load_values(work, n);
    }
    if (!tile) return;
    if (begin >= end) draw();
    plan_next();
  }

  CUTE_DEVICE void load_queries(const Work& work) const {
    CUTE_UNROLL
    for (int w = 0; w < C::kWarpgroups; ++w) {
      copy_rows<C::kRowsPerWarpgroup>(given_.q, shared_.q[w].data(), shared_.queries_full, ptx::Keep::kFirstOut,
                                      work.member.first_q + work.tile.m * C::kBlockM + w * C::kRowsPerWarpgroup,
                                      work.tile.head_q, work.tile.batch);
    }
  }

  CUTE_DEVICE void load_keys(const Work& work, int n) {
    if (elected_) {
      ptx::wait(shared_.k_empty[k_.stage], k_.parity ^ 1);
      ptx::arrive_expecting(shared_.k_full[k_.stage], C::kKeyValueBytes);
      copy_tile(given_.k, shared_.k[k_.stage].data(), shared_.k_full[k_.stage], work, n);
    }
    k_.advance();
  }

  CUTE_DEVICE void load_values(const Work& work, int n) {
    const int rows = work.member.len_k - n * C::kBlockN;
    if (rows < C::kBlockN && has_neighbours()) {
      load_tail(work, n, rows);
    } else if (elected_) {
      ptx::wait(shared_.v_empty[v_.stage], v_.parity ^ 1);
      ptx::arrive_expecting(shared_.v_full[v_.stage], C::kKeyValueBytes);
      copy_tile(given_.v, shared_.v[v_.stage].data(), shared_.v_full[v_.stage], work, n);
    }
    v_.advance();
  }

  // Do a member's rows go on in memory with what is not its own? Otherwise the copy engine fills the tail with zeros.
  CUTE_DEVICE bool has_neighbours() const {
    return params_.lengths.cu_k != nullptr || params_.lengths.used_k != nullptr;
  }

  // A weight of zero makes NaN of a neighbour's inf: the rows beyond the member become zeros before anyone sees them.
  CUTE_DEVICE void load_tail(const Work& work, int n, int rows) {
    typename C::Element* v = shared_.v[v_.stage].data();
    if (elected_) {
      ptx::wait(shared_.v_empty[v_.stage], v_.parity ^ 1);
      ptx::arrive_expecting(shared_.tail_full, C::kKeyValueBytes);
      copy_tile(given_.v, v, shared_.tail_full, work, n);
    }
    __syncwarp();
    ptx::wait(shared_.tail_full, tails_++ % 2);
    constexpr int kVectors = C::kChunk / 8;  // of a row of a chunk; a swizzle stays within the row
    for (int i = max(rows, 0) * kVectors + lane(); i < C::kBlockN * kVectors; i += 32) {
      CUTE_UNROLL
      for (int chunk = 0; chunk < C::kChunks; ++chunk) {
        reinterpret_cast<uint4*>(v + chunk * C::kBlockN * C::kChunk)[i] = uint4{};
      }
    }
    ptx::fence_async();
    __syncwarp();
    if (elected_) ptx::arrive(shared_.v_full[v_.stage]);
  }

  CUTE_DEVICE void copy_tile(const TensorMap& map, typename C::Element* target, ptx::Barrier& barrier, const Work& work,
                             int n) const {
    copy_rows<C::kBlockN>(map, target, barrier, ptx::Keep::kLastOut, work.member.first_k + n * C::kBlockN,
                          work.tile.head_k, work.tile.batch);
  }

  template <int kRows>
  CUTE_DEVICE void copy_rows(const TensorMap& map, typename C::Element* target, ptx::Barrier& barrier, ptx::Keep keep,
                             int row, int head, int batch) const {
    const bool packed = params_.lengths.cu_q != nullptr;
    CUTE_UNROLL
    for (int chunk = 0; chunk < C::kChunks; ++chunk) {
      ptx::copy_box(target + chunk * kRows * C::kChunk, &map, barrier, keep, chunk * C::kChunk, row, head,
                    packed ? 0 : batch);
    }
  }

  CUTE_DEVICE int lane() const { return threadIdx.x % 32; }

  const KernelParams& given_;
  const Params& params_;
  typename C::SharedStorage& shared_;
  const bool elected_;
  bool planned_ = false;  // is there a tile in `planned`?
  unsigned drawn_ = 0;    // in the first lane
  uint32_t items_ = 0, tails_ = 0;
  StageIndex<C::kStages> k_, v_;
};

}  // namespace flashcute::cuda::sm90
