#include "engine/comm/statements.hpp"

#include <utility>

#include "engine/comm/communicator.hpp"
#include "engine/comm/fingerprint.hpp"

namespace lockstep::comm {

namespace {
constexpr std::size_t max_texts = 8;  // of the first statements; the digest covers all
}

void add_statement(ProcessGroup& group, std::span<const std::int64_t> agreed, std::function<std::string()> text) {
  Communicator::Statements& statements = Communicator::current().statements(group);
  Digest all;
  all.add(statements.digest);
  for (const std::int64_t number : agreed) all.add(static_cast<std::uint64_t>(number));
  statements.digest = all.value();
  if (statements.texts.size() < max_texts) {
    statements.texts.push_back(std::move(text));
  } else if (statements.texts.size() == max_texts) {
    statements.texts.emplace_back([] { return std::string("and later ones, which may differ"); });
  }
}

}  // namespace lockstep::comm
