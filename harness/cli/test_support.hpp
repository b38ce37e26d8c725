// Helpers of this folder's tests: a folder of scenarios, cases from a text, and commands run in a process of their own.
//
// Commands change state of the process (signal handlers, standard streams, the armed defect), so a test runs
// them in a forked child and looks at its exit code and at both streams.
#pragma once

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "engine/core/text.hpp"
#include "harness/cli/app.hpp"
#include "harness/cli/standard_streams.hpp"
#include "harness/scenario/expand.hpp"
#include "harness/scenario/library.hpp"

namespace lockstep::cli::testing_support {

inline std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A temporary folder with scenarios/ and reports/, for LOCKSTEP_HOME.
class Home {
 public:
  Home() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-cli-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
    std::filesystem::create_directories(path_ + "/scenarios/lib");
    std::filesystem::create_directories(path_ + "/reports");
  }
  ~Home() { std::filesystem::remove_all(path_); }
  Home(const Home&) = delete;
  Home& operator=(const Home&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::string scenarios() const { return path_ + "/scenarios"; }
  // Writes scenarios/NAME.yaml; `rest` follows the lines of name and summary, and so begins in line 3.
  void add(const std::string& name, const std::string& rest) const {
    const std::string file = str(scenarios(), "/", name, ".yaml");
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    std::ofstream(file) << "scenario: " << name << "\nsummary: A test.\n" << rest;
  }

 private:
  std::string path_;
};

// Steps of scenarios for Home::add.
inline constexpr const char* passes =
    "ranks: {world_size: [1], launch: [thread]}\nsteps:\n  - expect_equal: [ones(2), ones(2)]\n";
inline constexpr const char* fails =
    "ranks: {world_size: [1], launch: [thread]}\nsteps:\n  - expect_equal: [ones(2), 2]\n";
inline constexpr const char* is_skipped =
    "ranks: {world_size: [1], launch: [thread]}\nskip: [{when: world_size == 1, reason: needs two}]\nsteps:\n"
    "  - expect_equal: [ones(2), ones(2)]\n";

// The cases of a scenario given as text, without a folder.
inline std::vector<scenario::Case> cases_of_text(scenario::Library& library, const std::string& text,
                                                 const std::string& name = "test") {
  return scenario::expand(library.load_text(str("scenario: ", name, "\nsummary: A test.\n", text), name + ".yaml"), {});
}

// A case without steps.
inline scenario::Case of_scenario(const std::string& name, const std::string& id) {
  auto written = std::make_shared<scenario::Scenario>();
  written->name = name;
  scenario::Case one;
  one.scenario = written;
  one.id = id;
  return one;
}

struct Ended {
  int code = -1;    // exit code
  int signal = 0;   // that ended it, 0: none
  std::string out;  // standard output
  std::string err;  // standard error
};

// Runs `body` in a forked child, whose exit code is the result of `body`.
inline Ended in_child(const std::function<int()>& body) {
  std::array<std::FILE*, 2> files = {std::tmpfile(), std::tmpfile()};
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::fileno(files[0]), STDOUT_FILENO);
    ::dup2(::fileno(files[1]), STDERR_FILENO);
    const int code = body();
    std::fflush(nullptr);
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  Ended ended;
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ended.signal = WTERMSIG(status);
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::rewind(files[i]);
    std::string& text = i == 0 ? ended.out : ended.err;
    for (int c = std::fgetc(files[i]); c != EOF; c = std::fgetc(files[i])) text += static_cast<char>(c);
    std::fclose(files[i]);
  }
  return ended;
}

// Runs the program with these arguments, in a child, in a home.
inline Ended lockstep(const Home& home, std::vector<std::string> arguments) {
  return in_child([&] {
    ::setenv("LOCKSTEP_HOME", home.path().c_str(), 1);
    arguments.insert(arguments.begin(), "lockstep");
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    return exit_code_after_output(run_app(static_cast<int>(arguments.size()), argv.data()));
  });
}

}  // namespace lockstep::cli::testing_support
