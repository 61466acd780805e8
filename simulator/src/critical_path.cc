#include "ns_dist/critical_path.h"

#include <algorithm>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/dag_shortest_paths.hpp>
#include <boost/iterator/counting_iterator.hpp>
#include <boost/property_map/function_property_map.hpp>
#include <functional>
#include <limits>
#include <utility>

namespace ns_dist {
namespace {

using Vertex = std::uint32_t;
using Edge = std::pair<Vertex, Vertex>;
using Csr = boost::compressed_sparse_row_graph<boost::directedS, boost::no_property, boost::no_property,
                                               boost::no_property, Vertex, std::uint64_t>;

// Calls `edge(from, to)` for every edge, lane order included. Nodes that wait for nothing hang on the vertex `root`.
template <class Visit>
void for_each_edge(const ExecutionGraph& graph, Vertex root, Visit edge) {
  for (Vertex v = 0; v < graph.node_count(); ++v) {
    const NodeId previous = graph.previous_on_lane(NodeId{v});
    const std::span<const NodeId> dependencies = graph.dependencies(NodeId{v});
    if (previous != kNoNode) edge(index(previous), v);
    for (const NodeId dependency : dependencies) edge(index(dependency), v);
    if (previous == kNoNode && dependencies.empty()) edge(root, v);
  }
}

// All edges by their source (a counting sort: Boost builds the graph from sorted edges in linear time).
std::vector<Edge> edges_by_source(const ExecutionGraph& graph, Vertex root) {
  std::vector<std::uint64_t> next(root + 2, 0);
  for_each_edge(graph, root, [&](Vertex from, Vertex) { ++next[from + 1]; });
  for (std::size_t i = 1; i < next.size(); ++i) next[i] += next[i - 1];
  std::vector<Edge> edges(next.back());
  for_each_edge(graph, root, [&](Vertex from, Vertex to) { edges[next[from]++] = {from, to}; });
  return edges;
}

}  // namespace

namespace {

// `duration(v)`: of a node, seconds.
CriticalPath longest_path(const ExecutionGraph& graph, const auto& duration_of) {
  CriticalPath path;
  if (graph.node_count() == 0) return path;
  const Vertex root = graph.node_count();
  const auto duration = [&](Vertex v) { return v == root ? 0.0 : duration_of(v); };

  // An edge weighs what its source takes, so a vertex' distance is its start.
  Csr csr;
  {
    const std::vector<Edge> edges = edges_by_source(graph, root);
    csr = Csr(boost::edges_are_sorted, edges.begin(), edges.end(), root + 1, edges.size());
  }
  const auto weight = boost::make_function_property_map<Csr::edge_descriptor, double>(
      [&](const Csr::edge_descriptor& edge) { return duration(static_cast<Vertex>(boost::source(edge, csr))); });
  std::vector<double> start(root + 1);
  std::vector<Vertex> before(root + 1);
  std::vector<boost::default_color_type> color(root + 1);
  const auto vertex = boost::get(boost::vertex_index, csr);
  constexpr double kUnreached = -std::numeric_limits<double>::infinity();
  boost::dag_shortest_paths(csr, root, boost::make_iterator_property_map(start.begin(), vertex), weight,
                            boost::make_iterator_property_map(color.begin(), vertex),
                            boost::make_iterator_property_map(before.begin(), vertex), boost::dijkstra_visitor<>(),
                            std::greater<>(), std::plus<>(), kUnreached, 0.0);

  Vertex last = 0;
  for (Vertex v = 1; v < root; ++v) {
    if (start[v] + duration(v) > start[last] + duration(last)) last = v;
  }
  path.length = Seconds::from_base(start[last] + duration(last));
  for (Vertex v = last; v != root; v = before[v]) path.nodes.push_back(NodeId{v});
  std::reverse(path.nodes.begin(), path.nodes.end());
  return path;
}

}  // namespace

CriticalPath critical_path(const ExecutionGraph& graph, std::span<const Seconds> durations) {
  NS_EXPECTS(durations.size() == graph.works().size());
  return longest_path(graph, [&](Vertex v) { return durations[index(graph.node(NodeId{v}).work)].in_base(); });
}

CriticalPath critical_path(const ExecutionGraph& graph, const Timeline& timeline) {
  NS_EXPECTS(timeline.spans.size() == graph.node_count());
  return longest_path(graph, [&](Vertex v) { return (timeline.spans[v].end - timeline.spans[v].start).in_base(); });
}

std::string_view kind_of(const WorkItem& item) {
  if (item.host.any()) return "host";
  if (const auto* op = std::get_if<Operator>(&item.work)) {
    const auto* unknown = std::get_if<UnknownOperator>(&op->kind);
    const bool waits = unknown != nullptr && unknown->flops == Flops() && unknown->read + unknown->written == Bytes();
    return waits ? kWaitKind : family_of(*op);
  }
  if (const auto* collective = std::get_if<Collective>(&item.work)) return name_of(collective->kind);
  return name_of(CollectiveKind::kSendRecv);
}

}  // namespace ns_dist
