// From a warpgroup's accumulators to memory: which rows failed, normalisation, LSE, and O straight from registers. A
// quad of lanes holds a row in pairs of channels; transposed among them, each stores 16 bytes. No shared memory, no
// barrier: the next tile's loads are under way meanwhile.
#pragma once

#include "cuda/sm90/mainloop.cuh"

namespace flashcute::cuda::sm90 {

// words: four, of four blocks of 8 channels, this lane's pair of each. Out: the block whose number is the lane's.
CUTE_DEVICE uint4 transpose_in_quad(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  const uint32_t a = __shfl_xor_sync(0xffffffffu, odd ? w0 : w1, 1), b = __shfl_xor_sync(0xffffffffu, odd ? w2 : w3, 1);
  // two words each of a block of the lower two, and of one of the upper two
  const uint32_t low0 = odd ? a : w0, low1 = odd ? w1 : a, high0 = odd ? b : w2, high1 = odd ? w3 : b;
  const uint32_t c = __shfl_xor_sync(0xffffffffu, upper ? low0 : high0, 2);
  const uint32_t d = __shfl_xor_sync(0xffffffffu, upper ? low1 : high1, 2);
  return upper ? uint4{c, d, high0, high1} : uint4{low0, low1, c, d};
}

template <class C>
class Epilogue {
  using Element = typename C::Element;

 public:
  CUTE_DEVICE Epilogue(const Params& params, typename C::SharedStorage& shared, Mainloop<C>& loop)
      : params_(params), shared_(shared), loop_(loop) {}

  // careful: the second time, for the rows that failed the first.
  CUTE_DEVICE void store(bool careful) {
    Tensor rows = rows_and_columns(loop_.output);  // (2, D / 4, and one pair more for the sums)
    float denominator[2];
    uint32_t failed = 0;
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      denominator[r] = loop_.denominator(r);
      const bool lost = loop_.softmax.failed(r, rows, denominator[r]) && loop_.row(r) < loop_.member().len_q;
      failed |= uint32_t(lost && (denominator[r] != 0.f || loop_.sees_any(r))) << (threadIdx.x % 32 / 4 + 8 * r);
    }
    uint32_t& mark = shared_.failed_rows[loop_.slot()][threadIdx.x / 32];
    if (careful) {
      failed = ~mark;  // rows not to be written
    } else {
      failed = __reduce_or_sync(0xffffffffu, failed);
      if (threadIdx.x % 32 == 0) mark = failed;
    }
    bool writes[2];
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      writes[r] = loop_.row(r) < loop_.member().len_q && !((failed >> (threadIdx.x % 32 / 4 + 8 * r)) & 1);
      finish_row(r, rows, denominator[r], writes[r], careful);
    }
    write(writes);
    if (careful) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) mark = 0;
    }
  }

 private:
  template <class Rows>
  CUTE_DEVICE void finish_row(int r, Rows& rows, float denominator, bool writes, bool careful) {
    const TileIndex& tile = loop_.tile();
    if (params_.lse.data != nullptr) {
      const float sum = quad_reduce(loop_.softmax.sum[r], [](float a, float b) { return a + b; });
      if (writes && threadIdx.x % 4 == 0) {
        params_.lse.data[tile.batch * params_.lse.batch + tile.head_q * params_.lse.head +
                         int64_t(loop_.member().first_q + loop_.row(r)) * params_.lse.row] =
            loop_.softmax.log_sum_exp(r, sum);
      }
    }
    const float factor = denominator == 0.f ? 0.f : 1.f / denominator;
    const bool empty = denominator == 0.f && !careful;  // or it failed: NaNs are of keys that it does not see
    CUTE_UNROLL
    for (int c = 0; c < C::kHeadDim / 4; ++c) rows(r, c) = empty ? 0.f : rows(r, c) * factor;
  }

  CUTE_DEVICE void write(const bool (&writes)[2]) {
    const TileIndex& tile = loop_.tile();
    Element* out = static_cast<Element*>(const_cast<void*>(params_.out.data)) + tile.batch * params_.out.batch +
                   tile.head_q * params_.out.head;
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      Element* row = out + int64_t(loop_.member().first_q + loop_.row(r)) * params_.out.row;
      CUTE_UNROLL
      for (int group = 0; group < C::kHeadDim / 32; ++group) {
        uint32_t words[4];
        CUTE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int pair = 4 * (4 * group + i) + 2 * r;
          words[i] = ptx::pack<Element>(loop_.output(pair), loop_.output(pair + 1));
        }
        const uint4 vector = transpose_in_quad(words[0], words[1], words[2], words[3]);
        const int channel = 32 * group + 8 * int(threadIdx.x % 4);
        if (writes[r] && channel < params_.head_dim_v) {
          store_vector(row + channel, vector, min(params_.head_dim_v - channel, 8));
        }
      }
    }
  }

  CUTE_DEVICE void store_vector(Element* target, uint4 vector, int channels) const {
    if (params_.out_vectors && channels == 8) {
      *reinterpret_cast<uint4*>(target) = vector;
      return;
    }
    const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
    CUTE_UNROLL
    for (int i = 0; i < 8; ++i) {
      if (i < channels) target[i] = Element::bitcast(uint16_t(words[i / 2] >> (16 * (i % 2))));
    }
  }

  const Params& params_;
  typename C::SharedStorage& shared_;
  Mainloop<C>& loop_;
};

}  // namespace flashcute::cuda::sm90
