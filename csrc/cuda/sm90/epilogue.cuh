// From a warp's accumulators to memory: which rows failed, normalisation, LSE, and O. Rows that are all to be written
// leave by the copy engine; others straight from registers: a quad of lanes holds a row in pairs of channels, and
// transposed among them, each stores 16 bytes. Each warp has its own rows, and the next tile's loads are under way
// meanwhile.
#pragma once

#include "cuda/sm90/launch.h"
#include "cuda/sm90/mainloop.cuh"

namespace flashcute::cuda::sm90 {

// words: four, of four blocks of 8 channels, this lane's pair of each. Out: the block whose number is the lane's.
CUTE_DEVICE uint4 transpose_in_quad(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  const int thread = ptx::thread_again();
  const bool odd = thread & 1, upper = thread & 2;
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
  static constexpr int kRows = C::kRowsPerWarp;

 public:
  CUTE_DEVICE Epilogue(const KernelParams& given, typename C::SharedStorage& shared, Mainloop<C>& loop)
      : given_(given), params_(given.params), shared_(shared), loop_(loop), place_(loop.place()) {}

  CUTE_DEVICE void store() {
    const bool again = loop_.kind() == WorkKind::kAgain;  // for the rows that failed the pass before
    Tensor rows = rows_and_columns(loop_.output);         // (2, DV / 4, and one pair more for the sums)
    const float denominators[2] = {loop_.denominator(0), loop_.denominator(1)};
    const bool suspect[2] = {loop_.softmax.failed(0, rows, denominators[0]),
                             loop_.softmax.failed(1, rows, denominators[1])};
    uint32_t& mark = shared_.failed_rows[loop_.slot()][thread_ / 32];
    uint32_t left_out = again ? ~mark : 0, failed = 0;  // one bit a row of this warp
    if (loop_.pass() != Pass::kNonfinite && __any_sync(0xffffffffu, suspect[0] || suspect[1])) {
      failed = failed_rows(suspect, denominators, rows) & ~left_out;
      left_out |= failed;
    }
    if (again || failed != 0) {
      __syncwarp();  // every lane has read the mark
      if (lane() == 0) mark = failed;
    }
    if (place_.rows_left < kRows) left_out |= ~0u << max(place_.rows_left, 0);
    left_out &= (1u << kRows) - 1;
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      float denominator = denominators[r], factor = 1.f, sum = 0.f;
      if (params_.lse.data != nullptr) sum = quad_reduce(loop_.softmax.sum[r], [](float a, float b) { return a + b; });
      if constexpr (C::kExtras) {
        if (params_.extras.sinks != nullptr) factor = loop_.softmax.add_sink(r, loop_.sink(), denominator, sum);
      }
      if (params_.lse.data != nullptr) store_lse(r, sum, writes(left_out, r));
      // a row that sees no key is empty, whatever the sink
      factor = denominators[r] == 0.f ? 0.f : factor * ptx::reciprocal(denominator);
      CUTE_UNROLL
      for (int c = 0; c < C::kHeadDimV / 4; ++c) rows(r, c) *= factor;
    }
    if (left_out == 0 && given_.maps_out) {
      store_whole();
    } else if (left_out != (1u << kRows) - 1) {
      store_rows(left_out);
    }
  }

 private:
  CUTE_DEVICE int lane() const { return thread_ % 32; }
  CUTE_DEVICE bool writes(uint32_t left_out, int r) const { return !((left_out >> (lane() / 4 + 8 * r)) & 1); }

