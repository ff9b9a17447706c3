// What the dispatcher hands to the kernels of one instruction set. Plain data and function pointers only: this header
// is compiled with different instruction sets, so it must not define any inline function.
#pragma once

#include <cstddef>
#include <cstdint>

#include "flashcute/flashcute.h"

namespace flashcute::cpu {

constexpr int64_t kMaxHeadDim = 512;
constexpr int kMaskBlock = FLASHCUTE_MASK_BLOCK_SIZE;

enum class FloatType : int32_t { kF32, kF16, kBF16 };

// A tensor of (batch, head, query, key), read element by element. Strides in elements.
struct ScoreView {
  const void* data = nullptr;  // null: absent
  int32_t width = 0;           // masks: bytes of an element
  FloatType type = FloatType::kF32;
  int64_t batch = 0, head = 0, row = 0, key = 0;
};

// Constant during a run.
struct Job {
  int64_t head_dim = 0, head_dim_v = 0, group = 1, heads_q = 0;
  int64_t q_head = 0, q_row = 0, k_row = 0, v_row = 0, out_head = 0, out_row = 0, lse_head = 0,
          lse_row = 0;                                                   // elements
  int64_t probs_head = 0, probs_row = 0, probs_key = 1, probs_keys = 0;  // probs_keys: of each row, used or not
  int64_t max_rows = 0;                                                  // query rows of a unit at most
  double score_factor = 1;                                               // scale * log2(e), or scale / softcap
  double softcap_log2 = 0;                                               // softcap * log2(e); 0: off
  bool left_bounded = false, right_bounded = false;
  int64_t left = 0, right = 0;
  bool top_left = false;
  int32_t key_mask_width = 0;
  int64_t key_mask_key = 1;
  ScoreView mask, bias;
  ScoreView blocks;  // row and key strides step over kMaskBlock queries or keys
  const float* alibi = nullptr;
  int64_t alibi_batch = 0, alibi_head = 0;
  const void* sinks = nullptr;
  FloatType sink_type = FloatType::kF32;
  int64_t sink_head = 0;
  bool dropout = false;
  uint32_t dropout_threshold = 0;  // keep when u32 >= threshold
  float dropout_scale = 1;
  uint64_t seed = 0, offset = 0;
};

// Query rows that share a key head, and where block masks differ by head, their own head (group is then 1): row r is
// query r / group of head first_head + r % group.
struct Unit {
  int64_t batch = 0, first_head = 0;
  int64_t first_row = 0, rows = 0;
  int64_t len_q = 0, len_k = 0;                         // of this member; len_k: the used part
  const void *q = nullptr, *k = nullptr, *v = nullptr;  // row 0 of the member; q at first_head
  void* out = nullptr;
  float *lse = nullptr, *probs = nullptr;
  const void* key_mask = nullptr;  // of key 0 of the member
};

struct TileKernel {
  int strip = 0;    // query rows of a register tile
  int block_n = 0;  // keys of a tile
  size_t (*scratch_bytes)(int64_t rows, int64_t head_dim, int64_t head_dim_v) = nullptr;  // a multiple of 64
  void (*attend)(const Job&, const Unit&, void* scratch) = nullptr;                       // scratch 64-byte aligned
};

struct TileKernels {
  TileKernel f32, f16, bf16;
};

// One for each instruction set; those that this build lacks are absent from isa.cpp's list.
TileKernels generic_kernels();
TileKernels avx2_kernels();
TileKernels avx512_kernels();
TileKernel avx512_bf16_kernel();

}  // namespace flashcute::cpu
