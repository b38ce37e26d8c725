#include "engine/core/resources.hpp"

#include <cerrno>
#include <cstring>
#include <optional>

#include <sys/resource.h>

namespace lockstep {

namespace {

// A limit that can cause a failure with errno `reason`.
struct Limit {
  int reason;
  std::optional<__rlimit_resource_t> resource;
  const char* name;
  const char* remedy;
};

constexpr Limit limits[] = {
    {EAGAIN, RLIMIT_NPROC, "the limit on processes and threads (ulimit -u)",
     "raise it or the container's limit (pids.max), run fewer cases at once with --jobs, or end other processes"},
    {EMFILE, RLIMIT_NOFILE, "the limit on open files (ulimit -n)", "raise it, or run fewer cases at once with --jobs"},
    {ENFILE, {}, "", "the whole machine has no open file left: end other programs, or raise fs.file-max"},
    {EFBIG, RLIMIT_FSIZE, "the limit on the size of a file (ulimit -f)",
     "raise it with `ulimit -f unlimited`; the shared memory of the ranks counts as a file too"},
    {ENOMEM, RLIMIT_AS, "the limit on address space (ulimit -v)",
     "raise it, use fewer ranks, or raise vm.max_map_count and vm.overcommit_memory"},
    {ENOSPC, {}, "", "free space there, or name another place"},
    {EDQUOT, {}, "", "free space within the quota there, or name another place"},
    {EIO, {}, "", "check that the disk or terminal is still available"},
};

const Limit* limit_behind(int reason) {
  for (const Limit& limit : limits)
    if (limit.reason == reason) return &limit;
  return nullptr;
}

std::string value_of(__rlimit_resource_t resource) {
  rlimit value{};
  if (::getrlimit(resource, &value) != 0) return "unknown";
  if (value.rlim_cur == RLIM_INFINITY) return "unlimited";
  return str(static_cast<std::uint64_t>(value.rlim_cur),
             resource == RLIMIT_FSIZE || resource == RLIMIT_AS ? " bytes" : "");
}

}  // namespace

bool is_exhaustion(int reason) { return limit_behind(reason) != nullptr; }

ResourceError resource_error(const std::string& operation, int reason) {
  std::string message = str(operation, ": ", static_cast<const char*>(std::strerror(reason)));
  const Limit* limit = limit_behind(reason);
  if (limit == nullptr) return ResourceError(std::move(message));
  if (limit->resource) message += str("; ", limit->name, " is ", value_of(*limit->resource));
  return ResourceError(std::move(message), limit->remedy);
}

}  // namespace lockstep
