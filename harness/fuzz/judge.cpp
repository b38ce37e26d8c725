#include "harness/fuzz/judge.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "engine/core/error.hpp"

namespace lockstep::fuzz {

namespace {

// The verbs before the training starts.
constexpr std::array<std::string_view, 12> building{"mesh",
                                                    "model",
                                                    "copy",
                                                    "set_parameter",
                                                    "set_requires_grad",
                                                    "tensor_parallel",
                                                    "activation_checkpoint",
                                                    "fully_shard",
                                                    "replicate",
                                                    "flat_shard",
                                                    "prefetch",
                                                    "optimizer"};

}  // namespace

Outcome outcome_of(const verdict::CaseResult& row) {
  if (row.status == verdict::Status::PASS) return Outcome::agrees;
  const bool is_building = row.status == verdict::Status::FAIL && row.failure &&
                           std::find(building.begin(), building.end(), row.failure->check) != building.end();
  return is_building ? Outcome::refused : Outcome::disagrees;
}

std::string signature_of(const verdict::CaseResult& row) {
  return str(verdict::name_of(row.status), " ", row.failure ? row.failure->check : "");
}

std::string kind_of_refusal(const verdict::CaseResult& row) {
  if (!row.failure) return std::string(verdict::name_of(row.status));
  std::string kind = row.failure->check + ": ";
  char quote = 0;
  for (char c : row.failure->message) {
    if (c == '\n') break;
    if (quote != 0) {
      if (c == quote) quote = 0;
      continue;
    }
    if (c == '`') quote = c;
    if (std::isdigit(static_cast<unsigned char>(c))) c = 'N';
    if (c != 'N' || kind.back() != 'N') kind += c;
  }
  return kind;
}

}  // namespace lockstep::fuzz
