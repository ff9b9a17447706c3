// The sm90 attention kernel: as many CTAs as the device holds, each with a producer warp and two or three math
// warpgroups, which take one tile of query rows after the other.
#pragma once

#include "cuda/sm90/epilogue.cuh"
#include "cuda/sm90/producer.cuh"

namespace flashcute::cuda::sm90 {

template <class C>
CUTE_DEVICE void init_shared(const KernelParams& given, typename C::SharedStorage& shared) {
  if (threadIdx.x == 0) {
    ptx::prefetch_map(&given.q);
    ptx::prefetch_map(&given.k);
    ptx::prefetch_map(&given.v);
    ptx::init(shared.queries_full, 1);
    ptx::init(shared.queries_empty, C::kMathWarps);
    ptx::init(shared.tail_full, 1);
    ptx::init(shared.over, 1);
    for (int i = 0; i < C::kStages; ++i) {
      ptx::init(shared.k_full[i], 1);
      ptx::init(shared.v_full[i], 1);
      ptx::init(shared.k_empty[i], C::kMathWarps);
      ptx::init(shared.v_empty[i], C::kMathWarps);
    }
    for (auto& rows : shared.failed_rows) {
      for (uint32_t& row : rows) row = 0;
    }
    ptx::fence_init();
  }
  for (auto& v : shared.v) {
    for (int i = threadIdx.x; i < C::kOnes; i += C::kThreads)
      v[C::kBlockN * C::kHeadDim + i] = typename C::Element(1.f);
  }
  ptx::fence_async();
  __syncthreads();
}

template <class C>
CUTE_DEVICE void compute(const Params& params, typename C::SharedStorage& shared) {
  Mainloop<C> loop(params, shared);
  while (true) {
    const WorkKind kind = loop.await_work();
    if (kind == WorkKind::kEnd) return;
    if (kind == WorkKind::kNothing) {
      loop.release_queries();
      continue;
    }
    const bool careful = kind == WorkKind::kCareful;
    if (careful) {
      loop.run_careful();
    } else {
      loop.run();
    }
    Epilogue<C>(params, shared, loop).store(careful);
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) attention_kernel(const __grid_constant__ KernelParams given) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<typename C::SharedStorage*>(shared_memory);
  init_shared<C>(given, shared);
  if (threadIdx.x >= C::kMathThreads) {
    ptx::give_registers<C::kProducerRegisters>();
    if (threadIdx.x < C::kMathThreads + 32) Producer<C>(given, shared).run();
  } else {
    ptx::take_registers<C::kMathRegisters>();
    compute<C>(given.params, shared);
  }
}

}  // namespace flashcute::cuda::sm90
