#include "ns_dist/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "ns_dist/hash.h"

namespace ns_dist {
namespace {

// The job that Narayanan et al. 2021 (s.5.1, table 1) made the yardstick.
constexpr std::string_view kDefaultModel = "gpt3-175b";
constexpr std::string_view kDefaultGpu = "h100-sxm-80gb";

// The catalog knows a wrong name but not where it was written.
template <class T>
Result<T> from(std::string_view flag, Result<T> found) {
  if (!found && found.error().where.empty()) found.error().where = flag;
  return found;
}

bool names_machine(const ScenarioSpec& spec) { return spec.gpu || spec.cluster; }

// GPUs of the sized levels; the product of sizes of up to 1e9 may not fit into an integer.
double gpus_of(const Cluster& cluster) {
  double gpus = 1;
  for (const FabricLevel& level : cluster.levels) gpus *= static_cast<double>(level.size);
  return gpus;
}

Result<Cluster> find_cluster(const ScenarioSpec& spec, const Catalog& catalog, const Scenario* base) {
  if (base != nullptr && !names_machine(spec)) return base->cluster;
  if (spec.cluster) {
    NS_TRY(Cluster cluster, from("--cluster", catalog.cluster(*spec.cluster)));
    if (spec.gpu) {
      NS_TRY(cluster.gpu, from("--gpu", catalog.gpu(*spec.gpu)));
    }
    return cluster;
  }
  NS_TRY(const Gpu gpu, from("--gpu", catalog.gpu(spec.gpu ? std::string_view(*spec.gpu) : kDefaultGpu)));
  Cluster cluster;
  if (!gpu.usual_cluster.empty()) {
    NS_TRY(cluster, catalog.cluster(gpu.usual_cluster));
  } else if (spec.intra) {
    cluster.name = fmt::format("nodes of {}", gpu.name);
  } else {
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("nothing says in which machines the GPU \"{}\" is found", gpu.id),
                 "--gpu",
                 "a GPU with a usual cluster, or a description of the machine",
                 "write --cluster, or --intra and --inter (ns-dist list clusters, ns-dist list fabrics)",
                 {}});
  }
  cluster.gpu = gpu;
  return cluster;
}

Result<void> use_fabrics(Cluster& cluster, const ScenarioSpec& spec, const Catalog& catalog) {
  if (spec.intra) {
    NS_TRY(const Fabric fabric, from("--intra", catalog.fabric(*spec.intra)));
    if (cluster.levels.empty()) cluster.levels.push_back({fabric, 8, 1, 1});
    cluster.levels.front().fabric = fabric;
  }
  if (spec.inter) {
    NS_TRY(const Fabric fabric, from("--inter", catalog.fabric(*spec.inter)));
    if (cluster.levels.empty()) {
      return fail({ErrorCode::kInvalidInput,
                   "the machine has no nodes to join",
                   "--inter",
                   "a machine with nodes",
                   "write --intra too",
                   {}});
    }
    if (cluster.levels.size() == 1) cluster.levels.push_back({fabric, 0, 1, 1});
    for (std::size_t i = 1; i < cluster.levels.size(); ++i) cluster.levels[i].fabric = fabric;
  }
  if (spec.intra_bandwidth && !cluster.levels.empty()) {
    FabricLevel& level = cluster.levels.front();
    level.fabric.bandwidth = *spec.intra_bandwidth / level.nics_per_gpu;
  }
  if (spec.inter_bandwidth) {
    if (cluster.levels.size() < 2) {
      return fail({ErrorCode::kInvalidInput,
                   "the machine has no fabric between its nodes",
                   "--inter-bandwidth",
                   "a machine of several nodes",
                   "write --inter too (ns-dist list fabrics)",
                   {}});
    }
    for (std::size_t i = 1; i < cluster.levels.size(); ++i) {
      cluster.levels[i].fabric.bandwidth = *spec.inter_bandwidth / cluster.levels[i].nics_per_gpu;
    }
  }
  return {};
}

