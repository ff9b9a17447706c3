// The two products of a tile, on packed operands: register tiles of R query rows by V vectors.
#pragma once

#include "cpu/element.h"

namespace flashcute::cpu {

template <class K>
struct Gemm {
  using Simd = typename K::Simd;
  using Vec = typename K::Vec;
  static constexpr int kLanes = K::kLanes;
  static constexpr int kVecs = K::kPanel / kLanes;

  // acc(r, v) += sum over k of a(r, k) * b(k, v)
  template <int R, int V>
  FC_INLINE void accumulate(Vec (&acc)[R][V], const float* a, int64_t lda, const float* b, int64_t count) {
    for (int64_t k = 0; k < count; ++k) {
      Vec x[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) x[v] = Simd::load(b + k * K::kPanel + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec y = Simd::set1(a[r * lda + k]);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) acc[r][v] = K::dot(y, x[v], acc[r][v]);
      }
    }
  }

  // How much of a head's depth one chain of additions takes: two short chains round less than a long one.
  FC_INLINE int64_t chain(int64_t depth) { return depth <= 128 ? depth : depth <= 256 ? 64 : 32; }

  // c = a * b
  template <int R, int V>
  static void product(const float* a, int64_t lda, const float* b, int64_t count, float* c, int64_t ldc) {
    const int64_t piece = chain(count);
    for (int64_t k = 0; k < count; k += piece) {
      Vec acc[R][V];
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) acc[r][v] = Simd::zero();
      }
      accumulate<R, V>(acc, a + k, lda, b + k * K::kPanel, count - k < piece ? count - k : piece);
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) {
          float* to = c + r * ldc + v * kLanes;
          Simd::store(to, k == 0 ? acc[r][v] : Simd::add(Simd::load(to), acc[r][v]));
        }
      }
    }
  }

  // c(r, :) = factor[r] * c(r, :) + a(r, :) * b. The product has registers of its own: a chain of additions then ends
  // with its tile, however many tiles c is the sum of.
  template <int R, int V>
  static void update(const float* factor, const float* a, int64_t lda, const float* b, int64_t count, float* c,
                     int64_t ldc) {
    Vec acc[R][V];
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) acc[r][v] = Simd::zero();
    }
    accumulate<R, V>(acc, a, lda, b, count);
    for (int r = 0; r < R; ++r) {
      const Vec f = Simd::set1(factor[r]);
      for (int v = 0; v < V; ++v) {
        float* to = c + r * ldc + v * kLanes;
        Simd::store(to, Simd::fma(Simd::load(to), f, acc[r][v]));
      }
    }
  }

  template <int V>
  FC_INLINE void product_rows(int rows, const float* a, int64_t lda, const float* b, int64_t count, float* c,
                              int64_t ldc) {
    if (rows > 4) return product<K::kStrip, V>(a, lda, b, count, c, ldc);
    if (rows > 2) return product<4, V>(a, lda, b, count, c, ldc);
    if (rows == 2) return product<2, V>(a, lda, b, count, c, ldc);
    product<1, V>(a, lda, b, count, c, ldc);
  }

  template <int V>
  FC_INLINE void update_rows(int rows, const float* factor, const float* a, int64_t lda, const float* b, int64_t count,
                             float* c, int64_t ldc) {
    if (rows > 4) return update<K::kStrip, V>(factor, a, lda, b, count, c, ldc);
    if (rows > 2) return update<4, V>(factor, a, lda, b, count, c, ldc);
    if (rows == 2) return update<2, V>(factor, a, lda, b, count, c, ldc);
    update<1, V>(factor, a, lda, b, count, c, ldc);
  }

  // The same for any number of rows up to a strip and vectors up to a panel. An element's result does not depend on
  // which register tile computed it.
  static void scores(int rows, int vecs, const float* q, int64_t ldq, const float* k, int64_t count, float* s,
                     int64_t lds) {
    static_assert(kVecs == 4 || kVecs == 2, "panels are two or four vectors wide");
    if (vecs == 1) return product_rows<1>(rows, q, ldq, k, count, s, lds);
    if (vecs == 2) return product_rows<2>(rows, q, ldq, k, count, s, lds);
    if constexpr (kVecs == 4) {
      if (vecs == 3) return product_rows<3>(rows, q, ldq, k, count, s, lds);
      product_rows<4>(rows, q, ldq, k, count, s, lds);
    }
  }

  static void outputs(int rows, int vecs, const float* factor, const float* p, int64_t ldp, const float* v,
                      int64_t count, float* o, int64_t ldo) {
    if (vecs == 1) return update_rows<1>(rows, factor, p, ldp, v, count, o, ldo);
    if (vecs == 2) return update_rows<2>(rows, factor, p, ldp, v, count, o, ldo);
    if constexpr (kVecs == 4) {
      if (vecs == 3) return update_rows<3>(rows, factor, p, ldp, v, count, o, ldo);
      update_rows<4>(rows, factor, p, ldp, v, count, o, ldo);
    }
  }
};

}  // namespace flashcute::cpu
