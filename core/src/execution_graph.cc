#include "ns_dist/execution_graph.h"

#include <array>
#include <utility>

#include "ns_dist/result.h"

namespace ns_dist {

std::vector<NodeId> ExecutionGraph::topological_order() const {
  const std::uint32_t count = node_count();
  // Successors in compressed rows: cross-lane edges first counted, then placed.
  std::vector<std::uint32_t> waiting(count, 0);
  std::vector<std::uint64_t> first(count + std::size_t{1}, 0);
  std::vector<NodeId> next_on_lane(count, kNoNode);
  for (std::uint32_t n = 0; n < count; ++n) {
    for (const NodeId on : dependencies(NodeId{n})) ++first[index(on) + std::size_t{1}];
    waiting[n] = static_cast<std::uint32_t>(dependencies(NodeId{n}).size());
    if (previous_[n] != kNoNode) {
      next_on_lane[index(previous_[n])] = NodeId{n};
      ++waiting[n];
    }
  }
  for (std::uint32_t n = 0; n < count; ++n) first[n + std::size_t{1}] += first[n];
  std::vector<NodeId> successors(edges_.size());
  std::vector<std::uint64_t> fill(first.begin(), first.end() - 1);
  for (std::uint32_t n = 0; n < count; ++n) {
    for (const NodeId on : dependencies(NodeId{n})) successors[fill[index(on)]++] = NodeId{n};
  }

  std::vector<NodeId> order;
  order.reserve(count);
  for (std::uint32_t n = 0; n < count; ++n) {
    if (waiting[n] == 0) order.push_back(NodeId{n});
  }
  const auto release = [&](NodeId node) {
    if (--waiting[index(node)] == 0) order.push_back(node);
  };
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::uint32_t n = index(order[i]);
    if (next_on_lane[n] != kNoNode) release(next_on_lane[n]);
    for (std::uint64_t e = first[n]; e < first[n + std::size_t{1}]; ++e) release(successors[e]);
  }
  return order;
}

ExecutionGraph::Builder::Builder(Mesh mesh, std::int64_t stage_count) {
  NS_EXPECTS(stage_count > 0);
  graph_.mesh_ = std::move(mesh);
  graph_.stage_count_ = stage_count;
  graph_.offsets_.push_back(0);
  last_.assign(graph_.lane_count(), kNoNode);
}

WorkId ExecutionGraph::Builder::add_work(WorkItem item) {
  graph_.works_.push_back(std::move(item));
  return WorkId{static_cast<std::uint32_t>(graph_.works_.size() - 1)};
}

NodeId ExecutionGraph::Builder::add(LaneId lane, WorkId work, Origin origin, std::span<const NodeId> dependencies) {
  NS_EXPECTS(index(lane) < last_.size());
  NS_EXPECTS(index(work) < graph_.works_.size());
  NS_EXPECTS(graph_.nodes_.size() < index(kNoNode));
  const NodeId id{static_cast<std::uint32_t>(graph_.nodes_.size())};
  graph_.nodes_.push_back({lane, work, origin});
  graph_.previous_.push_back(last_[index(lane)]);
  last_[index(lane)] = id;
  graph_.edges_.insert(graph_.edges_.end(), dependencies.begin(), dependencies.end());
  graph_.offsets_.push_back(graph_.edges_.size());
  return id;
}

void ExecutionGraph::Builder::depend(NodeId node, NodeId on) { late_.emplace_back(node, on); }

NodeId ExecutionGraph::Builder::last_on_lane(LaneId lane) const { return last_[index(lane)]; }

std::uint32_t ExecutionGraph::Builder::node_count() const { return graph_.node_count(); }

void ExecutionGraph::Builder::reserve(std::size_t nodes, std::size_t edges) {
  graph_.nodes_.reserve(nodes);
  graph_.previous_.reserve(nodes);
  graph_.offsets_.reserve(nodes + 1);
  graph_.edges_.reserve(edges);
}

ExecutionGraph ExecutionGraph::Builder::build() && {
  const std::size_t count = graph_.nodes_.size();
  if (!late_.empty()) {
    std::vector<std::uint64_t> extra(count + 1, 0);
    for (const auto& [node, on] : late_) {
      NS_EXPECTS(index(node) < count);
      ++extra[index(node) + std::size_t{1}];
    }
    for (std::size_t n = 0; n < count; ++n) extra[n + 1] += extra[n];
    std::vector<std::uint64_t> offsets(count + 1);
    for (std::size_t n = 0; n <= count; ++n) offsets[n] = graph_.offsets_[n] + extra[n];
    std::vector<NodeId> edges(offsets.back());
    std::vector<std::uint64_t> fill(count);
    for (std::size_t n = 0; n < count; ++n) {
      fill[n] = offsets[n];
      for (std::uint64_t e = graph_.offsets_[n]; e < graph_.offsets_[n + 1]; ++e) edges[fill[n]++] = graph_.edges_[e];
    }
    for (const auto& [node, on] : late_) edges[fill[index(node)]++] = on;
    graph_.offsets_ = std::move(offsets);
    graph_.edges_ = std::move(edges);
  }
  for (const NodeId on : graph_.edges_) NS_EXPECTS(index(on) < count);
  return std::move(graph_);
}

}  // namespace ns_dist
