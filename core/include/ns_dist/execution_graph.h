// One training step as a graph of kernels, collectives and messages, in compressed form.
//
// Ranks that differ only in tensor-, context- or data-parallel coordinates do the same work at the same time, so the
// graph holds one representative rank for each pipeline stage. Each representative has a few lanes (CUDA streams), and
// a lane runs its nodes one after another in the order in which they were added. Edges are stored only between lanes;
// the order inside a lane needs no edges. Equal work is stored once: the 896 thousand nodes of GPT-3 175B with tp 8, pp
// 16 and dp 8 share 131 work items.
//
//   ExecutionGraph::Builder builder(mesh, stages);
//   WorkId gemm = builder.add_work(WorkItem{...});
//   NodeId a = builder.add(ExecutionGraph::lane_of(0, Stream::kCompute), gemm, {microbatch, layer}, {predecessors});
//   ExecutionGraph graph = std::move(builder).build();
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "ns_dist/collective.h"
#include "ns_dist/cuda_graphs.h"
#include "ns_dist/mesh.h"
#include "ns_dist/operator.h"

namespace ns_dist {

enum class NodeId : std::uint32_t {};
enum class WorkId : std::uint32_t {};
enum class LaneId : std::uint32_t {};

constexpr std::uint32_t index(NodeId id) { return static_cast<std::uint32_t>(id); }
constexpr std::uint32_t index(WorkId id) { return static_cast<std::uint32_t>(id); }
constexpr std::uint32_t index(LaneId id) { return static_cast<std::uint32_t>(id); }
inline constexpr NodeId kNoNode{std::numeric_limits<std::uint32_t>::max()};

// The streams of a rank. Pipeline messages leave on two lanes, one for each direction, as in Megatron.
enum class Stream : std::uint8_t {
  kCompute,
  kTensorParallel,
  kExpertParallel,
  kContextParallel,
  kShardedWeights,  // ZeRO 2 and 3: weights gathered and gradients reduced layer by layer
  kHost,            // copies to and from the host's memory, and what the CPU computes
  kDataParallel,
  kPipelineForward,
  kPipelineBackward
};
template <>
inline constexpr auto kEnumeratorNames<Stream> =
    std::to_array<std::string_view>({"compute", "tp", "ep", "cp", "fsdp", "host", "dp", "pp_forward", "pp_backward"});
inline constexpr std::uint32_t kStreamCount = names_of<Stream>().size();

// The part of the step to which the time of a node counts.
enum class Category : std::uint8_t {
  kForward,
  kBackward,
  kRecompute,
  kOptimizer,
  kTensorParallel,
  kContextParallel,
  kExpertParallel,
  kPipelineParallel,
  kDataParallel,
  kLaunches,  // waiting for the host's launches
  kOther
};
template <>
inline constexpr auto kEnumeratorNames<Category> = std::to_array<std::string_view>({"forward", "backward", "recompute",
                                                                                    "optimizer", "tp", "cp", "ep", "pp",
                                                                                    "dp", "launches", "other"});
inline constexpr std::uint32_t kCategoryCount = names_of<Category>().size();

// A message from the representative of stage `from` to that of stage `to`; every rank of the stage sends its own copy
// to the rank with the same other coordinates.
struct Message {
  std::int64_t from_stage = 0, to_stage = 0;
  Bytes size;
  friend bool operator==(const Message&, const Message&) = default;
};

// What does not run on the GPU: bytes over the link between GPU and host, one way, and bytes that the CPU reads and
// writes in its memory.
struct HostWork {
  Bytes link, memory;
  bool any() const { return link > Bytes() || memory > Bytes(); }
  friend bool operator==(const HostWork&, const HostWork&) = default;
};

// What the host launches one after the other without looking at a result.
struct HostLaunches {
  std::uint32_t before = 0;  // the first node lies so many nodes before the wait; the last before the next launches
  Seconds all, one;          // what it takes to launch all of them, and one
  friend bool operator==(const HostLaunches&, const HostLaunches&) = default;
};

struct WorkItem {
  std::string name;  // "attention.qkv", "mlp.fc1.wgrad", "attention.all_gather"
  Category category = Category::kForward;
  std::variant<Operator, Collective, Message> work;  // a collective's group is that of the stage's representative
  HostWork host{};                                   // of an operator without work on the GPU
  bool after_read = false;  // the host reads a result before it launches this: all that this waits for has ended
  std::optional<LayerModule> module{};   // of a layer: where a graph of modules records this
  std::vector<HostLaunches> launches{};  // of a wait for the host: those that the kernels before it do not hide
  friend bool operator==(const WorkItem&, const WorkItem&) = default;
};

// The microbatch and the layer of a node, for names and traces. `layer` is counted over the whole model from 0; -1:
// does not apply.
struct Origin {
  std::int32_t microbatch = -1, layer = -1;
  friend bool operator==(const Origin&, const Origin&) = default;
};

struct GraphNode {
  LaneId lane;
  WorkId work;
  Origin origin;
  friend bool operator==(const GraphNode&, const GraphNode&) = default;
};

// Immutable; a directed acyclic graph (the builder's contract, checked by `topological_order`).
class ExecutionGraph {
 public:
  class Builder;

