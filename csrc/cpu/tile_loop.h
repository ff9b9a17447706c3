// The flow of one unit: for each tile of keys pack keys and values once, then for a few strips of query rows at a time
// scores = q k, softmax, out += weights v.
#pragma once

#include <math.h>

#include "cpu/gemm.h"
#include "cpu/scratch.h"
#include "cpu/softmax.h"
#include "cpu/sums.h"
#include "cpu/tile.h"

namespace flashcute::cpu {

template <class K>
class TileLoop {
  using Simd = typename K::Simd;
  using Vec = typename K::Vec;
  using Element = typename K::Element;
  static constexpr int kLanes = K::kLanes;
  static constexpr int kStrip = K::kStrip;
  static constexpr int kHeld = Scratch<K>::kStrips * kStrip;

 public:
  static TileKernel kernel() { return {kStrip, K::kBlockN, scratch_bytes, attend}; }

 private:
  static size_t scratch_bytes(int64_t rows, int64_t head_dim, int64_t head_dim_v) {
    Scratch<K> scratch;
    return Scratch<K>::carve(scratch, nullptr, rows, head_dim, head_dim_v);
  }

  static void attend(const Job& job, const Unit& unit, void* memory) {
    TileLoop loop(job, unit, static_cast<char*>(memory));
    loop.start_rows();
    loop.visit_tiles(false);
    loop.finish_rows();
    if (unit.probs) {
      loop.clear_probs();
      loop.visit_tiles(true);
    }
  }

  // for_probs: once more, now that each row's largest score and denominator are known.
  void visit_tiles(bool for_probs) {
    const int64_t begin = scratch_.lo[0] / K::kBlockN * K::kBlockN;
    const int64_t end = scratch_.hi[unit_.rows - 1];
    for (int64_t j0 = begin; j0 < end; j0 += K::kBlockN) {
      if (!for_probs && j0 % Scratch<K>::kKeysPerSum == 0) add_to_totals(j0);
      const int64_t n = unit_.len_k - j0 < K::kBlockN ? unit_.len_k - j0 : K::kBlockN;
      if (start_tile(j0, static_cast<int>(n), for_probs)) visit_rows(for_probs);
    }
  }

  TileLoop(const Job& job, const Unit& unit, char* memory) : job_(job), unit_(unit) {
    Scratch<K>::carve(scratch_, memory, job.max_rows, job.head_dim, job.head_dim_v);
  }

  // Packs the queries, empties the sums and finds each row's band.
  void start_rows() {
    const int64_t padded = Scratch<K>::round_up(unit_.rows, kStrip);
    const int64_t diagonal = job_.top_left ? 0 : unit_.len_k - unit_.len_q;
    const int64_t far = unit_.len_k + unit_.len_q;  // bounds beyond this see everything
    const int64_t left = job_.left < far ? job_.left : far;
    const int64_t right = job_.right < far ? job_.right : far;
    int64_t i = unit_.first_row / job_.group, g = unit_.first_row % job_.group;
    const Element* q = static_cast<const Element*>(unit_.q);
    for (int64_t r = 0; r < unit_.rows; ++r) {
      const Element* query = q + g * job_.q_head + i * job_.q_row;
      scratch_.q_scale[r] = pack_query<K>(query, job_.head_dim, scratch_.q + r * scratch_.q_stride);
      scratch_.factor[r] = static_cast<float>(job_.score_factor * scratch_.q_scale[r]);
      int64_t lo = job_.left_bounded ? i + diagonal - left : 0;
      int64_t hi = job_.right_bounded ? i + diagonal + right + 1 : unit_.len_k;
      lo = lo < 0 ? 0 : lo > unit_.len_k ? unit_.len_k : lo;
      hi = hi < 0 ? 0 : hi > unit_.len_k ? unit_.len_k : hi;
      scratch_.lo[r] = lo;
      scratch_.hi[r] = hi;
      if (Totals<K>::has(scratch_, r)) Totals<K>::start_row(scratch_, r);
      if (++g == job_.group) g = 0, ++i;
    }
    memset(scratch_.q + unit_.rows * scratch_.q_stride, 0,
           static_cast<size_t>((padded - unit_.rows) * scratch_.q_stride) * sizeof(float));
    memset(scratch_.o, 0, static_cast<size_t>(padded * scratch_.o_stride) * sizeof(float));
    memset(scratch_.l, 0, static_cast<size_t>(padded * scratch_.l_stride) * sizeof(float));
    for (int64_t r = 0; r < padded; ++r) scratch_.m[r] = -__builtin_inf();
  }

