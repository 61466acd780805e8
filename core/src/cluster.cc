#include "ns_dist/cluster.h"

#include <fmt/format.h>

#include <algorithm>

namespace ns_dist {
namespace {

// Whether a level consists of links of the kind that the GPU has.
bool consists_of(const ScaleUpLink& link, FabricKind kind) {
  if (link.kind == "xgmi") return kind == FabricKind::kXgmi;
  if (link.kind == "ualink") return kind == FabricKind::kUalink;
  return link.kind.starts_with("nvlink") && (kind == FabricKind::kNvlink || kind == FabricKind::kNvswitch);
}

// What a GPU's own links give it on a level that consists of them; 0: it does not.
BytesPerSecond own_links(const Gpu& gpu, FabricKind kind) {
  if (kind == FabricKind::kPcie) return gpu.pcie_bandwidth;
  return gpu.scale_up && consists_of(*gpu.scale_up, kind) ? gpu.scale_up->bandwidth : BytesPerSecond();
}

// The first level that gives the GPU more than its own links of that kind; null: none does.
const FabricLevel* faster_than_links(const Cluster& cluster) {
  constexpr double kRounding = 1 + 1e-9;  // of a ratio of two links
  for (const FabricLevel& level : cluster.levels) {
    const BytesPerSecond own = own_links(cluster.gpu, level.fabric.kind);
    if (own > BytesPerSecond() && level.bandwidth_per_gpu() > kRounding * own) return &level;
  }
  return nullptr;
}

// How many times as fast the links of `gpu` are as those of the GPU that the machine was described with; 1 where they
// are not what joins its GPUs.
double link_ratio(const Gpu& gpu, const Cluster& cluster) {
  if (cluster.levels.empty()) return 1;
  const FabricKind kind = cluster.levels.front().fabric.kind;
  if (kind != FabricKind::kPcie) {
    const std::optional<ScaleUpLink>&own = gpu.scale_up, &usual = cluster.gpu.scale_up;
    if (!own || !usual || own->kind != usual->kind || own->kind == "nvlink-bridge") return 1;
  }
  const BytesPerSecond own = own_links(gpu, kind), usual = own_links(cluster.gpu, kind);
  return own > BytesPerSecond() && usual > BytesPerSecond() ? own / usual : 1;
}

Cluster with_gpu(Cluster cluster, const Gpu& gpu, double faster) {
  cluster.gpu = gpu;
  if (!cluster.levels.empty()) cluster.levels.front().fabric.bandwidth *= faster;
  return cluster;
}

// Whether the machine joins its GPUs by links that its GPU does not have.
bool lends_links(const Cluster& cluster) {
  if (cluster.levels.empty()) return false;
  const FabricKind kind = cluster.levels.front().fabric.kind;
  if (is_network(kind) || kind == FabricKind::kPcie) return false;
  return !cluster.gpu.scale_up || !consists_of(*cluster.gpu.scale_up, kind);
}

}  // namespace

std::string warning_of(const Cluster& cluster) {
  for (const FabricLevel& level : cluster.levels) {
    const std::int64_t most = level.fabric.most_units;
    if (most == 0 || level.size <= most) continue;
    return fmt::format(
        "{} joins {} GPUs at most, here {}: name a machine whose nodes have a second fabric between groups "
        "of {} (ns-dist list clusters: bridged)",
        level.fabric.name, most, level.size, most);
  }
  if (cluster.made_for.empty()) {
    if (const FabricLevel* level = faster_than_links(cluster)) {
      return fmt::format("{} of {} gives a GPU {}, but {} has links of {}: name a slower fabric, or the GPU that it is",
                         level->fabric.name, cluster.id, to_text(level->bandwidth_per_gpu()), cluster.gpu.id,
                         to_text(own_links(cluster.gpu, level->fabric.kind)));
    }
    const BytesPerSecond pcie = cluster.gpu.pcie_bandwidth;
    for (const FabricLevel& level : cluster.levels) {
      constexpr double kMistaken = 2;  // times what passes: bits read as bytes are eight
      if (!is_network(level.fabric.kind) || !(pcie > BytesPerSecond())) continue;
      if (level.bandwidth_per_gpu() > kMistaken * pcie) {
        return fmt::format(
            "{} of {} gives a GPU {}, but what leaves {} passes its PCIe, {}: B is a byte, 400 Gbit/s "
            "are 50 GB/s",
            level.fabric.name, cluster.id, to_text(level.bandwidth_per_gpu()), cluster.gpu.id, to_text(pcie));
      }
    }
    if (!lends_links(cluster)) return "";
    const std::string own = cluster.gpu.scale_up
                                ? fmt::format("links of another kind (scale_up: {})", cluster.gpu.scale_up->kind)
                                : "no links of its own (scale_up)";
    return fmt::format("{} has {}: its GPUs are joined by the {} of {}", cluster.gpu.id, own,
                       cluster.levels.front().fabric.name, cluster.id.empty() ? cluster.name : cluster.id);
  }
  return fmt::format("{} has the links of {}, which is a machine of {}{}", cluster.gpu.id, cluster.id, cluster.made_for,
                     cluster.gpu.usual_cluster.empty()
                         ? ""
                         : fmt::format(": machine/cluster={} has its own", cluster.gpu.usual_cluster));
}

Cluster with_gpu(const Cluster& cluster, const Gpu& gpu) {
  const double faster = link_ratio(gpu, cluster);
  Cluster changed = with_gpu(cluster, gpu, std::min(1.0, faster));
  const bool own = gpu.usual_cluster == cluster.id && faster <= 1;  // its usual machine, with its own links
  if (cluster.gpu.id != gpu.id && !own) changed.made_for = cluster.gpu.id;
  return changed;
}

Cluster built_for(const Gpu& gpu, const Cluster& cluster) { return with_gpu(cluster, gpu, link_ratio(gpu, cluster)); }

}  // namespace ns_dist