  // Of those under suspicion, as bits. Not among them: rows beyond the member, and those that see no key, whose NaNs
  // are of others' keys and become zeros.
  template <class Rows>
  CUTE_DEVICE uint32_t failed_rows(const bool (&suspect)[2], const float (&denominators)[2], Rows& rows) {
    uint32_t failed = 0;
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const bool empty = denominators[r] == 0.f && !loop_.sees_any(r);
      const bool lost = suspect[r] && !empty && lane() / 4 + 8 * r < place_.rows_left;
      failed |= uint32_t(lost) << (lane() / 4 + 8 * r);
      CUTE_UNROLL
      for (int c = 0; c < C::kHeadDimV / 4; ++c) rows(r, c) = empty ? 0.f : rows(r, c);
    }
    return __reduce_or_sync(0xffffffffu, failed);
  }

  CUTE_DEVICE void store_lse(int r, float sum, bool writes) {
    if (!writes || lane() % 4 != 0) return;
    float lse = loop_.softmax.log_sum_exp(r, sum);
    if constexpr (C::kExtras) lse = loop_.lse_of_true_slope(lse);
    params_.lse.data[place_.batch * params_.lse.batch + place_.head * params_.lse.head +
                     int64_t(place_.row + lane() / 4 + 8 * r) * params_.lse.row] = lse;
  }

  CUTE_DEVICE uint32_t word(int block, int r) const {
    const int pair = 4 * block + 2 * r;
    return ptx::pack<Element>(loop_.output(pair), loop_.output(pair + 1));
  }

  CUTE_DEVICE void store_whole() {
    constexpr int kChunkSize = kRows * C::kChunk, kBlocks = C::kChunk / 8;
    Element* staged = shared_.out.data() + thread_ / 32 * C::kChunksOut * kChunkSize;
    // of matrix lane / 8, which is rows 0 to 7 or 8 to 15 of the first or the second of two blocks of 8 channels
    const int row = lane() % 16, second = lane() / 16;
    const int swizzle = C::kChunk == 64 ? row % 8 : row / 2 % 4;  // of 16-byte units
    const uint32_t target = ptx::shared_address(staged) + row * int(C::kChunk * sizeof(Element));
    const int batch = batch_of_map(params_, place_.batch);
    CUTE_UNROLL
    for (int chunk = 0; chunk < C::kChunksV; ++chunk) {
      const int place = chunk % C::kChunksOut;
      if (lane() == 0) ptx::await_stores<C::kChunksOut - 1>();  // the one that had this place
      __syncwarp();
      CUTE_UNROLL
      for (int i = 0; i < kBlocks; i += 2) {
        const int block = chunk * kBlocks + i, unit = i ^ (second ^ swizzle);
        ptx::store_matrices(target + place * int(kChunkSize * sizeof(Element)) + 16 * unit, word(block, 0),
                            word(block, 1), word(block + 1, 0), word(block + 1, 1));
      }
      ptx::fence_async();
      __syncwarp();
      if (lane() == 0) {
        ptx::store_box(&given_.out, staged + place * kChunkSize, chunk * C::kChunk, place_.row, place_.head, batch);
        ptx::commit_stores();
      }
    }
  }

  CUTE_DEVICE void store_rows(uint32_t left_out) {
    // apart, each with its own code: what a tile does not run does not come between
    if (params_.out_vectors && params_.head_dim_v % 8 == 0) {
      visit_vectors(left_out, [](Element* target, uint4 vector, int channels) {
        if (channels > 0) *reinterpret_cast<uint4*>(target) = vector;
      });
    } else {
      visit_vectors(left_out,
                    [](Element* target, uint4 vector, int channels) { store_channels(target, vector, channels); });
    }
  }

  // Of the rows not left out, 8 channels at a time: visit(target, vector, how many are the tensor's)
  template <class Visit>
  CUTE_DEVICE void visit_vectors(uint32_t left_out, Visit visit) {
    Element* out = static_cast<Element*>(const_cast<void*>(params_.out.data)) + place_.batch * params_.out.batch +
                   place_.head * params_.out.head;
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      Element* row = out + int64_t(place_.row + lane() / 4 + 8 * r) * params_.out.row + 8 * (lane() % 4);
      const int channels = writes(left_out, r) ? params_.head_dim_v - 8 * (lane() % 4) : 0;
      CUTE_UNROLL
      for (int block = 0; block < C::kHeadDimV / 8; block += 4) {
        visit(row + 8 * block,
              transpose_in_quad(word(block, r), word(block + 1, r), word(block + 2, r), word(block + 3, r)),
              channels - 8 * block);
      }
    }
  }

  CUTE_DEVICE static void store_channels(Element* target, uint4 vector, int channels) {
    const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
    CUTE_UNROLL
    for (int i = 0; i < 8; ++i) {
      if (i < channels) target[i] = Element::bitcast(uint16_t(words[i / 2] >> (16 * (i % 2))));
    }
  }

  const KernelParams& given_;
  const Params& params_;
  typename C::SharedStorage& shared_;
  Mainloop<C>& loop_;
  const Place place_;
  const int thread_ = ptx::thread_again();
};

}  // namespace flashcute::cuda::sm90
