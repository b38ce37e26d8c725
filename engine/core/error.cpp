#include "engine/core/error.hpp"

#include <utility>

#include "engine/core/rank_context.hpp"

namespace lockstep {

Error::Error(std::string message, std::string remedy) : message_(std::move(message)), remedy_(std::move(remedy)) {
  text_ = remedy_.empty() ? message_ : str(message_, " (", remedy_, ")");
}

void error_detail::fail_check(const char* condition, const char* file, int line, const std::string& detail) {
  const RankContext* context = RankContext::current_or_null();
  throw InternalError(str("internal check failed: ", condition, " at ", file, ":", line,
                          context ? str(" on rank ", context->rank()) : std::string(), detail.empty() ? "" : ": ",
                          detail));
}

}  // namespace lockstep
