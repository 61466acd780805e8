#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "machine.h"
#include "ns_dist/internal/divisors.h"
#include "ns_dist/planner.h"

namespace ns_dist {
namespace {

constexpr const char* kDegrees = "plan/tp, plan/cp, plan/pp, plan/dp";

// Groups of `size` units at most that hold `units` units, equally many each: as few as possible, an eighth more at
// most; 0: there are none.
std::int64_t even_groups(std::int64_t units, std::int64_t size) {
  const std::int64_t fewest = (units + size - 1) / size;
  for (std::int64_t groups = fewest; 7 * groups <= 8 * fewest; ++groups) {
    if (units % groups == 0) return groups;
  }
  return 0;
}

// Leaves some GPUs of each node idle where groups of tensor, context or expert parallelism would lie in two nodes
// otherwise, or where one node would have fewer ranks than the others, whose links would wait for its own: 8 of 72
// where groups have 64 ranks, or where 8 nodes have 512, or 16 nodes 1,024. Of a node of several levels whole units of
// the outermost.
void leave_spares(Cluster& cluster, const ParallelPlan& plan, std::int64_t ranks) {
  FabricLevel& node = cluster.levels[cluster.node_levels() - 1];
  const std::int64_t all = cluster.gpus_per_node(), unit = all / node.size;
  const GroupReach reach = group_reach(plan);
  std::int64_t whole = 1;
  for (const std::int64_t each : {reach.tensor, reach.context, reach.expert, reach.expert_tensor}) {
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

// As set_nodes, and where groups cannot be equally full: full groups, the last one with idle nodes.
Result<void> set_enough_nodes(Cluster& cluster, std::int64_t nodes) {
  Cluster alike = cluster;
  if (set_nodes(alike, nodes, kDegrees)) {
    cluster = std::move(alike);
    return {};
  }
  for (std::size_t i = cluster.node_levels(); i + 1 < cluster.levels.size(); ++i) {
    const std::int64_t size = cluster.levels[i].size;
    if (nodes > size) nodes = (nodes + size - 1) / size * size;
  }
  return set_nodes(cluster, nodes, kDegrees);
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

// What to write where whole replicas of `each` GPUs do not fill `cluster`: machines whose replicas share the batch
// evenly, if there are any.
std::string machines_for(std::int64_t each, const ParallelPlan& plan, const Training& training, const Cluster& cluster,
                         bool by_gpus) {
  const auto shares = [&](std::int64_t dp) { return shares_batch(training, dp); };
  const std::string even = machines_of(each, plan.tp, cluster, by_gpus, shares);
  if (even.empty()) return machines_of(each, plan.tp, cluster, by_gpus, [](std::int64_t) { return true; });
  const std::int64_t node = cluster.gpus_per_node(), nodes = cluster.gpu_count() / node;
  const std::int64_t step = each / std::gcd(each, node), most = nodes / step * step;
  if (most == 0 || shares(most * node / each)) return even;
  // Fewer GPUs stay idle.
  return fmt::format("{} with another training/global_batch, or {}", size_text(most, node, by_gpus), even);
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

}  // namespace

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

double gpus_of(const Cluster& cluster) {
  double gpus = 1;
  for (const FabricLevel& level : cluster.levels) gpus *= static_cast<double>(level.size);
  return gpus;
}

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

Result<void> use_part_of_nodes(Cluster& cluster, std::int64_t gpus) {
  const std::vector<FabricLevel> whole = cluster.levels;
  NS_TRY_VOID(resize_nodes(cluster, gpus));
  for (std::size_t i = 0; i < cluster.node_levels(); ++i) {
    cluster.levels[i].spare = whole[i].size - cluster.levels[i].size;
  }
  return {};
}

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
               fmt::format("a multiple of {}, or equal numbers on all nodes, at least seven eighths of each; nodes of "
                           "another size are machine/nodes and machine/gpus_per_node",
                           node),
               fmt::format("write {}{} or {}", fewer, more < full ? fmt::format(", {}", more) : "", full)});
}

Result<void> open_for(Cluster& cluster, const ParallelPlan& plan, std::int64_t ranks) {
  if (cluster.levels.empty()) return {};
  if (FabricLevel& outermost = cluster.levels[cluster.node_levels() - 1]; outermost.size == 0) {
    outermost.size = 1;
    const std::int64_t unit = cluster.gpus_per_node();
    outermost.size = (ranks + unit - 1) / unit;
  }
  if (ranks > cluster.gpus_per_node()) leave_spares(cluster, plan, ranks);
  const std::int64_t node = cluster.gpus_per_node();
  return set_enough_nodes(cluster, (ranks + node - 1) / node);
}

Cluster opened_anew(Cluster cluster) {
  for (FabricLevel& level : cluster.levels) level.size += std::exchange(level.spare, 0);
  return cluster;
}

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
    return fail({ErrorCode::kInfeasible,
                 fmt::format("{} = {} does not divide {}", product, each, machine_text(cluster)), field,
                 "whole replicas of the model on every GPU",
                 fmt::format("write {}, or degrees whose product divides {}",
                             machines_for(each, plan, training, cluster, by_gpus), gpus)});
  }
  NS_TRY(const std::int64_t ranks, rank_count(plan));
  if (holds(cluster, plan, ranks)) return {};
  return fail({ErrorCode::kInfeasible,
               fmt::format("{} x dp {} = {} ranks, but {}", product, plan.dp, ranks, machine_text(cluster)), kDegrees,
               "as many ranks as GPUs", sizes_for(ranks, each, plan, training, cluster, open, by_gpus)});
}

std::optional<Cluster> machine_for(const Scenario& scenario, const ParallelPlan& plan) {
  const std::int64_t ranks = rank_count(plan).value_or(0), gpus = scenario.cluster.gpu_count();
  if (ranks == gpus) return scenario.cluster;
  Cluster machine = opened_anew(scenario.cluster);
  // More GPUs of the one node that machine/gpus takes a part of.
  const bool in_node = gpus > 0 && gpus < ranks && ranks < machine.gpus_per_node();
  if (in_node && !use_part_of_nodes(machine, ranks)) return std::nullopt;
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
  // The field that gave the size gives the new one.
  const bool by_gpus = scenario.named.names.contains("machine/gpus");
  std::vector<Assignment> set = {by_gpus ? Assignment{"machine/gpus", std::to_string(ranks)}
                                         : Assignment{"machine/nodes", std::to_string(ranks / each)}};
  const std::int64_t by_itself = by_gpus ? gpus_of_each_node(all, ranks).value_or(0) : all;
  if (each != by_itself) set.push_back({"machine/gpus_per_node", std::to_string(each)});
  // Without what the user wrote already.
  const std::int64_t node = scenario.cluster.gpus_per_node();
  const Assignment now[] = {{"machine/gpus", std::to_string(gpus)},
                            {"machine/nodes", std::to_string(gpus / node)},
                            {"machine/gpus_per_node", std::to_string(node)}};
  std::erase_if(set, [&](const Assignment& some) {
    return scenario.named.names.contains(some.field) &&
           std::find(std::begin(now), std::end(now), some) != std::end(now);
  });
  return set;
}

}  // namespace ns_dist
