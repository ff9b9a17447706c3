// NVTX ranges. Header-only: what is behind them comes from the profiler that runs the program, if one does.
#include "core/backend.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define FC_HAS_NVTX 1
#else  // CUDA headers from wheels may come without it
#define FC_HAS_NVTX 0
#endif

namespace flashcute::cuda {

#if FC_HAS_NVTX

namespace {

// Null without a profiler, which is then all that a range costs to find out.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t created = nvtxDomainCreateA("flashcute");
  return created;
}

}  // namespace

void begin_range(const char* name) noexcept {
  if (__builtin_expect(domain() == nullptr, 1)) return;
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  nvtxDomainRangePushEx(domain(), &attributes);
}

void end_range() noexcept {
  if (__builtin_expect(domain() != nullptr, 0)) nvtxDomainRangePop(domain());
}

#else

void begin_range(const char*) noexcept {}

void end_range() noexcept {}

#endif

}  // namespace flashcute::cuda
