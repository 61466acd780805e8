#include "machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "ns_dist/internal/json_reader.h"

namespace ns_dist {
namespace {

bool names_machine(const References& spec) { return spec.gpu || spec.cluster; }

// `ranks`: of the plan. One rank alone sends nothing: where nobody tells its machine, it is one of PCIe.
Result<Cluster> find_cluster(const References& spec, const Catalog& catalog, const Scenario* base, std::int64_t ranks) {
  if (base != nullptr && !names_machine(spec)) return base->cluster;
  if (spec.cluster) {
    NS_TRY(Cluster cluster, named_by("machine/cluster", catalog.cluster(*spec.cluster)));
    if (!spec.gpu) return cluster;
    NS_TRY(const Gpu gpu, named_by("machine/gpu", catalog.gpu(*spec.gpu)));
    return with_gpu(cluster, gpu);
  }
  NS_TRY(const Gpu gpu, named_by("machine/gpu", catalog.gpu(spec.gpu ? std::string_view(*spec.gpu) : kDefaultGpu)));
  const bool alone = ranks == 1 && (!spec.nodes || spec.gpus == 1) && !spec.inter;
  if (!gpu.usual_cluster.empty() || (!spec.intra && !alone)) {
    return named_by("machine/gpu", catalog.usual_machine(gpu, spec.gpu ? std::string_view(*spec.gpu) : kDefaultGpu));
  }
  Cluster cluster;
  cluster.name = fmt::format("nodes of {}", gpu.name);
  cluster.gpu = gpu;
  if (!spec.intra) {
    NS_TRY(const Fabric fabric, catalog.fabric("pcie4-x16"));
    cluster.levels.push_back({fabric, 1, 1, 1});
  }
  return cluster;
}

Result<void> set_ports(Cluster& cluster, std::int64_t ports) {
  const std::int64_t gpus = cluster.gpus_per_node();
  if (cluster.levels.size() == cluster.node_levels() || gpus == 0) {
    return fail({ErrorCode::kInvalidInput, "the machine has no network between nodes of a known size",
                 "machine/nics_per_node", "a machine of several nodes",
                 "write machine/inter and machine/gpus_per_node"});
  }
  const double each = static_cast<double>(ports) / static_cast<double>(gpus);
  if (each > kPortsOfAGpu.most) {
    return fail({ErrorCode::kInvalidInput, fmt::format("{} ports for {} GPUs", ports, gpus), "machine/nics_per_node",
                 fmt::format("at most {:g} for each GPU", kPortsOfAGpu.most)});
  }
  for (std::size_t i = cluster.node_levels(); i < cluster.levels.size(); ++i) cluster.levels[i].nics_per_gpu = each;
  return {};
}

// `part`: so many GPUs of each node are used, if not all.
Result<void> use_fabrics(Cluster& cluster, const References& spec, const Catalog& catalog,
                         std::optional<std::int64_t> part = {}) {
  if (spec.intra) {
    NS_TRY(const Fabric fabric, named_by("machine/intra", catalog.fabric(*spec.intra)));
    if (cluster.levels.empty()) cluster.levels.push_back({fabric, 8, 1, 1});
    // One fabric joins all GPUs of a node, which may have had several.
    cluster.levels.front().size = cluster.gpus_per_node();
    cluster.levels.erase(cluster.levels.begin() + 1,
                         cluster.levels.begin() + static_cast<std::ptrdiff_t>(cluster.node_levels()));
    cluster.levels.front().fabric = fabric;
  }
  if (spec.inter) {
    NS_TRY(const Fabric fabric, named_by("machine/inter", catalog.fabric(*spec.inter)));
    if (cluster.levels.empty()) {
      return fail({ErrorCode::kInvalidInput, "the machine has no nodes to join", "machine/inter",
                   "a machine with nodes", "write machine/intra too"});
    }
    if (fabric.kind == FabricKind::kPcie) {
      return fail({ErrorCode::kInvalidInput, fmt::format("{} joins the GPUs of one node", fabric.name), "machine/inter",
                   "a fabric between nodes (ns-dist list fabrics)", "write machine/intra, or another fabric"});
    }
    const std::size_t inside = cluster.node_levels();
    if (cluster.levels.size() == inside) cluster.levels.push_back({fabric, 0, 1, 1});
    for (std::size_t i = inside; i < cluster.levels.size(); ++i) cluster.levels[i].fabric = fabric;
  }
  if (spec.gpus_per_node && !cluster.levels.empty()) NS_TRY_VOID(resize_nodes(cluster, *spec.gpus_per_node));
  if (part && !cluster.levels.empty()) NS_TRY_VOID(use_part_of_nodes(cluster, *part));
  if (spec.nics_per_node) NS_TRY_VOID(set_ports(cluster, *spec.nics_per_node));
  const std::size_t inside = cluster.node_levels();
  if (spec.intra_bandwidth) {
    for (std::size_t i = 0; i < inside; ++i) {
      Fabric& fabric = cluster.levels[i].fabric;
      fabric.bandwidth = *spec.intra_bandwidth / cluster.levels[i].nics_per_gpu;
      fabric.peer_to_peer = fabric.kind == FabricKind::kPcie;
    }
  }
  if (spec.inter_bandwidth) {
    if (cluster.levels.size() == inside) {
      return fail({ErrorCode::kInvalidInput, "the machine has no fabric between its nodes", "machine/inter_bandwidth",
                   "a machine of several nodes", "write machine/inter too (ns-dist list fabrics)"});
    }
    for (std::size_t i = inside; i < cluster.levels.size(); ++i) {
      cluster.levels[i].fabric.bandwidth = *spec.inter_bandwidth / cluster.levels[i].nics_per_gpu;
    }
  }
  return {};
}

// The nodes that machine/gpus are, as `spec` would name them; how many GPUs of each, if not all.
Result<std::optional<std::int64_t>> size_nodes(References& spec, const Catalog& catalog, const Scenario* base,
                                               std::int64_t ranks) {
  if (spec.nodes) {
    return fail({ErrorCode::kUsage, "the number of GPUs is given twice", "machine/gpus, machine/nodes", "one of them",
                 "leave machine/nodes out"});
  }
  NS_TRY(Cluster cluster, find_cluster(spec, catalog, base, ranks));
  cluster = opened_anew(std::move(cluster));
  NS_TRY_VOID(use_fabrics(cluster, spec, catalog));
  const std::int64_t node = std::max<std::int64_t>(1, cluster.gpus_per_node());
  if (spec.gpus_per_node && *spec.gpus % node != 0) {
    return fail({ErrorCode::kUsage, fmt::format("{} GPUs do not fill nodes of {}", *spec.gpus, node), "machine/gpus",
                 fmt::format("a multiple of {}", node), "leave machine/gpus_per_node out, or write another number"});
  }
  NS_TRY(const std::int64_t used, gpus_of_each_node(node, *spec.gpus));
  spec.nodes = *spec.gpus / used;
  return used != node ? std::optional(used) : std::nullopt;
}

// Where the plan has as many ranks as machine/gpus, or replicas that make as many: the machine follows from the ranks,
// so that its groups lie in nodes as they fit there.
Result<void> follow_gpus(ParallelPlan& plan, bool dp_is_given, References& spec, const Catalog& catalog) {
  if (spec.nodes || spec.gpus_per_node) return {};
  ParallelPlan filled = plan;
  if (!dp_is_given) {
    filled.dp = 1;
    NS_TRY(const std::int64_t each, rank_count(filled));
    filled.dp = std::max<std::int64_t>(1, *spec.gpus / each);
  }
  NS_TRY(const std::int64_t ranks, rank_count(filled));
  if (ranks != *spec.gpus) return {};
  NS_TRY(const Cluster cluster, find_cluster(spec, catalog, nullptr, ranks));
  const std::int64_t node = std::max<std::int64_t>(1, cluster.gpus_per_node());
  if (gpus_of(cluster) > 0 || ranks <= node) return {};
  NS_TRY_VOID(gpus_of_each_node(node, ranks).map([](auto) {}));
  plan.dp = filled.dp;
  spec.gpus.reset();
  return {};
}

}  // namespace

Result<Cluster> find_machine(References spec, const Catalog& catalog, const Scenario* base, ParallelPlan& plan,
                             const Training& training, bool dp_is_given) {
  if (spec.gpus && base == nullptr) NS_TRY_VOID(follow_gpus(plan, dp_is_given, spec, catalog));
  NS_TRY(const std::int64_t ranks, rank_count(plan));
  std::optional<std::int64_t> part;
  if (spec.gpus) {
    NS_TRY(part, size_nodes(spec, catalog, base, ranks));
  }
  NS_TRY(Cluster cluster, find_cluster(spec, catalog, base, ranks));
  // A report's machine was sized for its own plan: another plan opens it again.
  const bool opens = base != nullptr && !names_machine(spec) &&
                     (spec.gpus_per_node || part || rank_count(base->plan).value_or(0) != ranks);
  if (opens) cluster = opened_anew(std::move(cluster));
  NS_TRY_VOID(use_fabrics(cluster, spec, catalog, part));
  // What machine/intra alone describes is a node, not so many GPUs to fill.
  bool sized = !opens && (spec.cluster || base != nullptr) && !cluster.levels.empty() && gpus_of(cluster) > 0;
  const Cluster open = cluster;
  if (spec.nodes) {
    NS_TRY_VOID(set_nodes(cluster, *spec.nodes, spec.gpus ? "machine/gpus" : "machine/nodes"));
    sized = true;
  }
  // Other links of a report's machine leave its GPUs, and its plan, as they are.
  const bool same_gpus =
      base != nullptr && (cluster == base->cluster || (!spec.nodes && gpus_of(cluster) == gpus_of(base->cluster)));
  const bool repeats = same_gpus && rank_count(base->plan).value_or(0) == ranks;
  if (!sized) {
    NS_TRY_VOID(open_for(cluster, plan, ranks));
  } else if (!repeats) {
    NS_TRY_VOID(fill(cluster, open, plan, training, dp_is_given, spec.gpus.has_value()));
  }
  return cluster;
}

}  // namespace ns_dist
