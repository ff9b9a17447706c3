// The sm80 attention kernel: one CTA computes one tile of query rows of one head.
#pragma once

#include "cuda/common/scheduler.cuh"
#include "cuda/sm80/epilogue.cuh"
#include "cuda/sm80/mainloop.cuh"

namespace flashcute::cuda::sm80 {

// By one warp, for all: lengths on the device may change meanwhile, and threads must not disagree about them.
template <class C>
CUTE_DEVICE Work plan_work(const Params& params) {
  Work work{};
  work.tile = tile_of_block<C::kBlockM>(params);
  work.member = member_of(params, work.tile.batch);
  const int first_row = work.tile.m * C::kBlockM, last_row = min(first_row + C::kBlockM, work.member.len_q) - 1;
  work.present = work.tile.m >= 0 && first_row <= last_row;
  if (!work.present) return work;
  work.range = key_range<C::kBlockN>(row_band<C::kBanded>(params.band, work.member, first_row, last_row));
  const bool featured = C::kExtras || params.key_mask.data != nullptr;
  if (featured) work.range.plain_begin = work.range.plain_end = work.range.end;
  return work;
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kMinBlocks) attention_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) char shared_memory[];
  auto& shared = *reinterpret_cast<typename C::SharedStorage*>(shared_memory);

  if (threadIdx.x < 32) {
    const Work work = plan_work<C>(params);
    if (threadIdx.x == 0) shared.work = work;
  }
  __syncthreads();
  if (!shared.work.present) return;

  Mainloop<C> loop(params, shared);
  loop.load_queries();
  Rows rows = Rows::kAll;
  // Once, or a second time with care for the rows that failed. Only those are written again: no row's values depend on
  // another's.
  while (true) {
    const bool careful = rows != Rows::kAll;
    loop.run(careful);
    const bool redo = !careful && loop.publish_failed_rows();
    if (redo) rows = Rows::kKept;
    Epilogue<C>(params, shared).store(loop, rows);
    if (!redo) break;
    __syncthreads();  // O is read; its memory becomes key tiles again
    rows = Rows::kRedone;
  }
}

}  // namespace flashcute::cuda::sm80
