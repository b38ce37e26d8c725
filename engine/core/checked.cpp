#include "engine/core/checked.hpp"

#include "engine/core/error.hpp"

namespace lockstep::checked_detail {

void refuse(const char* operation, const char* sign, std::int64_t a, std::int64_t b) {
  throw Error(str(operation, ": ", a, " ", sign, " ", b, " does not fit in 64 bits"), "give smaller sizes");
}

void refuse_int(const char* operation, std::int64_t value) {
  throw Error(str(operation, ": ", value, " does not fit in 32 bits"), "give a smaller number");
}

void fail_bound(std::uint64_t a, std::uint64_t b, const char* file, int line) {
  throw InternalError(str("internal check failed: ", a, " * ", b, " does not fit in its type, at ", file, ":", line));
}

}  // namespace lockstep::checked_detail