  std::uint32_t node_count() const { return static_cast<std::uint32_t>(nodes_.size()); }
  std::int64_t stage_count() const { return stage_count_; }
  std::uint32_t lane_count() const { return static_cast<std::uint32_t>(stage_count_) * kStreamCount; }
  const Mesh& mesh() const { return mesh_; }
  const GraphNode& node(NodeId id) const { return nodes_[index(id)]; }
  std::span<const GraphNode> nodes() const { return nodes_; }
  std::span<const WorkItem> works() const { return works_; }
  const WorkItem& work_of(NodeId id) const { return works_[index(nodes_[index(id)].work)]; }
  // Edges into `id` from other lanes, in the order in which they were given.
  std::span<const NodeId> dependencies(NodeId id) const {
    return {edges_.data() + offsets_[index(id)], edges_.data() + offsets_[index(id) + 1]};
  }
  // The node before `id` on its lane, or kNoNode.
  NodeId previous_on_lane(NodeId id) const { return previous_[index(id)]; }

  static std::int64_t stage_of(LaneId lane) { return index(lane) / kStreamCount; }
  static Stream stream_of(LaneId lane) { return static_cast<Stream>(index(lane) % kStreamCount); }
  static LaneId lane_of(std::int64_t stage, Stream stream) {
    return LaneId{static_cast<std::uint32_t>(stage) * kStreamCount + static_cast<std::uint32_t>(stream)};
  }

  // Every node after its dependencies and its predecessor on the lane; ties by id. Shorter than node_count() exactly
  // when there is a cycle.
  std::vector<NodeId> topological_order() const;

 private:
  Mesh mesh_;
  std::int64_t stage_count_ = 0;
  std::vector<WorkItem> works_;
  std::vector<GraphNode> nodes_;
  std::vector<NodeId> previous_;
  std::vector<std::uint64_t> offsets_;
  std::vector<NodeId> edges_;
};

class ExecutionGraph::Builder {
 public:
  Builder(Mesh mesh, std::int64_t stage_count);

  WorkId add_work(WorkItem item);
  // `dependencies` may name nodes that are added later (their ids are counted from 0 in the order of `add`).
  NodeId add(LaneId lane, WorkId work, Origin origin, std::span<const NodeId> dependencies);
  // One more edge into a node that exists.
  void depend(NodeId node, NodeId on);
  NodeId last_on_lane(LaneId lane) const;  // kNoNode when the lane is empty
  std::uint32_t node_count() const;
  void reserve(std::size_t nodes, std::size_t edges);
  ExecutionGraph build() &&;

 private:
  ExecutionGraph graph_;
  std::vector<NodeId> last_;
  std::vector<std::pair<NodeId, NodeId>> late_;  // (node, on)
};

}  // namespace ns_dist
