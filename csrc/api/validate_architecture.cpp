#include <cstring>

#include "api/check.h"
#include "api/sized_struct.h"
#include "api/validate.h"

namespace flashcute {
namespace {

constexpr int kMostMultiprocessors = 1 << 16;
constexpr size_t kLongestName = 255;

void bad_fact(const char* name, const std::string& expected, const std::string& given) {
  fail(FLASHCUTE_STATUS_BAD_PARAM, std::string("architecture->") + name, expected, given);
}

}  // namespace

DeviceFacts read_architecture(const flashcuteArchitecture_t* architecture) {
  const flashcuteArchitecture_t given =
      read_sized<flashcuteArchitecture_t>(architecture, FLASHCUTE_ARCHITECTURE_INIT, "architecture");
  if (given.capability < 10 || given.capability > 9999) {
    bad_fact("capability", "10 * major + minor of a compute capability, such as 80", text(int64_t{given.capability}));
  }
  if (given.multiprocessors < 1 || given.multiprocessors > kMostMultiprocessors) {
    bad_fact("multiprocessors", "1 to " + text(int64_t{kMostMultiprocessors}), text(int64_t{given.multiprocessors}));
  }
  if (given.shared_memory_per_block > given.shared_memory_per_multiprocessor) {
    bad_fact("shared_memory_per_block",
             "at most shared_memory_per_multiprocessor, " + std::to_string(given.shared_memory_per_multiprocessor) +
                 " bytes",
             std::to_string(given.shared_memory_per_block));
  }
  DeviceFacts facts;
  facts.type = DeviceType::kNvidia;
  if (given.name != nullptr) facts.name.assign(given.name, ::strnlen(given.name, kLongestName));
  facts.capability = given.capability;
  facts.multiprocessors = given.multiprocessors;
  facts.shared_memory_per_block = given.shared_memory_per_block;
  facts.shared_memory_per_multiprocessor = given.shared_memory_per_multiprocessor;
  facts.l2_bytes = given.l2_bytes;
  facts.planning = true;
  return facts;
}

}  // namespace flashcute
