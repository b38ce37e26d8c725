// The error types: Error for mistakes that a user can correct, InternalError for broken invariants of the engine.
//
// An Error carries a message (operation, operands, location) and, separately, a remedy. It is thrown on every rank that
// can detect the mistake. No rank continues after a failed collective (CollectiveError, engine/comm).
//
//   throw Error(str("matmul: inner sizes differ: ", to_text(a), " x ", to_text(b)), "transpose one of the operands");
#pragma once

#include <exception>
#include <string>

#include "engine/core/text.hpp"

namespace lockstep {

class Error : public std::exception {
 public:
  explicit Error(std::string message, std::string remedy = {});
  const char* what() const noexcept override { return text_.c_str(); }  // "message (remedy)"
  const std::string& message() const { return message_; }
  const std::string& remedy() const { return remedy_; }  // may be empty

 private:
  std::string message_;
  std::string remedy_;
  std::string text_;
};

// An invariant of the engine does not hold. This is a defect of Lockstep, never a mistake of the user.
class InternalError : public Error {
 public:
  using Error::Error;
};

// A collective failed: a mismatch, a deadlock, a deadline, or the end of a peer. The group is unusable from then on.
class CollectiveError : public Error {
 public:
  using Error::Error;
};

// This build or machine lacks a feature, such as a device. The case is UNSUPPORTED, not failed.
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

namespace error_detail {
[[noreturn]] void fail_check(const char* condition, const char* file, int line, const std::string& detail);
}

}  // namespace lockstep

// Checks an invariant, in every build. The arguments after the condition describe the state for the message.
//
//   LOCKSTEP_CHECK(n > 0, "n is ", n);
#define LOCKSTEP_CHECK(condition, ...)                                                                    \
  do {                                                                                                    \
    if (!(condition)) [[unlikely]]                                                                        \
      ::lockstep::error_detail::fail_check(#condition, __FILE__, __LINE__, ::lockstep::str(__VA_ARGS__)); \
  } while (false)
