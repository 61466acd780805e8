#include "ns_dist/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "ns_dist/files.h"
#include "ns_dist/hash.h"
#include "ns_dist/internal/divisors.h"
#include "ns_dist/internal/number_from.h"
#include "ns_dist/pipeline_layout.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"
#include "scenario_fields.h"
#include "stragglers.h"

namespace ns_dist {
namespace {

constexpr const char* kDegrees = "plan/tp, plan/cp, plan/pp, plan/dp";

// The catalog knows a wrong name but not where it was written.
template <class T>
Result<T> from(std::string_view field, Result<T> found) {
  if (!found && found.error().where.empty()) found.error().where = field;
  return found;
}

// Names of the fields that a spec sets.
using Given = std::set<std::string, std::less<>>;

bool names_machine(const References& spec) { return spec.gpu || spec.cluster; }

// GPUs of the sized levels; the product of sizes of up to 1e9 may not fit into an integer.
double gpus_of(const Cluster& cluster) {
  double gpus = 1;
  for (const FabricLevel& level : cluster.levels) gpus *= static_cast<double>(level.size);
  return gpus;
}

// `ranks`: of the plan. One rank alone sends nothing: where nobody tells its machine, it is one of PCIe.
Result<Cluster> find_cluster(const References& spec, const Catalog& catalog, const Scenario* base, std::int64_t ranks) {
  if (base != nullptr && !names_machine(spec)) return base->cluster;
  if (spec.cluster) {
    NS_TRY(Cluster cluster, from("machine/cluster", catalog.cluster(*spec.cluster)));
    if (!spec.gpu) return cluster;
    NS_TRY(const Gpu gpu, from("machine/gpu", catalog.gpu(*spec.gpu)));
    return with_gpu(cluster, gpu);
  }
  NS_TRY(const Gpu gpu, from("machine/gpu", catalog.gpu(spec.gpu ? std::string_view(*spec.gpu) : kDefaultGpu)));
  const bool alone = ranks == 1 && (!spec.nodes || spec.gpus == 1) && !spec.inter;
  if (!gpu.usual_cluster.empty() || (!spec.intra && !alone)) {
    return from("machine/gpu", catalog.usual_machine(gpu, spec.gpu ? std::string_view(*spec.gpu) : kDefaultGpu));
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

// Gives each node `gpus` GPUs: units of its outermost level, or a part of the one unit that is left. A node with fewer
// GPUs than its ports were made for has one port at least.
Result<void> resize_nodes(Cluster& cluster, std::int64_t gpus) {
  const std::int64_t before = cluster.gpus_per_node();
  std::int64_t left = gpus;
  for (std::size_t i = 0; i < cluster.node_levels(); ++i) {
    FabricLevel& level = cluster.levels[i];
    const bool outermost = i + 1 == cluster.node_levels();
    if (!outermost && left > level.size && left % level.size != 0) {
      return fail({ErrorCode::kInfeasible,
                   fmt::format("{} GPUs do not fill groups of {} ({})", gpus, level.size, level.fabric.name),
                   "machine/gpus_per_node", fmt::format("a multiple of {}", level.size)});
    }
    if (outermost || left < level.size) level.size = left;
    level.spare = 0;
    left = outermost ? 1 : std::max<std::int64_t>(1, left / level.size);
  }
  for (std::size_t i = cluster.node_levels(); i < cluster.levels.size(); ++i) {
    double& each = cluster.levels[i].nics_per_gpu;
    if (each * static_cast<double>(before) >= 1) each = std::max(each, std::min(1.0, 1 / static_cast<double>(gpus)));
  }
  return {};
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

Result<void> use_fabrics(Cluster& cluster, const References& spec, const Catalog& catalog) {
  if (spec.intra) {
    NS_TRY(const Fabric fabric, from("machine/intra", catalog.fabric(*spec.intra)));
    if (cluster.levels.empty()) cluster.levels.push_back({fabric, 8, 1, 1});
    // One fabric joins all GPUs of a node, which may have had several.
    cluster.levels.front().size = cluster.gpus_per_node();
    cluster.levels.erase(cluster.levels.begin() + 1,
                         cluster.levels.begin() + static_cast<std::ptrdiff_t>(cluster.node_levels()));
    cluster.levels.front().fabric = fabric;
  }
  if (spec.inter) {
    NS_TRY(const Fabric fabric, from("machine/inter", catalog.fabric(*spec.inter)));
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

// Groups of `size` units at most that hold `units` units, equally many each: as few as possible, an eighth more at
// most; 0: there are none.
std::int64_t even_groups(std::int64_t units, std::int64_t size) {
  const std::int64_t fewest = (units + size - 1) / size;
  for (std::int64_t groups = fewest; 7 * groups <= 8 * fewest; ++groups) {
    if (units % groups == 0) return groups;
  }
  return 0;
}

// Gives the levels above the node `nodes` nodes together. Inner levels are filled before outer ones; groups that are
// not full are equally full.
Result<void> set_nodes(Cluster& cluster, std::int64_t nodes, std::string_view where) {
  const std::size_t inside = cluster.node_levels();
  if (inside > 0 && cluster.gpus_per_node() == 0) {
    return fail(
        {ErrorCode::kInvalidInput,
         fmt::format("\"{}\" does not say how many GPUs a node has", cluster.id.empty() ? cluster.name : cluster.id),
         std::string(where), "nodes of a known size", "write machine/gpus_per_node too"});
  }
  if (cluster.levels.size() == inside) {
    if (nodes == 1) return {};
    return fail({ErrorCode::kInfeasible,
                 fmt::format("{} nodes are asked for, but \"{}\" has no fabric between nodes", nodes,
                             cluster.id.empty() ? cluster.name : cluster.id),
                 std::string(where), "a machine of several nodes", "write machine/inter (ns-dist list fabrics)"});
  }
  std::int64_t left = nodes;
  for (std::size_t i = inside; i + 1 < cluster.levels.size(); ++i) {
    FabricLevel& level = cluster.levels[i];
    const std::int64_t size = level.size;
    const std::int64_t groups =
        level.ring && left > size ? (left % size == 0 ? left / size : 0) : even_groups(left, size);
    if (groups == 0) {
      const std::int64_t unit = nodes / left * size;  // nodes
      return fail({ErrorCode::kInfeasible,
                   fmt::format("{} nodes do not fill groups of {} ({})", nodes, size, level.fabric.name),
                   std::string(where), "groups that are full, or equally full",
                   fmt::format("write {} or {} nodes", nodes / unit * unit, (nodes / unit + 1) * unit)});
    }
    level.size = left / groups;
    if (!level.ring) level.spare += size - level.size;
    left = groups;
  }
  cluster.levels.back().size = left;
  return {};
}

}  // namespace

std::int64_t used_of_node(std::int64_t node, std::int64_t gpus, std::int64_t whole) {
  for (std::int64_t used = node / whole * whole; used > 0 && 8 * used >= 7 * node; used -= whole) {
    if (gpus % used == 0) return used;
  }
  return 0;
}

Result<std::int64_t> gpus_of_each_node(std::int64_t node, std::int64_t gpus) {
  if (gpus < node) return gpus;
  if (const std::int64_t used = used_of_node(node, gpus); used > 0) return used;
  // Whole nodes, or 64 of each 72: other numbers can hardly be divided.
  const std::int64_t even = power_of_two_up_to(node);
  const std::int64_t full = (gpus / node + 1) * node;
  std::int64_t fewer = gpus / node * node, more = full;
  if (used_of_node(node, even) > 0) {
    fewer = std::max(fewer, gpus / even * even);
    more = std::min(more, (gpus / even + 1) * even);
  }
  return fail({ErrorCode::kUsage, fmt::format("{} GPUs do not fill nodes of {}", gpus, node), "machine/gpus",
               fmt::format("a multiple of {}, or as many on each node, an eighth less at most", node),
               fmt::format("write {}{} or {}", fewer, more < full ? fmt::format(", {}", more) : "", full)});
}

namespace {

// Leaves some GPUs of each node idle where groups of tensor, context or expert parallelism would lie in two nodes
// otherwise, or where one node would have fewer ranks than the others, whose links would wait for its own: 8 of 72
// where groups have 64 ranks, or where 8 nodes have 512, or 16 nodes 1,024. Of a node of several levels whole units of
// the outermost.
void leave_spares(Cluster& cluster, const ParallelPlan& plan, std::int64_t ranks) {
  FabricLevel& node = cluster.levels[cluster.node_levels() - 1];
  const std::int64_t all = cluster.gpus_per_node(), unit = all / node.size;
  const GroupReach reach = group_reach(plan);
  std::int64_t whole = 1;
  for (const std::int64_t each : {reach.tensor, reach.context, reach.expert}) {
    if (const std::int64_t both = std::lcm(whole, each); both <= all) whole = both;
  }
  std::int64_t used = all - all % whole;
  const std::int64_t nodes = (ranks + used - 1) / used;
  if (ranks % nodes == 0 && (ranks / nodes) % whole == 0) {
    used = ranks / nodes;
  } else if (const std::int64_t alike = used_of_node(all, ranks, whole); alike > 0) {
    used = alike;
  }
  if (used % unit != 0) return;
  node.spare = (all - used) / unit;
  node.size = used / unit;
}

// As many nodes as `ranks` need, the last one perhaps not full.
Result<void> open_for(Cluster& cluster, const ParallelPlan& plan, std::int64_t ranks) {
  if (cluster.levels.empty()) return {};
  if (FabricLevel& outermost = cluster.levels[cluster.node_levels() - 1]; outermost.size == 0) {
    outermost.size = 1;
    const std::int64_t unit = cluster.gpus_per_node();
    outermost.size = (ranks + unit - 1) / unit;
  }
  if (ranks > cluster.gpus_per_node()) leave_spares(cluster, plan, ranks);
  const std::int64_t node = cluster.gpus_per_node();
  std::int64_t nodes = (ranks + node - 1) / node;
  Cluster alike = cluster;
  if (set_nodes(alike, nodes, kDegrees)) {
    cluster = std::move(alike);
    return {};
  }
  // Full groups of the levels between, the last one with idle nodes.
  for (std::size_t i = cluster.node_levels(); i + 1 < cluster.levels.size(); ++i) {
    const std::int64_t size = cluster.levels[i].size;
    if (nodes > size) nodes = (nodes + size - 1) / size * size;
  }
  return set_nodes(cluster, nodes, kDegrees);
}

// With all GPUs of its nodes and all nodes of its groups, for another plan to open.
Cluster opened_anew(Cluster cluster) {
  for (FabricLevel& level : cluster.levels) level.size += std::exchange(level.spare, 0);
  return cluster;
}

}  // namespace

std::optional<Cluster> machine_for(const Scenario& scenario, const ParallelPlan& plan) {
  const std::int64_t ranks = rank_count(plan).value_or(0), gpus = scenario.cluster.gpu_count();
  if (ranks == gpus) return scenario.cluster;
  Cluster machine = opened_anew(scenario.cluster);
  if (!open_for(machine, plan, ranks) || machine.gpu_count() < ranks) return std::nullopt;
  // Only a machine whose size follows from the plan has GPUs that no rank uses.
  const bool follows = rank_count(scenario.plan).value_or(0) != gpus;
  if (machine.gpu_count() != ranks && !follows) return std::nullopt;
  return machine;
}

std::vector<Assignment> to_keep_machine(const Scenario& scenario, const ParallelPlan& plan) {
  const std::optional<Cluster> machine = machine_for(scenario, plan);
  const std::int64_t ranks = rank_count(plan).value_or(0), gpus = scenario.cluster.gpu_count();
  if (!machine || machine->levels.empty() || machine->gpu_count() != ranks || ranks < gpus) return {};
  const std::int64_t each = machine->gpus_per_node();
  Cluster opened = opened_anew(scenario.cluster);
  const std::int64_t all = opened.gpus_per_node();
  if (ranks == gpus && open_for(opened, plan, ranks) && opened.gpus_per_node() == each && opened.gpu_count() == ranks)
    return {};
  std::vector<Assignment> set = {{"machine/nodes", std::to_string(ranks / each)}};
  if (each != all) set.push_back({"machine/gpus_per_node", std::to_string(each)});
  return set;
}

namespace {

// The nodes that machine/gpus are, and how many of each, as `spec` would name them.
Result<void> size_nodes(References& spec, const Catalog& catalog, const Scenario* base, std::int64_t ranks) {
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
  if (used != node) spec.gpus_per_node = used;
  return {};
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

std::string machine_text(const Cluster& cluster) {
  const std::int64_t node = cluster.gpus_per_node();
  const std::int64_t gpus = cluster.gpu_count();
  return fmt::format("{} node{} x {} GPUs = {} GPUs", gpus / node, gpus == node ? "" : "s", node, gpus);
}

// A machine of so many nodes, by the field that gave its size.
std::string size_text(std::int64_t nodes, std::int64_t node, bool by_gpus) {
  return by_gpus ? fmt::format("machine/gpus={}", nodes * node) : fmt::format("machine/nodes={}", nodes);
}

// Whether so many replicas share the sequences of a step evenly.
bool shares_batch(const Training& training, std::int64_t dp) {
  return training.micro_batch > 0 && training.global_batch % training.micro_batch == 0 &&
         training.global_batch / training.micro_batch % dp == 0;
}

// Machines near `cluster` that whole replicas of `each` GPUs fill, as many as suits() accepts: with other nodes, or
// with fewer GPUs of each, which tensor-parallel groups do not leave.
template <class Suits>
std::string machines_of(std::int64_t each, std::int64_t tp, const Cluster& cluster, bool by_gpus, const Suits& suits) {
  const std::int64_t node = cluster.gpus_per_node(), nodes = cluster.gpu_count() / node;
  const std::int64_t step = each / std::gcd(each, node);  // nodes
  std::vector<std::string> ways;
  for (std::int64_t other = std::max<std::int64_t>(1, nodes / step) * step; other > 0; other -= step) {
    if (!suits(other * node / each)) continue;
    ways.push_back(size_text(other, node, by_gpus));
    break;
  }
  for (std::int64_t fewer = node - 1; 2 * fewer > node && !by_gpus; --fewer) {
    if (fewer % tp != 0 || nodes * fewer % each != 0 || !suits(nodes * fewer / each)) continue;
    ways.push_back(fmt::format("machine/gpus_per_node={}", fewer));
    break;
  }
  return fmt::format("{}", fmt::join(ways, ", or "));
}

// As on a machine that opens for the plan: some GPUs of each node stay idle where the others are as many as ranks.
bool holds(Cluster& cluster, const ParallelPlan& plan, std::int64_t ranks) {
  if (cluster.gpu_count() == ranks) return true;
  if (ranks <= cluster.gpus_per_node()) return false;
  Cluster spared = cluster;
  leave_spares(spared, plan, ranks);
  if (spared.gpu_count() != ranks) return false;
  cluster = std::move(spared);
  return true;
}

// What to write where `ranks` are not the GPUs of `cluster`, which is `open` with its nodes counted.
std::string sizes_for(std::int64_t ranks, std::int64_t each, const ParallelPlan& plan, const Training& training,
                      const Cluster& cluster, const Cluster& open, bool by_gpus) {
  const std::int64_t gpus = cluster.gpu_count(), node = cluster.gpus_per_node(), nodes = gpus / node;
  std::vector<std::string> ways;
  if (gpus % each == 0 && shares_batch(training, gpus / each)) ways.push_back(fmt::format("plan/dp={}", gpus / each));
  const std::int64_t least = (ranks + node - 1) / node;
  constexpr std::int64_t kMoreNodes = 8;  // some of whose GPUs stay idle
  for (std::int64_t other = least; other <= least + kMoreNodes; ++other) {
    Cluster machine = open;
    if (other == nodes || !set_nodes(machine, other, kDegrees) || !holds(machine, plan, ranks)) continue;
    ways.push_back(size_text(other, machine.gpus_per_node(), by_gpus));
    break;
  }
  const std::int64_t fewer = ranks / nodes;
  if (ranks % nodes == 0 && fewer < node && fewer % plan.tp == 0 && !by_gpus) {
    Cluster machine = open;
    if (resize_nodes(machine, fewer) && set_nodes(machine, nodes, kDegrees) && machine.gpu_count() == ranks)
      ways.push_back(fmt::format("machine/gpus_per_node={}", fewer));
  }
  if (ways.empty())
    return fmt::format("{}write degrees whose product is {}",
                       cluster == open ? ""
                       : by_gpus       ? "leave machine/gpus out, or "
                                       : "leave machine/nodes out, or ",
                       gpus);
  return fmt::format("write {}", fmt::join(ways, ", or "));
}

// Makes dp fill a machine of known size, of whose nodes some GPUs may stay idle; `open` is the machine before its nodes
// were counted. Errors: the reason why it cannot.
Result<void> fill(Cluster& cluster, const Cluster& open, ParallelPlan& plan, const Training& training, bool dp_is_given,
                  bool by_gpus) {
  const char* const field = by_gpus ? "machine/gpus" : "machine/nodes";
  if (gpus_of(cluster) > static_cast<double>(kMostRanks)) {
    return fail({ErrorCode::kInvalidInput, fmt::format("a machine of {:.3g} GPUs", gpus_of(cluster)), field,
                 fmt::format("at most {} GPUs", kMostRanks), by_gpus ? "write fewer" : "write fewer nodes"});
  }
  const std::int64_t gpus = cluster.gpu_count();
  ParallelPlan replica = plan;
  replica.dp = 1;
  NS_TRY(const std::int64_t each, rank_count(replica));
  if (!dp_is_given && gpus % each == 0) {
    plan.dp = gpus / each;
    return {};
  }
  const std::string product = fmt::format("tp {} x cp {} x pp {}", plan.tp, plan.cp, plan.pp);
  if (!dp_is_given) {
    std::string others =
        machines_of(each, plan.tp, cluster, by_gpus, [&](std::int64_t dp) { return shares_batch(training, dp); });
    const std::int64_t node = cluster.gpus_per_node(), nodes = gpus / node, step = each / std::gcd(each, node);
    const std::int64_t most = nodes / step * step;
    if (others.empty()) {
      others = machines_of(each, plan.tp, cluster, by_gpus, [](std::int64_t) { return true; });
    } else if (most > 0 && !shares_batch(training, most * node / each)) {  // fewer GPUs stay idle
      others = fmt::format("{} with another training/global_batch, or {}", size_text(most, node, by_gpus), others);
    }
    return fail({ErrorCode::kInfeasible,
                 fmt::format("{} = {} does not divide {}", product, each, machine_text(cluster)), field,
                 "whole replicas of the model on every GPU",
                 fmt::format("write {}, or degrees whose product divides {}", others, gpus)});
  }
  NS_TRY(const std::int64_t ranks, rank_count(plan));
  if (holds(cluster, plan, ranks)) return {};
  return fail({ErrorCode::kInfeasible,
               fmt::format("{} x dp {} = {} ranks, but {}", product, plan.dp, ranks, machine_text(cluster)), kDegrees,
               "as many ranks as GPUs", sizes_for(ranks, each, plan, training, cluster, open, by_gpus)});
}

// A layout says how many model chunks a stage has, where it is one of this pipeline: what is wrong with it is an error
// of the plan. Returns whether these are others than before.
bool chunks_of_layout(ParallelPlan& plan, bool schedule_is_given) {
  if (plan.pipeline_layout.is_even()) return false;
  const auto positions = read_pipeline_layout(plan.pipeline_layout.text);
  if (!positions || plan.pp < 1) return false;
  const auto all = static_cast<std::int64_t>(positions->size());
  if (all % plan.pp != 0) return false;
  // A stage may hold chunks of two directions (DualPipe).
  const PipelineSchedule& traits = traits_of(plan);
  const auto fit = [&](std::int64_t chunks) {
    return chunks >= traits.least_chunks && chunks <= all &&
           traits.seats({plan.pp, 1, chunks})[0].size() == positions->size();
  };
  if (!schedule_is_given && fit(plan.vpp)) return false;
  const std::int64_t chunks = all / plan.pp;
  if (schedule_is_given && (fit(traits.least_chunks) || (traits.most_chunks != 0 && chunks > traits.most_chunks))) {
    return false;  // the schedule's own
  }
  plan.vpp = chunks;
  return true;
}

// Whether the schedule of `plan` runs as many chunks as it has. With one, a schedule of any number is one of its own.
bool runs_its_chunks(const ParallelPlan& plan) {
  const PipelineSchedule& traits = traits_of(plan);
  return traits.has_chunks(plan.vpp) && (plan.vpp > 1 || traits.most_chunks != 0);
}

// What the schedule, the model chunks and the overlap of messages say of each other when not all are given. `before`:
// the plan that is changed, if any; what the change leaves possible stays.
void schedule_defaults(ParallelPlan& plan, const Given& given, const ParallelPlan* before) {
  const bool schedule = given.contains("plan/schedule");
  const bool given_chunks = given.contains("plan/vpp");
  const bool laid_out = !given_chunks && given.contains("plan/pipeline_layout") && chunks_of_layout(plan, schedule);
  const bool chunks = given_chunks || laid_out;
  if (!schedule && (before == nullptr || laid_out || (chunks && !runs_its_chunks(plan)))) {
    plan.schedule = schedule_for(plan.vpp).name;
  }
  const PipelineSchedule& traits = traits_of(plan);
  const bool other_schedule = before == nullptr || plan.schedule != before->schedule;
  const bool keeps_chunks = before != nullptr && traits.has_chunks(plan.vpp);
  if (!chunks && schedule && other_schedule && !keeps_chunks) plan.vpp = traits.least_chunks;
  // Megatron-LM overlaps messages with computation in the interleaved schedule unless told otherwise
  // (arguments.py, --no-overlap-p2p-communication), and cannot in the others.
  const bool chosen = before != nullptr && before->overlap_p2p != traits_of(*before).overlaps_messages;
  if (!given.contains("plan/overlap_p2p") && other_schedule && !chosen) plan.overlap_p2p = traits.overlaps_messages;
}

// What follows from other fields; `before` is the plan that the spec changes, if any.
void derive_plan(ParallelPlan& plan, const Given& given, const ParallelPlan* before) {
  schedule_defaults(plan, given, before);
  if (given.contains("plan/sequence_parallel")) return;
  if (before == nullptr) {
    plan.sequence_parallel = plan.tp > 1;
  } else if (given.contains("plan/tp")) {
    plan.sequence_parallel = plan.tp > 1 && (before->tp == 1 || plan.sequence_parallel);
  }
}

constexpr std::size_t kLargestCalibration = 16 * kMebibyte;

// Replaces the corrections of collectives and of kernels by those that `spec` names.
Result<void> use_calibrations(Scenario& scenario, const References& spec) {
  if (spec.calibration) {
    scenario.network.calibration.reset();
    if (*spec.calibration != "none") {
      InputFile file;
      NS_TRY(const NetworkCalibration exact, load_network_calibration(*spec.calibration, &file));
      // As a report will hold it: numbers are written with four decimals.
      NS_TRY(scenario.network.calibration, read_network_calibration(to_json(exact), *spec.calibration));
      scenario.files.push_back(std::move(file));
    }
  }
  if (spec.kernel_calibration) {
    scenario.kernel_calibration.reset();
    if (*spec.kernel_calibration != "none") {
      InputFile file;
      NS_TRY(scenario.kernel_calibration, load_kernel_calibration(*spec.kernel_calibration, &file));
      scenario.files.push_back(std::move(file));
    }
  }
  return {};
}

// The defaults of the framework, for all that the spec does not set.
Result<void> use_framework(const Framework& framework, Scenario& scenario, Given& given) {
  scenario.framework = framework.id;
  scenario.compared_with = framework.compared_with;
  scenario.fixed_shapes = std::any_of(framework.set.begin(), framework.set.end(),
                                      [](const auto& each) { return each.field == "host/cuda_graphs"; });
  const auto wrong = [](Error error, const std::string& where) {
    error.message = fmt::format("{}: {}", error.where, error.message);
    error.where = where;
    return fail(std::move(error));
  };
  for (const auto& each : framework.set) {
    if (!given.insert(each.field).second) continue;
    if (auto done = assign(scenario, each); !done) return wrong(std::move(done).error(), each.where);
  }
  // Of excluded words the field alone is checked: "mlp" of "selective:mlp" is no value.
  Scenario trial = scenario;
  const auto check_limit = [&trial](const FieldLimit& limit) -> Result<void> {
    if (is_fact(limit.field)) return {};
    for (const std::string& value : limit.values) NS_TRY_VOID(assign(trial, {limit.field, value}));
    return find_field(limit.field) != nullptr ? Result<void>() : assign(trial, {limit.field, ""});
  };
  for (const auto& limit : framework.only) {
    auto done = check_limit(limit);
    for (const FieldLimit& condition : limit.when) {
      if (done) done = check_limit(condition);
    }
    if (!done) return wrong(std::move(done).error(), limit.where);
  }
  scenario.framework_only.assign(framework.only.begin(), framework.only.end());
  return {};
}

// The default of a field that a framework may set; nothing where there is no such field.
std::optional<std::string> default_of(std::string_view field) {
  const Scenario defaults;
  std::optional<std::string> text;
  const auto find = [&](const Field& each, const auto& value) {
    if (each.name == field) text = field_text(value);
  };
  visit_tables([&](const auto& table) { visit_fields(find, table); }, defaults);
  return text;
}

// What `framework` sets and nobody has changed since.
std::vector<Assignment> still_set(const Framework& framework, const Scenario& scenario) {
  std::vector<Assignment> set;
  for (const Assignment& assignment : framework.set) {
    Scenario same = scenario;
    if (assign(same, assignment) && same == scenario) set.push_back(assignment);
  }
  return set;
}

// It goes back to its default: the next framework decides.
void leave_framework(const Framework& old, Scenario& scenario, const Given& given) {
  for (const Assignment& assignment : still_set(old, scenario)) {
    if (given.contains(assignment.field)) continue;
    if (const auto text = default_of(assignment.field)) (void)assign(scenario, {assignment.field, *text});
  }
}

std::vector<InputFile> files_of(const Catalog& catalog, const Scenario* base) {
  std::map<std::string, std::string> by_path;
  if (base != nullptr) {
    for (const InputFile& file : base->files) by_path[file.path] = file.hash;
  }
  for (const InputFile& file : catalog.inputs()) by_path[file.path] = file.hash;
  std::vector<InputFile> files;
  files.reserve(by_path.size());
  for (const auto& [path, hash] : by_path) files.push_back({path, hash});
  return files;
}

}  // namespace

ContextExchange usual_cp_comm(const Model& model) {
  return model.sliding_window > 0 ? ContextExchange::kAllGather : ContextExchange::kRing;
}

void follow_context(const Scenario& before, Scenario& after) {
  if (after.plan.cp_comm != before.plan.cp_comm || before.plan.cp_inner == usual_cp_inner(before)) {
    after.plan.cp_inner = usual_cp_inner(after);
  }
}

std::int64_t usual_cp_inner(const Scenario& scenario) {
  return usual_cp_inner(scenario.model, scenario.plan, scenario.cluster.gpus_per_node());
}

bool usual_fp8_any_layout(const Scenario& scenario) {
  const Gpu& gpu = scenario.cluster.gpu;
  const double capability = gpu.vendor == "nvidia" ? number_from<double>(gpu.compute_capability).value_or(0) : 0;
  return capability >= 10 && capability < 12;
}

Result<KernelCalibration> load_kernel_calibration(const std::string& path, InputFile* file) {
  NS_TRY(const std::string text, read_text(path, kLargestCalibration, "kernels/calibration",
                                           "a kernel calibration, as ns-dist calibrate writes it"));
  if (file != nullptr) *file = {path, hash_text(text)};
  return read_kernel_calibration(text, path);
}

Result<NetworkCalibration> load_network_calibration(const std::string& path, InputFile* file) {
  NS_TRY(const std::string text, read_text(path, kLargestCalibration, "network/calibration",
                                           "a network calibration, as ns-dist calibrate writes it"));
  if (file != nullptr) *file = {path, hash_text(text)};
  return read_network_calibration(text, path);
}

Result<std::int64_t> rank_count(const ParallelPlan& plan) {
  std::int64_t ranks = 1;
  for (const std::int64_t degree : {plan.tp, plan.cp, plan.pp, plan.dp}) {
    if (degree < 1) {
      return fail({ErrorCode::kInvalidInput, fmt::format("a degree of {}", degree), kDegrees, "whole numbers from 1"});
    }
    if (degree > kMostRanks / ranks) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("tp {} x cp {} x pp {} x dp {} are more than {} ranks", plan.tp, plan.cp, plan.pp,
                               plan.dp, kMostRanks),
                   kDegrees, fmt::format("at most {} ranks", kMostRanks), "write smaller degrees"});
    }
    ranks *= degree;
  }
  return ranks;
}

bool sets_what_follows(const Scenario& scenario) {
  return !scenario.framework.empty() && scenario.framework != kDefaultFramework;
}

// Who names the layers of a stage does not mean that the embedding or the loss, which a framework counts, is one.
static void follow_division(ParallelPlan& plan, const Given& named) {
  const bool layout = named.contains("plan/pipeline_layout") && !plan.pipeline_layout.is_even();
  const bool first = named.contains("plan/first_stage_layers") && plan.first_stage_layers > 0;
  const bool last = named.contains("plan/last_stage_layers") && plan.last_stage_layers > 0;
  if ((layout || first) && !named.contains("plan/account_embedding")) plan.account_embedding = false;
  if ((layout || last) && !named.contains("plan/account_loss")) plan.account_loss = false;
}

// Autograd adds up gradients in the format of the weights, whatever else a framework sets.
static void follow_weights(ParallelPlan& plan, const Given& named) {
  if (!named.contains("plan/weights") || named.contains("plan/grad_accumulation")) return;
  if (plan.weights != WeightStorage::kMaster) plan.grad_accumulation = GradAccumulation::kLow;
}

ParallelPlan with_fields(const ParallelPlan& before, std::span<const Assignment> assignments) {
  ParallelPlan plan = before;
  Given given;
  for (const Assignment& each : assignments) {
    assign_field(plan, each);
    given.insert(each.field);
  }
  follow_division(plan, given);
  follow_weights(plan, given);
  derive_plan(plan, given, &before);
  return plan;
}

Result<Scenario> resolve(const ScenarioSpec& said, const Catalog& catalog, const Scenario* base) {
  Scenario scenario = base != nullptr ? *base : Scenario();
  References spec;
  NS_TRY_VOID(assign_all(said, scenario, spec));
  NS_TRY(const ScenarioSpec set, spelled_out(said));
  Given given;
  for (const Assignment& assignment : set.assignments) given.insert(assignment.field);
  scenario.named.names = given;
  for (const Assignment& assignment : said.assignments) scenario.named.names.insert(assignment.field);
  if (given.contains("host/launch_cost") && !given.contains("host/launch_spread")) {
    scenario.host.launch_spread = kOwnLaunchSpread;
  }
  if (base == nullptr || spec.framework) {
    NS_TRY(
        const Framework framework,
        from("framework", catalog.framework(spec.framework ? std::string_view(*spec.framework) : kDefaultFramework)));
    if (base != nullptr) {  // a framework that is not in this catalog leaves what it set
      if (const auto old = catalog.framework(base->framework)) leave_framework(*old, scenario, given);
    }
    NS_TRY_VOID(use_framework(framework, scenario, given));
  } else if (const auto same = catalog.framework(base->framework)) {  // it holds beside what changes
    for (const Assignment& assignment : still_set(*same, scenario)) given.insert(assignment.field);
  }
  follow_division(scenario.plan, scenario.named.names);
  follow_weights(scenario.plan, scenario.named.names);
  derive_plan(scenario.plan, given, base != nullptr ? &base->plan : nullptr);
  // Tokens travel beside another microbatch there, not beside their own shared experts (Megatron-Core,
  // transformer_config.py: moe_shared_expert_overlap is to be disabled under overlap_moe_expert_parallel_comm).
  const bool anew = base == nullptr || spec.framework || given.contains("plan/schedule");
  if (anew && !scenario.named.names.contains("plan/overlap_ep") && traits_of(scenario.plan).hides_tokens) {
    scenario.plan.overlap_ep = false;
  }
  if (base == nullptr || spec.model) {
    NS_TRY(scenario.model, from("model", catalog.model(spec.model ? std::string_view(*spec.model) : kDefaultModel)));
    if (!given.contains("training/sequence")) scenario.training.sequence = scenario.model.sequence;
  }
  // A report has the shortened model alone.
  if (base != nullptr && !spec.model && base->training.layers > 0 &&
      base->training.layers != scenario.training.layers) {
    auto whole = catalog.model(base->model.id);
    if (!whole) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("the report has the first {} layers of its model alone", base->training.layers),
                   "training/layers", "the same number", "give the model, too"});
    }
    scenario.model = *std::move(whole);
  }
  if (scenario.training.layers > 0) {
    NS_TRY(scenario.model, from("training/layers", first_layers(scenario.model, scenario.training.layers)));
  }
  if (given.contains("training/sequence")) scenario.model.longest_sequence = false;

