#include "harness/cli/standard_streams.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include <fcntl.h>
#include <unistd.h>

#include "engine/core/printable.hpp"
#include "engine/core/resources.hpp"
#include "engine/core/text.hpp"

namespace lockstep::cli {

namespace {

int first_output_error = 0;  // the errno of the first failed write to standard output
bool complained_of_output = false;

}  // namespace

void prepare_standard_streams() {
  for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() takes the lowest free number, which is that of the closed stream, because the streams below it are open.
    const int flags = stream == STDERR_FILENO ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", flags) != stream) std::_Exit(3);
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void complain(std::string_view text) { complain_plainly(str("lockstep: ", text)); }

void complain(const std::exception& error) {
  try {
    complain(text_of(error));
  } catch (const std::bad_alloc&) {  // no memory is left for a text of any kind
    std::fputs("lockstep: ", stderr);
    std::fputs(error.what(), stderr);
    std::fputs(" (out of memory; end other programs)\n", stderr);
  }
}

void complain_plainly(std::string_view text) {
  const std::string line = printable(text) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

bool output_failed() {
  const int reason = errno;
  if (first_output_error == 0 && std::ferror(stdout) != 0) first_output_error = reason != 0 ? reason : EIO;
  return first_output_error != 0;
}

int exit_code_after_output(int code) {
  errno = 0;
  std::fflush(stdout);
  if (!output_failed()) return code;
  if (!complained_of_output)
    complain(str("standard output could not be written: ", static_cast<const char*>(std::strerror(first_output_error)),
                 " (free space there, or send it to a reader that stays until the end)"));
  complained_of_output = true;
  return code == 0 || code == 77 ? 3 : code;
}

}  // namespace lockstep::cli
