#include <cstdint>
#include <limits>
#include <string>

#include "harness/cli/commands_internal.hpp"
#include "harness/cli/options_internal.hpp"

namespace lockstep::cli {

namespace {

void define_run(CLI::App& app, Choices& choices) {
  CLI::App& run = *app.add_subcommand(
      "run",
      "Run scenarios.\n\nExamples:\n"
      "  lockstep run                                   all that come with the program\n"
      "  lockstep run 'replicate/*' --device sim\n"
      "  lockstep run replicate/single_module --case world_size=8,launch=thread\n"
      "  lockstep run my_scenario.yaml --set seed=7 --results out.jsonl --report out\n"
      "  mpirun -n 4 lockstep run 'training/*'          on several machines; also srun, torchrun\n");
  add_selection(run, choices);
  add_execution(run, choices);
  RunSettings& settings = choices.run;
  run.add_option("--failed", settings.failed, "only the cases that failed in this results file")
      ->check(CLI::ExistingFile);
  run.add_option("--repeat", settings.repeat, "number of times that every case runs")->check(CLI::Range(1, 1000000));
  run.add_option("--run-timeout", settings.run_timeout, "seconds for the whole run")->check(seconds());
  add_output(run, "--results", settings.results, "write a results file (JSON lines)");
  add_output(run, "--junit", settings.junit, "write a JUnit file");
  add_output(run, "--report", settings.report, "write the HTML page into this folder");
  run.add_option("--defect", settings.defect, "arm a seeded defect (see lockstep defects)")->check(not_empty());
  add_output(run, "--trace-bits", settings.trace_bits,
             "keep a hash of every module's output and every gradient in this folder (see lockstep compare --trace)")
      .type_name("FOLDER");
  add_output(run, "--files", settings.files,
             "keep the files that each case writes, checkpoints for example, in case-N in this new folder");
  add_output(run, "--timeline", settings.timeline,
             "keep a timeline of every case in this folder, as a trace for Perfetto; the page draws it too")
      .type_name("FOLDER");
  run.add_option("--link", settings.link,
                 "how processes that mpirun, srun or torchrun started find each other; none: this process runs alone")
      ->check(CLI::IsMember({"mpi", "tcp", "none"}))
      ->envname("LOCKSTEP_LINK");
  CLI::Option* const schedule =
      run.add_option(
             "--schedule", settings.schedule,
             "decide who runs next (ranks as threads, streams of sim): random:SEED, pct:DEPTH,SEED, exhaustive:N, or "
             "replay:FILE, which repeats one that failed")
          ->type_name("POLICY")
          ->check(not_empty());
  run.add_option("--schedules", settings.schedules, "schedules per case, of random and pct")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}))
      ->needs(schedule);
  add_output(run, "--schedule-files", settings.schedule_files,
             "write the schedules that fail into this folder (lockstep-schedules)")
      .type_name("FOLDER");
  run.add_flag("--fail-fast", settings.fail_fast, "stop after the first unexpected result");
  run.add_option("--color", settings.color)->check(CLI::IsMember({"auto", "always", "never"}));
  run.add_option("--progress", settings.progress)->check(CLI::IsMember({"auto", "always", "never"}));
  run.add_flag("-v,--verbose", choices.verbose, "show the evidence of every case");
  run.add_flag("-q,--quiet", choices.quiet, "show only unexpected results and the summary");
}

void define_inspection(CLI::App& app, Choices& choices) {
  CLI::App& list = *app.add_subcommand(
      "list",
      "List scenarios with their cases, ranks, and the tests they mirror.\n\nExamples:\n  lockstep list\n"
      "  lockstep list 'golden/*' --json\n");
  add_selection(list, choices);
  list.add_flag("--json", choices.json, "JSON instead of a table");
  CLI::App& explain = *app.add_subcommand("explain",
                                          "Explain a scenario: its purpose, cases, steps and planned collectives, and "
                                          "the checks that make it fail.\n\nExamples:\n"
                                          "  lockstep explain replicate/single_module\n");
  explain.add_option("NAME", choices.name, "name or file of a scenario")->required();
  explain.add_option("--case", choices.run.expand.only,
                     "the case whose planned collectives are shown: 'key=value,...'");
  CLI::App& validate = *app.add_subcommand(
      "validate",
      "Parse and check scenario files without running them.\n\nExamples:\n"
      "  lockstep validate my_scenario.yaml\n  lockstep validate            all that come with the program\n");
  validate.add_option("FILE", choices.files, "files or names; default: all");
  app.add_subcommand(
      "schema",
      "Print the JSON Schema (draft-07) of a scenario file.\n\nExamples:\n  lockstep schema > lockstep.schema.json\n");
  CLI::App& reference = *app.add_subcommand(
      "reference",
      "Print the reference page of the scenario language.\n\nExamples:\n  lockstep reference > REFERENCE.md\n"
      "  lockstep reference --documents > README.md\n");
  reference.add_flag("--documents", choices.documents, "print the page of the tests that scenarios mirror instead");
}

