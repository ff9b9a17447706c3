// A writer of JSON texts: commas, quotes and escapes. Nesting is the caller's.
#pragma once

#include <cstdint>
#include <string>

namespace flashcute {

class JsonWriter {
 public:
  JsonWriter& begin_object(const char* key = nullptr) { return open(key, '{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array(const char* key = nullptr) { return open(key, '['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& add(const char* key, const std::string& value);
  JsonWriter& add(const char* key, const char* value) { return add(key, std::string(value)); }
  JsonWriter& add(const char* key, int64_t value);
  JsonWriter& add(const char* key, int value) { return add(key, static_cast<int64_t>(value)); }
  JsonWriter& add(const char* key, size_t value) { return add(key, static_cast<int64_t>(value)); }
  JsonWriter& add(const char* key, bool value);
  JsonWriter& add(const char* key, double value);
  const std::string& str() const { return text_; }

 private:
  JsonWriter& open(const char* key, char bracket);
  JsonWriter& close(char bracket);
  void prefix(const char* key);  // comma and key
  void quote(const std::string& value);

  std::string text_;
  bool first_ = true;
};

}  // namespace flashcute
