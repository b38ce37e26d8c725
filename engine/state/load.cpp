#include "engine/state/load.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <set>

#include <nlohmann/json.hpp>

#include "engine/autograd/autograd.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/state/agree.hpp"
#include "engine/state/load_parts.hpp"
#include "engine/state/optimizer_values.hpp"
#include "engine/state/reader.hpp"
#include "engine/state/save.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_launch.hpp"

namespace lockstep::state {

namespace {

using Json = nlohmann::json;

// A tensor of the state and the pieces of the checkpoint that it consists of.
struct TensorLoad {
  std::string key;
  Tensor local;
  const SavedTensor* saved = nullptr;
  std::vector<Piece> pieces;
};

[[noreturn]] void missing_key(const Reader& reader, const std::string& key) {
  throw Error(str("Missing key in checkpoint `", reader.shown(), "`: `", key, "`"),
              "load what was saved, or set `partial`");
}

void check_fits(const Reader& reader, const TreeTensor& wanted, const SavedTensor& saved) {
  const Tensor& tensor = wanted.tensor;
  if (tensor.is_meta())
    throw Error(str("`", wanted.key, "` is on the meta device and has no memory"), "materialize the model first");
  check_not_partial(wanted);
  raw::require_not_expanded(wanted.key.c_str(), local_tensor(tensor));
  if (saved.dtype == tensor.dtype() && saved.sizes == full_sizes(wanted)) return;
  throw Error(str(saved.sizes == full_sizes(wanted) ? "Type" : "Size", " mismatch for `", wanted.key,
                  "`: ", name_of(saved.dtype), " ", to_text(saved.sizes), " in the checkpoint `", reader.shown(), "`, ",
                  name_of(tensor.dtype()), " ", to_text(full_sizes(wanted)), " in the state"),
              "load it into the model that was saved");
}

// Whether both have the same elements of the checkpoint at the same places.
bool have_same_source(const TensorLoad& a, const TensorLoad& b) {
  const auto same = [&](const Piece& x, const Piece& y) {
    const SavedChunk &left = a.saved->chunks[x.chunk], &right = b.saved->chunks[y.chunk];
    return left.file == right.file && left.offset == right.offset && left.box == right.box && x.box == y.box &&
           x.at == y.at;
  };
  return std::equal(a.pieces.begin(), a.pieces.end(), b.pieces.begin(), b.pieces.end(), same);
}

// ---- one load on one rank ----
class Load {
 public:
  Load(const State& state, const std::string& folder, const std::string& shown, const LoadOptions& options)
      : state_(state),
        partial_(options.partial),
        check_value_(options.check_value),
        names_(options.names),
        reader_(folder, shown, options.files ? *options.files : real_files()) {
    if (!names_.empty()) return;
    for (const Part& part : state)
      if (!std::holds_alternative<RandomState>(part.object)) names_.push_back(part.name);
  }
  // In reverse order: an optimizer that occurs twice gets the state back that the first one has seen.
  ~Load() {
    while (!optimizers_.empty()) optimizers_.pop_back();
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  // Checks everything and reads the plain values. Returns the unexpected keys, as a JSON list.
  std::string prepare();
  void copy_tensors();
  // Sets the plain values of the objects, and marks empty shards as changed.
  void commit();
  LoadReport report;

 private:
  void plan_tensors(const Tree& tree);
  std::vector<std::byte> values_of(const TensorLoad& load);
  void check_ties();
  void read_value(const TreeValue& wanted);
  std::vector<std::string> unexpected_keys(const Tree& tree) const;

  const State& state_;
  const bool partial_;
  const std::function<void(const std::string& json)> check_value_;
  std::vector<std::string> names_;  // keys below them are part of the state
  Reader reader_;
  std::vector<std::unique_ptr<OptimizerLoad>> optimizers_;
  std::vector<std::pair<optim::GradScaler*, optim::GradScaler::State>> scalers_;
  std::vector<Generator::State> generators_;
  std::vector<TensorLoad> tensors_;
  std::vector<std::pair<Tensor, Tensor>> copies_;  // of the tree, those that are loaded
};

std::string Load::prepare() {
  for (const auto& [name, bytes] : reader_.index().files) reader_.check_file(name);
  for (const Part& part : state_)
    if (const auto* optimizer = std::get_if<optim::Optimizer*>(&part.object))
      optimizers_.push_back(std::make_unique<OptimizerLoad>(part.name, **optimizer, reader_.index(), partial_));
  Tree tree = tree_of(state_);
  const auto is_removed = [this](const auto& entry) {
    return std::any_of(optimizers_.begin(), optimizers_.end(),
                       [&entry](const auto& optimizer) { return optimizer->removes(entry.key); });
  };
  std::erase_if(tree.tensors, is_removed);
  std::erase_if(tree.values, is_removed);
  for (const TreeValue& wanted : tree.values) read_value(wanted);
  for (const Part& part : state_) {
    const auto* scaler = std::get_if<optim::GradScaler*>(&part.object);
    const auto found = reader_.index().values.find(part.name + ".scaler");
    if (!scaler || found == reader_.index().values.end()) continue;
    const auto saved = scaler_from_text(found->second, part.name);
    if ((*scaler)->options().enabled && !saved)
      throw Error(str("`", part.name, "` is enabled, and the scaler of the checkpoint is not"),
                  "load it into a scaler that is not enabled");
    if (!saved) continue;
    optim::GradScaler(**scaler).load_state_dict(*saved);  // checks the ranges
    scalers_.emplace_back(*scaler, *saved);
  }
  plan_tensors(tree);
  // A buffer that is not loaded keeps its bits: the type of its copy may be narrower.
  std::copy_if(tree.copies.begin(), tree.copies.end(), std::back_inserter(copies_), [this](const auto& of) {
    return std::any_of(tensors_.begin(), tensors_.end(),
                       [&of](const TensorLoad& load) { return load.local.same_as(of.second); });
  });
  check_ties();
  return Json(unexpected_keys(tree)).dump();
}

void Load::read_value(const TreeValue& wanted) {
  const auto found = reader_.index().values.find(wanted.key);
  if (found == reader_.index().values.end()) {
    if (!partial_) missing_key(reader_, wanted.key);
    report.missing.push_back(wanted.key);
    return;
  }
  for (const Part& part : state_) {
    if (std::holds_alternative<PlainValue>(part.object) && part.name == wanted.key) {
      if (check_value_) check_value_(found->second);
      report.values[wanted.key] = found->second;
    }
    const std::string own = str(part.name, ".rank-", RankContext::current().rank());
    if (std::holds_alternative<RandomState>(part.object) && own == wanted.key)
      generators_.push_back(random_state_from_text(found->second));
  }
}

void Load::plan_tensors(const Tree& tree) {
  for (const TreeTensor& wanted : tree.tensors) {
    const auto found = reader_.index().tensors.find(wanted.key);
    if (found == reader_.index().tensors.end()) {
      if (!partial_) missing_key(reader_, wanted.key);
      report.missing.push_back(wanted.key);
      continue;
    }
    const SavedTensor& saved = found->second;
    check_fits(reader_, wanted, saved);
    std::vector<Box> chunks;
    for (const SavedChunk& chunk : saved.chunks) chunks.push_back(chunk.box);
    for (const HeldPart& part : held_parts(wanted)) {
      TensorLoad load{wanted.key, part.local, &saved, plan_reads(chunks, part.boxes)};
      for (const Piece& piece : load.pieces) {
        reader_.verify(wanted.key, saved, saved.chunks[piece.chunk], piece.box);
        report.bytes_needed += bounded_bytes(piece.box.num_elements(), size_of(saved.dtype));
      }
      tensors_.push_back(std::move(load));
    }
  }
}

// The bytes that the checkpoint has for a tensor of this rank.
std::vector<std::byte> Load::values_of(const TensorLoad& load) {
  const Tensor values = empty(load.local.sizes(), load.saved->dtype, device::Device{});
  reader_.copy_pieces(*load.saved, load.pieces, values);
  return to_bytes(values);
}

// Two keys that are one tensor here must have equal values in the checkpoint. Other views of its memory are tensors of
// their own.
void Load::check_ties() {
  std::map<std::pair<const Storage*, std::int64_t>, std::vector<const TensorLoad*>> seen;
  for (const TensorLoad& load : tensors_) {
    if (load.pieces.empty()) continue;
    std::vector<const TensorLoad*>& here = seen[{load.local.storage().get(), load.local.offset()}];
    const auto at = std::find_if(here.begin(), here.end(), [&load](const TensorLoad* one) {
      return one->local.sizes() == load.local.sizes() && one->local.strides() == load.local.strides();
    });
    if (at == here.end())
      here.push_back(&load);
    else if (!have_same_source(load, **at) && values_of(load) != values_of(**at))
      throw Error(str("`", (*at)->key, "` and `", load.key, "` are one tensor here, and have different values in ",
                      "the checkpoint `", reader_.shown(), "`"),
                  "load it into a model whose parameters are not tied");
  }
}

// The keys of the checkpoint that belong to a part of the state and that the tree does not have.
std::vector<std::string> Load::unexpected_keys(const Tree& tree) const {
  std::set<std::string> known;
  for (const TreeTensor& entry : tree.tensors) known.insert(entry.key);
  for (const TreeValue& entry : tree.values) known.insert(entry.key);
  std::vector<std::string> unexpected;
  const auto check = [&](const std::string& key) {
    const auto is_above = [&key](const std::string& name) { return key.starts_with(name + "."); };
    if (!known.contains(key) && std::any_of(names_.begin(), names_.end(), is_above)) unexpected.push_back(key);
  };
  for (const auto& [key, tensor] : reader_.index().tensors) check(key);
  for (const auto& [key, value] : reader_.index().values) check(key);
  return unexpected;
}

void Load::copy_tensors() {
  for (const TensorLoad& load : tensors_)
    if (!load.pieces.empty()) reader_.copy_pieces(*load.saved, load.pieces, load.local);
  report.bytes_read = reader_.bytes_verified();
}

void Load::commit() {
  for (const auto& [buffer, copy] : copies_) raw::copy_(buffer, copy);
  for (const auto& optimizer : optimizers_) optimizer->commit();
  for (const auto& [scaler, saved] : scalers_) scaler->load_state_dict(saved);
  // Shards without an element are loaded like the others, so that all ranks see the same versions.
  for (const TensorLoad& load : tensors_)
    if (load.pieces.empty()) load.local.bump_version();
  for (const Generator::State& generator : generators_) RankContext::current().generator().set_state(generator);
}

std::vector<std::string> sorted_keys(const std::string& json) {
  auto keys = Json::parse(json).get<std::vector<std::string>>();
  std::sort(keys.begin(), keys.end());
  return keys;
}

// The keys that are unexpected on every rank.
std::vector<std::string> common_keys(const std::vector<std::string>& of_ranks) {
  std::vector<std::string> common = sorted_keys(of_ranks.front());
  for (const std::string& json : of_ranks) {
    const std::vector<std::string> keys = sorted_keys(json);
    std::vector<std::string> both;
    std::set_intersection(common.begin(), common.end(), keys.begin(), keys.end(), std::back_inserter(both));
    common = std::move(both);
  }
  return common;
}

}  // namespace

LoadReport load(const State& state, const std::string& folder, const LoadOptions& options) {
  finish_saves();
  const NoGrad no_grad;
  const std::string shown = options.shown.empty() ? folder : options.shown;
  const std::string operation = str("load_checkpoint `", shown, "`");
  std::unique_ptr<Load> load;
  const std::vector<std::string> unexpected = common_keys(agree(operation, [&] {
    load = std::make_unique<Load>(state, folder, shown, options);
    return load->prepare();
  }));
  if (!unexpected.empty() && !options.partial)  // on every rank
    throw Error(str(operation, ": Unexpected key in checkpoint: `", unexpected.front(), "`",
                    unexpected.size() > 1 ? str(" and ", unexpected.size() - 1, " more") : ""),
                "load it into the state that was saved, or set `partial`");
  load->report.unexpected = unexpected;
  agree(operation, [&]() -> std::string {
    load->copy_tensors();
    load->commit();
    return "";
  });
  return std::move(load->report);
}

}  // namespace lockstep::state
