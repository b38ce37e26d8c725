#include "harness/report/text.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/core/error.hpp"
#include "engine/core/printable.hpp"
#include "engine/core/resources.hpp"
#include "harness/report/target.hpp"

namespace lockstep::report {

std::string bytes_text(double bytes) {
  if (bytes < 1024) return fmt::format("{:.0f} bytes", bytes);
  for (const char* unit : {"KiB", "MiB", "GiB"}) {
    bytes /= 1024;
    if (bytes < 999.5) return fmt::format("{:.3g} {}", bytes, unit);
    if (bytes < 1023.5) return fmt::format("{:.0f} {}", bytes, unit);
  }
  return fmt::format("{:.4g} TiB", bytes / 1024);
}

std::string plural(std::int64_t count, std::string_view noun) { return str(count, " ", noun, count == 1 ? "" : "s"); }

namespace {

// The handler of parser events. The library prescribes the names, and `false` ends the parsing.
class KeyWatch final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::optional<std::string> doubled;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    keys_of_open_.emplace_back();
    return true;
  }
  bool key(string_t& name) override {
    if (!keys_of_open_.back().insert(name).second) doubled = name;
    return !doubled;
  }
  bool end_object() override {
    keys_of_open_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

 private:
  std::vector<std::set<std::string>> keys_of_open_;  // of each object that has not ended, innermost last
};

}  // namespace

std::optional<std::string> doubled_key(std::string_view json) {
  KeyWatch watch;
  nlohmann::json::sax_parse(json, &watch);
  return watch.doubled;
}

void make_parent_folder(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::error_code ignored;
  if (error && !std::filesystem::is_directory(folder, ignored)) {
    const std::string making = str("making the folder ", printable_line(folder.string()));
    if (is_exhaustion(error.value())) throw resource_error(making, error.value());
    throw Error(str(making, ": ", error.message()), "give a path in a folder that can be written");
  }
}

namespace {

// A device stays: it is written in place. Of a link, the file behind it is replaced.
bool is_device(const std::string& path) {
  struct stat facts = {};
  return ::stat(path.c_str(), &facts) == 0 && S_ISCHR(facts.st_mode);
}
std::string behind_links(const std::string& path) {
  std::error_code failed;
  const std::filesystem::path target = std::filesystem::canonical(path, failed);
  return failed ? path : target.string();
}

}  // namespace

void write_whole_file(const std::string& given, std::string_view content) {
  make_parent_folder(given);
  check_target(given);
  const bool in_place = is_device(given);
  const std::string path = behind_links(given);
  const std::string beside = in_place ? path : str(path, ".", static_cast<long>(::getpid()), ".part");
  const auto fail = [&](int reason) {
    std::error_code ignored;
    if (!in_place) std::filesystem::remove(beside, ignored);
    const std::string writing = str("writing ", printable_line(given));
    if (is_exhaustion(reason)) throw resource_error(writing, reason);
    throw Error(str(writing, ": ", std::strerror(reason)), "give a path that can be written");
  };
  int reason = 0;
  try {
    errno = 0;
    std::ofstream file(beside, std::ios::binary);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    file.close();
    if (!file) reason = errno != 0 ? errno : EIO;
  } catch (const std::bad_alloc&) {
    reason = ENOMEM;
  }
  if (reason != 0) fail(reason);
  if (!in_place && std::rename(beside.c_str(), path.c_str()) != 0) fail(errno);
}

void clear_files(const std::string& folder, bool (*is_old)(const std::string& name), std::string_view option) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  std::vector<std::filesystem::path> old;
  if (!failed)
    for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(folder, failed))
      if (is_old(entry.path().filename().string())) old.push_back(entry.path());
  for (const std::filesystem::path& file : old)
    if (!failed) std::filesystem::remove(file, failed);
  if (is_exhaustion(failed.value()))
    throw resource_error(str("preparing the folder ", printable_line(folder)), failed.value());
  if (failed)
    throw Error(str("cannot use the folder ", printable_line(folder), ": ", failed.message()),
                str("give ", option, " another folder"));
}

}  // namespace lockstep::report
