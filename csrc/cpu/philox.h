// Philox 4x32-10, the counter-based generator of the dropout mask.
#pragma once

#include "cpu/element.h"

namespace flashcute::cpu {

FC_INLINE void philox(uint32_t (&c)[4], uint32_t key_lo, uint32_t key_hi) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xD2511F53ull * c[0];
    const uint64_t b = 0xCD9E8D57ull * c[2];
    const uint32_t c1 = c[1], c3 = c[3];
    c[0] = static_cast<uint32_t>(b >> 32) ^ c1 ^ key_lo;
    c[1] = static_cast<uint32_t>(b);
    c[2] = static_cast<uint32_t>(a >> 32) ^ c3 ^ key_hi;
    c[3] = static_cast<uint32_t>(a);
    key_lo += 0x9E3779B9u;
    key_hi += 0xBB67AE85u;
  }
}

}  // namespace flashcute::cpu
