#include "trace_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace ns_dist::chakra {

void TraceGraph::add(std::uint64_t id, std::span<const std::uint64_t> parents) {
  ascending_ = ascending_ && (ids_.empty() || ids_.back() < id);
  for (const std::uint64_t parent : parents) backward_ = backward_ && parent < id;
  ids_.push_back(id);
  parent_ids_.insert(parent_ids_.end(), parents.begin(), parents.end());
  parent_ends_.push_back(parent_ids_.size());
}

std::string TraceGraph::Missing::text() const {
  return fmt::format("it waits for node {}, which is not there", parent);
}

std::vector<TraceGraph::Place> TraceGraph::by_id() const {
  std::vector<Place> order(ids_.size());
  std::iota(order.begin(), order.end(), Place{0});
  if (!ascending_) std::ranges::stable_sort(order, {}, [this](Place node) { return ids_[node]; });
  return order;
}

TraceGraph::Mistakes TraceGraph::link() {
  Mistakes found;
  const std::vector<Place> order = by_id();
  for (std::size_t i = 1; i < order.size() && !ascending_; ++i) {
    if (ids_[order[i - 1]] == ids_[order[i]]) found.doubles.push_back(order[i]);
  }
  const auto place_of = [&](std::uint64_t id) {
    if (ascending_ && id >= ids_.front() && id - ids_.front() < ids_.size() && ids_[id - ids_.front()] == id) {
      return static_cast<Place>(id - ids_.front());  // ids without gaps
    }
    const auto at = std::ranges::lower_bound(order, id, {}, [this](Place node) { return ids_[node]; });
    return at == order.end() || ids_[*at] != id ? kNone : *at;
  };
  parents_.reserve(parent_ids_.size());
  for (Place node = 0; node < ids_.size(); ++node) {
    for (std::size_t p = begin_of(node); p < parent_ends_[node]; ++p) {
      parents_.push_back(place_of(parent_ids_[p]));
      if (parents_.back() == kNone) found.missing.push_back({node, parent_ids_[p]});
    }
  }
  std::vector<std::uint64_t>().swap(parent_ids_);
  return found;
}

std::span<const TraceGraph::Place> TraceGraph::parents_of(Place node) const {
  return std::span(parents_).subspan(begin_of(node), parent_ends_[node] - begin_of(node));
}

// Depth first, with a stack of its own.
std::vector<TraceGraph::Place> TraceGraph::circle() const {
  if (backward_) return {};
  enum : std::uint8_t { kNew, kOpen, kDone };
  std::vector<std::uint8_t> mark(ids_.size(), kNew);
  struct Step {
    Place node;
    std::size_t next;  // of its parents
  };
  std::vector<Step> path;
  const auto open = [&](Place node) {
    mark[node] = kOpen;
    path.push_back({node, begin_of(node)});
  };
  for (Place start = 0; start < ids_.size(); ++start) {
    if (mark[start] == kNew) open(start);
    while (!path.empty()) {
      Step& step = path.back();
      if (step.next == parent_ends_[step.node]) {
        mark[step.node] = kDone;
        path.pop_back();
        continue;
      }
      const Place parent = parents_[step.next++];
      if (parent == kNone || mark[parent] == kDone) continue;
      if (mark[parent] == kNew) {
        open(parent);
        continue;
      }
      std::vector<Place> circle;
      for (auto at = std::ranges::find(path, parent, &Step::node); at != path.end(); ++at) circle.push_back(at->node);
      return circle;
    }
  }
  return {};
}

std::string TraceGraph::text_of_circle(std::span<const Place> nodes) const {
  constexpr std::size_t kNamed = 8;
  std::string text = "it waits for itself: ";
  for (const Place node : nodes.first(std::min(nodes.size(), kNamed))) text += fmt::format("{} after ", ids_[node]);
  if (nodes.size() > kNamed) text += "... after ";
  return text + std::to_string(ids_[nodes.front()]);
}

}  // namespace ns_dist::chakra
