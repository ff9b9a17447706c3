// The one way an internal failure travels: an exception that c_api.cpp turns into a status and a message.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "flashcute/flashcute.h"

namespace flashcute {

class Error : public std::runtime_error {
 public:
  Error(flashcuteStatus_t status, const std::string& message) : std::runtime_error(message), status_(status) {}
  flashcuteStatus_t status() const noexcept { return status_; }

 private:
  flashcuteStatus_t status_;
};

}  // namespace flashcute
