// The machine of a scenario (machine.cc), and how many nodes it has for a plan and GPUs of each (machine_size.cc).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ns_dist/catalog.h"
#include "scenario_fields.h"

namespace ns_dist {

// The cluster that `spec` describes, or that of `base` with what `spec` changes, in a size that the ranks of `plan`
// fill. Sets plan.dp where `dp_is_given` is false and the size of the machine decides it. Errors: unknown names,
// fabrics that do not suit, sizes that do not match.
Result<Cluster> find_machine(References spec, const Catalog& catalog, const Scenario* base, ParallelPlan& plan,
                             const Training& training, bool dp_is_given);

// GPUs of the sized levels; the product of sizes of up to 1e9 may not fit into an integer.
double gpus_of(const Cluster& cluster);

// Gives each node `gpus` GPUs: units of its outermost level, or a part of the one unit that is left. A node with fewer
// GPUs than its ports were made for has one port at least. Error: they do not fill whole units.
Result<void> resize_nodes(Cluster& cluster, std::int64_t gpus);

// The same of nodes whose other GPUs stay idle in their places.
Result<void> use_part_of_nodes(Cluster& cluster, std::int64_t gpus);

// Gives the levels above the node `nodes` nodes together. Inner levels are filled before outer ones; groups that are
// not full are equally full. `where`: the fields that gave their number. Errors: nodes of unknown size, no fabric
// between nodes, groups that cannot be equally full.
Result<void> set_nodes(Cluster& cluster, std::int64_t nodes, std::string_view where);

// Gives the cluster as many nodes as `ranks` of this plan need, the last one perhaps not full. Errors: as set_nodes.
Result<void> open_for(Cluster& cluster, const ParallelPlan& plan, std::int64_t ranks);

// With all GPUs of its nodes and all nodes of its groups, for another plan to open.
Cluster opened_anew(Cluster cluster);

// Makes dp fill a machine of known size, of whose nodes some GPUs may stay idle. `open`: the machine before its nodes
// were counted; `by_gpus`: machine/gpus gave its size. Errors: the reason why dp cannot, or why a given dp does not.
Result<void> fill(Cluster& cluster, const Cluster& open, ParallelPlan& plan, const Training& training, bool dp_is_given,
                  bool by_gpus);

// Where another plan runs: on the scenario's machine if its ranks fill that one, otherwise on one that resolve() opens
// for it. Nothing where no flags give such a machine: it would have GPUs that no rank uses.
std::optional<Cluster> machine_for(const Scenario& scenario, const ParallelPlan& plan);
// What must be set, too, so that resolve() gives the plan that machine. Nothing where it does so by itself, or where
// the machine has GPUs that no rank uses: that one follows from the plan.
std::vector<Assignment> to_keep_machine(const Scenario& scenario, const ParallelPlan& plan);

}  // namespace ns_dist
