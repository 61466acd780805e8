// Searches one machine after the other, and keeps what it found.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/search.h"
#include "search_case.h"

namespace ns_dist::cli {

class Searcher {
 public:
  Searcher(const Catalog& catalog, const SearchOptions& options, bool sensitivity, std::optional<double> gpu_spread)
      : catalog_(catalog), options_(options), sensitivity_(sensitivity), gpu_spread_(gpu_spread) {}

  // SearchSpace::make, with the progress of counting its plans.
  Result<SearchSpace> space(SearchRequest request);
  Result<void> add(SearchRequest request);
  Result<void> add(const SearchSpace& space);
  // Whether this process was told to stop.
  bool told_to_stop() const { return options_.watch.stop != nullptr && *options_.watch.stop; }
  const SearchOptions& options() const { return options_; }
  const std::vector<SearchCase>& cases() const { return cases_; }
  std::vector<SearchCase> take() && { return std::move(cases_); }
  // Every member of a team knows the same.
  bool interrupted() const { return !cases_.empty() && cases_.back().result.interrupted; }
  // Leaves out what has no plan, where something has.
  void keep_answers_from(std::size_t first);
  void sort_sizes_from(std::size_t first);

 private:
  const Catalog& catalog_;
  SearchOptions options_;
  bool sensitivity_;
  std::optional<double> gpu_spread_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::vector<SearchCase> cases_;
};

}  // namespace ns_dist::cli
