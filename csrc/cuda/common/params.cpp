#include "cuda/common/params.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace flashcute::cuda {
namespace {

constexpr double kLog2eDouble = 1.4426950408889634, kPi = 3.14159265358979323846;

Operand operand_of(const void* data, const Strides& strides) {
  return {data, strides.batch, strides.head, strides.row, 0};
}

Operand operand_of(const void* data, const Strides& strides, const Staging& staging, void* workspace) {
  if (staging.size == 0) return operand_of(data, strides);
  return {static_cast<const char*>(workspace) + staging.offset, staging.batch, staging.head, staging.row, 0};
}

ScoreView score_view(const ScoreTensor& tensor, const void* data) {
  if (!tensor.present) return {};
  const int size = static_cast<int>(size_of(tensor.dtype));
  const bool pairs = tensor.key == 1 && (tensor.batch | tensor.head | tensor.row) % 2 == 0 &&
                     reinterpret_cast<uintptr_t>(data) % (2 * static_cast<uintptr_t>(size)) == 0;
  return {data, tensor.batch, tensor.head, tensor.row, tensor.key, size, pairs};
}

PlainForm plain_form_of(const Problem& p) {
  // A score of -inf is to stay what it is when it is scaled.
  if (!(p.scale > 0.0f)) return PlainForm::kNone;
  if (p.bias.present || p.dense_mask.present || p.dropout.p > 0.0f || p.softcap > kMaxLeanSoftcap) {
    return PlainForm::kNone;
  }
  if (p.softcap > 0.0f) return p.alibi.present ? PlainForm::kSoftcapAlibi : PlainForm::kSoftcap;
  return p.alibi.present ? PlainForm::kAlibi : PlainForm::kBare;
}

// What a score may be off by where cap tanh(x) is a polynomial. As a weight a tenth of float16's half step.
constexpr double kSoftcapError = 4e-5;

// The coefficients of tanh(x) = x (c[0] + c[1] x^2 + ..): through the zeros, on [-end, end], of Chebyshev's polynomial
// of the next odd degree, n. With these it is off by the n-th coefficient of tanh's own series, end^n and 2^(1 - n) at
// most.
template <int kTerms>
std::array<double, kTerms> tanh_series(double end) {
  double nodes[kTerms], differences[kTerms];  // of tanh(x) / x as a polynomial of x^2: Newton's
  for (int i = 0; i < kTerms; ++i) {
    const double x = end * std::cos((2 * i + 1) * kPi / (2 * (2 * kTerms + 1)));
    nodes[i] = x * x;
    differences[i] = std::tanh(x) / x;
    for (int j = 0; j < i; ++j) differences[i] = (differences[i] - differences[j]) / (nodes[i] - nodes[j]);
  }
  std::array<double, kTerms> series{};
  for (int i = kTerms - 1; i >= 0; --i) {
    for (int j = kTerms - 1; j >= 0; --j) series[j] = (j > 0 ? series[j - 1] : differences[i]) - nodes[i] * series[j];
  }
  return series;
}

// Of x = rate s with |x| <= end.
SoftcapRange softcap_range(double end, double rate) {
  const double greatest = std::pow(end / rate, 2);
  int exponent;
  std::frexp(greatest, &exponent);  // greatest is below 2^exponent
  return {static_cast<float>(std::ldexp(1.0, exponent + 1) - greatest), static_cast<uint32_t>(exponent + 127) << 23};
}

// Rates beyond sense would leave floats with their fifth power: then no product is within a range.
void set_softcap_series(ExtrasView& extras, double rate, double cap) {
  extras.softcap_near.exponent = extras.softcap_middle.exponent = ~0u;
  if (!(std::abs(rate) > 1e-6 && std::abs(rate) < 1e6)) return;
  constexpr double kFifth = 2.0 / 15, kSeventh = 17.0 / 315;  // coefficients of tanh
  const double near_end = std::min(1.0, std::pow(kSoftcapError * 16 / (kFifth * cap), 1.0 / 5)),
               middle_end = std::min(1.0, std::pow(kSoftcapError * 64 / (kSeventh * cap), 1.0 / 7));
  extras.softcap_near = softcap_range(near_end, rate);
  extras.softcap_middle = softcap_range(middle_end, rate);
  const auto near = tanh_series<2>(near_end);
  const auto middle = tanh_series<3>(middle_end);
  const double first = cap * kLog2eDouble * rate, square = rate * rate;
  extras.softcap_near_series[0] =
      static_cast<float>(first * (near[0] - near[1] * square * static_cast<double>(extras.softcap_near.shift)));
  extras.softcap_near_series[1] = static_cast<float>(first * near[1] * square);
  extras.softcap_middle_series[0] = static_cast<float>(first * middle[0]);
  extras.softcap_middle_series[1] = static_cast<float>(first * middle[1] * square);
  extras.softcap_middle_series[2] = static_cast<float>(first * middle[2] * square * square);
}

int bounded(int64_t bound) {
  return bound == Band::kUnbounded ? BandView::kOpen : static_cast<int>(std::min<int64_t>(bound, BandView::kOpen));
}

bool whole_vectors(const Problem& p) {
  const int64_t per_vector = 16 / size_of(p.dtype);
  const auto fits = [&](int64_t stride, int64_t extent) { return extent <= 1 || stride % per_vector == 0; };
  const int64_t rows = p.packed() ? p.lengths.total_q : p.seq_q;
  return p.min_alignment >= 16 && fits(p.out.batch, p.packed() ? 1 : p.batch) && fits(p.out.head, p.heads_q) &&
         fits(p.out.row, rows);
}

ScheduleView schedule_of(const Problem& p, const Plan& plan) {
  return {static_cast<int>(tiles_of_head(p, plan.block_m)), static_cast<int>(heads_with_tiles(p)),
          plan.heads_per_group};
}

ExtrasView extras_of(const Problem& p, const Buffers& b) {
  ExtrasView extras{};
  extras.plain = plain_form_of(p);
  if (p.softcap > 0.0f) {
    constexpr double kHuge = std::numeric_limits<float>::max();  // an infinite rate would make NaN of a score of 0
    const double softcap = static_cast<double>(p.softcap);
    extras.softcap = p.softcap;
    extras.softcap_rate =
        static_cast<float>(std::clamp(2 * kLog2eDouble * static_cast<double>(p.scale) / softcap, -kHuge, kHuge));
    extras.softcap_log2 = static_cast<float>(softcap * kLog2eDouble);
    set_softcap_series(extras, static_cast<double>(p.scale) / softcap, softcap);
  }
  if (p.alibi.present) {
    extras.alibi = b.alibi_slopes;
    extras.alibi_batch = p.alibi.batch;
    extras.alibi_head = p.alibi.head;
  }
  if (p.sinks.present) {
    extras.sinks = b.sinks;
    extras.sinks_head = p.sinks.head;
    extras.sinks_float32 = p.sinks.dtype == DType::kF32;
  }
  extras.dense_mask = score_view(p.dense_mask, b.dense_mask);
  extras.bias = score_view(p.bias, b.bias);
  if (p.block_mask.present) {
    const ScoreTensor& mask = p.block_mask;
    extras.block_mask = {b.block_mask,
                         mask.batch,
                         mask.head,
                         mask.row,
                         mask.key,
                         size_of(mask.dtype),
                         static_cast<int>((p.seq_k + kMaskBlock - 1) / kMaskBlock)};
  }
  extras.dropout.keep_scale = 1.0f;
  if (p.dropout.p > 0.0f) {
    extras.dropout = {p.dropout.state_on_device ? b.dropout_state : nullptr, b.seed, b.offset, p.dropout.threshold(),
                      p.dropout.keep_scale()};
  }
  return extras;
}

}  // namespace

