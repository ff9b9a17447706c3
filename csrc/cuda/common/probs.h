// The weights that a call returns on request.
#pragma once

#include <cuda_runtime_api.h>

#include "core/problem.h"
#include "cuda/common/params.h"

namespace flashcute::cuda {

// Enqueues what fills `probs`, every element of it, from q and k. For any family: it takes nothing of what attention
// computed.
void run_probs(const Problem&, const Params&, float* probs, cudaStream_t);

}  // namespace flashcute::cuda
