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
    {"fully_shard_replicate_correct_replicate_params", 1, "replication takes what sharding left"},
    {"checkpoint_fsdp_submodules_with_param", 2, "checkpoints below a sharded root with a parameter of its own"},
    {"checkpoint_fsdp_submodules_with_param_no_shard", 2, "the same without sharding its parts"},
    {"composable_fsdp_replicate", 1, "replication refuses a sharded module, and takes its neighbour"},
    {"fully_shard_replicate_composability", 6, "six ways to mix sharding, replication and checkpoints"},
    {"state_dict_fsdp_submodules", 1, "sharded state dicts of units with different strategies"},
    {"1d_state_dict_save_load", 4, "a state dict shares storage, and loads in place"},
    {"1d_state_dict_cpu_offload", 1, "a meta model under offload, loaded parameter by parameter"},
    {"2d_state_dict_save_load", 4, "the same over tensor parallelism"},
    {"rank0_offload_full_state_dict", 1, "the whole state on rank 0 alone, on the CPU"},
    {"replicate_single_module_save_load", 1, "state dicts of a replicated module"},
    {"replicate_non_root_multiple_save_load", 1, "state dicts of replicated children"},
    {"replicate_single_module", 1, "training on rows of a batch against the whole batch"},
    {"replicate_move_args_kwargs_to_device", 1, "inputs are moved to the module's device"},
    {"replicate_ignore_module", 1, "gradients of an ignored module stay each rank's own"},
    {"replicate_multi_module", 1, "several replicated children train as one"},
    {"replicate_with_kwargs", 1, "small buckets, and gradients as views of them"},
    {"replicate_device_id", 1, "device ids as a replicated module sees them"},
    {"replicate_wrong_device_id_type", 1, "a device id of the wrong type is refused"},
    {"fsdp_tp_integration", 8, "flat sharding with and without tensor parallelism gives the same"},
    {"fsdp_tp_extension_grad", 1, "exact collectives of both, and sound gradients"},
    {"fsdp_tp_sync_module_state", 1, "parameters and buffers are made equal across the data-parallel ranks"},
    {"root_move_forward_input_to_device", 1, "a root without parameters moves its inputs"},
    {"param_registration_after_forward", 6, "which parameters are sharded after a forward"},
    {"param_registration_after_backward", 6, "all of them are, after a backward"},
    {"to_float64_after_init", 1, "a cast after sharding"},
    {"train_parity_single_group", 2, "one group trains as replication does, in even and uneven sizes"},
    {"train_parity_multi_group", 18, "several groups, whatever stream is held up"},
    {"train_parity_multi_group_cpu_offload_eager", 12, "the same with parameters kept on the CPU"},
    {"non_root_forward_backward", 1, "a child called without its root"},
    {"multi_forward_module", 3, "a module that runs twice in one forward"},
    {"explicit_prefetching", 1, "gathers ahead, as told"},
    {"post_optim_event", 1, "gathers wait for the optimizer's event alone"},
    {"train_parity_with_activation_checkpointing", 9, "three forms of checkpointing under sharding"},
    {"train_parity_with_shared_params", 4, "tied weights stay one parameter"},
    {"gradient_accumulation", 42, "gradients kept back over microbatches, at the exact cost in collectives"},
    {"1f1b_microbatching", 4, "parameters kept over microbatches, gradients reduced at the last"},
    {"train_parity_2d_mlp", 12, "tensor parallelism and sharding train as replication does"},
    {"tp_with_fsdp_offloading", 1, "both, with one shard a group, and offload"},
    {"train_parity_2d_transformer_checkpoint_resume", 8, "a checkpoint, and training goes on from it"},
    {"2d_mlp_with_nd_mesh", 12, "two axes of a mesh of three"},
    {"train_parity_hsdp", 24, "sharding within, replication across"},
    {"register_fsdp_forward_method", 1, "a method that gathers as forward does"},
}};

// "training/multi_forward" as a link within the page's folder.
std::string link(const Scenario& scenario) { return str("[", scenario.name, "](", scenario.name, ".yaml)"); }

constexpr std::string_view introduction =
    "# The scenarios\n\n"
    "Written by `lockstep reference --documents > scenarios/README.md`; a test holds it against the files.\n\n"
    "Every scenario is one file, named by its path. [REFERENCE.md](REFERENCE.md) is the page of the language; "
    "`lockstep\n"
    "explain NAME` says what a scenario shows and what makes it fail. The folders compose/, state_dict/, replicate/,\n"
    "flat_tensor_parallel/ and training/ mirror the tests of five documents, below; golden/ reruns PyTorch's traces "
    "from\n"
    "their seeds; lib/ holds the routines that scenarios share; negative/ holds what must fail; the others go "
    "beyond.\n\n"
    "Cases are those that run at one world size and one launch on one device; a mirror has at least as many as its "
    "test.\n";

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
    page += str("\n## ", document.name, ": ", document.about, "\n\n| no | test | what it shows | mirror | cases |\n");
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
