// A question: this model, on this cluster, under this plan.
//
//   ScenarioSpec spec;                                         // what a user sets; the rest has defaults
//   spec.set("plan/tp", 8).set("plan/pp", 16);
//   NS_TRY(const Scenario scenario, resolve(spec, Catalog::standard()));
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/cluster.h"
#include "ns_dist/cuda_graphs.h"
#include "ns_dist/fields.h"
#include "ns_dist/framework.h"
#include "ns_dist/kernel_calibration.h"
#include "ns_dist/model.h"
#include "ns_dist/network_fit.h"
#include "ns_dist/network_model.h"
#include "ns_dist/parallel_plan.h"
#include "ns_dist/published_run.h"
#include "ns_dist/result.h"
#include "ns_dist/training_clock.h"
#include "ns_dist/units.h"

namespace ns_dist {

// How collectives are forecast.
struct NetworkSettings {
  NetworkModelKind model = NetworkModelKind::kNccl;  // NetworkModelOptions::model, ...
  std::string algorithm = "auto", protocol = "auto";
  std::optional<NetworkCalibration> calibration;  // curves that come before those compiled in
  bool contention = true;                         // collectives and messages that overlap share the ports of their GPU
  bool compute_slowdown = true;                   // kernels beside collectives leave them SMs and memory bandwidth
  friend bool operator==(const NetworkSettings&, const NetworkSettings&) = default;
};

template <class Visitor, OrConst<NetworkSettings> T>
void visit_fields(Visitor&& visit, T& network) {
  visit({.name = "network/model",
         .help = "nccl, or astra: ASTRA-Sim's formulas",
         .values = "NAME",
         .flag = "--network-model",
         .in_every_report = true},
        network.model);
  visit({.name = "network/algorithm",
         .help = "ns-dist list algorithms",
         .values = "NAME",
         .default_text = "the fastest",
         .in_every_report = true},
        network.algorithm);
  visit({.name = "network/protocol",
         .help = "ns-dist list protocols",
         .values = "NAME",
         .default_text = "the fastest",
         .in_every_report = true},
        network.protocol);
  visit({.name = "network/contention", .help = "what overlaps on a link shares it", .in_every_report = true},
        network.contention);
  visit({.name = "network/compute_slowdown",
         .help = "kernels beside collectives have fewer SMs and less memory bandwidth",
         .in_every_report = true},
        network.compute_slowdown);
}

// Ranks that compute slower than the GPU's forecast.
struct Stragglers {
  std::int64_t slow_stage = -1;     // one data-parallel replica's rank of this pipeline stage; -1: none
  double slow_factor = 1;           // how many times as long its kernels take
  std::vector<double> stage_speed;  // of all ranks of a stage, relative to the forecast; empty: 1 everywhere
  friend bool operator==(const Stragglers&, const Stragglers&) = default;
};

// Two members of Stragglers that one text sets: "3:1.2".
struct SlowRank {
  std::int64_t stage = -1;
  double factor = 1;
  friend bool operator==(const SlowRank&, const SlowRank&) = default;
};
Result<void> read_field(const Field& field, std::string_view text, SlowRank& value);
std::string field_text(const SlowRank& value);

template <class Visitor, OrConst<Stragglers> T>
void visit_fields(Visitor&& visit, T& stragglers) {
  SlowRank slow{stragglers.slow_stage, stragglers.slow_factor};
  visit({.name = "stragglers/slow_rank",
         .help = "one rank of this stage computes FACTOR times as long, as in 3:1.2",
         .values = "STAGE:FACTOR",
         .default_text = "none"},
        slow);
  if constexpr (!std::is_const_v<T>) {
    stragglers.slow_stage = slow.stage;
    stragglers.slow_factor = slow.factor;
  }
  visit({.name = "stragglers/stage_speed",
         .help = "of each stage, 1 as the GPU is forecast, as in 1,0.9,1,1",
         .values = "LIST",
         .default_text = "1 everywhere"},
        stragglers.stage_speed);
}

// TransformerEngine (pull request 3134, benchmark_grouped_linear.py on SM100): its loop of cuBLASLt calls takes 0.267
// ms for 8 experts of 128 x 2048 x 2048, whose products take the GPU 1 us each.
inline constexpr Seconds kExpertLaunch = 33 * units::us;

// What a launch takes longer where it blocks: 5.8 us for each operation of 20 us. A kernel of 2.9 us takes 9.6 us with
// its launch where each is awaited, and 3.8 us where none is (NVIDIA, Getting Started with CUDA Graphs, 2019, V100).
inline constexpr double kBlockingLaunch = 1 + 5.8 / 20;

// How far the launch costs of hosts differ.
struct LaunchSpreadKind {
  static constexpr std::string_view kName = "factor between the launch costs of hosts";
  // PyTorch's Linear takes 13.5 us on a Xeon of a DGX H100 and 33 to 37 us on Grace (TransformerEngine issue 2053): a
  // factor of 2.5 from end to end, about 1.5 on either side of the middle.
  static constexpr double kDefault = 1.5, kLeast = 1, kMost = 10, kExample = 1.2;
};
using LaunchSpread = BoundedNumber<LaunchSpreadKind>;
// Where the user sets the launch cost: a measurement of the own host. Chosen, not fitted.
inline constexpr LaunchSpread kOwnLaunchSpread = {1.1};

// The program that launches kernels. A kernel starts when its launch has ended: where kernels are shorter than their
// launches, the GPU waits for the host.
struct Host {
  // Of one forecast kernel, operator and framework together: two or three PyTorch operations of 20 us. 1,440 published
  // steps on one node (vTrain, MICRO 2024) have their least error at 49 to 52 us, BigScience's, whose launches block,
  // at 48 to 50 us; no other publication changes between 0 and 80 us.
  Seconds launch_cost = 50 * units::us;
  // The interval of a step holds hosts whose launches take 1 / spread to spread times that.
  LaunchSpread launch_spread = {};
  // Of each expert's product after the first, where a library launches a grouped product expert by expert.
  Seconds expert_launch_cost = kExpertLaunch;
  CudaGraphs cuda_graphs{};
  bool blocking_launches = false;  // each launch waits until its kernel has ended (CUDA_LAUNCH_BLOCKING=1)
  // Of the CPUs' memory, the share of one GPU, data sheet; zero: the superchip's own, or kUsualHostMemory.
  BytesPerSecond memory_bandwidth{};
  bool empty_cache = false;  // each step maps its memory anew: its activations were given back before
  // Of one operation without modules of a framework and without automatic differentiation, as the optimizer has them;
  // no more than launch_cost.
  Seconds operation_cost = 20 * units::us;
  // Of one forecast kernel, the wait for it included.
  Seconds launch() const { return blocking_launches ? kBlockingLaunch * launch_cost : launch_cost; }
  Seconds launch_of_optimizer() const {
    return launch_cost > operation_cost ? operation_cost / launch_cost * launch() : launch();
  }
  // A host whose launches take `times` as long.
  Host with_launches(double times) const {
    Host other = *this;
    other.launch_cost *= times, other.operation_cost *= times;
    other.expert_launch_cost *= times;
    return other;
  }
  friend bool operator==(const Host&, const Host&) = default;
};

template <class Visitor, OrConst<Host> T>
void visit_fields(Visitor&& visit, T& host) {
  visit({.name = "host/launch_cost",
         .help = "host time that the launch of one kernel takes",
         .values = "TIME",
         .in_every_report = true},
        host.launch_cost);
  visit({.name = "host/launch_spread",
         .help = "the interval holds hosts whose launches take up to FACTOR times as long or as short",
         .values = "FACTOR",
         .default_text = "1.5; 1.1 where host/launch_cost is set"},
        host.launch_spread);
  visit({.name = "host/expert_launch_cost",
         .help = "host time of each expert's product after the first, unless they are one kernel",
         .values = "TIME",
         .default_text = "33 us"},
        host.expert_launch_cost);
  visit({.name = "host/cuda_graphs",
         .help = "recorded graphs launch the kernels: of the whole step, or of attn, mamba, mlp, moe_router, "
                 "moe_preprocess and moe of each layer",
         .values = "off|on|MODULES",
         .in_every_report = true},
        host.cuda_graphs);
  visit({.name = "host/blocking_launches",
         .help = "each launch waits until its kernel has ended",
         .in_every_report = true},
        host.blocking_launches);
  visit(
      {.name = "host/memory_bandwidth",
       .help = "one GPU's share of the bandwidth with which the CPUs read offloaded optimizer states from their memory",
       .values = "BANDWIDTH",
       .default_text = "51.2 GB/s, and what idle GPUs of the node leave; superchips: of their data sheet",
       .flag = "--host-memory-bandwidth"},
      host.memory_bandwidth);
  visit({.name = "host/empty_cache",
         .help = "memory is given back before each step (torch.cuda.empty_cache) and mapped anew"},
        host.empty_cache);
}

// Power usage effectiveness (ISO/IEC 30134-2): energy of the building over that of the machine, 1 or more.
struct PueKind {
  static constexpr std::string_view kName = "power usage effectiveness";
  static constexpr double kDefault = 1, kLeast = 1, kMost = 100, kExample = 1.2;
};
using Pue = BoundedNumber<PueKind>;

// The building that the machine stands in.
struct Facility {
  Pue pue;
  friend bool operator==(const Facility&, const Facility&) = default;
};

template <class Visitor, OrConst<Facility> T>
void visit_fields(Visitor&& visit, T& facility) {
  visit({.name = "facility/pue",
         .help = "energy of the building over that of its GPUs: cooling, hosts and switches, as in 1.2",
         .values = "FACTOR"},
        facility.pue);
}

// How the step is simulated.
struct SimulationSettings {
  bool unfolded = false;  // every microbatch is timed, whether or not the step repeats itself
  friend bool operator==(const SimulationSettings&, const SimulationSettings&) = default;
};

template <class Visitor, OrConst<SimulationSettings> T>
void visit_fields(Visitor&& visit, T& settings) {
  visit({.name = "settings/unfolded", .help = "time every microbatch one by one"}, settings.unfolded);
}

using FieldNames = std::set<std::string, std::less<>>;

// Fields that whoever asked named: what follows from other fields does not change them, so advice names them, too. No
// part of the work: equal scenarios may have been asked for in other words.
struct NamedFields {
  FieldNames names;
  FieldNames chosen = {};  // of these, what a search named: nobody set it himself
  friend bool operator==(const NamedFields&, const NamedFields&) { return true; }
};

// Everything that decides a forecast, resolved: no names to look up, no defaults left to fill in.
struct Scenario {
  Model model;
  Cluster cluster;  // its outermost level may stay open (size 0): as many nodes as the plan needs
  ParallelPlan plan;
  Training training;
  std::string framework;      // whose defaults the plan and the host have
  std::string compared_with;  // measured steps of this framework; empty: there are none, and the interval is wider
  NamedFields named;
  bool fixed_shapes = false;  // the framework sets host/cuda_graphs: its compiler knows all shapes before (XLA)
  std::vector<FieldLimit> framework_only;  // what search and advice propose of fields that it has not in full
  Host host;
  NetworkSettings network;
  Stragglers stragglers;
  Facility facility;
  SimulationSettings settings;
  std::optional<KernelCalibration> kernel_calibration;  // what measurements of this GPU corrected
  TrainingConstants constants;                          // no field: others are for those who judge them
  std::vector<InputFile> files;                         // what the nouns above were read from, for the provenance
  friend bool operator==(const Scenario&, const Scenario&) = default;
};

// The tables of a scenario whose fields are set one by one, in the order of --help.
template <class Visitor, OrConst<Scenario> T>
void visit_tables(Visitor&& visit, T& scenario) {
  visit(scenario.plan);
  visit(scenario.training);
  visit(scenario.host);
  visit(scenario.network);
  visit(scenario.stragglers);
  visit(scenario.facility);
  visit(scenario.settings);
}

// Whether the framework of `before` has what is changed in `after`.
bool framework_has(const Scenario& before, const Scenario& after);

// GPUs of each node of `node` that a cluster of `gpus` uses: the most that divide them and are a multiple of `whole`,
// but no less than seven eighths of the node (64 of 72). 0: no such number.
std::int64_t used_of_node(std::int64_t node, std::int64_t gpus, std::int64_t whole = 1);
// GPUs of each node of `node` that a cluster of so many GPUs has: all of them, those of one node, or used_of_node.
// Error: none of these fills whole nodes.
Result<std::int64_t> gpus_of_each_node(std::int64_t node, std::int64_t gpus);

// What a user sets. Fields are those of scenario_fields(); the last assignment of a field holds.
struct ScenarioSpec {
  std::vector<Assignment> assignments;

