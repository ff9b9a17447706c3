// Structs that begin with their own size, so that they can grow without breaking callers.
#pragma once

#include <algorithm>
#include <cstring>

#include "api/check.h"

namespace flashcute {

constexpr size_t kLargestStruct = 4096;  // a struct_size above this is no size at all

// Copies what both sides know of a size-prefixed struct over its defaults.
template <typename T>
T read_sized(const T* given, T defaults, const char* name) {
  if (given == nullptr) return defaults;
  size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size == sizeof(T)) return *given;
  const std::string argument = std::string(name) + "->struct_size";
  if (size <= sizeof size || size > kLargestStruct || size % alignof(T) != 0) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, argument, "the struct's size, " + std::to_string(sizeof(T)) + " in this version",
         std::to_string(size));
  }
  const unsigned char* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      fail(FLASHCUTE_STATUS_BAD_PARAM, argument,
           "zero in the fields that this version (" + std::to_string(sizeof(T)) + " bytes) does not know",
           "byte " + std::to_string(i) + " of " + std::to_string(size) + " set by a newer caller");
    }
  }
  std::memcpy(static_cast<void*>(&defaults), given, std::min(size, sizeof(T)));
  defaults.struct_size = sizeof(T);
  return defaults;
}

}  // namespace flashcute
