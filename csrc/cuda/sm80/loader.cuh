// Global to shared memory: rows of one head, 16 bytes a thread and pass, in the background. Rows and channels that do
// not exist arrive as zeros and are never read.
#pragma once

#include "cuda/common/mask.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/sm80/config.cuh"

namespace flashcute::cuda::sm80 {

template <class C, class SmemLayout>
class TileLoader {
  using Element = typename C::Element;
  static constexpr int kRows = decltype(size<0>(SmemLayout{}))::value;
  static constexpr int kChunks = C::kHeadDim / 8;  // of 16 bytes, in a row
  static constexpr int kRowsPerPass = C::kThreads / kChunks;
  static constexpr int kPasses = kRows / kRowsPerPass;
  static_assert(kRowsPerPass % 8 == 0, "a pass must keep its place in the swizzle");

 public:
  // base: row 0, channel 0 of the head.
  __device__ __forceinline__ TileLoader(const Operand& operand, int64_t base, int head_dim)
      : row_(threadIdx.x / kChunks), row_bytes_(operand.row * int64_t(sizeof(Element))) {
    const int chunk = threadIdx.x % kChunks;
    chunk_bytes_ = min(max((head_dim - chunk * 8) * int(sizeof(Element)), 0), 16);
    source_ =
        static_cast<const char*>(operand.data) + (base + chunk * 8) * int64_t(sizeof(Element)) + row_ * row_bytes_;
    target_ = SmemLayout{}(row_, chunk * 8) * int(sizeof(Element));
  }

  // Rows [first, first + kRows), of which those below `end` exist.
  __device__ __forceinline__ void load(Element* tile, int first, int end) const {
    copy_rows(tile, first, [&](int pass) { return first + row_ + pass * kRowsPerPass < end; });
  }

  // The same, without the rows whose bit is clear.
  template <class Columns>
  __device__ __forceinline__ void load_visible(Element* tile, int first, const Columns& visible) const {
    static_assert(32 % kRowsPerPass == 0, "a pass must stay within a word");
    copy_rows(tile, first, [&](int pass) {
      const int start = pass * kRowsPerPass;
      return (visible.words[start / 32] >> (start % 32 + row_)) & 1;
    });
  }

 private:
  template <class Exists>
  __device__ __forceinline__ void copy_rows(Element* tile, int first, Exists exists) const {
    constexpr int kPassBytes = SmemLayout{}(Int<kRowsPerPass>{}, _0{}) * int(sizeof(Element));
    const char* source = source_ + first * row_bytes_;
    const uint32_t target = ptx::shared_address(tile) + target_;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int bytes = exists(pass) ? chunk_bytes_ : 0;
      ptx::cp_async_16(target + pass * kPassBytes, source, bytes);
      source += kRowsPerPass * row_bytes_;
    }
  }

  int row_, chunk_bytes_, target_;
  int64_t row_bytes_;
  const char* source_;
};

}  // namespace flashcute::cuda::sm80
