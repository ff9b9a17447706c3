// The producer: one warp that keeps the copy engine ahead of the math warpgroups. An item's first keys come under the
// last of the item before, and its queries as soon as a warpgroup is done with its own.
//
// A late copy is waited for by everyone, and this warp is slow: it runs between the math's instructions, and its own
// are mostly not in the cache. So all lanes go the same way with values that the compiler knows to be uniform, which
// the copy engine takes from uniform registers.
#pragma once

#include "cuda/common/key_mask.cuh"
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
    WorkKind kind;
    do {
      ptx::wait(shared_.planned, queries_parity(item_));
      kind = static_cast<WorkKind>(ptx::uniform(int(shared_.work[item_.stage()].kind)));
      load(kind);
    } while (kind != WorkKind::kEnd);
  }

 private:
  using Work = sm90::Work<C::kWarpgroups>;

  // What a copy must know of an item.
  struct Source {
    int row, head, batch;
  };

  // The item in its place, whose coordinates the compiler shall know to be uniform.
  CUTE_DEVICE void load(WorkKind kind) {
    const Work& work = shared_.work[item_.stage()];
    const bool loads = kind == WorkKind::kTile || kind == WorkKind::kAgain;
    const int begin = loads ? ptx::uniform(work.seen.any_begin) : 0, end = loads ? ptx::uniform(work.seen.any_end) : 0;
    const Source keys{ptx::uniform(work.member.first_k), ptx::uniform(work.tile.head_k),
                      batch_of_map(params_, ptx::uniform(work.tile.batch))};
    const Source queries{ptx::uniform(work.member.first_q + work.tile.m * C::kBlockM), ptx::uniform(work.tile.head_q),
                         keys.batch};
    const int len_k = ptx::uniform(work.member.len_k);
    const int start = C::kExtras && loads && static_cast<Pass>(ptx::uniform(int(work.pass))) != Pass::kNonfinite
                          ? ptx::uniform(shared_.walks[item_.stage()].range.start)
                          : begin;
    if (begin < end) load_keys(work, keys, start);
    load_queries(queries, loads);
    item_.advance();
    // Late, lest this CTA hold a tile that another could begin, but so that the plan comes under the last loads.
    const int drawing = max(begin, end - 2);
    if (begin >= end) plan_next();
    for (int i = begin, n = start; i < end; ++i) {
      if (i == drawing) plan_next();
      const int next = C::kExtras && n + 1 == end ? begin : n + 1;
      if (i + 1 < end) load_keys(work, keys, next);
      load_values(keys, n, len_k);
      n = next;
    }
  }

  // All queries of the item before are loaded, so all of what was before that is done.
  CUTE_DEVICE void plan_next() const { arrive_as_warp(shared_.plan_next); }

  CUTE_DEVICE void load_queries(const Source& from, bool loads) const {
#pragma unroll 1
    for (int w = 0; w < C::kWarpgroups; ++w) {
      ptx::Barrier& full = shared_.queries_full[w];
      ptx::wait(shared_.queries_empty[w], queries_parity(item_) ^ 1);
      if (!elected_) continue;
      if (loads) {
        ptx::arrive_expecting(full, C::kQueryBytes);
        copy_rows<C::kRowsPerWarpgroup, C::kChunks>(given_.q, shared_.q[w].data(), full, ptx::Keep::kFirstOut, from,
                                                    w * C::kRowsPerWarpgroup);
      } else {
        ptx::arrive(full);
      }
    }
    __syncwarp();
  }

  CUTE_DEVICE void load_keys(const Work& work, const Source& from, int n) {
    const int stage = k_.stage();
    const bool masks = C::kExtras && params_.key_mask.data != nullptr;
    Columns<C::kBlockN> columns;
    if (masks) columns = read_columns<C::kBlockN>(key_mask_row(params_.key_mask, work.tile, work.member), n);
    ptx::wait(shared_.k_empty[stage], k_.parity() ^ 1);
    if (elected_) {
      if constexpr (C::kExtras) {
        if (masks) shared_.columns[stage] = columns;
      }
      ptx::arrive_expecting(shared_.k_full[stage], C::kKeyBytes);
      copy_rows<C::kBlockN, C::kChunks>(given_.k, shared_.k[stage].data(), shared_.k_full[stage], ptx::Keep::kLastOut,
                                        from, n * C::kBlockN);
    }
    k_.advance();
  }

  CUTE_DEVICE void load_values(const Source& from, int n, int len_k) {
    const int stage = v_.stage(), rows = len_k - n * C::kBlockN;
    // Do the rows go on in memory with what is not the member's own? Otherwise the copy engine fills up with zeros.
    const bool has_neighbours = params_.lengths.cu_k != nullptr || params_.lengths.used_k != nullptr;
    const bool clears = rows < C::kBlockN && has_neighbours;
    ptx::Barrier& full = clears ? shared_.tail_full : shared_.v_full[stage];
    ptx::wait(shared_.v_empty[stage], v_.parity() ^ 1);
    if (elected_) {
      ptx::arrive_expecting(full, C::kValueBytes);
      copy_rows<C::kBlockN, C::kChunksV>(given_.v, shared_.v[stage].data(), full, ptx::Keep::kLastOut, from,
                                         n * C::kBlockN);
    }
    if (clears) clear_tail(stage, max(rows, 0));
    v_.advance();
  }

  // A weight of zero makes NaN of a neighbour's inf: the rows beyond the member become zeros before anyone sees them.
  CUTE_DEVICE void clear_tail(int stage, int rows) {
    typename C::Element* v = shared_.v[stage].data();
    __syncwarp();
    ptx::wait(shared_.tail_full, tails_++ % 2);
    constexpr int kVectors = C::kChunk / 8;  // of a row of a chunk; a swizzle stays within the row
#pragma unroll 1
    for (int i = rows * kVectors + lane(); i < C::kBlockN * kVectors; i += 32) {
      CUTE_UNROLL
      for (int chunk = 0; chunk < C::kChunksV; ++chunk) {
        reinterpret_cast<uint4*>(v + chunk * C::kBlockN * C::kChunk)[i] = uint4{};
      }
    }
    ptx::fence_async();
    __syncwarp();
    if (elected_) ptx::arrive(shared_.v_full[stage]);
  }

  template <int kRows, int kChunks>
  CUTE_DEVICE void copy_rows(const TensorMap& map, typename C::Element* target, ptx::Barrier& barrier, ptx::Keep keep,
                             const Source& from, int row) const {
    CUTE_UNROLL
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      ptx::copy_box(target + chunk * kRows * C::kChunk, &map, barrier, keep, chunk * C::kChunk, from.row + row,
                    from.head, from.batch);
    }
  }

  CUTE_DEVICE int lane() const { return threadIdx.x % 32; }

  const KernelParams& given_;
  const Params& params_;
  typename C::SharedStorage& shared_;
  const bool elected_;
  uint32_t tails_ = 0;
  StageIndex<kItems> item_;
  StageIndex<C::kStages> k_, v_;
};

}  // namespace flashcute::cuda::sm90
