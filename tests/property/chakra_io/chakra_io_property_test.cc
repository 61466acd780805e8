// For all steps on all meshes: what is written is read, nothing is lost, and the feeder comes to its end.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "unit/chakra_io/traces.h"

namespace ns_dist {
namespace {

using namespace units;

// Evenly, at every size: graphs of nothing show nothing.
template <class T>
T pick(T least, T past) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(least, past));
}

std::string name_gen() { return *rc::gen::container<std::string>(rc::gen::inRange<char>(' ', '~')); }

TraceValue value_gen() {
  switch (pick(0, 11)) {
    case 0:
      return std::monostate();
    case 1:
      return *rc::gen::arbitrary<bool>();
    case 2:
      return *rc::gen::arbitrary<std::int64_t>();
    case 3:
      return *rc::gen::arbitrary<std::uint64_t>();
    case 4:
      return *rc::gen::arbitrary<double>();
    case 5:
      return name_gen();
    case 6:
      return *rc::gen::arbitrary<std::vector<bool>>();
    case 7:
      return *rc::gen::arbitrary<std::vector<std::int64_t>>();
    case 8:
      return *rc::gen::arbitrary<std::vector<std::uint64_t>>();
    case 9:
      return *rc::gen::arbitrary<std::vector<double>>();
    default:
      return std::vector<std::string>(pick<std::size_t>(0, 3), name_gen());
  }
}

TraceNode node_gen() {
  TraceNode node;
  node.id = *rc::gen::arbitrary<std::uint64_t>();
  node.name = name_gen();
  node.type = static_cast<TraceNodeType>(pick(0, 8));
  node.data_deps = *rc::gen::arbitrary<std::vector<std::uint64_t>>();
  node.ctrl_deps = *rc::gen::arbitrary<std::vector<std::uint64_t>>();
  node.start_micros = *rc::gen::arbitrary<std::uint64_t>();
  node.duration_micros = *rc::gen::arbitrary<std::uint64_t>();
  node.inputs = {name_gen(), "", name_gen()};
  const int attributes = pick(0, 4);
  for (int i = 0; i < attributes; ++i) node.attributes.push_back({name_gen(), value_gen()});
  return node;
}

RC_GTEST_PROP(ChakraIo, WhatIsWrittenIsRead, ()) {
  std::vector<TraceNode> nodes;
  const int count = pick(0, 6);
  for (int i = 0; i < count; ++i) nodes.push_back(node_gen());
  const ScratchFolder folder;
  RC_ASSERT(write_trace(folder.path() / "x.et", nodes).has_value());
  const auto read = read_trace(folder.path() / "x.et");
  RC_ASSERT(read.has_value());
  RC_ASSERT(*read == nodes);
}

RC_GTEST_PROP(ChakraIo, DamagedBytesAreReadOrRefusedAndNeverWorse, ()) {
  const ScratchFolder folder;
  RC_ASSERT(write_trace(folder.path() / "x.et", std::vector{node_gen(), node_gen()}).has_value());
  std::string bytes = read_text(folder.path() / "x.et");
  const int changes = pick(1, 8);
  for (int i = 0; i < changes; ++i) bytes[pick<std::size_t>(0, bytes.size())] = *rc::gen::arbitrary<char>();
  std::istringstream damaged(bytes);
  std::vector<TraceNode> nodes;
  const auto keep = [&nodes](TraceNode&& node) -> Result<void> {
    nodes.push_back(std::move(node));
    return {};
  };
  if (const auto read = read_trace(damaged, "x.et", keep); !read) RC_ASSERT(!read.error().where.empty());
  const ReplayReport report = *replay(std::vector{nodes, nodes}, {{1, {0, 1}}}, ReplayOptions());
  RC_ASSERT(report.ok() || !report.problems.empty());
}

// A step that no planner would make: kernels, messages between any stages on any lane, collectives over any axes,
// nodes that wait for anything before them that their stage can know of.
struct RandomStep {
  ExecutionGraph graph;
  Timeline timeline;
};

