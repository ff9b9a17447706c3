// What a kernel is given: one small nested struct, passed by value in constant memory. Strides are in elements.
#pragma once

#include <cstdint>

#include "core/plan.h"
#include "core/problem.h"

namespace flashcute::cuda {

// Up to this cap the lean softcap is precise enough: plain_scores.cuh.
inline constexpr float kMaxLeanSoftcap = 128.0f;

inline constexpr int kMaxLength = (1 << 29) - 1;  // of a member: what mask.cuh's int arithmetic bears

struct Operand {
  const void* data;
  int64_t batch, head, row;
  int64_t pass_bytes;  // from one pass of a tile's load to the next: rows_per_pass rows
};

struct LseView {
  float* data;  // null: not wanted
  int64_t batch, head, row;
};

struct LengthsView {
  const int32_t *cu_q, *cu_k, *used_k;  // null: absent
  int members, total_q, total_k;
};

// In keys beside the aligned diagonal; kOpen and above never bind.
struct BandView {
  static constexpr int kOpen = 1 << 30;
  int left, right;
  bool top_left;
};

struct KeyMaskView {
  const void* data;  // null: every key takes part
  int64_t batch, key;
  int element_size;
};

struct ScoreView {
  const void* data;  // null: absent
  int64_t batch, head, row, key;
  int element_size;  // masks: 1, 2, 4, 8; bias: 4 = float32, 2 = q's dtype
  bool pairs;        // every even key and the next lie in one aligned word
};

struct BlockMaskView {
  const void* data;  // null: absent
  int64_t batch, head, row, key;
  int element_size;
  int keys;  // blocks of keys
};

struct DropoutView {
  const uint64_t* state;  // (seed, offset) on the device, or null: the values below
  uint64_t seed, offset;
  uint32_t threshold;  // an element stays when its random word is not below; 0: no dropout
  float keep_scale;    // 1 / (1 - p)
};

// What the plain tiles of a call do to their scores; kNone: it has no plain tiles (plain_scores.cuh).
enum class PlainForm { kNone, kBare, kSoftcap, kAlibi, kSoftcapAlibi };

// Raw products s within it are those whose s^2 + shift has these exponent bits: that of greater ones has greater bits.
struct SoftcapRange {
  float shift;
  uint32_t exponent;
};

// Read by the kernels of mask class "any" alone.
struct ExtrasView {
  PlainForm plain;
  float softcap;       // 0: off
  float softcap_rate;  // 2 log2(e) scale / softcap: tanh(x) is made of 2^(2 log2(e) x)
  float softcap_log2;  // softcap * log2(e)
  // Of raw products s near 0, softcap * log2(e) * tanh is s (near_series[0] + near_series[1] u) of u = s^2 +
  // near.shift; and of those in the middle, s (middle_series[0] + middle_series[1] s^2 + middle_series[2] s^4).
  SoftcapRange softcap_near, softcap_middle;
  float softcap_near_series[2], softcap_middle_series[3];
  const float* alibi;
  int64_t alibi_batch, alibi_head;
  const void* sinks;
  int64_t sinks_head;
  bool sinks_float32;
  ScoreView dense_mask, bias;
  DropoutView dropout;
  BlockMaskView block_mask;
};

// The order of the output tiles: see scheduler.cuh. Packed: slots in place of a head's tiles.
struct ScheduleView {
  int tiles_m, heads, heads_per_group;
};

struct Params {
  Operand q, k, v, out;
  LseView lse;
  int heads_q, group, seq_q, seq_k, head_dim, head_dim_v;
  float scale, scale_log2;  // scale_log2 = scale * log2(e)
  bool out_vectors;         // out may be stored 16 bytes at a time
  ScheduleView schedule;
  BandView band;
  LengthsView lengths;
  KeyMaskView key_mask;
  ExtrasView extras;
};

// How many tiles a head has, and how many (batch, head) pairs have tiles of their own.
int64_t tiles_of_head(const Problem&, int block_m);
int64_t heads_with_tiles(const Problem&);

// Host side. `workspace` may be null where the plan stages nothing.
Params make_params(const Problem&, const Plan&, const Buffers&, void* workspace, int rows_per_pass);

}  // namespace flashcute::cuda
