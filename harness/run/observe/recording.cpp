#include "harness/run/observe/recording.hpp"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <new>

#include <unistd.h>

#include "engine/core/json_text.hpp"
#include "engine/core/resources.hpp"

namespace lockstep::run {

std::string header_members(std::string_view kind, const RecordingHeader& header) {
  return str("\"kind\":\"", kind, "\",\"scenario\":", json_text(header.scenario),
             ",\"case\":", json_text(header.case_id), ",\"stage\":", json_text(header.stage), ",\"rank\":", header.rank,
             ",\"world_size\":", header.world_size);
}

const nn::ModulePtr* bound_model(scenario::Verb verb, const Value& result) {
  if (verb != scenario::Verb::model && verb != scenario::Verb::copy) return nullptr;
  return result.get_if<nn::ModulePtr>();
}

std::string full_path(const std::string& name, const std::string& path) {
  return path.empty() ? name : name + "." + path;
}

std::string recording_path(const std::string& prefix, std::size_t stage, int rank) {
  return str(prefix, ".stage-", stage, ".rank-", rank, ".jsonl");
}

namespace {
std::string unfinished(const std::string& path) { return path + ".part"; }
}  // namespace

void remove_unfinished_recording(const std::string& path) { ::unlink(unfinished(path).c_str()); }

void write_recording(const std::string& path, const std::string& text, std::string_view what, std::string_view option) {
  const std::filesystem::path file(path);
  std::error_code ignored;
  std::filesystem::create_directories(file.parent_path(), ignored);
  // Written under another name and renamed, so that no file with its final name is incomplete.
  const std::string part = unfinished(path);
  try {
    errno = 0;
    std::ofstream out(part, std::ios::binary | std::ios::trunc);
    out << text;
    out.close();
    if (out && std::rename(part.c_str(), path.c_str()) == 0) return;
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
  }
  const int reason = errno != 0 ? errno : EIO;
  remove_unfinished_recording(path);
  if (is_exhaustion(reason)) throw resource_error(str("writing ", what, " ", path), reason);
  throw Error(str("cannot write ", what, " ", path), str("give ", option, " another folder"));
}

}  // namespace lockstep::run
