// The sm80 attention kernel: one CTA computes one tile of 128 query rows of one head.
#pragma once

#include "cuda/common/scheduler.cuh"
#include "cuda/sm80/epilogue.cuh"
#include "cuda/sm80/mainloop.cuh"

namespace flashcute::cuda::sm80 {

// Marks the rows that fixed steps lost; true when the CTA has any.
template <class C>
CUTE_DEVICE bool mark_failed_rows(const Mainloop<C>& loop, const Member& member, typename C::SharedStorage& shared) {
  uint32_t failed_rows = 0;
  Tensor rows = rows_and_columns(loop.output);
  CUTE_UNROLL
  for (int r = 0; r < C::kRowsPerThread; ++r) {
    const bool failed = loop.first_thread_row() + 8 * r < member.len_q && loop.softmax.failed(r, rows);
    failed_rows |= uint32_t(failed) << (threadIdx.x % 32 / 4 + 8 * r);
  }
  failed_rows = __reduce_or_sync(0xffffffffu, failed_rows);
  if (threadIdx.x % 32 == 0) shared.redo_rows[threadIdx.x / 32] = failed_rows;
  return __syncthreads_or(failed_rows != 0);
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kMinBlocks) attention_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) char shared_memory[];
  auto& shared = *reinterpret_cast<typename C::SharedStorage*>(shared_memory);

  const TileIndex tile = tile_of_block(params, blockIdx.x);
  const Member member = member_of(params, tile.batch);
  const int first_row = tile.m * C::kBlockM;
  if (first_row >= member.len_q) return;
  KeyRange range =
      key_range<C::kBlockN, C::kBanded>(params.band, member, first_row, min(first_row + C::kBlockM, member.len_q) - 1);
  const bool featured = C::kExtras || params.key_mask.data != nullptr;
  if (featured) range.plain_begin = range.plain_end = range.end;

  Mainloop<C> loop(params, member, tile, shared);
  loop.load_queries();
  Rows rows = Rows::kAll;
  // Once, or a second time with online steps alone for the rows that fixed steps lost. Only those are written again: no
  // row's bits depend on another's values.
  while (true) {
    loop.run(range);
    loop.softmax.reduce_sums();
    bool redo = false;
    if (range.plain_begin < range.plain_end) redo = mark_failed_rows<C>(loop, member, shared);
    if (redo) rows = Rows::kKept;
    Epilogue<C>(params, shared).store(loop, rows);
    if (!redo) break;
    __syncthreads();  // O is read; its memory becomes key tiles again
    rows = Rows::kRedone;
    range.plain_begin = range.plain_end = range.end;
  }
}

}  // namespace flashcute::cuda::sm80