int64_t tiles_of_head(const Problem& p, int block_m) {
  return p.packed() ? p.lengths.total_q / block_m + p.batch : (p.seq_q + block_m - 1) / block_m;
}

int64_t heads_with_tiles(const Problem& p) {
  return p.packed() ? p.heads_q : p.batch * p.heads_q;
}

Params make_params(const Problem& p, const Plan& plan, const Buffers& b, void* workspace, int rows_per_pass) {
  Params params{};
  params.q = operand_of(b.q, p.q, plan.q, workspace);
  params.k = operand_of(b.k, p.k, plan.k, workspace);
  params.v = operand_of(b.v, p.v, plan.v, workspace);
  params.out = operand_of(b.out, p.out);
  for (Operand* operand : {&params.q, &params.k, &params.v}) {
    operand->pass_bytes = operand->row * size_of(p.dtype) * rows_per_pass;
  }
  if (p.lse.present) params.lse = {b.lse, p.lse.batch, p.lse.head, p.lse.row};
  params.heads_q = static_cast<int>(p.heads_q);
  params.group = static_cast<int>(p.group());
  params.seq_q = static_cast<int>(p.seq_q);
  params.seq_k = static_cast<int>(p.seq_k);
  params.head_dim = static_cast<int>(p.head_dim);
  params.head_dim_v = static_cast<int>(p.head_dim_v);
  params.scale = p.scale;
  params.scale_log2 = static_cast<float>(static_cast<double>(p.scale) * kLog2eDouble);
  params.out_vectors = whole_vectors(p);
  params.schedule = schedule_of(p, plan);
  params.band = {bounded(p.band.left), bounded(p.band.right), p.band.alignment == Alignment::kTopLeft};
  params.lengths = {b.cu_seqlens_q,
                    b.cu_seqlens_k,
                    b.seqused_k,
                    static_cast<int>(p.batch),
                    static_cast<int>(p.lengths.total_q),
                    static_cast<int>(p.lengths.total_k)};
  if (p.key_mask.present) {
    params.key_mask = {b.key_mask, p.key_mask.batch, p.key_mask.key, size_of(p.key_mask.dtype)};
  }
  params.extras = extras_of(p, b);
  return params;
}

}  // namespace flashcute::cuda
