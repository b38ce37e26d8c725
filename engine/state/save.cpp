#include "engine/state/save.hpp"

#include <algorithm>
#include <cstring>
#include <map>

#include "engine/autograd/autograd.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/state/agree.hpp"
#include "engine/state/describe.hpp"
#include "engine/state/format.hpp"
#include "engine/state/host_bytes.hpp"
#include "engine/state/pending_save.hpp"
#include "engine/state/writer.hpp"

namespace lockstep::state {

namespace {

// The copies of values that are being written. Kept for the next asynchronous save, so that its pages are there.
struct Snapshot {
  std::shared_ptr<std::byte[]> bytes;
  std::size_t size = 0;
};

// The asynchronous save of a rank.
struct Saves {
  explicit Saves(RankContext&) {}
  Snapshot snapshot;
  std::shared_ptr<PendingSave> pending;
};

Saves& saves() { return RankContext::current().service<Saves>(); }

// The part of this rank: its chunks of the plan, and views of the tensors that hold them.
struct Work {
  std::string operation;
  SavePaths paths;
  FileSystem* files = nullptr;
  std::size_t rank = 0;
  WritePlan plan;
  std::map<std::string, std::string> values;
  std::vector<Tensor> views;  // one per chunk of this rank
  const std::vector<PlannedChunk>& chunks() const { return plan.by_rank[rank]; }
  std::string path() const { return paths.file(file_of_rank(rank)); }
  std::uint64_t data_bytes() const { return chunks().empty() ? 0 : chunks().back().begin + chunks().back().bytes(); }
};

// The view of this rank's values that holds a chunk.
Tensor view_of_chunk(const TreeTensor& entry, const PlannedChunk& chunk) {
  for (const HeldPart& part : held_parts(entry))
    for (const HeldBox& held : part.boxes) {
      if (!contains(held.box, chunk.box)) continue;
      Dims at = held.at;
      for (int dim = 0; dim < at.size(); ++dim) at[dim] += chunk.box.offsets[dim] - held.box.offsets[dim];
      return view_of_box(part.local, at, chunk.box.sizes);
    }
  throw InternalError(str("this rank does not hold ", chunk.name));
}

std::vector<Tensor> views_of_chunks(const Tree& tree, const std::vector<PlannedChunk>& chunks) {
  std::map<std::string, const TreeTensor*> tensors;
  for (const TreeTensor& entry : tree.tensors) tensors[entry.key] = &entry;
  std::vector<Tensor> views;
  views.reserve(chunks.size());
  for (const PlannedChunk& chunk : chunks) views.push_back(view_of_chunk(*tensors.at(chunk.key), chunk));
  return views;
}

std::string write_from_tensors(const Work& work, RankFile& file) {
  return file.write(work.chunks(),
                    [&](std::size_t i, const auto& consume) { with_host_bytes(work.views[i], consume); });
}

// Whether the values must be copied into the snapshot.
bool needs_copy(bool has_snapshot) { return !(has_snapshot && defect_armed(Defect::saved_stale_snapshot)); }

void take_snapshot(const Work& work, Snapshot& snapshot) {
  const auto size = static_cast<std::size_t>(work.data_bytes());
  const bool has_snapshot = snapshot.bytes && snapshot.size == size;
  if (!has_snapshot) {
    snapshot = {};
    snapshot = {std::shared_ptr<std::byte[]>(new std::byte[size]), size};
  }
  if (!needs_copy(has_snapshot)) return;
  for (std::size_t i = 0; i < work.views.size(); ++i)
    with_host_bytes(work.views[i], [&](const std::byte* bytes, std::size_t count) {
      if (count > 0) std::memcpy(snapshot.bytes.get() + work.chunks()[i].begin, bytes, count);
    });
}

std::string write_from_snapshot(const Work& work, const std::byte* snapshot) {
  RankFile file(*work.files, work.path());
  std::string hashes = file.write(work.chunks(), [&](std::size_t i, const auto& consume) {
    const PlannedChunk& chunk = work.chunks()[i];
    consume(snapshot + chunk.begin, static_cast<std::size_t>(chunk.bytes()));
  });
  file.finish();
  return hashes;
}

// ---- the ranks of an asynchronous save exchange hashes as files, because its threads issue no collectives ----
std::string report_of_rank(const SavePaths& paths, std::size_t rank) {
  return paths.file(file_of_rank(rank) + ".hashes");
}

void leave_report(const Work& work, const std::string& hashes) {
  const std::string path = report_of_rank(work.paths, work.rank), part = path + ".part";
  write_file(*work.files, part, hashes);
  work.files->rename(part, path);
}

// Waits for the reports of all ranks and publishes the checkpoint. Returns early if the save is cancelled.
void publish_when_written(const Work& work, const std::string& own_hashes, PendingSave& pending) {
  std::vector<std::string> hashes{own_hashes};
  for (std::size_t rank = 1; rank < work.plan.by_rank.size(); ++rank) {
    const std::string path = report_of_rank(work.paths, rank);
    while (!exists(path)) {
      if (pending.is_cancelled()) return;
      pending.pause();
    }
    hashes.push_back(read_text(path));
    work.files->remove_file(path);
  }
  publish(*work.files, work.paths, index_of(work.plan, hashes, work.values));
}

std::shared_ptr<PendingSave> start(Work work) {
  const auto shared = std::make_shared<Work>(std::move(work));
  shared->views.clear();
  const std::shared_ptr<std::byte[]> snapshot = saves().snapshot.bytes;
  const auto hashes = std::make_shared<std::string>();
  const bool is_first = shared->rank == 0;
  const auto write = [shared, snapshot, hashes, is_first] {
    *hashes = write_from_snapshot(*shared, snapshot.get());
    if (!is_first) leave_report(*shared, *hashes);
  };
  if (!is_first) return std::make_shared<PendingSave>(shared->operation, write, nullptr, nullptr);
  return std::make_shared<PendingSave>(
      shared->operation, write,
      [shared, hashes](PendingSave& pending) { publish_when_written(*shared, *hashes, pending); },
      [shared] { discard_folder(*shared->files, shared->paths); });
}

// The state of all ranks, and the empty temporary folder.
std::vector<Description> begin(const Work& work, const State& state, bool overwrite, Tree& tree) {
  std::vector<Description> descriptions;
  const std::vector<std::string> texts = agree(work.operation, [&] {
    tree = tree_of(state);
    std::string text = text_of(describe(tree));
    if (work.rank == 0) prepare_folder(*work.files, work.paths, overwrite);
    return text;
  });
  descriptions.reserve(texts.size());
  for (const std::string& text : texts) descriptions.push_back(description_from_text(text));
  return descriptions;
}

void make_plan(Work& work, const std::vector<Description>& descriptions, const Tree& tree) {
  try {
    std::vector<std::vector<HeldTensor>> held;
    held.reserve(descriptions.size());
    for (const Description& description : descriptions) held.push_back(description.tensors);
    work.values = merge_values(descriptions);
    for (const auto& [key, json] : work.values)
      if (depth_of(json) > max_value_depth)
        throw Error(str("`", key, "` nests deeper than ", max_value_depth), "save a value with fewer levels");
    work.plan = plan_writes(held);
  } catch (const Error& error) {  // the same one on every rank
    throw Error(str(work.operation, ": ", error.message()), error.remedy());
  }
  work.views = views_of_chunks(tree, work.chunks());
}

// Returns the pending save of an asynchronous one, else null.
std::shared_ptr<PendingSave> perform(Work& work, const State& state, const SaveOptions& options) {
  Tree tree;
  make_plan(work, begin(work, state, options.overwrite, tree), tree);
  const auto announce = [&] {
    if (options.before_write && !work.chunks().empty()) options.before_write(work.path(), bytes_of_file(work.chunks()));
  };
  if (options.async) {
    agree(work.operation, [&]() -> std::string {
      announce();
      take_snapshot(work, saves().snapshot);
      return "";
    });
    return start(std::move(work));
  }
  RankFile file(*work.files, work.path());
  const std::vector<std::string> hashes = agree(work.operation, [&] {
    announce();
    return write_from_tensors(work, file);
  });
  const auto finish = [&]() -> std::string {
    file.finish();
    return "";
  };
  const auto publish_index = [&]() -> std::string {
    if (work.rank == 0) publish(*work.files, work.paths, index_of(work.plan, hashes, work.values));
    return "";
  };
  if (defect_armed(Defect::saved_index_before_data)) [[unlikely]] {
    agree(work.operation, publish_index);
    agree(work.operation, finish);
    return nullptr;
  }
  agree(work.operation, finish);
  agree(work.operation, publish_index);
  return nullptr;
}

}  // namespace

SaveHandle save(const State& state, const std::string& folder, const SaveOptions& options) {
  finish_saves();
  const NoGrad no_grad;
  const RankContext& context = RankContext::current();
  Work work{str("save_checkpoint `", options.shown.empty() ? folder : options.shown, "`"),
            SavePaths(folder),
            options.files ? options.files : &real_files(),
            static_cast<std::size_t>(context.rank()),
            {},
            {},
            {}};
  FileSystem& files = *work.files;
  const SavePaths paths = work.paths;
  try {
    const std::shared_ptr<PendingSave> pending = perform(work, state, options);
    saves().pending = pending;
    return SaveHandle(pending);
  } catch (const Error&) {
    if (context.rank() == 0) discard_folder(files, paths);
    throw;
  }
}

void SaveHandle::wait() const {
  if (pending_) pending_->wait();
}

void finish_saves() {
  if (!RankContext::current().has_service<Saves>()) return;
  const std::shared_ptr<PendingSave> pending = std::exchange(saves().pending, nullptr);
  if (pending && !pending->is_finished()) pending->wait();
}

}  // namespace lockstep::state
