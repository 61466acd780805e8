#include "ns_dist/cluster.h"

#include <fmt/format.h>

#include <algorithm>

namespace ns_dist {
namespace {

// How many times as fast the links of `gpu` are as those of the GPU that the machine was described with; 1 where they
// are not what joins its GPUs.
double link_ratio(const Gpu& gpu, const Cluster& cluster) {
  const std::optional<ScaleUpLink>&own = gpu.scale_up, &usual = cluster.gpu.scale_up;
  if (cluster.levels.empty() || !own || !usual || own->kind != usual->kind) return 1;
  const FabricKind kind = cluster.levels.front().fabric.kind;
  const bool joins = own->kind == "xgmi"     ? kind == FabricKind::kXgmi
                     : own->kind == "nvlink" ? kind == FabricKind::kNvlink || kind == FabricKind::kNvswitch
                                             : false;
  return joins && usual->bandwidth > BytesPerSecond() ? own->bandwidth / usual->bandwidth : 1;
}

Cluster with_gpu(Cluster cluster, const Gpu& gpu, double faster) {
  cluster.gpu = gpu;
  if (!cluster.levels.empty()) cluster.levels.front().fabric.bandwidth *= faster;
  return cluster;
}

// Whether the machine joins its GPUs by links that its GPU does not have.
bool lends_links(const Cluster& cluster) {
  if (cluster.gpu.scale_up || cluster.levels.empty()) return false;
  const FabricKind kind = cluster.levels.front().fabric.kind;
  return !is_network(kind) && kind != FabricKind::kPcie;
}

}  // namespace

std::string warning_of(const Cluster& cluster) {
  if (cluster.made_for.empty()) {
    if (!lends_links(cluster)) return "";
    return fmt::format("{} has no links of its own (scale_up): its GPUs are joined by the {} of {}", cluster.gpu.id,
                       cluster.levels.front().fabric.name, cluster.id);
  }
  return fmt::format("{} has the links of {}, which is a machine of {}{}", cluster.gpu.id, cluster.id, cluster.made_for,
                     cluster.gpu.usual_cluster.empty()
                         ? ""
                         : fmt::format(": machine/cluster={} has its own", cluster.gpu.usual_cluster));
}

Cluster with_gpu(const Cluster& cluster, const Gpu& gpu) {
  Cluster changed = with_gpu(cluster, gpu, std::min(1.0, link_ratio(gpu, cluster)));
  if (cluster.gpu.id != gpu.id) changed.made_for = cluster.gpu.id;
  return changed;
}

Cluster built_for(const Gpu& gpu, const Cluster& cluster) { return with_gpu(cluster, gpu, link_ratio(gpu, cluster)); }

}  // namespace ns_dist