  template <class T>
  void read_key_mask(int64_t j0, int n, int& visible) {
    const T* mask = static_cast<const T*>(unit_.key_mask) + j0 * job_.key_mask_key;
    for (int j = 0; j < n; ++j) {
      const bool takes_part = mask[j * job_.key_mask_key] != 0;
      scratch_.hidden[j] = !takes_part;
      visible += takes_part;
    }
  }

  FC_INLINE bool is_set(const ScoreView& mask, int64_t offset) {
    bool set = false;
    Scores<K>::with_mask_element(mask.width,
                                 [&](auto zero) { set = static_cast<const decltype(zero)*>(mask.data)[offset] != 0; });
    return set;
  }

  // The keys of the tile that a block of queries sees. A tile has one or two blocks of keys, so they are one range.
  Range visible_blocks(int64_t query_block) const {
    static_assert(K::kBlockN % kMaskBlock == 0 && K::kBlockN <= 2 * kMaskBlock, "what is seen must be one range");
    const ScoreView& mask = job_.blocks;
    const int64_t at = unit_.batch * mask.batch + unit_.first_head * mask.head + query_block * mask.row;
    Range range;
    for (int lo = 0; lo < tile_.n; lo += kMaskBlock) {
      if (!is_set(mask, at + (tile_.j0 + lo) / kMaskBlock * mask.key)) continue;
      if (range.empty()) range.lo = lo;
      range.hi = lo + kMaskBlock < tile_.n ? lo + kMaskBlock : tile_.n;
    }
    return range;
  }

  // Narrows the tile to the blocks of keys that any row sees, and finds what each row sees by band and block mask.
  // False where there is nothing.
  bool find_visible() {
    const int64_t rows_of_block = kMaskBlock * job_.group;  // in a unit
    const int64_t first_block = unit_.first_row / rows_of_block;
    const int64_t last_block = (unit_.first_row + unit_.rows - 1) / rows_of_block;
    Range all;
    for (int64_t block = first_block; block <= last_block; ++block) {
      const Range seen = visible_blocks(block);
      if (seen.empty()) continue;
      if (all.empty() || seen.lo < all.lo) all.lo = seen.lo;
      if (seen.hi > all.hi) all.hi = seen.hi;
    }
    if (all.empty()) return false;
    tile_.j0 += all.lo;
    tile_.n = all.hi - all.lo;
    bool any = false;
    for (int64_t block = first_block, r = 0; block <= last_block; ++block) {
      const Range seen = visible_blocks(block);
      const int64_t next = (block + 1) * rows_of_block - unit_.first_row;
      for (const int64_t end = next < unit_.rows ? next : unit_.rows; r < end; ++r) {
        const Range band = clip(scratch_.lo[r], scratch_.hi[r], tile_);
        Range& visible = scratch_.visible[r];
        visible.lo = band.lo > seen.lo ? band.lo : seen.lo;
        visible.hi = band.hi < seen.hi ? band.hi : seen.hi;
        any = any || !visible.empty();
      }
    }
    return any;
  }

