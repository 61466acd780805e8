#include <fmt/format.h>

#include "explain_subjects.h"
#include "ns_dist/simulator.h"

namespace ns_dist::cli {
namespace {

// The machine of a collective, with the nodes that were asked for or, filled one after the other, as many as the ranks
// reach.
Result<Scenario> machine_of(const ExplainRequest& request, std::int64_t ranks, std::int64_t stride) {
  NS_TRY(ScenarioSpec spec, read_spec(request.network));
  spec.set("machine/gpu", request.gpu).set("machine/cluster", request.cluster);
  if (!request.nodes.empty()) {
    NS_TRY(const std::int64_t nodes, read_count(request.nodes, "--nodes"));
    spec.set("machine/nodes", nodes);
    return resolve(spec, Catalog::standard());
  }
  NS_TRY(Scenario least, resolve(spec, Catalog::standard()));  // one node, or all of a machine of known size
  const std::int64_t reach = (ranks - 1) * stride + 1, node = least.cluster.gpus_per_node();
  if (reach <= least.cluster.gpu_count()) return least;
  spec.set("plan/dp", (reach + node - 1) / node * node);
  auto opened = resolve(spec, Catalog::standard());
  if (opened) return opened;
  return fail({ErrorCode::kInfeasible,
               fmt::format("{} ranks with a stride of {} need {} GPUs, but {} has {}", ranks, stride, reach,
                           least.cluster.name, least.cluster.gpu_count()),
               "--ranks, --stride", "ranks on the GPUs of the machine",
               "write fewer ranks, or a cluster whose outermost level has no size"});
}

}  // namespace

void add_collective_flags(CLI::App& app, ExplainRequest& request) {
  const auto add = [&](const char* flag, auto& value, const char* type, const char* help) {
    app.add_option(flag, value, help)->type_name(type)->group(kCollectiveFlags);
  };
  add("--cluster", request.cluster, "ID|FILE", "ns-dist list clusters, or JSON [the GPU's usual one]");
  add("--ranks", request.ranks, "N", "ranks that take part [8; of send_recv 2]");
  add("--stride", request.stride, "N", "from one rank to the next [1]");
  add("--imbalance", request.imbalance, "RATIO", "all_to_all: bytes of the busiest rank's port over the mean [1]");
  add("--nodes", request.nodes, "N", "nodes of the machine [as many as the ranks need]");
  add_collective_model_flags(app, request.network, kCollectiveFlags);
}

// The subject of an operator's explanation names its GPU; that of a collective names no machine, so it is added.
Result<Explained> explain_collective(CollectiveKind kind, const ExplainRequest& request) {
  const char* const usual = kind == CollectiveKind::kSendRecv ? "2" : "8";
  NS_TRY(const std::int64_t ranks, read_count(request.ranks.empty() ? usual : request.ranks, "--ranks", 2, kMostRanks));
  NS_TRY(const std::int64_t stride, read_count(request.stride, "--stride", 1, kMostRanks));
  Bytes size;
  if (kind != CollectiveKind::kBarrier) {
    if (request.shape.empty()) return without_shape("bytes with their unit", fmt::format("{} 64MiB", name_of(kind)));
    NS_TRY(size, read_bytes(request.shape, "SHAPE", 1 * units::B));
  } else if (!request.shape.empty()) {
    return fail({ErrorCode::kUsage, fmt::format("\"{}\" is a size, and a barrier has none", request.shape), "SHAPE",
                 "nothing", "as in: explain barrier --ranks 16"});
  }
  if (ranks > kMostRanks / stride) {
    return fail({ErrorCode::kUsage, fmt::format("{} ranks with a stride of {}", ranks, stride), "--ranks, --stride",
                 fmt::format("a machine of at most {} GPUs", kMostRanks)});
  }
  NS_TRY(const Scenario scenario, machine_of(request, ranks, stride));
  warn_of(scenario.cluster);
  const std::string machine =
      fmt::format("{} x {}, {}", scenario.cluster.gpu_count() / scenario.cluster.gpus_per_node(), scenario.cluster.name,
                  scenario.cluster.gpu.id);
  warn_of_others(scenario.network, {scenario.cluster.id});
  NetworkModelOptions options = network_options(scenario.network);
  options.strict = true;
  if (!request.nodes.empty()) options.ranks = scenario.cluster.gpu_count();
  NS_TRY(const auto model, make_network_model(scenario.cluster, options));
  if (!(request.imbalance >= 1) || (request.imbalance > 1 && kind != CollectiveKind::kAllToAll) ||
      request.imbalance > static_cast<double>(ranks)) {
    return fail({ErrorCode::kUsage,
                 fmt::format("an imbalance of {:g} for {} of {} ranks", request.imbalance, name_of(kind), ranks),
                 "--imbalance",
                 kind == CollectiveKind::kAllToAll ? fmt::format("1 (even) to {}, the ranks", ranks)
                                                   : std::string("1: only all_to_all is uneven"),
                 "as in: ns-dist explain all_to_all 64MiB --imbalance 1.5"});
  }
  NS_TRY(Explanation explanation,
         model->explain(Collective{kind, size, RankGroup{0, {{ranks, stride}}}, false, request.imbalance}));
  if (const std::size_t at = explanation.subject.find(to_text(size));
      !request.shape.empty() && at != std::string::npos) {
    explanation.subject.replace(at, to_text(size).size(), request.shape);  // as it was typed
  }
  explanation.subject += " on " + machine;
  return Explained{std::move(explanation), ""};
}

}  // namespace ns_dist::cli
