// Joins two partial results over disjoint keys. One warp a row: all lanes read both LSEs before any of the row is
// written, so that the result may lie over either operand.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/backend.h"
#include "cuda/common/launch.h"

namespace flashcute::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;

struct MergeWeights {
  float a, b, lse;
  bool empty_a, empty_b;
};

// An LSE of +inf or -inf marks an empty part, which has no weight.
__device__ MergeWeights weights_of(float lse_a, float lse_b) {
  const bool empty_a = isinf(lse_a), empty_b = isinf(lse_b);
  if (empty_a && empty_b) return {0.f, 0.f, -INFINITY, true, true};
  if (empty_a) return {0.f, 1.f, lse_b, true, false};
  if (empty_b) return {1.f, 0.f, lse_a, false, true};
  const float maximum = fmaxf(lse_a, lse_b);
  const float a = expf(lse_a - maximum), b = expf(lse_b - maximum);
  return {a / (a + b), b / (a + b), maximum + logf(a + b), false, false};
}

template <class Element>
__global__ void __launch_bounds__(32 * kWarpsPerBlock) merge_kernel(const __grid_constant__ MergeProblem problem) {
  const int64_t line = int64_t(blockIdx.x) * kWarpsPerBlock + threadIdx.x / 32;
  const int64_t row = line % problem.rows, head = line / problem.rows % problem.heads;
  const int64_t batch = line / problem.rows / problem.heads;
  if (batch >= problem.batch) return;
  const auto out_offset = [&](const Strides& s) { return batch * s.batch + head * s.head + row * s.row; };
  const float lse_a = problem.a.lse[out_offset(problem.a.lse_strides)];
  const float lse_b = problem.b.lse[out_offset(problem.b.lse_strides)];
  __syncwarp();
  const MergeWeights weights = weights_of(lse_a, lse_b);
  const Element* a = static_cast<const Element*>(problem.a.out) + out_offset(problem.a.out_strides);
  const Element* b = static_cast<const Element*>(problem.b.out) + out_offset(problem.b.out_strides);
  Element* result =
      static_cast<Element*>(const_cast<void*>(problem.result.out)) + out_offset(problem.result.out_strides);
  for (int64_t channel = threadIdx.x % 32; channel < problem.head_dim; channel += 32) {
    float value = 0.f;  // an empty part's values are not looked at: they may be anything
    if (!weights.empty_a) value += weights.a * static_cast<float>(a[channel]);
    if (!weights.empty_b) value += weights.b * static_cast<float>(b[channel]);
    result[channel] = static_cast<Element>(value);
  }
  if (threadIdx.x % 32 == 0)
    const_cast<float*>(problem.result.lse)[out_offset(problem.result.lse_strides)] = weights.lse;
}

const void* kernel_for(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return reinterpret_cast<const void*>(&merge_kernel<__half>);
    case DType::kBF16:
      return reinterpret_cast<const void*>(&merge_kernel<__nv_bfloat16>);
    case DType::kF32:
      return reinterpret_cast<const void*>(&merge_kernel<float>);
    default:
      throw Error(FLASHCUTE_STATUS_BAD_TENSOR_DTYPE,
                  std::string("(out): expected float16, bfloat16 or float32, given ") + name_of(dtype));
  }
}

}  // namespace

void merge(const MergeProblem& problem, int device_id, void* stream) {
  const int64_t lines = problem.batch * problem.heads * problem.rows;
  if (lines == 0) return;
  const int64_t blocks = (lines + kWarpsPerBlock - 1) / kWarpsPerBlock;
  if (blocks > INT32_MAX) {
    throw Error(FLASHCUTE_STATUS_NOT_IMPLEMENTED, "(out): expected at most 2^33 rows, given " + std::to_string(lines));
  }
  DeviceGuard guard(device_id);
  MergeProblem copy = problem;
  void* arguments[] = {&copy};
  check(cudaLaunchKernel(kernel_for(problem.dtype), dim3(unsigned(blocks)), dim3(32 * kWarpsPerBlock), arguments, 0,
                         static_cast<cudaStream_t>(stream)),
        "the merge kernel's launch");
}

}  // namespace flashcute::cuda
