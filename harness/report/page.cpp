#include "harness/report/page.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/core/resources.hpp"
#include "harness/report/text.hpp"
#include "harness/scenario/regular_file.hpp"

namespace lockstep::report {

namespace {

constexpr const char* remedy =
    "install python3-matplotlib and python3-jinja2, or set LOCKSTEP_PYTHON to a Python that has both";

struct Ended {
  bool in_time = false;
  int exit_code = -1;  // -1: ended by a signal
  std::string output;  // the end of its standard output and standard error
};

// Runs a program without a shell and with an empty standard input. Kills it at the deadline.
Ended run_program(const std::vector<std::string>& words, double seconds) {
  constexpr std::size_t most_output = 8192;
  Ended ended;
  int channel[2];
  if (::pipe2(channel, O_CLOEXEC) != 0)
    throw resource_error("opening a pipe to the program that writes the page", errno);
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) {
    const int reason = errno;
    ::close(channel[0]);
    ::close(channel[1]);
    throw resource_error("starting the program that writes the page", reason);
  }
  if (child == 0) {
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, STDIN_FILENO);
    ::dup2(channel[1], STDOUT_FILENO);
    ::dup2(channel[1], STDERR_FILENO);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(channel[1]);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  bool open = true;
  while (open) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) break;
    pollfd waiting{channel[0], POLLIN, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 1000)));
    if (ready < 0 && errno != EINTR) break;
    if (ready <= 0) continue;
    char room[4096];
    const ssize_t count = ::read(channel[0], room, sizeof room);
    if (count == 0 || (count < 0 && errno != EINTR)) open = false;
    if (count > 0) ended.output.append(room, static_cast<std::size_t>(count));
    if (ended.output.size() > 2 * most_output) ended.output.erase(0, ended.output.size() - most_output);
  }
  ::close(channel[0]);
  if (open) ::kill(child, SIGKILL);
  ended.in_time = !open;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) ended.exit_code = WEXITSTATUS(status);
  return ended;
}

bool has_packages(const std::string& python) {
  static constexpr const char* question =
      "import importlib.util as u, sys; sys.exit(0 if u.find_spec('matplotlib') and u.find_spec('jinja2') else 9)";
  const Ended ended = run_program({python, "-c", question}, 30.0);
  return ended.in_time && ended.exit_code == 0;
}

bool is_program(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::vector<std::string> python_candidates() {
  const char* chosen = std::getenv("LOCKSTEP_PYTHON");
  if (chosen != nullptr && *chosen != '\0') return {chosen};
  std::vector<std::string> candidates{"/usr/bin/python3"};
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? std::string_view() : std::string_view(path);
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    const std::string_view folder = rest.substr(0, colon);
    rest.remove_prefix(colon == std::string_view::npos ? rest.size() : colon + 1);
    if (folder.empty() || folder.front() != '/') continue;
    std::string candidate = str(folder, folder.back() == '/' ? "" : "/", "python3");
    if (std::find(candidates.begin(), candidates.end(), candidate) == candidates.end()) {
      candidates.push_back(std::move(candidate));
    }
  }
  return candidates;
}

std::string find_report_python() {
  std::string tried;
  for (const std::string& candidate : python_candidates()) {
    if (!is_program(candidate)) {
      tried += str(tried.empty() ? "" : ", ", candidate, " (not a program)");
      continue;
    }
    if (has_packages(candidate)) return candidate;
    tried += str(tried.empty() ? "" : ", ", candidate, " (lacks the packages)");
  }
  throw Error(str("no Python with matplotlib and jinja2 was found; tried ", tried), remedy);
}

int write_page(const std::string& reports_folder, const std::string& results, const std::string& folder) {
  const std::string program = (std::filesystem::path(reports_folder) / "lockstep_report.py").string();
  if (!std::filesystem::exists(program)) {
    throw Error(str("the program that writes the page does not exist: ", program),
                "set LOCKSTEP_HOME to the folder that holds reports/");
  }
  if (!std::filesystem::exists(results)) {
    throw Error(str("there is no results file ", results), "write one with `lockstep run --results FILE`");
  }
  try {
    const scenario::RegularFile readable(results);  // the program would wait for the content of a pipe
  } catch (const ResourceError&) {
    throw;
  } catch (const Error& error) {
    throw Error(error.message(), "give a results file written by `lockstep run --results FILE`");
  }
  std::error_code no_page;
  if (std::filesystem::equivalent(results, std::filesystem::path(folder) / "index.html", no_page))
    throw Error(str("the page would overwrite its results file ", results), "name another folder with -o");
  // The program would read an argument that begins with '-' as an option.
  const auto plain = [](const std::string& path) { return path.starts_with('-') ? "./" + path : path; };
  const std::string python = find_report_python();
  const Ended ended = run_program({python, program, plain(results), "-o", plain(folder)}, 600.0);
  if (ended.in_time && ended.exit_code == 0) return 0;
  std::string how = str("ended with exit code ", ended.exit_code);
  if (!ended.in_time) how = "did not end within 600 s";
  if (ended.in_time && ended.exit_code < 0) how = "was ended by a signal";
  std::string said = printable(ended.output);
  while (!said.empty() && said.back() == '\n') said.pop_back();
  throw Error(str("the page was not written: ", python, " ", program, " ", how, said.empty() ? "" : ":\n", said),
              ended.exit_code == 3 ? remedy : "");
}

}  // namespace lockstep::report
