// Small graphs, small machines and cost models whose answers are known.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/cost.h"
#include "ns_dist/execution_graph.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/scenario.h"
#include "support/gpus.h"

namespace ns_dist {

inline Forecast exactly(Seconds latency) {
  Forecast forecast;
  forecast.latency = forecast.low = forecast.high = forecast.floor = latency;
  forecast.method = "fake";
  return forecast;
}

// Answers what a function of the operator says.
class FakeCompute final : public ComputeCost {
 public:
  explicit FakeCompute(std::function<Seconds(const Operator&)> latency) : latency_(std::move(latency)) {}
  Result<Forecast> forecast(const Operator& op) const override { return exactly(latency_(op)); }
  Result<Explanation> explain(const Operator&) const override { return Explanation{}; }

 private:
  std::function<Seconds(const Operator&)> latency_;
};

class FakeNetwork final : public NetworkCost {
 public:
  explicit FakeNetwork(std::function<Seconds(const Collective&)> latency) : latency_(std::move(latency)) {}
  Result<Forecast> forecast(const Collective& collective) const override { return exactly(latency_(collective)); }
  Result<Explanation> explain(const Collective&) const override { return Explanation{}; }

 private:
  std::function<Seconds(const Collective&)> latency_;
};

// A graph under construction where every node takes its own time.
class GraphSketch {
 public:
  explicit GraphSketch(std::int64_t stages) : builder_(Mesh::innermost_first({"pp"}, {stages}), stages) {}

  NodeId compute(std::int64_t stage, Seconds seconds, std::vector<NodeId> after = {},
                 Category category = Category::kForward) {
    return add(stage, Stream::kCompute, category, seconds, std::move(after), Operator{});
  }
  NodeId collective(std::int64_t stage, Stream stream, Category category, Seconds seconds,
                    std::vector<NodeId> after = {}) {
    return add(stage, stream, category, seconds, std::move(after), Collective{});
  }
  NodeId message(std::int64_t from, std::int64_t to, Seconds seconds, std::vector<NodeId> after = {}) {
    const Stream stream = to > from ? Stream::kPipelineForward : Stream::kPipelineBackward;
    return add(from, stream, Category::kPipelineParallel, seconds, std::move(after), Message{from, to, 1 * units::B});
  }
  void depend(NodeId node, NodeId on) { builder_.depend(node, on); }

  ExecutionGraph build() { return std::move(builder_).build(); }
  const std::vector<Seconds>& durations() const { return durations_; }  // by WorkId

 private:
  template <class Work>
  NodeId add(std::int64_t stage, Stream stream, Category category, Seconds seconds, std::vector<NodeId> after,
             Work work) {
    const WorkId id = builder_.add_work({"work" + std::to_string(durations_.size()), category, work});
    if (index(id) == durations_.size()) durations_.push_back(seconds);
    return builder_.add(ExecutionGraph::lane_of(stage, stream), id, {}, after);
  }

  ExecutionGraph::Builder builder_;
  std::vector<Seconds> durations_;
};

// A pipeline whose passes are single nodes: `forward` and `backward` for each model chunk of a stage, free messages.
struct PassGraph {
  ExecutionGraph graph;
  std::vector<Seconds> durations;
};

inline PassGraph pipeline_of_passes(const PipelineSchedule& schedule, ScheduleShape shape, Seconds forward,
                                    Seconds backward) {
  ExecutionGraph::Builder builder(Mesh::innermost_first({"pp"}, {shape.stages}), shape.stages);
  const WorkId works[] = {builder.add_work({"forward", Category::kForward, Operator{Gemm{.m = 1}}}),
                          builder.add_work({"backward", Category::kBackward, Operator{Gemm{.m = 2}}})};
  const auto positions = static_cast<std::size_t>(shape.stages * shape.chunks);
  const auto slot = [&](PassKind kind, std::size_t position, std::int32_t microbatch) {
    return (static_cast<std::size_t>(kind) * positions + position) * static_cast<std::size_t>(shape.microbatches) +
           static_cast<std::size_t>(microbatch);
  };
  const std::vector<PassList> orders = *schedule.orders(shape);
  std::vector<NodeId> nodes(2 * positions * static_cast<std::size_t>(shape.microbatches), kNoNode);
  for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
    for (const SchedulePass& pass : flatten(orders[static_cast<std::size_t>(stage)])) {
      const auto position = static_cast<std::size_t>(pass.chunk * shape.stages + stage);
      nodes[slot(pass.kind, position, pass.microbatch)] =
          builder.add(ExecutionGraph::lane_of(stage, Stream::kCompute), works[static_cast<std::size_t>(pass.kind)],
                      {pass.microbatch, -1}, {});
    }
  }
  for (std::int32_t m = 0; m < shape.microbatches; ++m) {
    for (std::size_t position = 0; position < positions; ++position) {
      const NodeId f = nodes[slot(PassKind::kForward, position, m)];
      const NodeId b = nodes[slot(PassKind::kBackward, position, m)];
      if (position > 0) builder.depend(f, nodes[slot(PassKind::kForward, position - 1, m)]);
      builder.depend(b, position + 1 < positions ? nodes[slot(PassKind::kBackward, position + 1, m)] : f);
    }
  }
  return {std::move(builder).build(), {forward, backward}};
}

// Two GPUs a node would do for these tests; real numbers so that the real models accept it.
inline Scenario small_scenario() {
  using namespace units;
  Scenario scenario;
  scenario.compared_with = "22 runs on B200";
  Model& model = scenario.model;
  model.id = model.name = "small";
  model.layers = 8;
  model.hidden = 1024;
  model.heads = model.kv_heads = 16;
  model.head_dim = 64;
  model.ffn = 4096;
  model.position_table = 1024;
  model.vocabulary = 32768;
  model.sequence = 1024;
  Gpu& gpu = scenario.cluster.gpu;
  gpu = a100();
  gpu.id = gpu.name = "test-gpu";
  gpu.compute_capability = "8.0";
  gpu.base_clock = 1095 * MHz;
  gpu.boost_clock = 1410 * MHz;
  gpu.vector[DType::kBf16] = 78 * TFLOP / s;
  gpu.pcie_bandwidth = 32 * GB / s;
  scenario.cluster.id = scenario.cluster.name = "test-cluster";
  scenario.cluster.levels = {{{"nvlink", "NVLink", FabricKind::kNvswitch, 300 * GB / s, 2 * us}, 8, 1, 1},
                             {{"ib", "InfiniBand", FabricKind::kInfiniband, 25 * GB / s, 5 * us}, 0, 1, 1}};
  scenario.host.cuda_graphs.step = true;
  scenario.training = {.global_batch = 16, .micro_batch = 1, .sequence = 1024, .precision = Precision::kBf16};
  return scenario;
}

// What a spec of the standard catalog says; a failed test and small_scenario() where it says nothing.
inline Scenario resolved(const ScenarioSpec& spec, const Scenario* base = nullptr) {
  auto scenario = resolve(spec, Catalog::standard(), base);
  if (!scenario) {
    ADD_FAILURE() << to_text(scenario.error());
    return small_scenario();
  }
  return *std::move(scenario);
}

}  // namespace ns_dist
