#include <algorithm>
#include <map>
#include <utility>

#include "ns_dist/report.h"
#include "step_difference.h"

namespace ns_dist {

Seconds Breakdown::*part_of(Category category) {
  switch (category) {
    case Category::kForward:
    case Category::kBackward:
      return &Breakdown::compute;
    case Category::kRecompute:
      return &Breakdown::recompute;
    case Category::kOptimizer:
      return &Breakdown::optimizer;
    case Category::kTensorParallel:
      return &Breakdown::tp_exposed;
    case Category::kContextParallel:
      return &Breakdown::cp_exposed;
    case Category::kExpertParallel:
      return &Breakdown::ep_exposed;
    case Category::kPipelineParallel:
      return &Breakdown::pp_exposed;
    case Category::kDataParallel:
      return &Breakdown::dp_exposed;
    case Category::kLaunches:
      return &Breakdown::launches;
    case Category::kOther:
      break;
  }
  return &Breakdown::other;
}

namespace {

class Waits {
 public:
  Waits(const ExecutionGraph& graph, const Timeline& timeline) : graph_(graph), spans_(timeline.spans) {}

  // Accounts for [from, to), in which `stage` computes nothing because it waits for `node` to end.
  // Goes back from `node` along what each one waited for, while that still happens on this stage.
  void explain(Breakdown& parts, std::int64_t stage, NodeId node, Seconds from, Seconds to) const {
    while (node != kNoNode && from < to) {
      const bool here = ExecutionGraph::stage_of(graph_.node(node).lane) == stage;
      const WorkItem& item = graph_.work_of(node);
      // A message belongs to both of its ends; any other work of another stage makes this one wait in a bubble.
      if (!here && !std::holds_alternative<Message>(item.work)) break;
      const Seconds start = max(from, min(to, spans_[index(node)].start));
      parts.*part_of(item.category) += to - start;
      to = start;
      if (!here) break;
      node = waited_for(node);
    }
    if (from < to) parts.bubble += to - from;
  }

  // What ended last of all that `node` waited for; kNoNode when it waited for nothing.
  NodeId waited_for(NodeId node) const {
    NodeId latest = graph_.previous_on_lane(node);
    for (const NodeId dependency : graph_.dependencies(node)) {
      if (latest == kNoNode || spans_[index(dependency)].end > spans_[index(latest)].end) latest = dependency;
    }
    return latest;
  }

 private:
  const ExecutionGraph& graph_;
  const std::vector<Span>& spans_;
};

}  // namespace

Breakdown breakdown(const ExecutionGraph& graph, const Timeline& timeline) {
  const Waits waits(graph, timeline);
  const auto stages = static_cast<std::size_t>(graph.stage_count());
  std::vector<Seconds> computed_until(stages), busy_until(stages);
  std::vector<NodeId> last(stages, kNoNode);
  Breakdown parts;
  for (std::uint32_t i = 0; i < graph.node_count(); ++i) {
    const GraphNode& node = graph.nodes()[i];
    const Span& span = timeline.spans[i];
    const auto stage = static_cast<std::size_t>(ExecutionGraph::stage_of(node.lane));
    const bool message = std::holds_alternative<Message>(graph.works()[index(node.work)].work);
    if (!message && (last[stage] == kNoNode || span.end >= busy_until[stage])) {
      busy_until[stage] = span.end;
      last[stage] = NodeId{i};
    }
    if (ExecutionGraph::stream_of(node.lane) != Stream::kCompute) continue;
    // A lane's nodes come in order of time.
    if (span.start > computed_until[stage]) {
      waits.explain(parts, ExecutionGraph::stage_of(node.lane), waits.waited_for(NodeId{i}), computed_until[stage],
                    span.start);
    }
    parts.*part_of(graph.works()[index(node.work)].category) += span.end - span.start;
    computed_until[stage] = span.end;
  }
  for (std::size_t stage = 0; stage < stages; ++stage) {
    if (last[stage] != kNoNode) {
      waits.explain(parts, static_cast<std::int64_t>(stage), last[stage], computed_until[stage], busy_until[stage]);
    }
    parts.bubble += timeline.step - max(computed_until[stage], busy_until[stage]);
  }
  for (const BreakdownPart& part : kBreakdownParts) parts.*part.seconds /= static_cast<double>(stages);
  return parts;
}

Interval path_interval(std::span<const PathEntry> path) {
  Seconds length;
  for (const PathEntry& entry : path) length += entry.seconds;
  const auto [below, above] = path_difference({}, path);
  return {length - below, length + above};
}

std::vector<Hotspot> hotspots(std::span<const PathEntry> path) {
  std::map<std::pair<std::string_view, std::string_view>, Hotspot> by_name;
  for (const PathEntry& entry : path) {
    if (entry.name == kHiddenWork) continue;
    Hotspot& hotspot = by_name[{entry.name, entry.kind}];
    hotspot.name = entry.name;
    hotspot.kind = entry.kind;
    hotspot.count += entry.count;
    hotspot.seconds += entry.seconds;
    hotspot.extrapolated |= entry.forecast.extrapolated;
  }
  std::vector<Hotspot> result;
  result.reserve(by_name.size());
  for (auto& [name, hotspot] : by_name) result.push_back(std::move(hotspot));
  std::stable_sort(result.begin(), result.end(),
                   [](const Hotspot& a, const Hotspot& b) { return a.seconds > b.seconds; });
  return result;
}

std::vector<Hotspot> shown_hotspots(std::span<const Hotspot> all, std::size_t most) {
  std::vector<Hotspot> shown;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i < most || all[i].extrapolated) shown.push_back(all[i]);
  }
  return shown;
}

}  // namespace ns_dist