  if (spec.gpus && base == nullptr) NS_TRY_VOID(follow_gpus(scenario.plan, given.contains("plan/dp"), spec, catalog));
  NS_TRY(const std::int64_t ranks, rank_count(scenario.plan));
  if (spec.gpus) NS_TRY_VOID(size_nodes(spec, catalog, base, ranks));
  NS_TRY(Cluster cluster, find_cluster(spec, catalog, base, ranks));
  NS_TRY_VOID(use_fabrics(cluster, spec, catalog));
  // What machine/intra alone describes is a node, not so many GPUs to fill.
  bool sized = (spec.cluster || base != nullptr) && !cluster.levels.empty() && gpus_of(cluster) > 0;
  // A report's machine was sized for its own plan: another plan opens it again.
  if (base != nullptr && !names_machine(spec) && (spec.gpus_per_node || rank_count(base->plan).value_or(0) != ranks)) {
    sized = false;
    cluster = opened_anew(std::move(cluster));
  }
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
    NS_TRY_VOID(open_for(cluster, scenario.plan, ranks));
  } else if (!repeats) {
    NS_TRY_VOID(
        fill(cluster, open, scenario.plan, scenario.training, given.contains("plan/dp"), spec.gpus.has_value()));
  }
  scenario.cluster = std::move(cluster);
  if (!given.contains("plan/cp_comm") && (base == nullptr || base->plan.cp_comm == usual_cp_comm(base->model))) {
    scenario.plan.cp_comm = usual_cp_comm(scenario.model);
  }
  if (!given.contains("plan/cp_inner")) {
    if (base == nullptr)
      scenario.plan.cp_inner = usual_cp_inner(scenario);
    else
      follow_context(*base, scenario);
  }
  if (!given.contains("plan/fp8_any_layout") &&
      (base == nullptr || base->plan.fp8_any_layout == usual_fp8_any_layout(*base))) {
    scenario.plan.fp8_any_layout = usual_fp8_any_layout(scenario);
  }
  NS_TRY_VOID(check_stragglers(scenario));
  scenario.files = files_of(catalog, base);
  NS_TRY_VOID(use_calibrations(scenario, spec));
  return scenario;
}

TrainingClock training_clock(const Scenario& scenario, std::int64_t ranks) {
  TrainingConstants constants = scenario.constants;
  constants.experts = experts_factor(constants, scenario.plan);
  const double calibrated = scenario.kernel_calibration ? calibrated_share(*scenario.kernel_calibration) : 0;
  return TrainingClock(scenario.cluster.gpu, calibrated, ranks, constants);
}

double experts_factor(const TrainingConstants& constants, const ParallelPlan& plan) {
  const double share = std::min(1.0, std::log2(static_cast<double>(plan.ep)) / 2);
  return constants.experts_alone + share * (constants.experts - constants.experts_alone);
}

}  // namespace ns_dist