// Gives the levels above the node `nodes` nodes together. Inner levels are filled before outer ones.
Result<void> set_nodes(Cluster& cluster, std::int64_t nodes, std::string_view where) {
  if (cluster.levels.size() < 2) {
    if (nodes == 1) return {};
    return fail({ErrorCode::kInfeasible,
                 fmt::format("{} nodes are asked for, but \"{}\" has no fabric between nodes", nodes,
                             cluster.id.empty() ? cluster.name : cluster.id),
                 std::string(where),
                 "a machine of several nodes",
                 "write --inter (ns-dist list fabrics)",
                 {}});
  }
  std::int64_t left = nodes;
  for (std::size_t i = 1; i + 1 < cluster.levels.size(); ++i) {
    std::int64_t& size = cluster.levels[i].size;
    if (left <= size) {
      size = left;
      left = 1;
    } else if (left % size == 0) {
      left /= size;
    } else {
      return fail({ErrorCode::kInfeasible,
                   fmt::format("{} nodes do not fill groups of {} ({})", nodes, size, cluster.levels[i].fabric.name),
                   std::string(where),
                   fmt::format("a multiple of {} nodes", size),
                   "",
                   {}});
    }
  }
  cluster.levels.back().size = left;
  return {};
}

// As many nodes as `ranks` need, the last one perhaps not full.
Result<void> open_for(Cluster& cluster, std::int64_t ranks) {
  if (cluster.levels.empty()) return {};
  if (cluster.levels.front().size == 0) cluster.levels.front().size = ranks;
  const std::int64_t node = cluster.levels.front().size;
  std::int64_t nodes = (ranks + node - 1) / node;
  // Whole groups of the levels between: racks are not split.
  for (std::size_t i = 1; i + 1 < cluster.levels.size(); ++i) {
    const std::int64_t size = cluster.levels[i].size;
    if (nodes > size) nodes = (nodes + size - 1) / size * size;
  }
  return set_nodes(cluster, nodes, "--tp, --cp, --pp, --dp");
}

std::string machine_text(const Cluster& cluster) {
  const std::int64_t node = cluster.gpus_per_node();
  const std::int64_t gpus = cluster.gpu_count();
  return fmt::format("{} node{} x {} GPUs = {} GPUs", gpus / node, gpus == node ? "" : "s", node, gpus);
}

// Makes dp fill a machine of known size, or says why it cannot.
Result<void> fill(const Cluster& cluster, ParallelPlan& plan, bool dp_is_given) {
  if (gpus_of(cluster) > static_cast<double>(kMostRanks)) {
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("a machine of {:.3g} GPUs", gpus_of(cluster)),
                 "--nodes",
                 fmt::format("at most {} GPUs", kMostRanks),
                 "write fewer nodes",
                 {}});
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
  const std::int64_t node = cluster.gpus_per_node();
  if (!dp_is_given) {
    return fail({ErrorCode::kInfeasible,
                 fmt::format("{} = {} does not divide {}", product, each, machine_text(cluster)),
                 "--nodes",
                 "whole replicas of the model on every GPU",
                 each % node == 0 ? fmt::format("write --nodes {}, or degrees whose product divides {}",
                                                std::max<std::int64_t>(1, gpus / each) * each / node, gpus)
                                  : fmt::format("write degrees whose product divides {}", gpus),
                 {}});
  }
  NS_TRY(const std::int64_t ranks, rank_count(plan));
  if (ranks == gpus) return {};
  std::string hint;
  if (gpus % each == 0) hint = fmt::format("--dp {}", gpus / each);
  if (ranks % node == 0) hint += fmt::format("{}--nodes {}", hint.empty() ? "" : ", or ", ranks / node);
  return fail({ErrorCode::kInfeasible,
               fmt::format("{} x dp {} = {} ranks, but {}", product, plan.dp, ranks, machine_text(cluster)),
               "--tp, --cp, --pp, --dp",
               "as many ranks as GPUs",
               hint.empty() ? hint : "write " + hint,
               {}});
}

