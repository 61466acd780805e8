// What a spec names rather than writes, and how its texts are read.
#pragma once

#include <any>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/scenario.h"

namespace ns_dist {

// Limits of what is read.
inline constexpr double kLargestSlowdown = 1000;

// Catalog ids, aliases and files, and what changes the machine that they name.
struct References {
  std::optional<std::string> model;
  std::optional<std::string> framework;
  std::optional<std::string> gpu, cluster;
  std::optional<std::int64_t> gpus, nodes, gpus_per_node, nics_per_node;
  std::optional<std::string> intra, inter;
  std::optional<BytesPerSecond> intra_bandwidth, inter_bandwidth;  // of a GPU, one direction
  std::optional<std::string> calibration;                          // a file of network corrections, or "none"
  std::optional<std::string> kernel_calibration;                   // the same of the GPU's kernels
};

// `found` in the catalog by the name in this field. Its errors say where the name was written, as the catalog cannot.
template <class T>
Result<T> named_by(std::string_view field, Result<T> found) {
  if (!found && found.error().where.empty()) found.error().where = field;
  return found;
}

// Whether a framework's limits may ask for it although nobody sets it (kFacts).
bool is_fact(std::string_view field);
// Whether the limit asks for microbatches. How many there are depends on most of a plan.
bool asks_for_microbatches(const FieldLimit& limit);
// Whether plan/flash_attention would change the plan: it is off, and the model's attention has a choice.
bool can_fuse_attention(const Scenario& scenario);
// A fact in words.
std::string fact_text(std::string_view field, std::string_view value);
// Whether the value of a field or a fact changes with that of `other`.
bool depends_on(std::string_view field, std::string_view other);
// Adds `each` in the place of what set its field before.
void set_again(std::vector<Assignment>& set, Assignment each);
// The text of a field or a fact; "" of others.
std::string value_of(const Scenario& scenario, std::string_view field);
// Whether fields of these values are beyond what a framework has.
bool breaks(const FieldLimit& limit, const std::function<std::string(std::string_view field)>& value);
bool breaks(const FieldLimit& limit, const Scenario& scenario);

// framework_has for many changes of one scenario, which must outlive it: only limits of what is changed are read again.
class FrameworkLimits {
 public:
  explicit FrameworkLimits(const Scenario& before);
  bool has(const Scenario& after) const;

 private:
  struct Limit {
    const FieldLimit* limit;
    std::vector<std::size_t> fields;  // in fields_: its own, then those of its conditions
    bool broken = false;              // by `before`
  };
  struct Value {
    std::any of_before;  // of the type that the visit of `after` has at the same place, where it has a field
    std::optional<std::size_t> field;  // in fields_
  };
  std::size_t number_of(std::string_view field);

