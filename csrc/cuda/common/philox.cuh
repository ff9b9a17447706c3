// Philox 4x32-10 (Salmon et al., 2011), the counter-based generator behind dropout.
#pragma once

#include <cstdint>

namespace flashcute::cuda {

struct PhiloxWords {
  uint32_t word[4];
};

__device__ __forceinline__ PhiloxWords philox(uint32_t key_low, uint32_t key_high, uint32_t c0, uint32_t c1,
                                              uint32_t c2, uint32_t c3) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(kMultiplier0, c0), low0 = kMultiplier0 * c0;
    const uint32_t high1 = __umulhi(kMultiplier1, c2), low1 = kMultiplier1 * c2;
    c0 = high1 ^ c1 ^ key_low;
    c1 = low1;
    c2 = high0 ^ c3 ^ key_high;
    c3 = low0;
    key_low += kWeyl0;
    key_high += kWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace flashcute::cuda
