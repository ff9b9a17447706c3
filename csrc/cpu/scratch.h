// What one thread keeps between the tiles of a unit, carved from its part of the workspace.
#pragma once

#include "cpu/element.h"
#include "cpu/tile.h"

namespace flashcute::cpu {

// Visible keys of a row or strip in a tile, relative to its first.
struct Range {
  int lo = 0, hi = 0;
  __attribute__((always_inline)) bool empty() const { return lo >= hi; }
};

template <class K>
struct Scratch {
  static constexpr int kStrips = 8;                       // strips whose scores are held at once
  static constexpr int64_t kKeysPerSum = 4096;            // whose sums are float32; those of more are float64
  static constexpr int kScoreStride = K::kBlockN + 16;    // not a power of two, for the L1 cache's sets
  static constexpr int kBlocks = K::kBlockN / K::kLanes;  // vectors of a row of scores

  float* q;           // (rows, q_stride), each row divided by a power of two
  double* q_scale;    // (rows) that power
  float* factor;      // (rows) score_factor * q_scale
  double* m;          // (rows) largest score so far, log2 units
  float* o;           // (rows, o_stride) of the last up to kKeysPerSum keys, not yet normalised
  float* l;           // (rows, l_stride) sum of their weights, a partial sum in each lane; behind it, where weights are
                      // rounded, the same of the weights that values are multiplied by
  double* total_o;    // (rows, o_stride) of all earlier keys
  double* total_l;    // (rows, l_stride)
  double* total_m;    // (rows) what these two refer to
  int64_t* lo;        // (rows) first visible key by the band
  int64_t* hi;        // (rows) one beyond the last
  float* k;           // packed keys of the tile
  float* v;           // packed values of the tile
  float* s;           // (kStrips * strip, kScoreStride) scores, then weights
  float* correction;  // (kStrips * strip) by which earlier sums shrink
  uint32_t* seen;     // (kStrips * strip, kBlocks) visible keys, kept where a value is not finite
  float* addend;      // (kBlockN) of one row
  float* products;    // (kBlockN) of one row, before what is added to them
  float* key_addend;  // (kBlockN) of the key mask
  float* keep;        // (kBlockN) dropout of one row
  bool* hidden;       // (kBlockN) by the key mask
  Range* visible;     // (rows) keys of the tile that each row may see by band and block mask; with a block mask alone
  int64_t q_stride, o_stride;
  static constexpr int64_t l_stride = (K::kRounded ? 2 : 1) * K::kLanes;

  static constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

  // With a null base: only counts.
  static size_t carve(Scratch& s, char* base, int64_t rows, int64_t head_dim, int64_t head_dim_v) {
    rows = round_up(rows, K::kStrip);
    s.q_stride = round_up(head_dim, K::kPair) / K::kPair;
    s.o_stride = round_up(head_dim_v, K::kLanes);
    size_t used = 0;
    const auto take = [&](auto*& member, int64_t count) {
      using T = typename RemovePointer<decltype(+member)>::Type;
      member = base ? reinterpret_cast<T*>(base + used) : nullptr;
      used += static_cast<size_t>(round_up(count * static_cast<int64_t>(sizeof(T)), 64));
    };
    const int64_t held = kStrips * K::kStrip;
    take(s.q, rows * s.q_stride);
    take(s.q_scale, rows);
    take(s.factor, rows);
    take(s.m, rows);
    take(s.o, rows * s.o_stride);
    take(s.l, rows * l_stride);
    take(s.total_o, rows * s.o_stride);
    take(s.total_l, rows * l_stride);
    take(s.total_m, rows);
    take(s.lo, rows);
    take(s.hi, rows);
    take(s.k, K::kBlockN * s.q_stride);
    take(s.v, K::kBlockN / K::kPair * round_up(head_dim_v, K::kPanel));
    take(s.s, held * kScoreStride);
    take(s.correction, held + K::kLanes);
    take(s.seen, held * kBlocks);
    take(s.addend, K::kBlockN);
    take(s.products, K::kBlockN);
    take(s.key_addend, K::kBlockN);
    take(s.keep, K::kBlockN);
    take(s.hidden, K::kBlockN);
    take(s.visible, rows);
    return used;
  }

 private:
  template <class P>
  struct RemovePointer;
  template <class T>
  struct RemovePointer<T*> {
    using Type = T;
  };
};

}  // namespace flashcute::cpu