RandomStep step_gen() {
  const Mesh mesh = Mesh::innermost_first(
      {"tp", "cp", "dp", "pp"},
      {pick<std::int64_t>(1, 4), pick<std::int64_t>(1, 3), pick<std::int64_t>(1, 3), pick<std::int64_t>(1, 4)});
  const std::int64_t stages = mesh.size("pp");
  StepBuilder step(mesh);
  std::vector<std::vector<NodeId>> known(static_cast<std::size_t>(stages));  // nodes that a stage takes part in
  const auto of = [&](std::int64_t stage) -> std::vector<NodeId>& { return known[static_cast<std::size_t>(stage)]; };
  const auto wait = [&](std::int64_t stage) {
    std::vector<NodeId> on;
    const int count = of(stage).empty() ? 0 : pick(0, 4);
    for (int i = 0; i < count; ++i) on.push_back(of(stage)[pick<std::size_t>(0, of(stage).size())]);
    return on;
  };
  const auto duration = [] { return pick(0, 40) * 137.5; };
  const auto stream = [] { return static_cast<Stream>(pick<std::uint32_t>(0, kStreamCount)); };
  for (std::int64_t stage = 0; stage < stages; ++stage)
    of(stage).push_back(step.kernel(stage, "first", {}, duration()));
  const int count = pick(0, 60);
  for (int i = 0; i < count; ++i) {
    const auto stage = pick<std::int64_t>(0, stages);
    const int what = pick(0, 8);
    if (what < 3) {
      const WorkItem kernel{"k" + std::to_string(i), Category::kOther, Operator{Copy{i * B}, DType::kBf16}};
      of(stage).push_back(step.add(stage, stream(), kernel, wait(stage), duration()));
    } else if (what < 5) {
      const auto to = pick<std::int64_t>(0, stages);
      std::vector<NodeId> on = wait(stage);
      const std::vector<NodeId> there = wait(to);
      on.insert(on.end(), there.begin(), there.end());
      const NodeId message = step.add(
          stage, stream(),
          {"m" + std::to_string(pick(0, 2)), Category::kPipelineParallel, Message{stage, to, pick(0, 3) * 100 * B}}, on,
          duration());
      of(stage).push_back(message);
      if (to != stage) of(to).push_back(message);
    } else {
      std::vector<std::string_view> axes;
      for (const std::string_view axis : {"tp", "cp", "dp"}) {
        if (pick(0, 2) == 1) axes.push_back(axis);
      }
      const CollectiveKind kind = *rc::gen::element(CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                                    CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll);
      const Bytes size = pick(0, 3) * 1000 * B;
      const bool across = what == 7;
      if (across) axes.push_back("pp");
      for (std::int64_t s = across ? 0 : stage; s < (across ? stages : stage + 1); ++s) {
        of(s).push_back(step.collective(s, stream(), kind, size, axes, wait(s)));
      }
    }
  }
  ExecutionGraph graph = std::move(step.builder).build();
  Timeline timeline = timeline_of(graph, [&](NodeId node) { return step.durations[index(node)]; });
  return {std::move(graph), std::move(timeline)};
}

// The ids, in the trace of a rank, of all that each node has waited for.
std::map<std::uint64_t, std::set<std::uint64_t>> ancestors_of(const std::vector<TraceNode>& trace) {
  std::map<std::uint64_t, std::set<std::uint64_t>> out;
  for (const TraceNode& node : trace) {
    std::set<std::uint64_t>& all = out[node.id];
    for (const auto* deps : {&node.data_deps, &node.ctrl_deps}) {
      for (const std::uint64_t on : *deps) {
        RC_ASSERT(on < node.id);  // so the file is in an order in which it can run
        all.insert(on);
        all.insert(out[on].begin(), out[on].end());
      }
    }
  }
  return out;
}