  // Packs keys and, but for probs, values; false where the block mask or the key mask hides the whole tile.
  bool start_tile(int64_t j0, int n, bool for_probs) {
    tile_.j0 = j0;
    tile_.n = n;
    tile_.some_hidden = false;
    if (job_.blocks.data) {
      if (!find_visible()) return false;
      j0 = tile_.j0;
      n = tile_.n;
    }
    if (unit_.key_mask) {
      int visible = 0;
      Scores<K>::with_mask_element(job_.key_mask_width,
                                   [&](auto zero) { read_key_mask<decltype(zero)>(j0, n, visible); });
      if (visible == 0) return false;
      tile_.some_hidden = visible < n;
      if (tile_.some_hidden) {
        for (int j = 0; j < n; ++j) scratch_.key_addend[j] = 0;
        Scores<K>::hide_keys(scratch_.hidden, n, scratch_.key_addend);
      }
    }
    const bool* hidden = tile_.some_hidden ? scratch_.hidden : nullptr;
    K::pack_keys(static_cast<const Element*>(unit_.k) + j0 * job_.k_row, job_.k_row, n, job_.head_dim, hidden,
                 scratch_.k);
    if (for_probs) {
      tile_.values_finite = false;  // each row's visible keys are then noted
      tile_.value_scale = 1;
      return true;
    }
    const Element* values = static_cast<const Element*>(unit_.v) + j0 * job_.v_row;
    tile_.values_finite =
        K::pack_values(values, job_.v_row, n, job_.head_dim_v, hidden, scratch_.v) || look_at_values(values, n, hidden);
    return true;
  }

  // Of a tile with huge values or such that are not finite: are all finite? From the first huge one on the weights of
  // values are scaled.
  bool look_at_values(const Element* v, int n, const bool* hidden) {
    bool finite = true, huge = false;
    for (int j = 0; j < n; ++j) {
      if (hidden && hidden[j]) continue;
      for (int64_t c = 0; c < job_.head_dim_v; ++c) {
        const float magnitude = __builtin_fabsf(to_float(v[j * job_.v_row + c]));
        if (!(magnitude < __builtin_inff())) {
          finite = false;
        } else if (magnitude >= kHugeValue) {
          huge = true;
        }
      }
    }
    if (huge && tile_.value_scale == 1.0f) {
      tile_.value_scale = kHugeValueScale;
      for (int64_t i = 0; i < unit_.rows * scratch_.o_stride; ++i) scratch_.o[i] *= kHugeValueScale;
    }
    return finite;
  }

  // Before key j0.
  void add_to_totals(int64_t j0) {
    for (int64_t r = 0; r < unit_.rows; ++r) {
      if (scratch_.lo[r] < j0 && j0 < scratch_.hi[r]) Totals<K>::add_row(scratch_, r, tile_.value_scale);
    }
  }

  FC_INLINE Range clip(int64_t lo, int64_t hi, const KeyTile& tile) {
    const int64_t a = lo - tile.j0, b = hi - tile.j0;
    return {static_cast<int>(a < 0        ? 0
                             : a > tile.n ? tile.n
                                          : a),
            static_cast<int>(b < 0        ? 0
                             : b > tile.n ? tile.n
                                          : b)};
  }

  // All rows of the unit against the packed tile, kStrips strips at a time.
  void visit_rows(bool for_probs) {
    Range rows[kHeld], strips[Scratch<K>::kStrips];
    const Range* const visible = job_.blocks.data ? scratch_.visible : nullptr;
    for (int64_t r0 = 0; r0 < unit_.rows; r0 += kHeld) {
      const int count = static_cast<int>(unit_.rows - r0 < kHeld ? unit_.rows - r0 : kHeld);
      const int strip_count = (count + kStrip - 1) / kStrip;
      bool any = false;
      for (int t = 0; t < strip_count; ++t) {
        Range all;
        for (int r = t * kStrip; r < count && r < (t + 1) * kStrip; ++r) {
          rows[r] = visible ? visible[r0 + r] : clip(scratch_.lo[r0 + r], scratch_.hi[r0 + r], tile_);
          if (rows[r].empty()) continue;
          if (all.empty()) all = rows[r];
          if (rows[r].lo < all.lo) all.lo = rows[r].lo;
          if (rows[r].hi > all.hi) all.hi = rows[r].hi;
        }
        strips[t] = all;
        any = any || !all.empty();
      }
      if (!any) continue;
      compute_scores(r0, count, strip_count, strips);
      for (int t = 0; t < strip_count; ++t) {
        if (strips[t].empty()) continue;
        const int r = t * kStrip;
        Softmax<K>::strip(job_, unit_, scratch_, tile_,
                          {r0 + r, rows_of(t, count), rows + r, strips[t], scratch_.s + r * Scratch<K>::kScoreStride,
                           scratch_.correction + r, scratch_.seen + r * Scratch<K>::kBlocks});
      }
      if (for_probs) {
        store_probs(r0, count, rows);
      } else if (tile_.values_finite) {
        add_outputs(r0, count, strip_count, strips);
      } else {
        add_outputs_with_care(r0, count, strips);
      }
    }
  }

