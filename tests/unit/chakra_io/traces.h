// Small steps, and their traces read back, for the tests of chakra_io.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ns_dist/chakra_io.h"
#include "support/files.h"

namespace ns_dist {

// Nodes at hand, without a network: kernels by their duration_micros, or by their work as write_astra_inputs states it.
inline ReplayReport replay(std::span<const std::vector<TraceNode>> traces, const CommGroups& groups,
                           TraceEncoding encoding = TraceEncoding::kDurations) {
  ReplayOptions options;
  options.roofline = encoding == TraceEncoding::kRoofline;
  options.peak_tflops = 1;
  options.local_memory_gbs = 1e9;
  auto report = replay(traces, groups, options);
  EXPECT_TRUE(report) << to_text(report.error());
  return *std::move(report);
}

// A graph under construction with a duration for each node.
struct StepBuilder {
  explicit StepBuilder(const Mesh& grid) : mesh(grid), builder(grid, grid.size("pp")) {}

  NodeId add(std::int64_t stage, Stream stream, const WorkItem& item, const std::vector<NodeId>& dependencies = {},
             double nanoseconds = 1000, Origin origin = {}) {
    durations.push_back(nanoseconds * units::ns);
    return builder.add(ExecutionGraph::lane_of(stage, stream), builder.add_work(item), origin, dependencies);
  }
  NodeId kernel(std::int64_t stage, const std::string& name, const std::vector<NodeId>& dependencies = {},
                double nanoseconds = 1000) {
    return add(stage, Stream::kCompute, {name, Category::kForward, Operator{Gemm{1, 4, 8, 16}, DType::kFp32}},
               dependencies, nanoseconds);
  }
  NodeId collective(std::int64_t stage, Stream stream, CollectiveKind kind, Bytes size,
                    const std::vector<std::string_view>& axes, const std::vector<NodeId>& dependencies = {}) {
    const Rank representative = mesh.size("pp") > 1 ? stage * mesh.stride("pp") : 0;
    return add(stage, stream,
               {"collective", Category::kOther, Collective{kind, size, mesh.group(representative, axes)}},
               dependencies);
  }
  NodeId message(std::int64_t from, std::int64_t to, Stream stream, const std::vector<NodeId>& dependencies,
                 Bytes size = 64 * units::B) {
    return add(from, stream, {"send", Category::kPipelineParallel, Message{from, to, size}}, dependencies);
  }

  Mesh mesh;
  ExecutionGraph::Builder builder;
  std::vector<Seconds> durations;  // by NodeId
};

// Each node starts when its dependencies and the node before it on its lane have ended.
inline Timeline timeline_of(const ExecutionGraph& graph, const std::function<Seconds(NodeId)>& duration) {
  Timeline timeline;
  timeline.spans.resize(graph.node_count());
  for (const NodeId node : graph.topological_order()) {
    Span& span = timeline.spans[index(node)];
    for (const NodeId on : graph.dependencies(node)) span.start = max(span.start, timeline.spans[index(on)].end);
    if (const NodeId before = graph.previous_on_lane(node); before != kNoNode) {
      span.start = max(span.start, timeline.spans[index(before)].end);
    }
    span.end = span.start + duration(node);
    timeline.step = max(timeline.step, span.end);
  }
  return timeline;
}

struct WrittenStep {
  ExportSummary summary;
  CommGroups groups;
  std::vector<std::vector<TraceNode>> traces;  // by rank
  ReplayReport replayed;
};

// Writes the step, reads every file back and replays the files.
inline Result<WrittenStep> write_and_read(const ExecutionGraph& graph, const Timeline& timeline,
                                          const std::filesystem::path& folder,
                                          TraceEncoding encoding = TraceEncoding::kDurations,
                                          std::int64_t node_gpus = 0) {
  WrittenStep out;
  NS_TRY(out.summary,
         write_traces(graph, timeline, {.directory = folder, .encoding = encoding, .node_gpus = node_gpus}));
  NS_TRY(out.groups, read_comm_groups(out.summary.comm_groups));
  for (Rank rank = 0; rank < out.summary.ranks; ++rank) {
    NS_TRY(std::vector<TraceNode> nodes, read_trace(folder / ("trace." + std::to_string(rank) + ".et")));
    out.traces.push_back(std::move(nodes));
  }
  NS_TRY(out.replayed, replay(folder / "trace", out.summary.ranks, out.groups, encoding));
  return out;
}

inline Result<WrittenStep> write_and_read(StepBuilder step, const std::filesystem::path& folder,
                                          TraceEncoding encoding = TraceEncoding::kDurations,
                                          std::int64_t node_gpus = 0) {
  const ExecutionGraph graph = std::move(step.builder).build();
  return write_and_read(graph, timeline_of(graph, [&](NodeId node) { return step.durations[index(node)]; }), folder,
                        encoding, node_gpus);
}

// Attribute of a type that it must have; fails the test where it is missing.
template <class T>
T attribute_as(const TraceNode& node, const char* name) {
  const TraceValue* value = node.attribute(name);
  if (value == nullptr || !std::holds_alternative<T>(*value)) {
    ADD_FAILURE() << "node " << node.id << " (" << node.name << ") lacks " << name;
    return {};
  }
  return std::get<T>(*value);
}

inline std::int64_t integer_of(const TraceNode& node, const char* name) {
  return attribute_as<std::int64_t>(node, name);
}

// What all ranks send, receive and call.
struct Communication {
  using Channel = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;  // from, to, tag, bytes
  std::multiset<Channel> sends, receives;
  using Calls = std::vector<std::pair<std::int64_t, std::int64_t>>;  // kind, bytes
  std::map<std::string, std::map<Rank, Calls>> calls;                // by group
};
inline Communication communication_of(const WrittenStep& step) {
  Communication out;
  for (Rank rank = 0; rank < step.summary.ranks; ++rank) {
    for (const TraceNode& node : step.traces[static_cast<std::size_t>(rank)]) {
      if (node.type == TraceNodeType::kCollective) {
        out.calls[attribute_as<std::string>(node, "pg_name")][rank].emplace_back(integer_of(node, "comm_type"),
                                                                                 integer_of(node, "comm_size"));
      } else if (node.type != TraceNodeType::kCompute) {
        auto& side = node.type == TraceNodeType::kSend ? out.sends : out.receives;
        side.insert({integer_of(node, "comm_src"), integer_of(node, "comm_dst"), integer_of(node, "comm_tag"),
                     integer_of(node, "comm_size")});
      }
    }
  }
  return out;
}

// Where ranks disagree. Empty: all that is sent is received, and the members of each group call it alike.
inline std::string disagreement(const WrittenStep& step) {
  const Communication all = communication_of(step);
  if (all.sends != all.receives) return "sends and receives";
  for (const auto& [group, by_rank] : all.calls) {
    std::set<Rank> members;
    for (const auto& [rank, calls] : by_rank) {
      members.insert(rank);
      if (calls != by_rank.begin()->second) return "group " + group + ", rank " + std::to_string(rank);
    }
    const std::vector<Rank>& listed = step.groups.at(std::stoll(group));
    if (members != std::set<Rank>(listed.begin(), listed.end())) return "members of group " + group;
  }
  return "";
}

inline std::string text_of(const ReplayReport& report) {
  std::string text = std::to_string(report.finished) + " of " + std::to_string(report.finish_ns.size()) + " finished\n";
  for (const TraceProblem& problem : report.problems) {
    text += "rank " + std::to_string(problem.rank) + " node " + std::to_string(problem.node) + " (" + problem.name +
            "): " + problem.message + "\n";
  }
  return text;
}

}  // namespace ns_dist
