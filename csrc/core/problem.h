// What is to be computed, checked and in one canonical form: the output of api/validate, the input of everything else.
// Plain data without pointers; the pointers of one run are Buffers.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/dtype.h"

namespace flashcute {

enum class DeviceType : int32_t { kCpu = FLASHCUTE_DEVICE_CPU, kNvidia = FLASHCUTE_DEVICE_NVIDIA };
enum class Alignment : int32_t {
  kBottomRight = FLASHCUTE_ALIGNMENT_BOTTOM_RIGHT,
  kTopLeft = FLASHCUTE_ALIGNMENT_TOP_LEFT
};

// Strides in elements. Canonical axes (batch, head, position, channel); the channel stride is 1.
// Packed tensors have batch stride 0: member b starts at row cu_seqlens[b].
struct Strides {
  int64_t batch = 0, head = 0, row = 0;
};

// Strides of a tensor broadcast to (batch, heads_q, seq_q, seq_k); broadcast axes have stride 0.
struct ScoreTensor {
  bool present = false;
  DType dtype = DType::kF32;
  int64_t batch = 0, head = 0, row = 0, key = 0;
};

// Block masks stand for kMaskBlock queries by kMaskBlock keys an element, counted from row 0 and key 0.
inline constexpr int64_t kMaskBlock = FLASHCUTE_MASK_BLOCK_SIZE;

// Keys that take part, (batch, seq_k), or (total_k) when packed (batch stride 0, indexed by the packed row).
struct KeyMask {
  bool present = false;
  DType dtype = DType::kBool;
  int64_t batch = 0, key = 1;
};

struct Alibi {
  bool present = false;
  int64_t batch = 0, head = 1;  // strides of slopes, float32; batch 0 for (heads_q)
};

struct Sinks {
  bool present = false;
  DType dtype = DType::kF32;
  int64_t head = 1;
};

struct Lse {
  bool present = false;
  int64_t batch = 0, head = 0, row = 1;  // packed: (heads_q, total_q), batch 0
};

// The weights after dropout, (batch, heads_q, seq_q, seq_k) float32. Never packed.
struct Probs {
  bool present = false;
  int64_t batch = 0, head = 0, row = 0, key = 1;
};

// Which keys a row may see, before masks: with d = (seq_k - seq_q) of the member for bottom right, 0 for top left,
//   i + d - left <= j <= i + d + right.
struct Band {
  Alignment alignment = Alignment::kBottomRight;
  int64_t left = kUnbounded, right = kUnbounded;  // causal: right = 0
  static constexpr int64_t kUnbounded = -1;
  bool bounded() const { return left != kUnbounded || right != kUnbounded; }
};

// Variable lengths, held on the device and not to be trusted: clamp to [0, total] before any address is made of one.
struct Lengths {
  bool packed_q = false, packed_k = false;  // cu_seqlens_q, cu_seqlens_k (batch + 1); both or neither
  bool seqused_k = false;                   // (batch)
  int64_t total_q = 0, total_k = 0;         // packed rows in all; otherwise batch * seq
};

struct Dropout {
  float p = 0.0f;
  bool state_on_device = false;
  // A weight stays where its random word is not below this.
  uint32_t threshold() const { return static_cast<uint32_t>(std::ceil(static_cast<double>(p) * 4294967296.0)); }
  float keep_scale() const { return static_cast<float>(1.0 / (1.0 - static_cast<double>(p))); }
};

struct Problem {
  DeviceType device = DeviceType::kCpu;
  int device_id = 0;
  flashcuteBackend_t backend = FLASHCUTE_BACKEND_AUTO;

  DType dtype = DType::kF32;  // of q, k, v, out
  int64_t batch = 0, heads_q = 0, heads_k = 0;
  int64_t seq_q = 0, seq_k = 0;  // packed: bounds of a member's lengths
  int64_t head_dim = 0, head_dim_v = 0;
  Strides q, k, v, out;
  uint32_t min_alignment = 16;  // bytes, of the run's q, k, v, out pointers

  float scale = 1.0f;
  float softcap = 0.0f;
  Band band;
  KeyMask key_mask;
  ScoreTensor dense_mask, bias;
  ScoreTensor block_mask;  // its row and key strides step over blocks
  Alibi alibi;
  Sinks sinks;
  Lse lse;
  Probs probs;
  Lengths lengths;
  Dropout dropout;
  bool checked = false;

  int64_t group() const { return heads_q / heads_k; }
  bool packed() const { return lengths.packed_q; }
};

// One run's pointers. Those of absent tensors are null; key_mask may be null though declared.
struct Buffers {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  float *lse = nullptr, *probs = nullptr;
  const void *key_mask = nullptr, *dense_mask = nullptr, *block_mask = nullptr, *bias = nullptr;
  const float* alibi_slopes = nullptr;
  const void* sinks = nullptr;
  const int32_t *cu_seqlens_q = nullptr, *cu_seqlens_k = nullptr, *seqused_k = nullptr;
  const uint64_t* dropout_state = nullptr;
  uint64_t seed = 0, offset = 0;
};

}  // namespace flashcute
