// What makes scores -inf: the ends and bounds of what a row sees, and the key mask. Scores are a thread's part of an
// accumulator, (rows, columns): its rows are 8 apart, its columns 0, 1, 8, 9, 16, .. from its first on.
#pragma once

#include <cute/tensor.hpp>

#include "cuda/common/mask.cuh"

namespace flashcute::cuda {

// Where a thread's scores lie: row(r), key(c) within the member.
struct ElementPlace {
  int first_row, first_key;  // of element (0, 0)
  __device__ __forceinline__ int row(int r) const { return first_row + 8 * r; }
  __device__ __forceinline__ int key(int c) const { return first_key + column(c); }
  __device__ __forceinline__ static constexpr int column(int c) { return 8 * (c / 2) + c % 2; }
};

// Where the row does not see the key, or there is none.
template <bool kBanded, class Scores>
__device__ __forceinline__ void mask_scores(Scores& scores, const BandView& view, const Member& member,
                                            ElementPlace place) {
#pragma unroll
  for (int r = 0; r < cute::size<0>(scores); ++r) {
    const RowBand band = row_band<kBanded>(view, member, place.row(r), place.row(r));
    const int begin = band.any_begin - place.first_key, end = band.any_end - place.first_key;
#pragma unroll
    for (int c = 0; c < cute::size<1>(scores); ++c) {
      const int column = ElementPlace::column(c);
      const bool seen = (!kBanded || column >= begin) && column < end;
      scores(r, c) = seen ? scores(r, c) : -INFINITY;
    }
  }
}

// Where the key mask hides the key. first_column: the thread's, of the tile's columns.
template <class Scores, int kColumns>
__device__ __forceinline__ void hide_keys(Scores& scores, const Columns<kColumns>& columns, int first_column) {
  uint32_t words[Columns<kColumns>::kWords];
#pragma unroll
  for (int i = 0; i < Columns<kColumns>::kWords; ++i) words[i] = columns.words[i] >> first_column;
#pragma unroll
  for (int c = 0; c < cute::size<1>(scores); ++c) {
    const int column = ElementPlace::column(c);
    const bool seen = (words[column / 32] >> (column % 32)) & 1;
#pragma unroll
    for (int r = 0; r < cute::size<0>(scores); ++r) scores(r, c) = seen ? scores(r, c) : -INFINITY;
  }
}

}  // namespace flashcute::cuda
