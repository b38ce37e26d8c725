#include "engine/state/agree.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/comm/process_group.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"

namespace lockstep::state {

namespace {

// The message of a rank to its peers: '+' and its text, or '-', the error, a zero byte and the remedy.
std::string outcome_of(const std::function<std::string()>& stage) {
  try {
    return str("+", stage());
  } catch (const CollectiveError&) {
    throw;
  } catch (const Error& error) {
    return str("-", error.message(), '\0', error.remedy());
  } catch (const std::bad_alloc&) {
    return str("-the host has no memory left", '\0', "use more ranks, or end other programs");
  } catch (const std::exception& error) {
    return str("-", error.what(), '\0');
  }
}

// A rank waits for peers that write or read files for longer than for a collective. The end of a peer still ends the
// wait at once.
class FileDeadline {
 public:
  FileDeadline() : before_(comm::deadline()) { comm::set_deadline(std::max(before_, 600.0)); }
  ~FileDeadline() { comm::set_deadline(before_); }
  FileDeadline(const FileDeadline&) = delete;
  FileDeadline& operator=(const FileDeadline&) = delete;

 private:
  double before_;
};

bool failed(const std::vector<std::string>& outcomes, std::size_t rank, std::size_t own_rank) {
  if (defect_armed(Defect::saved_failure_of_one_rank) && rank != own_rank) [[unlikely]]
    return false;
  return outcomes[rank].starts_with('-');
}

std::string listed(const std::vector<std::size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += str(i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return text;
}

}  // namespace

std::vector<std::string> agree(const std::string& operation, const std::function<std::string()>& stage) {
  comm::ProcessGroup& world = comm::world_group();
  const std::string own = outcome_of(stage);
  const FileDeadline deadline;
  std::vector<std::string> outcomes = comm::exchange(world, own, operation);
  std::vector<std::pair<std::string, std::vector<std::size_t>>> failures;  // the ranks of each message
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (!failed(outcomes, rank, static_cast<std::size_t>(world.rank()))) continue;
    const std::string text = outcomes[rank].substr(1);
    auto at = failures.begin();
    while (at != failures.end() && at->first != text) ++at;
    if (at == failures.end()) at = failures.insert(at, {text, {}});
    at->second.push_back(rank);
  }
  if (!failures.empty()) {
    std::string message;
    for (const auto& [text, ranks] : failures)
      message += str(message.empty() ? ": " : "; ", listed(ranks), ": ", text.substr(0, text.find('\0')));
    const std::string& first = failures.front().first;
    throw Error(operation + message, first.substr(first.find('\0') + 1));
  }
  for (std::string& outcome : outcomes) outcome.erase(0, 1);
  return outcomes;
}

}  // namespace lockstep::state
