// Helpers of the tests of results files: a temporary folder, and rows with every field filled in.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "harness/report/results_file.hpp"

namespace lockstep::report::testing_support {

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-report-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline verdict::RunInfo run_info() {
  verdict::RunInfo run;
  run.version = "0.1.0";
  run.started = "2026-01-02T03:04:05Z";
  run.command = {"lockstep", "run", "a b"};
  run.build = {{"compiler", "GNU 12"}, {"kokkos", "3.4.1"}};
  run.machine = {{"cores", "2"}, {"cpu", "some processor"}, {"memory", "8000000000"}};
  return run;
}

inline verdict::CaseResult full_case() {
  verdict::CaseResult row;
  row.scenario = "replicate/single_module";
  row.case_id = "world_size=2,launch=process,device=cpu";
  row.mirrors = 16;
  row.params = {{"zeta", "true"}, {"alpha", "[1,0.1]"}};
  row.world_size = 2;
  row.launch = "process";
  row.device = "cpu";
  row.status = verdict::Status::FAIL;
  row.seconds = 0.021;
  row.evidence = verdict::Evidence{12, 1, 340, 11, 10, 0.0, {1.3e-6, 1e-5, 0}, 4, 2, 3, 17, 6};
  row.collectives = {{"data_parallel", "all_reduce", "dp", 2, "backward", 2, 176, -1, ""},
                     {"user", "send", "", 2, "other", 1, 8, 1, "load"}};
  row.plan = {{"data_parallel", "all_reduce", "dp", 2, "backward", 2, 170, true, 2, 176, "load"}};
  row.memory = {{"parameter", 96}, {"peak_total", 1024}, {"other", 5}};
  row.records["losses"] = {"[1.5,2.5]", "[0.1]"};
  row.failure = verdict::Failure{};
  row.failure->check = "expect_equal";
  row.failure->file = "scenarios/replicate/single_module.yaml";
  row.failure->line = 9;
  row.failure->column = 5;
  row.failure->rank = 1;
  row.failure->message = "1 of 2 elements\n  \"quoted\"";
  row.failure->scenario_line = 31;
  row.failure->source = {"  - expect_equal:", "      actual: a"};
  row.failure->also = {"rank 0: other"};
  row.repro = "lockstep run replicate/single_module --case 'world_size=2'";
  return row;
}

}  // namespace lockstep::report::testing_support