RC_GTEST_PROP(ChakraIo, EveryStepArrivesWholeAndRunsToItsEnd, ()) {
  const RandomStep step = step_gen();
  const ExecutionGraph& graph = step.graph;
  const ScratchFolder folder;
  const auto written = write_and_read(graph, step.timeline, folder.path());
  if (!written) RC_FAIL(to_text(written.error()));
  if (!written->replayed.ok()) RC_FAIL(text_of(written->replayed));

  for (Rank rank = 0; rank < written->summary.ranks; ++rank) {
    const auto stage = graph.mesh().coordinate(rank, "pp");
    const std::vector<TraceNode>& trace = written->traces[static_cast<std::size_t>(rank)];
    std::map<std::string, std::uint64_t> kernels;  // names are unique, but for "first"
    for (const TraceNode& node : trace) {
      if (node.type == TraceNodeType::kCompute) {
        kernels[node.name.substr(name_of(node.type).size() + 1)] = node.id;  // behind the type
      }
    }
    // What a kernel waits for in the graph, along whatever path inside its stage, it waits for in the trace.
    const auto waited = ancestors_of(trace);
    std::vector<std::set<std::uint32_t>> before(graph.node_count());  // kernels of this stage
    std::size_t found = 0, collectives = 0, messages = 0;
    for (const NodeId node : graph.topological_order()) {
      const auto here = [&](NodeId n) {
        const auto* message = std::get_if<Message>(&graph.work_of(n).work);
        return ExecutionGraph::stage_of(graph.node(n).lane) == stage || (message && message->to_stage == stage);
      };
      if (!here(node)) continue;
      if (const auto* collective = std::get_if<Collective>(&graph.work_of(node).work)) {
        collectives += collective->group.size() > 1 ? 1U : 0U;
      } else if (const auto* message = std::get_if<Message>(&graph.work_of(node).work)) {
        messages += message->from_stage != message->to_stage ? 1U : 0U;
      }
      std::set<std::uint32_t>& mine = before[index(node)];
      const auto inherit = [&](NodeId on) {
        if (!here(on)) return;
        mine.insert(before[index(on)].begin(), before[index(on)].end());
        if (std::holds_alternative<Operator>(graph.work_of(on).work)) mine.insert(index(on));
      };
      for (const NodeId on : graph.dependencies(node)) inherit(on);
      if (graph.previous_on_lane(node) != kNoNode) inherit(graph.previous_on_lane(node));
      if (!std::holds_alternative<Operator>(graph.work_of(node).work)) continue;
      ++found;
      const std::uint64_t id = kernels.at(graph.work_of(node).name);
      for (const std::uint32_t on : mine)
        RC_ASSERT(waited.at(id).count(kernels.at(graph.work_of(NodeId{on}).name)) == 1U);
    }
    RC_ASSERT(found == kernels.size());
    RC_ASSERT(found + collectives + messages == trace.size());
  }
  RC_ASSERT(disagreement(*written) == "");
}

// Breaking one message or collective of a step that runs is always noticed.
RC_GTEST_PROP(ChakraIo, ABrokenStepIsAlwaysFound, ()) {
  const RandomStep step = step_gen();
  const ScratchFolder folder;
  auto written = write_and_read(step.graph, step.timeline, folder.path());
  RC_ASSERT(written.has_value());
  std::vector<std::pair<std::size_t, std::size_t>> communication;
  for (std::size_t rank = 0; rank < written->traces.size(); ++rank) {
    for (std::size_t i = 0; i < written->traces[rank].size(); ++i) {
      if (written->traces[rank][i].type != TraceNodeType::kCompute) communication.emplace_back(rank, i);
    }
  }
  RC_PRE(!communication.empty());
  const auto [rank, i] = communication[pick<std::size_t>(0, communication.size())];
  TraceNode& node = written->traces[rank][i];
  if (pick(0, 2) == 0) {
    node.type = TraceNodeType::kCompute;  // it never communicates
  } else {
    for (TraceAttribute& attribute : node.attributes) {
      if (attribute.name == "comm_size") attribute.value = std::int64_t{7};  // no other node has this size
    }
  }
  RC_ASSERT(!replay(written->traces, written->groups, ReplayOptions())->ok());
}

