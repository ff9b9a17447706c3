#include "cpu/lengths.h"

#include <algorithm>
#include <string>

#include "core/backend.h"
#include "core/error.h"

namespace flashcute::cpu {
namespace {

void clamp_member(const int32_t* cu_seqlens, int64_t batch, int64_t total, int64_t& start, int64_t& len) {
  start = std::clamp<int64_t>(cu_seqlens[batch], 0, total);
  len = std::clamp<int64_t>(cu_seqlens[batch + 1], start, total) - start;
}

[[noreturn]] void reject(const char* argument, int64_t entry, const std::string& expected, int64_t given) {
  throw Error(FLASHCUTE_STATUS_BAD_PARAM, std::string("FlashAttention(") + argument + "): entry " +
                                              std::to_string(entry) + ": expected " + expected + ", given " +
                                              std::to_string(given));
}

void check_cumulative(const char* name, const char* bound_name, const int32_t* cu_seqlens, int64_t batch, int64_t total,
                      int64_t longest) {
  if (cu_seqlens[0] < 0) reject(name, 0, "at least 0", cu_seqlens[0]);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t start = cu_seqlens[b], end = cu_seqlens[b + 1];
    if (end < start) reject(name, b + 1, "at least its predecessor " + std::to_string(start), end);
    if (end > total) reject(name, b + 1, "at most the packed length " + std::to_string(total), end);
    if (end - start > longest) {
      reject(name, b + 1, "a member no longer than " + std::string(bound_name) + " " + std::to_string(longest),
             end - start);
    }
  }
}

}  // namespace

Member member_of(const Problem& p, const Buffers& buffers, int64_t batch) {
  Member m;
  m.len_q = p.seq_q;
  m.len_k = p.seq_k;
  if (p.lengths.packed_q) clamp_member(buffers.cu_seqlens_q, batch, p.lengths.total_q, m.start_q, m.len_q);
  if (p.lengths.packed_k) clamp_member(buffers.cu_seqlens_k, batch, p.lengths.total_k, m.start_k, m.len_k);
  if (p.lengths.seqused_k) m.len_k = std::clamp<int64_t>(buffers.seqused_k[batch], 0, m.len_k);
  return m;
}

void check_lengths(const Problem& p, const Buffers& buffers) {
  if (p.lengths.packed_q) {
    check_cumulative("cu_seqlens_q", "max_seqlen_q", buffers.cu_seqlens_q, p.batch, p.lengths.total_q, p.seq_q);
  }
  if (p.lengths.packed_k) {
    check_cumulative("cu_seqlens_k", "max_seqlen_k", buffers.cu_seqlens_k, p.batch, p.lengths.total_k, p.seq_k);
  }
  if (p.lengths.seqused_k) {
    for (int64_t b = 0; b < p.batch; ++b) {
      const int64_t longest =
          p.lengths.packed_k ? int64_t{buffers.cu_seqlens_k[b + 1]} - buffers.cu_seqlens_k[b] : p.seq_k;
      const int64_t used = buffers.seqused_k[b];
      if (used < 0 || used > longest) reject("seqused_k", b, "0 to the length " + std::to_string(longest), used);
    }
  }
}

}  // namespace flashcute::cpu
