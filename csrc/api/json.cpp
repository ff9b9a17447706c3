#include "api/json.h"

#include <cmath>

#include "core/number.h"

namespace flashcute {

void JsonWriter::quote(const std::string& value) {
  text_ += '"';
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr const char* kDigits = "0123456789abcdef";
      text_ += "\\u00";
      text_ += kDigits[c / 16];
      text_ += kDigits[c % 16];
    } else {
      text_ += c;
    }
  }
  text_ += '"';
}

void JsonWriter::prefix(const char* key) {
  if (!first_) text_ += ", ";
  first_ = false;
  if (key != nullptr) {
    quote(key);
    text_ += ": ";
  }
}

JsonWriter& JsonWriter::open(const char* key, char bracket) {
  prefix(key);
  text_ += bracket;
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  text_ += bracket;
  first_ = false;
  return *this;
}

JsonWriter& JsonWriter::add(const char* key, const std::string& value) {
  prefix(key);
  quote(value);
  return *this;
}

JsonWriter& JsonWriter::add(const char* key, int64_t value) {
  prefix(key);
  text_ += std::to_string(value);
  return *this;
}

JsonWriter& JsonWriter::add(const char* key, bool value) {
  prefix(key);
  text_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::add(const char* key, double value) {
  if (!std::isfinite(value)) {
    prefix(key);
    text_ += "null";
    return *this;
  }
  prefix(key);
  text_ += number_text(value, 9);
  return *this;
}

}  // namespace flashcute