// Chains of kernels that become one node: no rank ends, and no collective or message starts or ends, at another time.
RC_GTEST_PROP(ChakraIo, MergedKernelsChangeNoTime, ()) {
  const RandomStep step = step_gen();
  // At least a nanosecond each: shorter ones would all be rounded up to one.
  const Timeline timeline =
      timeline_of(step.graph, [](NodeId node) { return (1 + (index(node) * 7919U) % 1000) * units::ns; });
  using Event = std::tuple<Rank, std::string, TraceNodeType, std::uint64_t, std::uint64_t>;
  const auto events_of = [&](bool merge, std::uint64_t* nodes, ReplayReport* report) {
    const ScratchFolder folder;
    ExportOptions options;
    options.directory = folder.path();
    options.encoding = TraceEncoding::kRoofline;
    options.merge_kernels = merge;
    const auto written = write_traces(step.graph, timeline, options);
    RC_ASSERT(written.has_value());
    *nodes = written->nodes;
    std::vector<Event> events;
    ReplayOptions replayed;
    replayed.roofline = true;
    replayed.peak_tflops = 1;
    replayed.local_memory_gbs = 1e9;
    replayed.visit = [&events](const ReplayedNode& node) {
      if (node.type == TraceNodeType::kCompute) return;
      events.emplace_back(node.rank, node.name, node.type, node.start_ns, node.end_ns);
    };
    const auto result = replay(*find_traces(folder.path()), *read_comm_groups(written->comm_groups), replayed);
    RC_ASSERT(result.has_value());
    *report = *result;
    std::sort(events.begin(), events.end());
    return events;
  };
  std::uint64_t nodes = 0, merged_nodes = 0;
  ReplayReport plain, merged;
  const std::vector<Event> events = events_of(false, &nodes, &plain);
  RC_ASSERT(events_of(true, &merged_nodes, &merged) == events);
  RC_ASSERT(merged.ok());
  RC_ASSERT(merged.finish_ns == plain.finish_ns);
  RC_ASSERT(merged.kernel_ns == plain.kernel_ns);
  RC_ASSERT(merged_nodes <= nodes);
}

// A model that answers what was recorded changes no byte, and any model changes no more than times.
RC_GTEST_PROP(ChakraIo, AnnotatingPatchesTimesAndNothingElse, ()) {
  std::vector<TraceNode> nodes;
  const int count = pick(0, 6);
  for (int i = 0; i < count; ++i) {
    nodes.push_back(node_gen());
    nodes.back().duration_micros %= 1'000'000'000'000;
    if (pick(0, 2) == 0) nodes.back().type = TraceNodeType::kCompute;
    if (pick(0, 2) == 0) nodes.back().attributes.push_back({"is_cpu_op", pick(0, 2) == 0});
  }
  const ScratchFolder folder;
  RC_ASSERT(write_trace(folder.path() / "in.et", nodes).has_value());
  AnnotateModel model;
  model.forecast = [](const Operator&) { return std::optional<double>(); };
  model.ratio = [](double, double) { return std::optional<double>(1); };
  RC_ASSERT(annotate(folder.path() / "in.et", folder.path() / "same.et", model).has_value());
  RC_ASSERT(read_text(folder.path() / "same.et") == read_text(folder.path() / "in.et"));
  model.ratio = [](double, double) { return std::optional<double>(2.5); };
  RC_ASSERT(annotate(folder.path() / "in.et", folder.path() / "other.et", model).has_value());
  std::vector<TraceNode> other = *read_trace(folder.path() / "other.et");
  RC_ASSERT(other.size() == nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    other[i].duration_micros = nodes[i].duration_micros;
    RC_ASSERT(other[i] == nodes[i]);
  }
}

}  // namespace
}  // namespace ns_dist
