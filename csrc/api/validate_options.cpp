#include <cmath>

#include "api/check.h"
#include "api/sized_struct.h"
#include "api/validate.h"

namespace flashcute {
namespace {

void bad_option(const char* name, const std::string& expected, const std::string& given) {
  fail(FLASHCUTE_STATUS_BAD_PARAM, std::string("options->") + name, expected, given);
}

void require_flag(const char* name, int32_t value) {
  if (value != 0 && value != 1) bad_option(name, "0 or 1", text(static_cast<int64_t>(value)));
}

void require_window(const char* name, int64_t value) {
  if (value < Band::kUnbounded) bad_option(name, "-1 (unbounded) or a number of keys", text(value));
}

float scale_of(const flashcuteAttentionOptions_t& options, int64_t head_dim) {
  require_flag("has_scale", options.has_scale);
  if (options.has_scale == 0) {
    if (options.scale != 0.0f) bad_option("scale", "0 where has_scale is 0", text(double{options.scale}));
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  }
  // Scores are taken to powers of two, so scale * log2(e) must stay within float's range too.
  if (!(std::fabs(options.scale) <= 1e37f)) {
    bad_option("scale", "a number from -1e37 to 1e37", text(double{options.scale}));
  }
  return options.scale;
}

void validate_backend(int32_t backend, DeviceType device) {
  if (backend < FLASHCUTE_BACKEND_AUTO || backend > FLASHCUTE_BACKEND_SM90) {
    bad_option("backend", "one of FLASHCUTE_BACKEND_*", text(static_cast<int64_t>(backend)));
  }
  if (device == DeviceType::kNvidia && backend == FLASHCUTE_BACKEND_CPU) {
    bad_option("backend",
               "auto, cuda, sm80 or sm90, since the tensors are on an NVIDIA GPU (nothing moves between devices)",
               "cpu");
  }
  if (device == DeviceType::kCpu && backend > FLASHCUTE_BACKEND_CPU) {
    const char* names[] = {"cuda", "sm80", "sm90"};
    bad_option("backend", "auto or cpu, since the tensors are on the CPU (nothing moves between devices)",
               names[backend - FLASHCUTE_BACKEND_CUDA]);
  }
}

void validate_min_alignment(uint32_t alignment, DType dtype) {
  const uint32_t element = static_cast<uint32_t>(size_of(dtype));
  const bool power_of_two = alignment != 0 && (alignment & (alignment - 1)) == 0;
  if (power_of_two && alignment >= element) return;
  bad_option("min_alignment",
             "a power of two of at least " + std::to_string(element) + " bytes, the size of " + name_of(dtype),
             std::to_string(alignment));
}

}  // namespace

flashcuteAttentionOptions_t read_options(const flashcuteAttentionOptions_t* options) {
  return read_sized<flashcuteAttentionOptions_t>(options, FLASHCUTE_ATTENTION_OPTIONS_INIT, "options");
}

flashcuteAttentionBuffers_t read_buffers(const flashcuteAttentionBuffers_t* buffers) {
  return read_sized<flashcuteAttentionBuffers_t>(buffers, FLASHCUTE_ATTENTION_BUFFERS_INIT, "buffers");
}

void validate_options(const flashcuteAttentionOptions_t& options, DeviceType device, Problem& problem) {
  problem.scale = scale_of(options, problem.head_dim);

  require_flag("causal", options.causal);
  require_flag("checked", options.checked);
  problem.checked = options.checked == 1;
  if (options.alignment != FLASHCUTE_ALIGNMENT_BOTTOM_RIGHT && options.alignment != FLASHCUTE_ALIGNMENT_TOP_LEFT) {
    bad_option("alignment", "FLASHCUTE_ALIGNMENT_BOTTOM_RIGHT (0) or FLASHCUTE_ALIGNMENT_TOP_LEFT (1)",
               text(static_cast<int64_t>(options.alignment)));
  }
  problem.band.alignment = static_cast<Alignment>(options.alignment);
  require_window("window_left", options.window_left);
  require_window("window_right", options.window_right);
  problem.band.left = options.window_left;
  problem.band.right = options.causal == 1 ? 0 : options.window_right;

  // Beyond these bounds score / softcap or softcap * log2(e) leaves float's range, and the cap means nothing.
  if (options.softcap != 0.0f && !(options.softcap >= 1e-20f && options.softcap <= 1e20f)) {
    bad_option("softcap", "0 (off) or a number from 1e-20 to 1e20", text(double{options.softcap}));
  }
  problem.softcap = options.softcap;
  if (!(options.dropout_p >= 0.0f && options.dropout_p < 1.0f)) {
    bad_option("dropout_p", "a number in [0, 1)", text(double{options.dropout_p}));
  }
  problem.dropout.p = options.dropout_p;

  const bool packed = options.cu_seqlens_q != nullptr;
  const struct {
    const char* name;
    int64_t value;
  } bounds[] = {{"max_seqlen_q", options.max_seqlen_q}, {"max_seqlen_k", options.max_seqlen_k}};
  for (const auto& bound : bounds) {
    if (bound.value < 0) bad_option(bound.name, "0 (bounded by the total) or a length", text(bound.value));
  }
  validate_min_alignment(options.min_alignment, problem.dtype);
  problem.min_alignment = options.min_alignment;
  validate_backend(options.backend, device);
  problem.backend = static_cast<flashcuteBackend_t>(options.backend);

  // Last, since an option that is out of its range is wrong whatever accompanies it.
  for (const auto& bound : bounds) {
    if (bound.value != 0 && !packed) bad_option(bound.name, "0 (none) without cu_seqlens", text(bound.value));
  }
  problem.lengths.total_q = problem.batch * problem.seq_q;
  problem.lengths.total_k = problem.batch * problem.seq_k;
  if (packed) {
    if (options.max_seqlen_q != 0) problem.seq_q = std::min(problem.seq_q, options.max_seqlen_q);
    if (options.max_seqlen_k != 0) problem.seq_k = std::min(problem.seq_k, options.max_seqlen_k);
  }
}

}  // namespace flashcute