ParallelPlan plan_of(const ScenarioSpec& spec, const Scenario* base) {
  ParallelPlan plan = base != nullptr ? base->plan : ParallelPlan();
  const std::int64_t tp_before = plan.tp;
  plan.tp = spec.tp.value_or(plan.tp);
  plan.pp = spec.pp.value_or(plan.pp);
  plan.dp = spec.dp.value_or(plan.dp);
  plan.cp = spec.cp.value_or(plan.cp);
  plan.ep = spec.ep.value_or(plan.ep);
  plan.vpp = spec.vpp.value_or(plan.vpp);
  if (spec.schedule) {
    plan.schedule = *spec.schedule;
  } else if (base == nullptr || spec.vpp) {
    plan.schedule = plan.vpp > 1 ? "interleaved" : "1f1b";
  }
  plan.order = spec.order.value_or(plan.order);
  plan.zero = spec.zero.value_or(plan.zero);
  plan.recompute = spec.recompute.value_or(plan.recompute);
  plan.grad_accumulation = spec.grad_accumulation.value_or(plan.grad_accumulation);
  if (spec.sequence_parallel) {
    plan.sequence_parallel = *spec.sequence_parallel;
  } else if (base == nullptr || spec.tp) {
    plan.sequence_parallel = plan.tp > 1 && (base == nullptr || tp_before == 1 || plan.sequence_parallel);
  }
  plan.flash_attention = spec.flash_attention.value_or(plan.flash_attention);
  plan.blocking_tp = spec.blocking_tp.value_or(plan.blocking_tp);
  plan.overlap_grad_reduce = spec.overlap_grad_reduce.value_or(plan.overlap_grad_reduce);
  plan.overlap_param_gather = spec.overlap_param_gather.value_or(plan.overlap_param_gather);
  // Megatron-LM overlaps messages with computation in the interleaved schedule unless told otherwise
  // (arguments.py, --no-overlap-p2p-communication), and cannot in the others.
  if (spec.overlap_p2p) {
    plan.overlap_p2p = *spec.overlap_p2p;
  } else if (base == nullptr || spec.vpp || spec.schedule) {
    plan.overlap_p2p = plan.schedule == "interleaved";
  }
  return plan;
}

// The text of a file that a flag names.
Result<std::string> read_text(const std::string& path, const char* flag, const char* expected) {
  constexpr std::uintmax_t kLargest = std::uintmax_t{16} << 20;
  std::error_code status;
  const bool regular = std::filesystem::is_regular_file(path, status);
  const std::uintmax_t size = regular ? std::filesystem::file_size(path, status) : 0;
  std::ifstream file(path, std::ios::binary);
  if (status || !regular || !file || size > kLargest) {
    return fail({ErrorCode::kNotFound, fmt::format("\"{}\" cannot be read", path), flag, expected, "", {}});
  }
  return std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Result<NetworkSettings> network_of(const ScenarioSpec& spec, const Scenario* base, std::vector<InputFile>& files) {
  NetworkSettings network = base != nullptr ? base->network : NetworkSettings();
  network.model = spec.network_model.value_or(network.model);
  network.algorithm = spec.algorithm.value_or(network.algorithm);
  network.protocol = spec.protocol.value_or(network.protocol);
  network.contention = spec.contention.value_or(network.contention);
  network.compute_slowdown = spec.compute_slowdown.value_or(network.compute_slowdown);
  if (spec.calibration) {
    network.calibration.reset();
    if (*spec.calibration != "none") {
      NS_TRY(const std::string text,
             read_text(*spec.calibration, "--calibration", "a network calibration, as ns-dist calibrate writes it"));
      NS_TRY(const NetworkCalibration exact, read_network_calibration(text, *spec.calibration));
      // As a report will hold it: numbers are written with four decimals.
      NS_TRY(network.calibration, read_network_calibration(to_json(exact), *spec.calibration));
      files.push_back({*spec.calibration, hash_text(text)});
    }
  }
  return network;
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

Result<KernelCalibration> load_kernel_calibration(const std::string& path, InputFile* file) {
  NS_TRY(const std::string text,
         read_text(path, "--kernel-calibration", "a kernel calibration, as ns-dist calibrate writes it"));
  if (file != nullptr) *file = {path, hash_text(text)};
  return read_kernel_calibration(text, path);
}

Result<std::int64_t> rank_count(const ParallelPlan& plan) {
  std::int64_t ranks = 1;
  for (const std::int64_t degree : {plan.tp, plan.cp, plan.pp, plan.dp}) {
    if (degree < 1) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("a degree of {}", degree),
                   "--tp, --cp, --pp, --dp",
                   "whole numbers from 1",
                   "",
                   {}});
    }
    if (degree > kMostRanks / ranks) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("tp {} x cp {} x pp {} x dp {} are more than {} ranks", plan.tp, plan.cp, plan.pp,
                               plan.dp, kMostRanks),
                   "--tp, --cp, --pp, --dp",
                   fmt::format("at most {} ranks", kMostRanks),
                   "write smaller degrees",
                   {}});
    }
    ranks *= degree;
  }
  return ranks;
}

