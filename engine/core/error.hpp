// Errors: one type for what a user can mend, one for broken invariants of the engine.
//
// An Error carries what happened (operation, operands, place) and, apart from it, the remedy. Throw it on every rank
// that can know; after a failed collective nothing goes on (CollectiveError, engine/comm).
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
  const char* what() const noexcept override { return text_.c_str(); }  // message and remedy together
  const std::string& message() const { return message_; }
  const std::string& remedy() const { return remedy_; }  // may be empty

 private:
  std::string message_;
  std::string remedy_;
  std::string text_;
};

// An invariant of the engine does not hold: a defect of Lockstep itself, never a user's mistake.
class InternalError : public Error {
 public:
  using Error::Error;
};

// A collective failed: mismatch, deadline, death of a peer. The group is unusable from then on.
class CollectiveError : public Error {
 public:
  using Error::Error;
};

// Something this build or machine lacks (a device that is not built in); makes a case UNSUPPORTED, not failed.
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

namespace error_detail {
[[noreturn]] void fail_check(const char* condition, const char* file, int line, const std::string& detail);
}

}  // namespace lockstep

// An invariant; stays on in every build. The pieces after the condition describe the state: LOCKSTEP_CHECK(n > 0, "n ",
// n).
#define LOCKSTEP_CHECK(condition, ...)                                                                    \
  do {                                                                                                    \
    if (!(condition)) [[unlikely]]                                                                        \
      ::lockstep::error_detail::fail_check(#condition, __FILE__, __LINE__, ::lockstep::str(__VA_ARGS__)); \
  } while (false)
