#include "harness/fuzz/derivation.hpp"

#include "engine/core/error.hpp"

namespace lockstep::fuzz {

namespace {

std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

void collect(const Derivation& node, const std::string& path, bool anonymous, std::vector<std::string>& found) {
  if (node.value != 0) found.push_back(str(path, "=", node.value));
  const std::string below = path.empty() ? "" : path + "/";
  for (const auto& [name, field] : node.fields) collect(field, below + name, anonymous, found);
  for (std::size_t i = 0; i < node.items.size(); ++i)
    collect(node.items[i], below + (anonymous ? std::string("*") : std::to_string(i)), anonymous, found);
}

}  // namespace

std::uint64_t Random::next() { return mixed(state_ += 0x9e3779b97f4a7c15ull); }

std::int64_t Random::below(std::int64_t bound) {
  LOCKSTEP_CHECK(bound >= 1, "a random number below ", bound);
  return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(bound));
}

std::uint64_t program_seed(std::uint64_t seed, std::uint64_t index) {
  return mixed(mixed(seed + 0x9e3779b97f4a7c15ull) ^ (index + 1));
}

bool Derivation::is_simplest() const { return size() == 0; }

int Derivation::size() const {
  int size = (value != 0 ? 1 : 0) + static_cast<int>(items.size());
  for (const auto& [name, field] : fields) size += field.size();
  for (const Derivation& item : items) size += item.size();
  return size;
}

void Derivation::drop_unused() {
  std::erase_if(fields, [](const auto& field) { return !field.second.is_used; });
  for (auto& [name, field] : fields) {
    field.drop_unused();
    field.is_used = false;
  }
  for (Derivation& item : items) item.drop_unused();
}

std::vector<std::string> choices_of(const Derivation& tree, bool anonymous) {
  std::vector<std::string> found;
  collect(tree, "", anonymous, found);
  return found;
}

Derivation& Chooser::field(std::string_view name, bool* is_new) {
  const auto found = node_->fields.find(name);
  *is_new = found == node_->fields.end();
  Derivation& chosen = *is_new ? node_->fields[std::string(name)] : found->second;
  chosen.is_used = true;
  return chosen;
}

int Chooser::pick(std::string_view name, const std::vector<int>& weights) {
  bool is_new = false;
  Derivation& choice = field(name, &is_new);
  const auto count = static_cast<std::int64_t>(weights.size());
  if (is_new && random_ != nullptr) {
    std::int64_t total = 0;
    for (int weight : weights) total += weight;
    std::int64_t at = random_->below(total);
    while (at >= weights[static_cast<std::size_t>(choice.value)])
      at -= weights[static_cast<std::size_t>(choice.value++)];
  }
  if (choice.value < 0 || choice.value >= count || weights[static_cast<std::size_t>(choice.value)] == 0)
    choice.value = 0;
  return static_cast<int>(choice.value);
}

int Chooser::pick(std::string_view name, std::initializer_list<int> weights) {
  return pick(name, std::vector<int>(weights));
}

std::int64_t Chooser::number(std::string_view name, std::int64_t low, std::int64_t high) {
  bool is_new = false;
  Derivation& choice = field(name, &is_new);
  if (is_new && random_ != nullptr) choice.value = random_->below(high - low + 1);
  if (choice.value < 0 || low + choice.value > high) choice.value = 0;
  return low + choice.value;
}

bool Chooser::chance(std::string_view name, int percent) { return pick(name, {100 - percent, percent}) == 1; }

Chooser Chooser::in(std::string_view name) {
  bool is_new = false;
  return Chooser(field(name, &is_new), random_);
}

std::vector<Chooser> Chooser::items(std::string_view name, int least, int most) {
  bool is_new = false;
  Derivation& list = field(name, &is_new);
  std::size_t count = list.items.size();
  if (is_new && random_ != nullptr) count = static_cast<std::size_t>(least + random_->below(most - least + 1));
  if (count < static_cast<std::size_t>(least)) count = static_cast<std::size_t>(least);
  if (count > static_cast<std::size_t>(most)) count = static_cast<std::size_t>(most);
  list.items.resize(count);
  std::vector<Chooser> choosers;
  for (Derivation& item : list.items) choosers.emplace_back(item, random_);
  return choosers;
}

}  // namespace lockstep::fuzz
