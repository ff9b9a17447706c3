// Global to shared memory: rows of one head, 16 bytes a thread and pass, in the background. Rows and channels that do
// not exist arrive as zeros and are never read. Rows are whole chunks of 16 bytes: others are packed (common/pack.cu).
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
  static constexpr int kThreadsPerRow = C::kThreadsPerRow, kRowsPerPass = C::kRowsPerPass;
  static constexpr int kPasses = kRows / kRowsPerPass;
  static_assert(kRows % kRowsPerPass == 0);
  static_assert(kRowsPerPass % 8 == 0, "a pass must keep its place in the swizzle");
  static_assert(C::kChunksPerThread == 1 || kThreadsPerRow * 8 % C::kAtomColumns == 0, "and so must a step");

 public:
  CUTE_DEVICE TileLoader(int head_dim) {
    const int row = threadIdx.x / kThreadsPerRow, chunk = threadIdx.x % kThreadsPerRow;
    chunks_ = (head_dim + 7) / 8 - chunk;
    target_ = SmemLayout{}(row, chunk * 8) * int(sizeof(Element));
  }

  // head: the offset of row 0, channel 0, in elements.
  CUTE_DEVICE void seek(const Operand& operand, int64_t head, int first_row) {
    const int row = first_row + int(threadIdx.x) / kThreadsPerRow, chunk = threadIdx.x % kThreadsPerRow;
    source_ =
        static_cast<const char*>(operand.data) + (head + row * operand.row + chunk * 8) * int64_t(sizeof(Element));
  }

  // Leaves tiles out or, below zero, goes back.
  CUTE_DEVICE void skip(int64_t bytes) { source_ += bytes; }
  CUTE_DEVICE static int64_t bytes_of(const Operand& operand, int tiles) {
    return int64_t(tiles) * kPasses * operand.pass_bytes;
  }

  // The next kRows rows, of which `count` exist.
  CUTE_DEVICE void load(const Operand& operand, Element* tile, int count) {
    constexpr int kPassBytes = SmemLayout{}(Int<kRowsPerPass>{}, _0{}) * int(sizeof(Element));
    constexpr int kStepBytes = SmemLayout{}(_0{}, Int<kThreadsPerRow * 8>{}) * int(sizeof(Element));
    if (C::kChunks % kThreadsPerRow != 0 && int(threadIdx.x) % kThreadsPerRow >= C::kChunks) return;
    const int rows = count - int(threadIdx.x) / kThreadsPerRow;
    const uint32_t target = ptx::shared_address(tile) + target_;
    CUTE_UNROLL
    for (int step = 0; step < C::kChunksPerThread; ++step) {
      const int present = chunks_ > step * kThreadsPerRow ? rows : 0;
      const char* source = source_ + step * kThreadsPerRow * 16;
      CUTE_UNROLL
      for (int pass = 0; pass < kPasses; ++pass) {
        ptx::cp_async_16(target + pass * kPassBytes + step * kStepBytes, source, pass * kRowsPerPass < present);
        source += operand.pass_bytes;
      }
    }
    source_ += kPasses * operand.pass_bytes;
  }

 private:
  int chunks_, target_;  // chunks_: from this thread's first one to the row's end
  const char* source_;
};

}  // namespace flashcute::cuda::sm80