Result<Scenario> resolve(const ScenarioSpec& spec, const Catalog& catalog, const Scenario* base) {
  Scenario scenario;
  scenario.plan = plan_of(spec, base);
  if (base != nullptr && !spec.model) {
    scenario.model = base->model;
  } else {
    NS_TRY(scenario.model, from("--model", catalog.model(spec.model ? std::string_view(*spec.model) : kDefaultModel)));
  }

  if (base != nullptr) scenario.training = base->training;
  Training& training = scenario.training;
  training.global_batch = spec.global_batch.value_or(training.global_batch);
  training.micro_batch = spec.micro_batch.value_or(training.micro_batch);
  if (base == nullptr || spec.model) training.sequence = scenario.model.sequence;
  training.sequence = spec.sequence.value_or(training.sequence);
  training.dtype = spec.dtype.value_or(training.dtype);

  NS_TRY(Cluster cluster, find_cluster(spec, catalog, base));
  if (auto used = use_fabrics(cluster, spec, catalog); !used) return fail(used.error());
  if (spec.gpus_per_node && !cluster.levels.empty()) cluster.levels.front().size = *spec.gpus_per_node;
  NS_TRY(const std::int64_t ranks, rank_count(scenario.plan));
  bool sized = !cluster.levels.empty() && gpus_of(cluster) > 0;
  // A report's machine was sized for its own plan: another plan opens it again.
  if (base != nullptr && !names_machine(spec) && (spec.gpus_per_node || rank_count(base->plan).value_or(0) != ranks)) {
    sized = false;
  }
  if (spec.nodes) {
    if (auto set = set_nodes(cluster, *spec.nodes, "--nodes"); !set) return fail(set.error());
    sized = true;
  }
  const bool repeats = base != nullptr && cluster == base->cluster && rank_count(base->plan).value_or(0) == ranks;
  if (!sized) {
    if (auto opened = open_for(cluster, ranks); !opened) return fail(opened.error());
  } else if (!repeats) {
    if (auto filled = fill(cluster, scenario.plan, spec.dp.has_value()); !filled) return fail(filled.error());
  }
  scenario.cluster = std::move(cluster);
  std::vector<InputFile> more;
  NS_TRY(scenario.network, network_of(spec, base, more));
  scenario.files = files_of(catalog, base);
  if (base != nullptr) scenario.kernel_calibration = base->kernel_calibration;
  if (spec.kernel_calibration) {
    scenario.kernel_calibration.reset();
    if (*spec.kernel_calibration != "none") {
      NS_TRY(scenario.kernel_calibration, load_kernel_calibration(*spec.kernel_calibration, &more.emplace_back()));
    }
  }
  scenario.files.insert(scenario.files.end(), more.begin(), more.end());
  return scenario;
}

}  // namespace ns_dist
