#include "harness/report/text.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "engine/core/error.hpp"

namespace lockstep::report {

namespace {

constexpr std::string_view replacement = "\xef\xbf\xbd";

// Length of the UTF-8 character that begins at `at`, 0 when none does (overlong forms and surrogates are none).
std::size_t character_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return 1;
  std::size_t length = 0;
  unsigned char least = 0x80, most = 0xbf;  // of the second byte
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) least = 0xa0;
    if (first == 0xed) most = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) least = 0x90;
    if (first == 0xf4) most = 0x8f;
  } else {
    return 0;
  }
  if (at + length > text.size()) return 0;
  if (byte(at + 1) < least || byte(at + 1) > most) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (byte(at + i) < 0x80 || byte(at + i) > 0xbf) return 0;
  }
  return length;
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = character_length(text, at);
    if (length == 0) {
      out += replacement;
      ++at;
    } else {
      out += text.substr(at, length);
      at += length;
    }
  }
  return out;
}

std::string hex_byte(unsigned char byte) { return fmt::format("{:02x}", byte); }

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : valid_utf8(text)) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) {
      out += "\\x" + hex_byte(byte);
    } else {
      out += c;
    }
  }
  return out;
}

std::string bytes_text(double bytes) {
  if (bytes < 1024) return fmt::format("{:.0f} bytes", bytes);
  for (const char* unit : {"KiB", "MiB", "GiB"}) {
    bytes /= 1024;
    if (bytes < 1024) return fmt::format("{:.3g} {}", bytes, unit);
  }
  return fmt::format("{:.4g} TiB", bytes / 1024);
}

void make_parent_folder(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error && !std::filesystem::is_directory(folder)) {
    throw Error(str("cannot make the folder ", folder.string(), ": ", error.message()),
                "give a path in a folder that can be written");
  }
}

void write_whole_file(const std::string& path, std::string_view content) {
  make_parent_folder(path);
  const std::string beside = str(path, ".", static_cast<long>(::getpid()), ".part");
  const auto fail = [&](int error) {
    std::error_code ignored;
    std::filesystem::remove(beside, ignored);
    throw Error(str("cannot write ", path, ": ", std::strerror(error)), "give a path that can be written");
  };
  {
    errno = 0;
    std::ofstream file(beside, std::ios::binary);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    file.close();
    if (!file) fail(errno != 0 ? errno : EIO);
  }
  if (std::rename(beside.c_str(), path.c_str()) != 0) fail(errno);
}

}  // namespace lockstep::report