  FC_INLINE int rows_of(int strip, int count) {
    return count - strip * kStrip < kStrip ? count - strip * kStrip : kStrip;
  }

  // Panel by panel, so that a panel of keys stays in the L1 cache for all strips.
  void compute_scores(int64_t r0, int count, int strip_count, const Range* strips) {
    const int64_t depth = scratch_.q_stride;
    for (int panel = 0; panel < tile_.n; panel += K::kPanel) {
      for (int t = 0; t < strip_count; ++t) {
        if (strips[t].empty()) continue;
        const int lo = Softmax<K>::step_down(strips[t].lo), hi = Softmax<K>::step_up(strips[t].hi);
        const int begin = lo > panel ? lo : panel;
        const int end = hi < panel + K::kPanel ? hi : panel + K::kPanel;
        if (begin >= end) continue;
        const int r = t * kStrip;
        Gemm<K>::scores(rows_of(t, count), (end - begin) / kLanes, scratch_.q + (r0 + r) * depth, depth,
                        scratch_.k + panel * depth + (begin - panel), depth,
                        scratch_.s + r * Scratch<K>::kScoreStride + begin, Scratch<K>::kScoreStride);
      }
    }
  }

  void add_outputs(int64_t r0, int count, int strip_count, const Range* strips) {
    const int64_t width = scratch_.o_stride;
    for (int64_t c = 0; c < width; c += K::kPanel) {
      const int vecs = static_cast<int>((width - c < K::kPanel ? width - c : K::kPanel) / kLanes);
      const float* panel = scratch_.v + c * (K::kBlockN / K::kPair);
      for (int t = 0; t < strip_count; ++t) {
        if (strips[t].empty()) continue;
        const int r = t * kStrip;
        const int begin = strips[t].lo / K::kPair, end = (strips[t].hi + K::kPair - 1) / K::kPair;
        Gemm<K>::outputs(rows_of(t, count), vecs, scratch_.correction + r,
                         scratch_.s + r * Scratch<K>::kScoreStride + begin, Scratch<K>::kScoreStride,
                         panel + begin * K::kPanel, end - begin, scratch_.o + (r0 + r) * width + c, width);
      }
    }
  }

  // Key by key, leaving out those a row does not see: their values may be NaN or infinite.
  void add_outputs_with_care(int64_t r0, int count, const Range* strips) {
    for (int r = 0; r < count; ++r) {
      const Range range = strips[r / kStrip];
      if (range.empty()) continue;
      const float* weights = scratch_.s + r * Scratch<K>::kScoreStride;
      const uint32_t* seen = scratch_.seen + r * Scratch<K>::kBlocks;
      const Vec correction = Simd::set1(scratch_.correction[r]);
      float* out = scratch_.o + (r0 + r) * scratch_.o_stride;
      for (int64_t c = 0; c < scratch_.o_stride; c += kLanes) {
        const float* panel = scratch_.v + c / K::kPanel * K::kPanel * (K::kBlockN / K::kPair);
        Vec acc = Simd::zero();
        for (int j = range.lo; j < range.hi; ++j) {
          if (!(seen[j / kLanes] >> (j % kLanes) & 1u)) continue;
          const Vec value = K::value(panel, j, static_cast<int>(c % K::kPanel));
          acc = Simd::fma(Simd::set1(K::weight(weights, j)), value, acc);
        }
        Simd::store(out + c, Simd::fma(Simd::load(out + c), correction, acc));
      }
    }
  }

