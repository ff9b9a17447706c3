// Global to shared memory: rows of one head, 16 bytes a thread and pass, in the background. Rows and channels that do
// not exist arrive as zeros and are never read.
#pragma once

#include "cuda/common/mask.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/sm80/config.cuh"

namespace flashcute::cuda::sm80 {

// Walks down a head's rows: each load continues where the one before ended.
template <class C, class SmemLayout>
class TileLoader {
  using Element = typename C::Element;
  static constexpr int kRows = decltype(size<0>(SmemLayout{}))::value;
  static constexpr int kChunks = C::kHeadDim / 8;  // of 16 bytes, in a row
  static constexpr int kRowsPerPass = C::kThreads / kChunks;
  static constexpr int kPasses = kRows / kRowsPerPass;
  static_assert(kRowsPerPass == C::kRowsPerPass);
  static_assert(kRowsPerPass % 8 == 0, "a pass must keep its place in the swizzle");

 public:
  CUTE_DEVICE TileLoader(int head_dim) {
    const int row = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
    chunk_bytes_ = min(max((head_dim - chunk * 8) * int(sizeof(Element)), 0), 16);
    target_ = SmemLayout{}(row, chunk * 8) * int(sizeof(Element));
  }

  // head: the offset of row 0, channel 0, in elements.
  CUTE_DEVICE void seek(const Operand& operand, int64_t head, int first_row) {
    const int row = first_row + int(threadIdx.x) / kChunks, chunk = threadIdx.x % kChunks;
    source_ =
        static_cast<const char*>(operand.data) + (head + row * operand.row + chunk * 8) * int64_t(sizeof(Element));
  }

  // The next kRows rows, of which `count` exist.
  CUTE_DEVICE void load(const Operand& operand, Element* tile, int count) {
    constexpr int kPassBytes = SmemLayout{}(Int<kRowsPerPass>{}, _0{}) * int(sizeof(Element));
    const int left = count - int(threadIdx.x) / kChunks;
    const uint32_t target = ptx::shared_address(tile) + target_;
    CUTE_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      ptx::cp_async_16(target + pass * kPassBytes, source_, pass * kRowsPerPass < left ? chunk_bytes_ : 0);
      source_ += operand.pass_bytes;
    }
  }

 private:
  int chunk_bytes_, target_;
  const char* source_;
};

}  // namespace flashcute::cuda::sm80
