#include "ns_dist/mesh.h"

#include "ns_dist/result.h"

namespace ns_dist {
namespace {

const MeshAxis* find(const std::vector<MeshAxis>& axes, std::string_view name) {
  for (const MeshAxis& axis : axes) {
    if (axis.name == name) return &axis;
  }
  return nullptr;
}

}  // namespace

Mesh Mesh::innermost_first(const std::vector<std::string_view>& names, const std::vector<std::int64_t>& sizes) {
  NS_EXPECTS(names.size() == sizes.size());
  Mesh mesh;
  mesh.axes_.reserve(names.size());
  std::int64_t stride = 1;
  for (std::size_t i = 0; i < names.size(); ++i) {
    NS_EXPECTS(sizes[i] > 0);
    mesh.axes_.push_back({names[i], sizes[i], stride});
    stride *= sizes[i];
  }
  return mesh;
}

std::int64_t Mesh::ranks() const { return axes_.empty() ? 1 : axes_.back().size * axes_.back().stride; }

std::int64_t Mesh::size(std::string_view axis) const {
  const MeshAxis* found = find(axes_, axis);
  return found == nullptr ? 1 : found->size;
}

std::int64_t Mesh::stride(std::string_view axis) const {
  const MeshAxis* found = find(axes_, axis);
  return found == nullptr ? ranks() : found->stride;
}

std::int64_t Mesh::coordinate(Rank rank, std::string_view axis) const {
  const MeshAxis* found = find(axes_, axis);
  return found == nullptr ? 0 : (rank / found->stride) % found->size;
}

RankGroup Mesh::group(Rank rank, const std::vector<std::string_view>& axes) const {
  RankGroup group{0, {}};
  for (const std::string_view name : axes) {
    const MeshAxis* axis = find(axes_, name);
    if (axis != nullptr && axis->size > 1) group.strides.push_back({axis->size, axis->stride});
  }
  return group.of(rank);
}

}  // namespace ns_dist
