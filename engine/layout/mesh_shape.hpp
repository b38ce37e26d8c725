// The shape of a mesh of ranks as a pure value: sizes and names of its axes, the rank at each position, submeshes. No
// communication; engine/mesh/device_mesh.hpp adds the process groups.
//
//   MeshShape mesh({2, 4}, {"dp", "tp"});          // ranks 0..7, the last axis fastest
//   mesh.coordinates_of(6)     == {1, 2}
//   mesh.axis_members("tp", 6) == {4, 5, 6, 7}     // the ranks whose coordinates differ from those of 6 in tp only
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::layout {

class MeshShape {
 public:
  // Ranks 0 .. product - 1 in row-major order. Without names the axes are called "0", "1", ... Throws Error as below,
  // and for more than 2^20 ranks.
  explicit MeshShape(std::vector<int> sizes, std::vector<std::string> names = {});
  // These ranks in row-major order. Throws Error for no axes, an axis of size below 1, names that are empty, repeated
  // or not one per axis, a number of ranks other than the product of the sizes, and repeated or negative ranks.
  MeshShape(std::vector<int> sizes, std::vector<std::string> names, std::vector<int> ranks);

  int num_axes() const { return static_cast<int>(sizes_.size()); }
  const std::vector<int>& sizes() const { return sizes_; }
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<int>& ranks() const { return ranks_; }
  int num_ranks() const { return static_cast<int>(ranks_.size()); }
  int size(int axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  int axis(std::string_view name) const;  // the index of the axis; throws Error that lists the known names

  bool contains(int rank) const { return position_of(rank).has_value(); }
  std::vector<int> coordinates_of(int rank) const;         // throws Error when the rank is not in the mesh
  int rank_at(const std::vector<int>& coordinates) const;  // throws Error for coordinates outside the mesh
  // The ranks whose coordinates equal those of `rank` on all other axes, in order along this axis. Throws Error when
  // the rank is not in the mesh or the name is unknown.
  std::vector<int> axis_members(int axis, int rank) const;
  std::vector<int> axis_members(std::string_view name, int rank) const { return axis_members(axis(name), rank); }
  // The submesh of these axes, in the given order, that contains `rank`. Throws Error for no names, and for unknown or
  // repeated ones.
  MeshShape slice(const std::vector<std::string>& names, int rank) const;
  // The mesh from which this one was sliced, directly or through other slices; itself if it is no slice.
  const MeshShape& root() const { return root_ ? *root_ : *this; }

  std::string text() const;  // "dp 2 x tp 4"
  // The same axes and ranks. The meshes from which they were sliced may differ.
  friend bool operator==(const MeshShape& a, const MeshShape& b) {
    return a.sizes_ == b.sizes_ && a.names_ == b.names_ && a.ranks_ == b.ranks_;
  }

 private:
  std::optional<int> position_of(int rank) const;  // in ranks_
  std::vector<int> sizes_;
  std::vector<std::string> names_;
  std::vector<int> ranks_;                 // row-major
  std::shared_ptr<const MeshShape> root_;  // null: this mesh is no slice
};

}  // namespace lockstep::layout
