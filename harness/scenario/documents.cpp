#include "harness/scenario/documents.hpp"

#include <algorithm>
#include <array>
#include <map>

#include <nlohmann/json.hpp>

#include "engine/core/text.hpp"

namespace lockstep::scenario {

namespace {

struct Document {
  std::string_view name;
  std::string_view about;
  int first;
  int last;
};

constexpr std::array<Document, 5> documents = {{
    {"test_compose.py", "checkpointing, replication and flat sharding on one model", 1, 9},
    {"test_fully_shard_state_dict.py", "state dicts of models that are sharded per parameter", 10, 13},
    {"test_replicate.py", "data parallelism by averaged gradients", 14, 22},
    {"test_fsdp_tp_integration.py", "flat sharding over tensor parallelism", 23, 25},
    {"test_fully_shard_training.py", "training with per-parameter sharding", 26, 46},
}};

struct Row {
  std::string_view name;
  int cases;
  std::string_view shows;
};

constexpr std::array<Row, 46> table = {{
    {"wrap_same_submodule", 2, "one submodule checkpointed and sharded"},
    {"checkpoint_fsdp_submodules_non_reentrant", 2, "checkpoints inside two sharded units"},
    {"checkpoint_fully_shard_cast_forward_inputs", 2, "input types under mixed precision, when recomputed too"},
    {"fully_shard_replicate_correct_replicate_params", 1, "replication manages the parameters that sharding does not"},
    {"checkpoint_fsdp_submodules_with_param", 2, "checkpoints below a sharded root with a parameter of its own"},
    {"checkpoint_fsdp_submodules_with_param_no_shard", 2, "the same without sharding the submodules"},
    {"composable_fsdp_replicate", 1, "replication refuses a sharded module and accepts its sibling"},
    {"fully_shard_replicate_composability", 6, "six combinations of sharding, replication and checkpoints"},
    {"state_dict_fsdp_submodules", 1, "sharded state dicts of units with different strategies"},
    {"1d_state_dict_save_load", 4, "a state dict shares storage, and loads in place"},
    {"1d_state_dict_cpu_offload", 1, "a meta model under offload, loaded parameter by parameter"},
    {"2d_state_dict_save_load", 4, "the same over tensor parallelism"},
    {"rank0_offload_full_state_dict", 1, "the full state dict on rank 0 only, on the CPU"},
    {"replicate_single_module_save_load", 1, "state dicts of a replicated module"},
    {"replicate_non_root_multiple_save_load", 1, "state dicts of replicated children"},
    {"replicate_single_module", 1, "training on shards of a batch against the full batch"},
    {"replicate_move_args_kwargs_to_device", 1, "inputs are moved to the module's device"},
    {"replicate_ignore_module", 1, "gradients of an ignored module stay local to each rank"},
    {"replicate_multi_module", 1, "several replicated children train as one"},
    {"replicate_with_kwargs", 1, "small buckets, and gradients as views of the buckets"},
    {"replicate_device_id", 1, "device ids as a replicated module sees them"},
    {"replicate_wrong_device_id_type", 1, "a device id of the wrong type is refused"},
    {"fsdp_tp_integration", 8, "flat sharding gives the same with and without tensor parallelism"},
    {"fsdp_tp_extension_grad", 1, "exact collectives of both, and correct gradients"},
    {"fsdp_tp_sync_module_state", 1, "parameters and buffers are synchronized across the data-parallel ranks"},
    {"root_move_forward_input_to_device", 1, "a root without parameters moves its inputs"},
    {"param_registration_after_forward", 6, "the parameters that are sharded after a forward"},
    {"param_registration_after_backward", 6, "all parameters are sharded after a backward"},
    {"to_float64_after_init", 1, "a cast after sharding"},
    {"train_parity_single_group", 2, "one group trains as replication does, with even and uneven shards"},
    {"train_parity_multi_group", 18, "several groups train as replication does, with any stream delayed"},
    {"train_parity_multi_group_cpu_offload_eager", 12, "the same with parameters kept on the CPU"},
    {"non_root_forward_backward", 1, "a submodule runs without its root"},
    {"multi_forward_module", 3, "a module that runs twice in one forward"},
    {"explicit_prefetching", 1, "explicit prefetching"},
    {"post_optim_event", 1, "all-gathers wait for the optimizer's event only"},
    {"train_parity_with_activation_checkpointing", 9, "three forms of checkpointing under sharding"},
    {"train_parity_with_shared_params", 4, "tied weights stay one parameter"},
    {"gradient_accumulation", 42, "gradient accumulation over microbatches, with exact counts of collectives"},
    {"1f1b_microbatching", 4, "parameters stay unsharded over microbatches; the last one reduces gradients"},
    {"train_parity_2d_mlp", 12, "tensor parallelism and sharding train as replication does"},
    {"tp_with_fsdp_offloading", 1, "tensor parallelism and sharding with offload, one shard per group"},
    {"train_parity_2d_transformer_checkpoint_resume", 8, "training resumes from a checkpoint"},
    {"2d_mlp_with_nd_mesh", 12, "2-d parallelism on two axes of a 3-d mesh"},
    {"train_parity_hsdp", 24, "HSDP: sharding on one mesh axis, replication on the other"},
    {"register_fsdp_forward_method", 1, "a method that unshards as forward does"},
}};

// A Markdown link to the scenario's file, relative to the page.
std::string link(const Scenario& scenario) { return str("[", scenario.name, "](", scenario.name, ".yaml)"); }

constexpr std::string_view introduction =
    "# The scenarios\n\n"
    "This page is generated by `lockstep reference --documents > scenarios/README.md`. A test compares it with the\n"
    "scenario files.\n\n"
    "Each file is one scenario, and its path is the scenario's name. [REFERENCE.md](REFERENCE.md) describes the "
    "language.\n"
    "`lockstep explain NAME` describes a scenario and the conditions under which it fails.\n\n"
    "| folder | contents |\n|---|---|\n"
    "| replicate/, state_dict/, training/ | mirrors of the tests of five documents, which the tables below list |\n"
    "| golden/ | reruns of PyTorch's traces from their seeds |\n"
    "| lib/ | routines that scenarios share |\n"
    "| negative/ | cases that must fail |\n"
    "| the others | scenarios beyond the documents |\n\n"
    "The tables count the cases at one world size and one launch, on one device. A mirror has at least as many\n"
    "cases as its test.\n";

}  // namespace

const std::vector<DocumentTest>& document_tests() {
  static const std::vector<DocumentTest> tests = [] {
    std::vector<DocumentTest> all;
    for (const Document& document : documents)
      for (int number = document.first; number <= document.last; ++number) {
        const Row& row = table[static_cast<std::size_t>(number - 1)];
        all.push_back({number, document.name, row.name, row.shows, row.cases});
      }
    return all;
  }();
  return tests;
}

const DocumentTest* find_document_test(int number) {
  const std::vector<DocumentTest>& tests = document_tests();
  return number < 1 || number > static_cast<int>(tests.size()) ? nullptr : &tests[static_cast<std::size_t>(number - 1)];
}

int num_cases_at_one_size(const ListRow& row) {
  std::map<std::pair<int, Launch>, int> counts;
  for (const Case& one : row.cases)
    if (!one.skip) ++counts[{one.world_size, one.launch}];
  int most = 0;
  for (const auto& [size, count] : counts) most = std::max(most, count);
  return most;
}

std::string documents_json() {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const Document& document : documents) {
    nlohmann::ordered_json tests = nlohmann::ordered_json::object();
    for (int number = document.first; number <= document.last; ++number)
      tests[str(number)] = find_document_test(number)->name;
    out.push_back({{"title", document.name}, {"about", document.about}, {"tests", std::move(tests)}});
  }
  return str(out.dump(1), "\n");
}

std::string documents_page(const std::vector<ListRow>& rows) {
  std::map<int, std::vector<const ListRow*>> mirrors;
  for (const ListRow& row : rows)
    if (row.scenario->mirrors && row.scenario->mirrors->number) mirrors[*row.scenario->mirrors->number].push_back(&row);
  std::string page(introduction);
  for (const Document& document : documents) {
    page += str("\n## ", document.name, ": ", document.about, "\n\n| no | test | subject | mirror | cases |\n");
    page += "|---|---|---|---|---|\n";
    for (int number = document.first; number <= document.last; ++number) {
      const DocumentTest& test = *find_document_test(number);
      std::string files;
      int cases = 0;
      for (const ListRow* row : mirrors[number]) {
        files += str(files.empty() ? "" : "<br>", link(*row->scenario));
        cases += num_cases_at_one_size(*row);
      }
      page += str("| ", number, " | ", test.name, " | ", test.shows, " | ", files.empty() ? "not mirrored yet" : files,
                  " | ", cases, " of ", test.cases, " |\n");
    }
  }
  return page;
}

}  // namespace lockstep::scenario
