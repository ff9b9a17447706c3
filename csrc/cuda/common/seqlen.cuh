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

__device__ __forceinline__ int clamped_start(const int32_t* cu_seqlens, int member, int total) {
  return clamp_length(cu_seqlens[member], 0, total);
}

__device__ __forceinline__ int clamped_length(const int32_t* cu_seqlens, int member, int first, int total) {
  return min(clamp_length(cu_seqlens[member + 1], first, total) - first, kMaxLength);
}

__device__ __forceinline__ Member member_of(const Params& params, int batch) {
  const LengthsView& lengths = params.lengths;
  Member member{0, 0, params.seq_q, params.seq_k, 0};
  if (lengths.cu_q != nullptr) {
    member.first_q = clamped_start(lengths.cu_q, batch, lengths.total_q);
    member.len_q = clamped_length(lengths.cu_q, batch, member.first_q, lengths.total_q);
    member.first_k = clamped_start(lengths.cu_k, batch, lengths.total_k);
    member.len_k = clamped_length(lengths.cu_k, batch, member.first_k, lengths.total_k);
  }
  if (lengths.used_k != nullptr) member.len_k = clamp_length(lengths.used_k[batch], 0, member.len_k);
  if (!params.band.top_left) member.diagonal = member.len_k - member.len_q;
  return member;
}

}  // namespace flashcute::cuda
