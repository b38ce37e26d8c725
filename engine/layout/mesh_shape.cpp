#include "engine/layout/mesh_shape.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"

namespace lockstep::layout {

namespace {

std::int64_t product(const std::vector<int>& sizes) {
  std::int64_t count = 1;
  for (const int size : sizes) count = checked_multiply(count, size, "mesh");
  return count;
}

std::string listed(const std::vector<int>& values) {
  std::string text;
  for (const int value : values) text += str(text.empty() ? "" : ", ", value);
  return text;
}

constexpr std::int64_t max_ranks = 1 << 20;

// 0, 1, ... for a mesh of these sizes.
std::vector<int> counted(const std::vector<int>& sizes) {
  const std::int64_t count = product(sizes);
  if (count > max_ranks)
    throw Error(str("mesh: sizes (", listed(sizes), ") make ", count, " ranks, the maximum is ", max_ranks),
                "give smaller sizes");
  std::vector<int> ranks(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Finds a value that occurs twice and copies it to `found`; null when there is none.
template <class T>
const T* first_repeated(std::vector<T> values, T& found) {
  std::sort(values.begin(), values.end());
  const auto at = std::adjacent_find(values.begin(), values.end());
  if (at == values.end()) return nullptr;
  found = *at;
  return &found;
}

}  // namespace

// `sizes` is not moved because both arguments read it.
MeshShape::MeshShape(std::vector<int> sizes,  // NOLINT(performance-unnecessary-value-param)
                     std::vector<std::string> names)
    : MeshShape(sizes, std::move(names), counted(sizes)) {}

MeshShape::MeshShape(std::vector<int> sizes, std::vector<std::string> names, std::vector<int> ranks)
    : sizes_(std::move(sizes)), names_(std::move(names)), ranks_(std::move(ranks)) {
  if (sizes_.empty()) throw Error("mesh: no axes", "give at least one axis");
  for (const int size : sizes_)
    if (size < 1)
      throw Error(str("mesh: an axis of size ", size, " in (", listed(sizes_), ")"), "sizes are at least 1");
  if (names_.empty())
    for (int i = 0; i < num_axes(); ++i) names_.push_back(str(i));
  if (names_.size() != sizes_.size())
    throw Error(str("mesh: ", names_.size(), " axis names for ", sizes_.size(), " axes"), "give one name per axis");
  std::string name;
  if (first_repeated(names_, name))
    throw Error(str("mesh: axis name `", name, "` is given twice"), "give each axis a different name");
  for (const std::string& each : names_)
    if (each.empty()) throw Error("mesh: an axis name is empty", "name every axis");
  if (product(sizes_) != static_cast<std::int64_t>(ranks_.size()))
    throw Error(
        str("mesh: sizes (", listed(sizes_), ") make ", product(sizes_), " places for ", ranks_.size(), " ranks"),
        "give sizes whose product is the number of ranks");
  int rank = 0;
  if (first_repeated(ranks_, rank)) throw Error(str("mesh: rank ", rank, " is listed twice"), "list each rank once");
  for (const int each : ranks_)
    if (each < 0) throw Error(str("mesh: there is no rank ", each), "ranks start at 0");
}

int MeshShape::axis(std::string_view name) const {
  for (int i = 0; i < num_axes(); ++i)
    if (names_[static_cast<std::size_t>(i)] == name) return i;
  std::string known;
  for (const std::string& each : names_) known += str(known.empty() ? "" : ", ", each);
  throw Error(str("mesh: there is no axis `", name, "`"), str("use one of ", known));
}

std::optional<int> MeshShape::position_of(int rank) const {
  const auto found = std::find(ranks_.begin(), ranks_.end(), rank);
  if (found == ranks_.end()) return std::nullopt;
  return static_cast<int>(found - ranks_.begin());
}

std::vector<int> MeshShape::coordinates_of(int rank) const {
  const auto position = position_of(rank);
  if (!position)
    throw Error(str("mesh: rank ", rank, " is not in the mesh of ranks ", listed(ranks_)),
                "use the mesh on its own ranks only");
  std::vector<int> coordinates(sizes_.size());
  int rest = *position;
  for (int i = num_axes() - 1; i >= 0; --i) {
    coordinates[static_cast<std::size_t>(i)] = rest % size(i);
    rest /= size(i);
  }
  return coordinates;
}

int MeshShape::rank_at(const std::vector<int>& coordinates) const {
  if (coordinates.size() != sizes_.size())
    throw Error(str("mesh: ", coordinates.size(), " coordinates for ", sizes_.size(), " axes"),
                "give one coordinate per axis");
  std::size_t position = 0;
  for (int i = 0; i < num_axes(); ++i) {
    const int at = coordinates[static_cast<std::size_t>(i)];
    if (at < 0 || at >= size(i))
      throw Error(
          str("mesh: coordinate ", at, " on axis `", names_[static_cast<std::size_t>(i)], "` of size ", size(i)),
          str("give a coordinate from 0 to ", size(i) - 1));
    position = position * static_cast<std::size_t>(size(i)) + static_cast<std::size_t>(at);
  }
  return ranks_[position];
}

std::vector<int> MeshShape::axis_members(int axis, int rank) const {
  std::vector<int> coordinates = coordinates_of(rank);
  std::vector<int> members;
  for (int i = 0; i < size(axis); ++i) {
    coordinates[static_cast<std::size_t>(axis)] = i;
    members.push_back(rank_at(coordinates));
  }
  return members;
}

MeshShape MeshShape::slice(const std::vector<std::string>& names, int rank) const {
  std::vector<int> axes;
  std::vector<int> sizes;
  for (const std::string& name : names) {
    axes.push_back(axis(name));
    sizes.push_back(size(axes.back()));
  }
  std::string repeated;
  if (first_repeated(names, repeated))
    throw Error(str("mesh: axis `", repeated, "` is given twice"), "name each axis once");
  if (names.empty()) throw Error("mesh: a slice without axes", "name at least one axis");

  std::vector<int> at = coordinates_of(rank);
  std::vector<int> ranks;
  std::vector<int> index(axes.size(), 0);
  while (true) {  // counts `index` up in row-major order
    for (std::size_t i = 0; i < axes.size(); ++i) at[static_cast<std::size_t>(axes[i])] = index[i];
    ranks.push_back(rank_at(at));
    std::size_t i = axes.size();
    while (i > 0 && ++index[i - 1] == sizes[i - 1]) index[--i] = 0;
    if (i == 0) break;
  }
  MeshShape sliced(std::move(sizes), names, std::move(ranks));
  sliced.root_ = root_ ? root_ : std::make_shared<const MeshShape>(*this);
  return sliced;
}

std::string MeshShape::text() const {
  std::string text;
  for (int i = 0; i < num_axes(); ++i)
    text += str(text.empty() ? "" : " x ", names_[static_cast<std::size_t>(i)], " ", size(i));
  return text;
}

}  // namespace lockstep::layout
