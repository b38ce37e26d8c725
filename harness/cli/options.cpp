#include <algorithm>
#include <charconv>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/cli/options_internal.hpp"

namespace lockstep::cli {

namespace {

// "2/5" -> (2, 5).
std::pair<int, int> parse_shard(const std::string& text) {
  const auto number = [](std::string_view digits) {
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size() ? value : 0;
  };
  const std::size_t slash = std::min(text.find('/'), text.size());
  const std::string_view both = text;
  const int index = number(both.substr(0, slash)), count = number(both.substr(std::min(slash + 1, both.size())));
  if (index < 1 || count < index)
    throw Error(str("--shard ", text, " names no shard"), "write I/N with 1 <= I <= N, such as 1/4");
  return {index, count};
}

void refuse_parameters_set_twice(const std::vector<std::string>& settings) {
  std::set<std::string> names;
  for (const std::string& setting : settings) {
    const std::string name = setting.substr(0, setting.find('='));
    if (!names.insert(name).second) throw Error(str("--set gives `", name, "` twice"), "give each parameter once");
  }
}

}  // namespace

CLI::Option& add_output(CLI::App& command, const std::string& names, std::string& path,
                        const std::string& description) {
  const auto check = [](const std::string& given) -> std::string {
    const std::vector<std::string> words = {"none", "no", "off", "false", "null", "never", "-"};
    if (given.empty()) return "it names nothing; give a path, or leave the option out";
    if (std::find(words.begin(), words.end(), CLI::detail::to_lower(given)) == words.end()) return "";
    return str("`", given, "` is not taken as a path; leave the option out to write nothing, or write `./", given, "`");
  };
  return *command.add_option(names, path, description)->check(CLI::Validator(check, ""));
}

CLI::Validator not_empty() {
  const auto check = [](const std::string& given) -> std::string {
    const bool is_empty = given.find_first_not_of(" ,") == std::string::npos;
    return is_empty ? "it names nothing; give a value, or leave it out" : "";
  };
  return {check, ""};
}

CLI::Validator seconds() {
  const auto check = [](const std::string& given) -> std::string {
    constexpr double least = 1e-3, most = 1e9;
    double value = 0.0;
    const bool is_number = CLI::detail::lexical_cast(given, value);
    return is_number && value >= least && value <= most ? ""
                                                        : str("`", given, "` is no time from 0.001 to 1e9 seconds");
  };
  return {check, ""};
}

void add_selection(CLI::App& command, Choices& choices) {
  scenario::ExpandOptions& expand = choices.run.expand;
  command
      .add_option("WHAT", choices.run.what,
                  "names such as replicate/single_module (* matches anything), files or folders; default: all")
      ->check(not_empty());
  command.add_option("--case", expand.only, "only the cases with these values: 'key=value,...'")
      ->type_name("KEY=VALUE,...")
      ->check(not_empty());
  command.add_option("--set", expand.set, "override one of the scenario's parameters")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  command.add_option("--world-size", choices.world_size, "run every case with this number of ranks")
      ->check(CLI::Range(1, 1024));
  command.add_option("--launch", choices.launch, "ranks as processes or as threads")
      ->check(CLI::IsMember({"process", "thread"}));
  command.add_option("--device", expand.device, "cpu, sim or cuda")->check(CLI::IsMember({"cpu", "sim", "cuda"}));
  command.add_option("--tag", expand.tags, "only scenarios with this tag")->allow_extra_args(false)->check(not_empty());
  command.add_option("--shard", choices.shard, "the I-th of N shards of the cases")->type_name("I/N");
  command.add_option("--timeout", choices.timeout, "seconds that a case may take (60)")->check(seconds());
  const CLI::Range mebibytes(std::int64_t{1}, scenario::limits::most_mb);
  command.add_option("--memory-mb", expand.memory_mb, "MiB that each rank may use for tensors and values (2048)")
      ->check(mebibytes);
  command.add_option("--output-mb", expand.output_mb, "MiB that each rank may record and write to files (64)")
      ->check(mebibytes);
}

void add_execution(CLI::App& command, Choices& choices) {
  RunSettings& run = choices.run;
  command.add_option("--sum-order", choices.sum_order, "who orders sums over ranks: fixed, or library (NCCL)")
      ->check(CLI::IsMember({"fixed", "library"}));
  command.add_option("--jobs", run.jobs, "cases at once (1.5 per core)")->check(CLI::Range(1, 256));
  command
      .add_option("--deadline", run.collective_deadline,
                  "seconds that a collective waits for its ranks; the `deadline` of a scenario comes first (10)")
      ->check(seconds());
  command.add_flag("--no-order-check", choices.no_order_check, "do not check that accesses to memory are ordered");
  command.add_flag("--process-per-case", run.process_per_case, "with ranks as threads: a new process for each case");
}

void apply_shared_options(Choices& choices) {
  RunSettings& run = choices.run;
  refuse_parameters_set_twice(run.expand.set);
  if (choices.world_size > 0) run.expand.world_size = choices.world_size;
  if (choices.timeout > 0.0) run.expand.timeout = choices.timeout;
  if (!choices.launch.empty()) {
    run.expand.launch = choices.launch == "process" ? scenario::Launch::process : scenario::Launch::thread;
  }
  run.expand.sum_order = scenario::sum_order_from_name(choices.sum_order);
  if (!choices.shard.empty()) run.expand.shard = parse_shard(choices.shard);
  run.verbosity = choices.quiet ? -1 : choices.verbose ? 1 : 0;
  run.order_check = !choices.no_order_check;
}

}  // namespace lockstep::cli