void define_plan(CLI::App& app, Choices& choices) {
  CLI::App& plan = *app.add_subcommand(
      "plan",
      "Print the collectives that one rank of a scenario must issue, their bytes, its memory, and the time on a "
      "machine. "
      "Nothing is launched, so any world size will do.\n\nExamples:\n"
      "  lockstep plan training/hybrid_sharding\n"
      "  lockstep plan plans/transformer_3d --world-size 4096 --rank 17\n"
      "  lockstep plan plans/transformer_3d --machine scenarios/machines/cluster.yaml --format json\n");
  plan.add_option("NAME", choices.name, "name or file of a scenario; the first case that can run is planned")
      ->required();
  plan.add_option("--world-size", choices.world_size, "number of ranks, in place of the scenario's")
      ->check(CLI::Range(1, 65536));
  plan.add_option("--rank", choices.rank, "the rank whose plan is printed (0)")->check(CLI::Range(0, 65535));
  plan.add_option("--machine", choices.machine, "file of a machine, for the times (see scenarios/machines)")
      ->type_name("FILE");
  plan.add_option("--case", choices.run.expand.only, "the case with these values: 'key=value,...'");
  plan.add_option("--set", choices.run.expand.set, "override one of the scenario's parameters")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  plan.add_option("--device", choices.run.expand.device, "cpu, sim or cuda")
      ->check(CLI::IsMember({"cpu", "sim", "cuda"}));
  plan.add_option("--format", choices.format, "text, or json: one line per stage")
      ->check(CLI::IsMember({"text", "json"}));
}

void define_results(CLI::App& app, Choices& choices) {
  CLI::App& report = *app.add_subcommand("report",
                                         "Write the HTML page of a results file.\n\nExamples:\n"
                                         "  lockstep report build/report/results.jsonl -o page\n");
  report.add_option("RESULTS", choices.old_results, "results file")->required();
  add_output(report, "-o,--output", choices.output, "folder of the page").required();
  CLI::App& compare = *app.add_subcommand(
      "compare",
      "Compare two results files; exit code 1 when something got worse.\n\nExamples:\n"
      "  lockstep compare main.jsonl branch.jsonl\n"
      "  lockstep compare --trace bits-here bits-there    the first output or gradient that differs\n");
  compare.add_option("OLD", choices.old_results, "the earlier results file; with --trace a folder of run --trace-bits")
      ->required();
  compare.add_option("NEW", choices.new_results, "the later results file; with --trace another such folder")
      ->required();
  compare.add_flag("--gate-time", choices.gate_time, "count longer times as worse, instead of only showing them");
  compare.add_flag("--allow-cut", choices.allow_cut,
                   "accept an OLD of a run that was cut short: without a summary, or with MISSING cases");
  compare.add_flag("--trace", choices.trace,
                   "compare folders of run --trace-bits: name the first output or gradient that differs");
  compare.add_flag("--json", choices.json, "JSON lines");
  CLI::App& hang =
      *app.add_subcommand("explain-hang",
                          "Explain a flight recorder dump: which rank waited for which, and why.\n\nExamples:\n"
                          "  lockstep explain-hang build/report/results.jsonl    the cases with a dump\n"
                          "  lockstep explain-hang build/report/results.jsonl.dumps/case-1\n");
  hang.add_option("PATH", choices.folder, "a results file, its folder of dumps, or the folder of one case in it")
      ->required();
}

void define_checkpoint(CLI::App& app, Choices& choices) {
  CLI::App& checkpoint = *app.add_subcommand("checkpoint",
                                             "Read checkpoints that save_checkpoint wrote.\n\nExamples:\n"
                                             "  lockstep checkpoint show run/step_100\n"
                                             "  lockstep checkpoint verify run/step_100\n"
                                             "  lockstep checkpoint diff run/step_100 run/step_200\n"
                                             "  lockstep checkpoint export run/step_100 -o weights.safetensors\n");
  checkpoint.require_subcommand(1);
  const auto add = [&](const char* name, const char* description) {
    CLI::App& command = *checkpoint.add_subcommand(name, description);
    command.add_option("FOLDER", choices.folder, "folder of a checkpoint")->required();
    return &command;
  };
  add("show", "Print its tensors, plain values and files.");
  add("verify", "Compare all bytes with their hashes; exit code 1 when something is missing or damaged.");
  add("diff", "Compare the values of two checkpoints; exit code 1 when they differ.")
      ->add_option("OTHER", choices.name, "folder of the other checkpoint")
      ->required();
  add_output(*add("export", "Write its tensors, unsharded, as one safetensors file."), "-o,--output", choices.output,
             "the file to write")
      .required();
}

