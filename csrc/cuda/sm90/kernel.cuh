// The sm90 attention kernel: as many CTAs as the device holds, each with a planner, a producer and two or three math
// warpgroups, which take one tile of query rows after the other.
#pragma once

#include "cuda/sm90/epilogue.cuh"
#include "cuda/sm90/planner.cuh"
#include "cuda/sm90/producer.cuh"

namespace flashcute::cuda::sm90 {

// What all wait for, by __syncthreads.
template <class C>
CUTE_DEVICE void init_shared(const KernelParams& given, typename C::SharedStorage& shared) {
  if (threadIdx.x == 0) {
    ptx::prefetch_map(&given.q);
    ptx::prefetch_map(&given.k);
    ptx::prefetch_map(&given.v);
    if (given.maps_out) ptx::prefetch_map(&given.out);
    for (int w = 0; w < C::kWarpgroups; ++w) {
      ptx::init(shared.queries_full[w], 1);
      ptx::init(shared.queries_empty[w], 4 * kArrivals);
    }
    ptx::init(shared.planned, kArrivals);
    ptx::init(shared.plan_next, kArrivals);
    ptx::init(shared.tail_full, 1);
    ptx::init(shared.over, 1);
    for (int i = 0; i < C::kStages; ++i) {
      ptx::init(shared.k_full[i], 1);
      ptx::init(shared.v_full[i], 1);
      ptx::init(shared.k_empty[i], C::kMathWarps * kArrivals);
      ptx::init(shared.v_empty[i], C::kMathWarps * kArrivals);
    }
    ptx::fence_init();
  }
  for (auto& v : shared.v) {
    for (int i = threadIdx.x; i < C::kOnes; i += C::kThreads)
      v[C::kBlockN * C::kHeadDimV + i] = typename C::Element(1.f);
  }
  ptx::fence_async();
}

template <class C>
CUTE_DEVICE void compute(const KernelParams& given, typename C::SharedStorage& shared) {
  Mainloop<C> loop(given.params, shared);
  while (true) {
    const WorkKind kind = loop.await_work();
    if (kind == WorkKind::kEnd) break;
    if (kind == WorkKind::kNothing) {
      loop.release_queries();
      continue;
    }
    if (loop.pass() == Pass::kNonfinite) {
      loop.run_nonfinite();
    } else {
      loop.run();
    }
    Epilogue<C>(given, shared, loop).store();
  }
  ptx::await_stores();  // shared memory goes with this CTA
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) attention_kernel(const __grid_constant__ KernelParams given) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<typename C::SharedStorage*>(shared_memory);
  init_shared<C>(given, shared);
  if constexpr (kSanitized) __syncthreads();
  if (threadIdx.x < C::kMathThreads) {
    if constexpr (!kSanitized) __syncthreads();
    ptx::take_registers<C::kMathRegisters>();
    compute<C>(given, shared);
    return;
  }
  ptx::give_registers<C::kProducerRegisters>();
  if (threadIdx.x / 32 == C::kMathWarps) {
    Planner<C>(given, shared).run();  // plans the first item before it waits
    return;
  }
  if constexpr (!kSanitized) __syncthreads();
  if (threadIdx.x / 32 == C::kMathWarps + 1) Producer<C>(given, shared).run();
}

}  // namespace flashcute::cuda::sm90
