// One batch member's lengths. Those held on the device are clamped before any address is made of them.
#pragma once

#include "cuda/common/params.h"

namespace flashcute::cuda {

struct Member {
  int first_q, first_k;  // packed: the member's first row
  int len_q, len_k;
  int diagonal;  // row i is aligned with key i + diagonal
};

__device__ __forceinline__ int clamp_length(int value, int low, int high) {
  return min(max(value, low), high);
}

__device__ __forceinline__ Member member_of(const Params& params, int batch) {
  const LengthsView& lengths = params.lengths;
  Member member{0, 0, params.seq_q, params.seq_k, 0};
  if (lengths.cu_q != nullptr) {
    member.first_q = clamp_length(lengths.cu_q[batch], 0, lengths.total_q);
    const int end_q = clamp_length(lengths.cu_q[batch + 1], member.first_q, lengths.total_q);
    member.len_q = min(end_q - member.first_q, params.seq_q);
    member.first_k = clamp_length(lengths.cu_k[batch], 0, lengths.total_k);
    member.len_k = clamp_length(lengths.cu_k[batch + 1], member.first_k, lengths.total_k) - member.first_k;
  }
  if (lengths.used_k != nullptr) member.len_k = clamp_length(lengths.used_k[batch], 0, member.len_k);
  if (!params.band.top_left) member.diagonal = member.len_k - member.len_q;
  return member;
}

}  // namespace flashcute::cuda
