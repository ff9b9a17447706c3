// The keywords of attention() and of the descriptor, taken from a vectorcall without building a dict.
#pragma once

#include <array>
#include <cstdint>

#include "errors.h"

namespace flashcute::python {

enum Arg : int {
  kArgQ,
  kArgK,
  kArgV,
  kArgOut,
  kArgScale,
  kArgCausal,
  kArgAlignment,
  kArgWindow,
  kArgMask,
  kArgBlockMask,
  kArgBias,
  kArgSoftcap,
  kArgAlibiSlopes,
  kArgSinks,
  kArgDropoutP,
  kArgSeed,
  kArgOffset,
  kArgCuSeqlensQ,
  kArgCuSeqlensK,
  kArgMaxSeqlenQ,
  kArgMaxSeqlenK,
  kArgSequsedK,
  kArgLayout,
  kArgReturnLse,
  kArgReturnProbs,
  kArgBackend,
  kArgChecked,
  kArgWorkspace,
  kArgStream,
  kArgLse,
  kArgProbs,
  kArgCount
};

const char* name_of(Arg arg);

constexpr uint32_t bit(Arg arg) {
  return 1u << arg;
}
inline constexpr uint32_t kAllArgs = (1u << kArgCount) - 1;
inline constexpr uint32_t kFunctionArgs = kAllArgs & ~(bit(kArgLse) | bit(kArgProbs));
inline constexpr uint32_t kCreationArgs = kFunctionArgs & ~(bit(kArgWorkspace) | bit(kArgStream));
inline constexpr uint32_t kRunArgs =
    bit(kArgQ) | bit(kArgK) | bit(kArgV) | bit(kArgOut) | bit(kArgLse) | bit(kArgProbs) | bit(kArgMask) |
    bit(kArgBlockMask) | bit(kArgBias) | bit(kArgAlibiSlopes) | bit(kArgSinks) | bit(kArgSeed) | bit(kArgOffset) |
    bit(kArgCuSeqlensQ) | bit(kArgCuSeqlensK) | bit(kArgSequsedK) | bit(kArgWorkspace) | bit(kArgStream);

// Borrowed references; null where absent or None.
using Arguments = std::array<PyObject*, kArgCount>;

// q, k, v by position or keyword, the rest by keyword; the names in `allowed` only. Throws TypeError.
void parse_arguments(const char* function, uint32_t allowed, PyObject* const* values, Py_ssize_t positional,
                     PyObject* keyword_names, Arguments& out);

enum class Layout : uint8_t { kBhsd, kBshd, kHsd, kShd };

struct Options {
  bool has_scale = false, causal = false, return_lse = false, return_probs = false, checked = false;
  float scale = 0.0f, softcap = 0.0f, dropout_p = 0.0f;
  int32_t alignment = FLASHCUTE_ALIGNMENT_BOTTOM_RIGHT;
  int32_t backend = FLASHCUTE_BACKEND_AUTO;
  Layout layout = Layout::kBhsd;  // with cu_seqlens Layout::kHsd, where the caller named none
  int64_t window_left = -1, window_right = -1;
  int64_t max_seqlen_q = 0, max_seqlen_k = 0;
  bool packed = false;

  // Where head and row are swapped against the C API's order.
  bool rows_first() const { return layout == Layout::kBshd || layout == Layout::kShd; }
};

// The words of an option, by its number.
inline constexpr const char* kAlignments[] = {"bottom_right", "top_left"};
inline constexpr const char* kBackends[] = {"auto", "cpu", "cuda", "sm80", "sm90"};
inline constexpr const char* kLayouts[] = {"bhsd", "bshd", "hsd", "shd"};

Options parse_options(const char* function, const Arguments& arguments);
Layout parse_layout(Where where, PyObject* value);
uint64_t parse_u64(Where where, PyObject* value);

}  // namespace flashcute::python