  const Scenario& before_;
  std::vector<std::string_view> fields_;  // and facts, on which limits depend
  std::vector<std::string> texts_;        // of `before`
  std::vector<Limit> limits_;
  std::vector<Value> values_;  // of all tables, as they are visited
};

// Whether a framework wants the division of layers written as a layout where that is broken.
inline constexpr std::string_view kLayoutField = "plan/pipeline_layout", kEvenLayout = "even";
bool wants_layout(const FieldLimit& limit);
// The plan's division of layers as the text of a layout, where its framework wants that and it has none; otherwise "".
std::string wanted_layout(const Scenario& scenario);

// The recomputations that searches and advice try for the model, those that compute least again first: none; norms, and
// what else is cheap to compute and large (activations of experts, up-projections of latent attention); MLPs or whole
// expert layers besides; all. The attention core where it is unfused. Forward passes alone have none.
std::vector<Recomputation> usual_recomputations(const Scenario& scenario);
bool recomputes_less(const Recomputation& a, const Recomputation& b);  // of two selections: some of the modules

// Another number of stages or chunks, or schedule. Numbers of layers that were written for the stages, and a layout for
// the positions that there were, say nothing of others. What else divides the layers stays where it still can, without
// rest where there was none; otherwise they are divided evenly.
void set_stages(const Model& model, ParallelPlan& plan, std::int64_t pp, std::int64_t vpp, std::string_view schedule);

// Sizes of sets of replicas that share weights (HSDP): as many as a node has, `times` as many, and so on, below all;
// and as many of a node's, divided by `times` and so on. Replicas of experts make as many sets.
std::vector<std::int64_t> usual_shards(const Scenario& scenario, std::int64_t times);

// Whether sequence parallelism comes with tensor parallelism, if a plan gets it: not where the user or the framework is
// against it.
bool usual_sequence_parallel(const Scenario& scenario);

// Whether another framework than the default one may set what follows from other fields: sequence parallelism of
// deepspeed does not follow from tp. What is to hold beside it must be said.
bool sets_what_follows(const Scenario& scenario);

// What holds where nothing is named: the job that Narayanan et al. 2021 (s.5.1, table 1) made the yardstick.
inline constexpr std::string_view kDefaultModel = "gpt3-175b", kDefaultGpu = "h100-sxm-80gb",
                                  kDefaultFramework = "megatron-core";

template <class Visitor, OrConst<References> T>
void visit_fields(Visitor&& visit, T& names) {
  visit({.name = "model",
         .help = "ns-dist list models, our JSON, or a Hugging Face config.json or its folder",
         .values = "ID|FILE",
         .default_text = kDefaultModel},
        names.model);
  visit({.name = "framework",
         .help = "whose defaults hold, ns-dist list frameworks, or JSON",
         .values = "ID|FILE",
         .default_text = kDefaultFramework},
        names.framework);
  visit({.name = "machine/gpu", .help = "ns-dist list gpus, or JSON", .values = "ID|FILE", .default_text = kDefaultGpu},
        names.gpu);
  visit({.name = "machine/cluster",
         .help = "ns-dist list clusters, or JSON",
         .values = "ID|FILE",
         .default_text = "the GPU's usual machine"},
        names.cluster);
  visit({.name = "machine/gpus",
         .help = "GPUs in all, of the nodes that they fill, or of one node",
         .default_text = "as many as the plan needs"},
        names.gpus);
  visit({.name = "machine/nodes", .help = "nodes", .default_text = "as many as the plan needs"}, names.nodes);
  visit({.name = "machine/gpus_per_node", .help = "GPUs of a node", .default_text = "the machine's own"},
        names.gpus_per_node);
  visit({.name = "machine/intra",
         .help = "fabric inside a node, ns-dist list fabrics",
         .values = "ID",
         .default_text = "the machine's own"},
        names.intra);
  visit({.name = "machine/inter", .help = "fabric between nodes", .values = "ID", .default_text = "the machine's own"},
        names.inter);
  visit({.name = "machine/nics_per_node",
         .help = "network ports of a whole node, which all of its GPUs share",
         .default_text = "the machine's own, for each GPU"},
        names.nics_per_node);
  visit({.name = "machine/intra_bandwidth",
         .help = "of a GPU, one direction, as in \"450 GB/s\"; over PCIe: the rate that GPUs reach to each other",
         .values = "RATE",
         .default_text = "of the fabric, times the ports of a GPU"},
        names.intra_bandwidth);
  visit({.name = "machine/inter_bandwidth",
         .help = "of a GPU, one direction, as in \"50 GB/s\"",
         .values = "RATE",
         .default_text = "of the fabric, times the ports of a GPU"},
        names.inter_bandwidth);
  visit({.name = "network/calibration",
         .help = "corrections measured on this cluster, as ns-dist calibrate writes them",
         .values = "FILE|none",
         .default_text = "none"},
        names.calibration);
  visit({.name = "kernels/calibration",
         .help = "corrections measured on this GPU, as ns-dist calibrate writes them",
         .values = "FILE|none",
         .default_text = "none",
         .flag = "--kernel-calibration"},
        names.kernel_calibration);
}

// Reads every assignment. Errors: all that cannot be read, at once.
Result<void> assign_all(const ScenarioSpec& spec, Scenario& scenario, References& references);

}  // namespace ns_dist
