// Which nodes of a trace wait for which.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace ns_dist::chakra {

class TraceGraph {
 public:
  using Place = std::uint32_t;  // of a node, in the order of the file
  static constexpr Place kNone = std::numeric_limits<Place>::max();

  void clear() { *this = {}; }
  // `parents`: the ids of those that it waits for.
  void add(std::uint64_t id, std::span<const std::uint64_t> parents);

  std::size_t size() const { return ids_.size(); }
  std::uint64_t id(Place node) const { return ids_[node]; }

  // ---- After all nodes ----

  struct Missing {
    Place node = 0;
    std::uint64_t parent = 0;
    std::string text() const;  // "it waits for node 7, which is not there"
  };
  struct Mistakes {
    std::vector<Place> doubles;  // of an id that an earlier node has
    std::vector<Missing> missing;
  };
  static constexpr const char* kDouble = "another node has the same id; the feeder keeps one of them";

  // Finds the places of parents. Of nodes with one id it is the first one.
  Mistakes link();

  // By ascending id: in this order the feeder takes those that are ready.
  std::vector<Place> by_id() const;
  // kNone: of one that is not there.
  std::span<const Place> parents_of(Place node) const;

  // Nodes that wait for each other: each for the next one, the last one for the first. Empty: there are none.
  std::vector<Place> circle() const;
  // "it waits for itself: 1 after 2 after 1"; at most eight are named.
  std::string text_of_circle(std::span<const Place> nodes) const;

 private:
  std::size_t begin_of(Place node) const { return node == 0 ? 0 : parent_ends_[node - 1]; }

  std::vector<std::uint64_t> ids_, parent_ids_;  // the latter until they are places
  std::vector<std::size_t> parent_ends_;
  std::vector<Place> parents_;
  bool ascending_ = true;  // ids
  bool backward_ = true;   // all wait for smaller ids, so that there is no circle
};

}  // namespace ns_dist::chakra
