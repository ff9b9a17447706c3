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
    unsigned place = blockIdx.x;
    while (place < given_.tiles) {
      const unsigned next = draw();  // under the loads of this tile, which take longer
      const Work work = plan(place);
      if (work.kind == WorkKind::kTile) offer(work);
      place = __shfl_sync(0xffffffffu, next, 0);
    }
    offer(Work{WorkKind::kNothing, {}, {}, {}});
    offer(Work{WorkKind::kEnd, {}, {}, {}});
  }

 private:
  // The place of this CTA's next tile, in the first lane. Tiles of equal weight go round in turn.
  CUTE_DEVICE unsigned draw() {
    if (given_.ticket == nullptr) return blockIdx.x + ++rounds_ * gridDim.x;
    return elected_ ? gridDim.x + atomicAdd(given_.ticket, 1u) : 0u;
  }

  CUTE_DEVICE Work plan(unsigned place) const {
    Work work{WorkKind::kNothing, tile_of_block<C::kBlockM>(params_, place), {}, {}};
    work.member = member_of(params_, work.tile.batch);
    const int first_row = work.tile.m * C::kBlockM, last_row = min(first_row + C::kBlockM, work.member.len_q) - 1;
    if (work.tile.m < 0 || first_row > last_row) return work;
    work.kind = WorkKind::kTile;
    work.range = key_range<C::kBlockN>(row_band<C::kBanded>(params_.band, work.member, first_row, last_row));
    return work;
  }

  CUTE_DEVICE void offer(const Work& work) {
    await_queries();
    while (failed()) {
      Work again = shared_.work[items_ % 2];
      again.kind = WorkKind::kCareful;
      load(again);
      await_queries();
    }
    load(work);
  }

  // The math is done with the item before.
  CUTE_DEVICE void await_queries() const {
    if (items_ > 0) ptx::wait(shared_.queries_empty, (items_ - 1) % 2);
  }

  // Did a row of the item before that fail?
  CUTE_DEVICE bool failed() const {
    const int lane = threadIdx.x % 32;
    return __any_sync(0xffffffffu, lane < C::kMathWarps && shared_.failed_rows[items_ % 2][lane] != 0);
  }

  CUTE_DEVICE void load(const Work& work) {
    __syncwarp();  // every lane has looked at the item whose place this one takes
    if (elected_) shared_.work[items_ % 2] = work;
    __syncwarp();
    load_tile(shared_.work[items_++ % 2]);
  }

  CUTE_DEVICE void load_tile(const Work& work) {
    const bool loads = work.kind == WorkKind::kTile || work.kind == WorkKind::kCareful;
    if (elected_) {
      if (loads) {
        ptx::arrive_expecting(shared_.queries_full, C::kQueryBytes);
        load_queries(work);
      } else {
        ptx::arrive(shared_.queries_full);
      }
    }
    if (!loads || work.range.begin >= work.range.end) return;
    load_keys(work, work.range.begin);
    for (int n = work.range.begin; n < work.range.end; ++n) {
      if (n + 1 < work.range.end) load_keys(work, n + 1);
      load_values(work, n);
    }
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
    for (int i = max(rows, 0) * kVectors + int(threadIdx.x % 32); i < C::kBlockN * kVectors; i += 32) {
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

  const KernelParams& given_;
  const Params& params_;
  typename C::SharedStorage& shared_;
  const bool elected_;
  uint32_t items_ = 0, tails_ = 0, rounds_ = 0;
  StageIndex<C::kStages> k_, v_;
};

}  // namespace flashcute::cuda::sm90
