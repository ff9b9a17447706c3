// Numbers in texts, the same in every locale: printf's own follow the decimal point that the program has set.
#pragma once

#include <charconv>
#include <string>

namespace flashcute {

// As printf's %.<digits>g writes it in the C locale.
inline std::string number_text(double value, int digits) {
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::general, digits);
  return std::string(buffer, end.ptr);
}

}  // namespace flashcute