  float* probs_row(int64_t r) const {
    const int64_t row = unit_.first_row + r;
    return unit_.probs + row % job_.group * job_.probs_head + row / job_.group * job_.probs_row;
  }

  void clear_probs() {
    for (int64_t r = 0; r < unit_.rows; ++r) {
      float* row = probs_row(r);
      for (int64_t j = 0; j < job_.probs_keys; ++j) row[j * job_.probs_key] = 0;
    }
  }

  // The tile's weights by each row's denominator, which finish_rows has left in the place of the row's output.
  void store_probs(int64_t r0, int count, const Range* rows) {
    for (int r = 0; r < count; ++r) {
      if (rows[r].empty()) continue;
      const float* weights = scratch_.s + r * Scratch<K>::kScoreStride;
      const uint32_t* seen = scratch_.seen + r * Scratch<K>::kBlocks;
      const float factor = scratch_.o[(r0 + r) * scratch_.o_stride];
      float* to = probs_row(r0 + r) + tile_.j0 * job_.probs_key;
      for (int j = rows[r].lo; j < rows[r].hi; ++j) {
        if (seen[j / kLanes] >> (j % kLanes) & 1u) to[j * job_.probs_key] = K::weight(weights, j) * factor;
      }
    }
  }

  float sink_of(int64_t head) const {
    const int64_t at = head * job_.sink_head;
    switch (job_.sink_type) {
      case FloatType::kF16:
        return to_float(static_cast<const F16*>(job_.sinks)[at]);
      case FloatType::kBF16:
        return to_float(static_cast<const BF16*>(job_.sinks)[at]);
      default:
        return static_cast<const float*>(job_.sinks)[at];
    }
  }

  // Normalises and stores out and LSE.
  void finish_rows() {
    int64_t i = unit_.first_row / job_.group, g = unit_.first_row % job_.group;
    for (int64_t r = 0; r < unit_.rows; ++r) {
      const bool has_totals = Totals<K>::has(scratch_, r);
      if (has_totals) Totals<K>::add_row(scratch_, r, tile_.value_scale);
      float* o = scratch_.o + r * scratch_.o_stride;
      RowSums sums = has_totals ? Totals<K>::row_sums(scratch_.m[r], scratch_.total_l + r * scratch_.l_stride)
                                : Totals<K>::row_sums(scratch_.m[r], scratch_.l + r * scratch_.l_stride);
      const bool none = sums.weights == 0;  // no visible key
      double factor = (job_.dropout ? job_.dropout_scale : 1.0) / sums.values;
      const double sink = job_.sinks ? static_cast<double>(sink_of(unit_.first_head + g)) : -__builtin_inf();
      if (sink != -__builtin_inf()) factor *= add_sink(sums, sink);
      Vec scale = Simd::set1(static_cast<float>(factor));
      if (has_totals || tile_.value_scale != 1.0f) {
        Totals<K>::normalise(scratch_, r, has_totals, factor, tile_.value_scale, !job_.dropout);
        scale = Simd::set1(1.0f);
      }
      Element* out = static_cast<Element*>(unit_.out) + g * job_.out_head + i * job_.out_row;
      for (int64_t c = 0; c < job_.head_dim_v; c += kLanes) {
        const int n = static_cast<int>(job_.head_dim_v - c < kLanes ? job_.head_dim_v - c : kLanes);
        Simd::store(out + c, none ? Simd::zero() : Simd::mul(Simd::load(o + c), scale), n);
      }
      if (unit_.probs) o[0] = static_cast<float>(factor);
      if (unit_.lse) {
        unit_.lse[g * job_.lse_head + i * job_.lse_row] = none ? static_cast<float>(sink) : log_sum(sums);
      }
      if (++g == job_.group) g = 0, ++i;
    }
  }

  // Sums of kKeysPerSum values below the first, or of any ones times the second, are finite.
  static constexpr float kHugeValue = K::kHugeValue, kHugeValueScale = 0x1p-14f;

  const Job& job_;
  const Unit& unit_;
  Scratch<K> scratch_;
  KeyTile tile_;
};

}  // namespace flashcute::cpu