  ScenarioSpec& set(std::string_view field, std::string_view text) {
    assignments.push_back({std::string(field), std::string(text)});
    return *this;
  }
  // Numbers, bool, enumerators and quantities, as their text.
  template <class T>
  requires(!std::convertible_to<const T&, std::string_view>) ScenarioSpec& set(std::string_view field, const T& value) {
    if constexpr (std::integral<T> && !std::same_as<T, bool>) {
      return set(field, std::string_view(field_text(static_cast<std::int64_t>(value))));
    } else {
      return set(field, std::string_view(field_text(value)));
    }
  }
  // Nothing when there is no value.
  template <class T>
  ScenarioSpec& set(std::string_view field, const std::optional<T>& value) {
    return value ? set(field, *value) : *this;
  }
};

// The scenario that a published run describes.
ScenarioSpec spec_of(const PublishedRun& run);

// A field for whoever lists them: flags, bindings, documentation.
struct FieldDescription {
  Field field;
  std::string flag;          // "--micro-batch"
  std::string values;        // "N", "on|off", "none|selective|full", "ID|FILE"
  std::string default_text;  // "1"
  bool is_switch = false;    // "on" may be left out
  // Whether one value may have commas: a list, or modules of a layer.
  bool is_list() const { return values == "LIST" || values.ends_with("|MODULES"); }
  // Fields that this one sets, all at once. A later assignment of one of them overrules it.
  std::vector<std::string_view> stands_for = {};
  bool covers(std::string_view other) const {
    return std::find(stands_for.begin(), stands_for.end(), other) != stands_for.end();
  }
};

// Whether both set one and the same field: they are equal, or one of them sets several fields, of which one is the
// other.
bool set_the_same(const FieldDescription& a, const FieldDescription& b);

// Every field that a ScenarioSpec can set: those of Scenario, names that are looked up ("model", "machine/gpu"), and
// "plan/overlap", which sets all fields whose flags begin with kOverlapFlags.
std::span<const FieldDescription> scenario_fields();

// The field of that name, or nullptr.
const FieldDescription* find_field(std::string_view name);

// The text of a field of `scenario`; "" of names that are looked up.
std::string value_text(const Scenario& scenario, std::string_view field);

// The same spec without "plan/overlap": the fields that it sets take its place. {"plan/overlap", "tp"} becomes
// {"plan/overlap_p2p", "off"}, {"plan/overlap_tp", "on"}, ... Errors: all texts that cannot be read, at once.
Result<ScenarioSpec> spelled_out(const ScenarioSpec& spec);

// Sets one field of `scenario` and nothing that follows from it. Errors: no such field, or one that only `resolve` can
// set ("machine/gpu"); a value that cannot be read. `where` is the field.
Result<void> assign(Scenario& scenario, const Assignment& assignment);

// Whether `resolve` can read every assignment. Errors: all that it cannot, at once.
Result<void> check_values(const ScenarioSpec& spec);

// The flags that --overlap sets at once begin with it.
inline constexpr std::string_view kOverlapFlags = "--overlap-";

// What a plan computes again, with its modules: equal where that is the same.
Recomputation recomputation_of(const ParallelPlan& plan);

// The flags that change the scenario's plan so: "--tp 8 --overlap grad-reduce,p2p", without those of --overlap that
// nobody named and that then change nothing. Beside flags of `named`, which hold against --overlap, each has its own:
// "--overlap-p2p on". Values are shell words. Fields that do not exist are written as they are.
std::string to_flags(std::span<const Assignment> assignments, const Scenario& scenario, const NamedFields& named);
// Those beside what its user named.
inline std::string to_flags(std::span<const Assignment> assignments, const Scenario& scenario) {
  return to_flags(assignments, scenario, scenario.named);
}

// Fills in `base` (or the defaults: GPT-3 175B on H100s, see the command line's help) with what `spec` sets.
//
// The machine is the cluster that is named, or the GPU's usual one. A machine whose size is given (nodes, or a sized
// cluster) must be filled by tp x cp x pp x dp ranks, and dp follows from it when it is not given; otherwise there are
// as many nodes as the ranks need.
//
// Errors: unknown names, files with mistakes, sizes that do not match; each names the field to change
// ("machine/nodes").
Result<Scenario> resolve(const ScenarioSpec& spec, const Catalog& catalog, const Scenario* base = nullptr);

// The file that kernels/calibration names; `file`, if any, becomes its path and hash. Errors: it cannot be read, or is
// larger than 16 MiB; as read_kernel_calibration.
Result<KernelCalibration> load_kernel_calibration(const std::string& path, InputFile* file = nullptr);
// The same of network/calibration.
Result<NetworkCalibration> load_network_calibration(const std::string& path, InputFile* file = nullptr);

// tp x cp x pp x dp. Errors: degrees that are not positive, or more ranks than kMostRanks.
Result<std::int64_t> rank_count(const ParallelPlan& plan);

// The scenario as JSON, in the format of the report's `inputs`; numbers are written without loss.
std::string write_scenario(const Scenario& scenario);

// Reads a scenario back from a report, from its `inputs` alone, or from one of the plans (from 1) of a search's answer;
// `where` names the file in errors.
Result<Scenario> read_scenario(std::string_view json, const std::string& where, std::size_t plan = 1);
// What was asked beside the work of the same report (Report::asked). Errors: JSON that cannot be read; no such plan;
// values that are no texts.
Result<std::map<std::string, std::string>> read_asked(std::string_view json, const std::string& where,
                                                      std::size_t plan = 1);

// Of a run on `ranks` GPUs.
TrainingClock training_clock(const Scenario& scenario, std::int64_t ranks);
// How many times as long products of experts take under this plan. The fewer ranks they are spread over, the more even
// are the ranks' shares: experts_alone on one, experts from four on, as in published steps, on two their mean (steps of
// Grok-1 with ep 2: +2 % in bf16 and -9 % in fp8; with 1.3 they are +7 and -6 %).
double experts_factor(const TrainingConstants& constants, const ParallelPlan& plan);

}  // namespace ns_dist
