// The sm80 attention kernel: one CTA computes one tile of query rows of one head.
#pragma once

#include "cuda/common/scheduler.cuh"
#include "cuda/sm80/epilogue.cuh"
#include "cuda/sm80/mainloop.cuh"

namespace flashcute::cuda::sm80 {

// Which form the plain tiles take is the call's (PlainForm); with ALiBi, where the walk starts is the tile's.
template <class C>
CUTE_DEVICE void plan_extras(const Params& params, Work& work) {
  work.slope_log2 = slope_log2_of(params.extras, work.tile);
  seed_plain<C::kBlockM, C::kBlockN>(params.extras, work.tile.m, work.member, work.slope_log2, work.range);
}

// By one warp, for all: lengths on the device may change meanwhile, and threads must not disagree about them.
template <class C>
CUTE_DEVICE Work plan_work(const Params& params) {
  Work work{};
  work.tile = tile_of_block<C::kBlockM>(params, blockIdx.x);
  work.member = member_of(params, work.tile.batch);
  const int first_row = work.tile.m * C::kBlockM, last_row = min(first_row + C::kBlockM, work.member.len_q) - 1;
  work.present = work.tile.m >= 0 && first_row <= last_row;
  if (!work.present) return work;
  work.range = key_range(tiles_of<C::kBlockN>(row_band<C::kBanded>(params.band, work.member, first_row, last_row)));
  if constexpr (C::kExtras) plan_extras<C>(params, work);
  return work;
}

template <class Mask>
CUTE_DEVICE void trim_range(const Mask& mask, KeyRange& range) {
  const KeyRange trimmed = mask.trimmed();
  __syncthreads();
  if (threadIdx.x == 0) range = trimmed;
  __syncthreads();
}

// By all threads: no key tiles at either end that a mask hides.
template <class C>
CUTE_DEVICE void apply_masks(const Params& params, typename C::SharedStorage& shared) {
  Work& work = shared.work;
  if (params.key_mask.data != nullptr) {
    trim_range(KeyMask<C::kBlockN, C::kThreads>(params, work.tile, work.member, work.range, shared.runs.key_bits),
               work.range);
  }
  if (params.extras.block_mask.data != nullptr) trim_range(block_mask_of<C>(params, shared), work.range);
  const KeyRun first = first_run<C>(params, shared, work.range.start, work.range.end);
  if (threadIdx.x == 0) shared.runs.first_end = first.end;
  __syncthreads();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kMinBlocks) attention_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) char shared_memory[];
  auto& shared = *reinterpret_cast<typename C::SharedStorage*>(shared_memory);

  if (threadIdx.x < 32) {
    const Work work = plan_work<C>(params);
    if (threadIdx.x == 0) {
      shared.work = work;
      if constexpr (C::kExtras) shared.runs.key_bits.chunk = shared.runs.block_bits.chunk = -1;
    }
  }
  __syncthreads();
  if (!shared.work.present) return;
  if constexpr (C::kExtras) apply_masks<C>(params, shared);

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
