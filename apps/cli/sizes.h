// Sizes of one machine, for searches that are not given the number of GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/search.h"

namespace ns_dist::cli {

inline constexpr std::int64_t kMostSearched = std::int64_t{1} << 20;  // GPUs
inline constexpr std::string_view kGlobalBatch = "training/global_batch", kMicroBatch = "training/micro_batch";

// The machine that a request describes, of any size.
Result<Cluster> searched_cluster(const SearchRequest& request, const Catalog& catalog);
// Whole numbers that a request gives a field, in order; none where it gives none.
std::vector<std::int64_t> numbers_of(const SearchRequest& request, std::string_view field);
SearchRequest without(SearchRequest request, std::string_view field);
SearchRequest with_gpus(SearchRequest request, std::int64_t gpus);

// Whole replicas of the least degrees that a request gives, on whole nodes: of a node of 72, 64 or all are used.
class Sizes {
 public:
  // Errors: those of the request; the least size has more GPUs than are searched.
  static Result<Sizes> make(SearchRequest request, const Catalog& catalog, const SearchWatch& watch);

  std::int64_t unit() const { return unit_; }  // the least one
  // With a replica of the given degrees for each micro-batch; of more GPUs, replicas are larger.
  std::int64_t most_replicas() const { return given_ * batches_.back(); }
  Result<SearchSpace> space(std::int64_t gpus) const {
    return SearchSpace::make(with_gpus(request_, gpus), *catalog_, watch_);
  }
  // GPUs of a replica, where as many replicas of the given degrees as can share a batch evenly.
  std::int64_t replica(std::int64_t gpus) const;
  // Of the sizes from `low` to below `high` of which some plan may share the batch evenly, the one whose replicas have
  // fewest GPUs: these send least to each other. A factor of them that cannot be halved counts twice, as hardly any
  // part of a model can be divided by 11. Of equals, the one next to `near`. Errors: those of a space, where no size
  // has one.
  Result<std::optional<std::int64_t>> best(std::int64_t low, std::int64_t high, std::int64_t near) const;

 private:
  Sizes(SearchRequest request, const Catalog& catalog, const SearchWatch& watch)
      : request_(std::move(request)), catalog_(&catalog), watch_(watch) {}

  SearchRequest request_;
  const Catalog* catalog_;
  SearchWatch watch_;
  std::int64_t given_ = 1;             // GPUs of a replica of the given degrees
  std::int64_t unit_ = 1, full_ = 1;   // the latter of nodes without idle GPUs
  std::vector<std::int64_t> batches_;  // in micro-batches, in order
};

}  // namespace ns_dist::cli
