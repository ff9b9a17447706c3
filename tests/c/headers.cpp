// The public headers from C++: they compile alone, in any order, and their names have C linkage.
#include <flashcute/infiniop.h>
// keep the order: infiniop.h must not need what comes below
#include <flashcute/flashcute.h>
#include <flashcute/testing.h>

#include <cstdio>
#include <type_traits>

static_assert(std::is_standard_layout<flashcuteAttentionOptions_t>::value, "options are plain C");
static_assert(std::is_trivially_copyable<flashcuteAttentionBuffers_t>::value, "buffers are plain C");
static_assert(std::is_standard_layout<flashcuteArchitecture_t>::value, "architectures are plain C");
static_assert(std::is_same<infiniopHandle_t, flashcuteHandle_t>::value, "InfiniOP's handles are flashcute's");
static_assert(static_cast<int>(INFINI_DTYPE_BF16) == static_cast<int>(FLASHCUTE_DTYPE_BF16), "one set of values");

int main() {
  const flashcuteAttentionOptions_t options = FLASHCUTE_ATTENTION_OPTIONS_INIT;
  const flashcuteAttentionBuffers_t buffers = FLASHCUTE_ATTENTION_BUFFERS_INIT;
  const bool good = options.struct_size == sizeof options && options.window_left == -1 && options.window_right == -1 &&
                    options.min_alignment == 16 && options.dropout_state == nullptr &&
                    buffers.struct_size == sizeof buffers && buffers.offset == 0;
  flashcuteHandle_t handle = nullptr;
  const bool works = flashcuteCreateHandle(&handle, FLASHCUTE_DEVICE_CPU, 0) == FLASHCUTE_STATUS_SUCCESS &&
                     infiniopDestroyHandle(handle) == INFINI_STATUS_SUCCESS;
  std::printf("flashcute %s: %s\n", flashcuteGetVersion(), good && works ? "passed" : "FAILED");
  return good && works ? 0 : 1;
}