void define_fuzz(CLI::App& app, Choices& choices) {
  CLI::App& fuzz = *app.add_subcommand(
      "fuzz",
      "Run training programs that a grammar makes. Each trains sharded or replicated, and alone on one rank, on "
      "cpu and sim, with ranks as threads and as processes. All must agree, in their peaks of memory, too. A failing "
      "program is shrunk and written to a file.\n\nExamples:\n"
      "  lockstep fuzz --seconds 300 --seed 7\n"
      "  lockstep fuzz --seed 7 --program 1234          one program again\n"
      "  lockstep fuzz --seed 7 --program 1234 --show   its text\n");
  FuzzSettings& settings = choices.fuzz;
  fuzz.add_option("--seed", settings.seed, "the same programs for the same seed, on every machine (1)");
  fuzz.add_option("--seconds", settings.seconds, "start no further program after this time")->check(seconds());
  fuzz.add_option("--programs", settings.programs, "number of programs (1000 without --seconds)")
      ->check(CLI::Range(1, 100000000));
  fuzz.add_option("--program", settings.program, "this program only, counted from 0")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()));
  fuzz.add_option("--jobs", settings.jobs, "programs at once (1.5 per core)")->check(CLI::Range(1, 256));
  fuzz.add_option("--shrink", settings.most_runs, "runs that shrinking one program may take (300)")
      ->check(CLI::Range(0, 100000));
  fuzz.add_option("--failures", settings.most_failures, "stop after so many failing programs (5)")
      ->check(CLI::Range(1, 1000000));
  fuzz.add_option("--defect", settings.defect, "arm a seeded defect (see lockstep defects)");
  fuzz.add_option("--peer", settings.peer, "a Python with PyTorch: run the programs there too, and compare the values")
      ->type_name("PYTHON");
  add_output(fuzz, "--output", settings.output, "folder for the files of failing programs (fuzz)");
  fuzz.add_option("--keep", settings.keeps,
                  "write so many of the programs, those with the most pairs of features, instead of running them")
      ->check(CLI::Range(1, 10000));
  fuzz.add_flag("--show", settings.shows, "print the programs instead of running them");
}

void define_quality(CLI::App& app, Choices& choices) {
  CLI::App& bench = *app.add_subcommand("bench",
                                        "Measure collectives, training steps, launching, kernels and "
                                        "checkpoints.\n\nExamples:\n  lockstep bench collectives\n"
                                        "  lockstep bench steps --json\n"
                                        "  lockstep bench collectives --same-bytes\n");
  bench.add_option("GROUP", choices.bench.groups, "collectives, steps, launch, kernels or checkpoint; default: all");
  bench.add_flag("--json", choices.bench.json, "JSON lines");
  bench.add_option("--rounds", choices.bench.rounds, "number of measurements per row")->check(CLI::Range(1, 1000000));
  bench.add_option("--world-size", choices.bench.world_sizes, "ranks")->check(CLI::Range(1, 64));
  bench.add_option("--scale", choices.bench.scale, "kernels: times by which inputs are larger, such as 64 for a GPU")
      ->check(CLI::Range(1, 1024));
  bench.add_flag("--same-bytes", choices.bench.same_bytes,
                 "collectives: compare the times of 8 and 2 ranks that read and write the same total number of bytes");
  bench.add_option("--link", choices.bench.link, "as for `lockstep run`")
      ->check(CLI::IsMember({"mpi", "tcp", "none"}))
      ->envname("LOCKSTEP_LINK");
  bench.add_option("--device", choices.bench.device, "of collectives, steps and kernels: cpu, sim or cuda")
      ->check(CLI::IsMember({"cpu", "sim", "cuda"}));
  bench.add_option("--only", choices.bench.only, "only measurements whose name contains this text");
  CLI::App& defects =
      *app.add_subcommand("defects", "List the seeded defects.\n\nExamples:\n  lockstep defects --json\n");
  defects.add_flag("--json", choices.json, "JSON lines");
  CLI::App& matrix = *app.add_subcommand(
      "kill-matrix",
      "Run scenarios under each seeded defect and check that each defect is caught.\n\nExamples:\n"
      "  lockstep kill-matrix\n  lockstep kill-matrix 'replicate/*' --only replicate_no_division\n");
  add_selection(matrix, choices);
  add_execution(matrix, choices);
  matrix.add_option("--only", choices.defects, "only these defects")->allow_extra_args(false);
  matrix.add_flag("--all", choices.all, "run every case under every defect, instead of stopping at the first catch");
  matrix.add_option("--earlier", choices.earlier_results,
                    "results file of an earlier run: what caught a defect there runs first");
  add_output(matrix, "--results", choices.run.results, "write a results file with one line per defect (JSON lines)");
  CLI::App& mutate = *app.add_subcommand(
      "mutate",
      "Run scenarios with each step that brings a feature left out in turn, and report the steps whose absence no "
      "check "
      "notices.\n\nExamples:\n  lockstep mutate 'replicate/*'\n  lockstep mutate my_scenario.yaml\n");
  add_selection(mutate, choices);
  add_execution(mutate, choices);
  add_output(mutate, "--results", choices.run.results, "write a results file with one line per step (JSON lines)");
  app.add_subcommand("doctor", "Check that this machine has all that a run needs.\n\nExamples:\n  lockstep doctor\n");
}

}  // namespace

void define_commands(CLI::App& app, Choices& choices) {
  define_run(app, choices);
  define_inspection(app, choices);
  define_plan(app, choices);
  define_results(app, choices);
  define_checkpoint(app, choices);
  define_quality(app, choices);
  define_fuzz(app, choices);
}

}  // namespace lockstep::cli
