// Copies of tensors that lack the 16-byte alignment which cp.async wants, and of q where it is read after out is
// written.
#pragma once

#include <cuda_runtime_api.h>

#include "core/plan.h"
#include "core/problem.h"

namespace flashcute::cuda {

// Lays the staging of q, k and v out in the plan's workspace, for those that need it.
void plan_packing(const Problem&, Plan&);

// Enqueues the copies that the plan asks for.
void run_packing(const Problem&, const Plan&, const Buffers&, void* workspace, cudaStream_t);

}  // namespace flashcute::cuda
