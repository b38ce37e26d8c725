#include "engine/core/resources.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <optional>
#include <system_error>

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
    {ENOLCK, {}, "", "no more locks are available there: name a file on another file system"},
    {ENOBUFS, {}, "", "the machine has no memory for the network: end other programs"},
};

constexpr const char* no_memory =
    "out of memory: the machine refused this process an allocation (end other programs, run fewer cases at once with "
    "--jobs, or raise the limits on memory: ulimit -v, memory.max)";

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

std::string text_of(const std::exception& error) {
  if (dynamic_cast<const Error*>(&error) != nullptr) return error.what();
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return no_memory;
  if (const auto* const of_file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    const ResourceError made = resource_error(str("using ", of_file->path1().string()), of_file->code().value());
    return made.remedy().empty() ? str(made.message(), " (check the path and its permissions)") : made.what();
  }
  if (const auto* const of_system = dynamic_cast<const std::system_error*>(&error))
    return str(of_system->what(), is_exhaustion(of_system->code().value())
                                      ? str(" (", limit_behind(of_system->code().value())->remedy, ")")
                                      : std::string(" (check the limits of this machine: ulimit -a)"));
  return error.what();
}

bool is_of_machine(const std::exception& error) {
  return dynamic_cast<const Error*>(&error) == nullptr || dynamic_cast<const ResourceError*>(&error) != nullptr ||
         dynamic_cast<const InternalError*>(&error) != nullptr;
}

}  // namespace lockstep
