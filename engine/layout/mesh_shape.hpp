// The shape of a mesh of ranks as a pure value: sizes and names of its axes, which ranks stand where, the ranks of a
// slice. No communication; engine/mesh adds the groups.
//
//   MeshShape mesh({2, 4}, {"dp", "tp"});          // ranks 0..7, the last axis running fastest
//   mesh.coordinates_of(6)    == {1, 2}
//   mesh.axis_members("tp", 6) == {4, 5, 6, 7}     // the ranks that differ from 6 in tp alone
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::layout {

class MeshShape {
 public:
  // Ranks 0 .. product - 1 in order. Without names the axes are called "0", "1", ...
  explicit MeshShape(std::vector<int> sizes, std::vector<std::string> names = {});
  // These ranks, the last axis running fastest. Throws Error for an axis of size below 1, names that are doubled or do
  // not fit the axes, a product that is not the number of ranks, repeated or negative ranks.
  MeshShape(std::vector<int> sizes, std::vector<std::string> names, std::vector<int> ranks);

  int num_axes() const { return static_cast<int>(sizes_.size()); }
  const std::vector<int>& sizes() const { return sizes_; }
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<int>& ranks() const { return ranks_; }
  int num_ranks() const { return static_cast<int>(ranks_.size()); }
  int size(int axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  int axis(std::string_view name) const;  // index of the axis; throws Error naming those there are

  bool contains(int rank) const { return position_of(rank).has_value(); }
  std::vector<int> coordinates_of(int rank) const;  // throws Error when the rank is not in the mesh
  int rank_at(const std::vector<int>& coordinates) const;
  // The ranks along one axis through `rank`, in order of the axis.
  std::vector<int> axis_members(int axis, int rank) const;
  std::vector<int> axis_members(std::string_view name, int rank) const { return axis_members(axis(name), rank); }
  // The mesh of some axes, in the given order, through `rank`. Throws Error for names that are unknown or doubled.
  MeshShape slice(const std::vector<std::string>& names, int rank) const;

  std::string text() const;  // "dp 2 x tp 4"
  friend bool operator==(const MeshShape&, const MeshShape&) = default;

 private:
  std::optional<int> position_of(int rank) const;
  std::vector<int> sizes_;
  std::vector<std::string> names_;
  std::vector<int> ranks_;  // row-major
};

}  // namespace lockstep::layout
