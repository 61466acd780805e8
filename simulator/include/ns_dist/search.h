// Which plan is best on this cluster? Every plan of a space is looked at; none that could be the best is left out.
//
//   NS_TRY(const SearchSpace space, SearchSpace::make({.fixed = spec, .gpus = 256}, Catalog::standard()));
//   NS_TRY(const Session session, Session::make(space.base()));
//   NS_TRY(const SearchResult result, search(space, session));
//   result.answers.front().report.step / units::s
//
// A plan is timed exactly as `simulate` times it. Plans are left out without being timed where they do not fit into
// memory, or where a lower bound of their step is more than SearchOptions::within above the best step: first the passes
// of all microbatches divided by the number of stages, then those of each stage behind the first microbatch's way to
// it, then the step without sharing.
//
// Where recomputation is free, a plan that recomputes all layers is also tried with the fewest layers that fit, and
// with the fewest that are not tight: as answers and points, but not in the numbers of plans.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/report.h"
#include "ns_dist/result.h"
#include "ns_dist/scenario.h"
#include "ns_dist/session.h"
#include "ns_dist/team.h"
#include "ns_dist/units.h"

namespace ns_dist {

// "8", "1,2,4,8", "1..8", "1,2,4..6": the values that a text lists. Ranges are of whole numbers. Errors: an empty list
// or range, a range of more than kMostValues numbers, a value that the field cannot have; `where` is the field.
Result<FieldValues> read_values(std::string_view field, std::string_view text);
inline constexpr std::int64_t kMostValues = 100'000;

// The fields of a sweep, JSON: an object of fields, named as flags ("tp") or by their place ("plan/tp"), and of their
// values, a list or a text as above. `path` names the file. Errors: no JSON, no object, no field; a field that there is
// not, that is there twice or has no values; a value that it cannot have; more than 10^8 combinations.
Result<std::vector<FieldValues>> read_sweep(std::string_view text, const std::string& path);

// The fields of which a search tries every value unless they are given, outermost first.
std::vector<std::string_view> searched_fields();
// Whether a field is a degree of parallelism whose product with the others is the number of GPUs: plan/tp, cp, pp, dp.
bool is_degree(std::string_view field);
// Whether a search may try several values of a field in one space: those of the plan, and of the training those that
// leave the model and its sequences as they are.
bool can_be_searched(std::string_view field);
// Whether a field describes the machine or what its defaults follow from (model, framework, machine/...): a search has
// a space for each of its values.
bool decides_machine(std::string_view field);

struct SearchRequest {
  ScenarioSpec fixed{};                      // fields with one value; those of searched_fields() are then not searched
  std::vector<FieldValues> listed{};         // fields of which these values are tried
  std::optional<std::int64_t> gpus{};        // size of the cluster; otherwise machine/nodes, or that of a sized cluster
  std::shared_ptr<const Scenario> from{};    // the work of a report; its degrees and the other searched fields are free
  bool lists(std::string_view field) const;  // several values of it
  bool gives(std::string_view field) const;  // one or several
};

// How far a search is: the share of its time, and the plans that were found impossible, left out or timed. 0 plans:
// they are being counted.
struct SearchProgress {
  double share = 0;  // 0 to 1
  std::uint64_t checked = 0, plans = 0;
};

// Who looks at a long work, and may end it.
struct SearchWatch {
  std::function<void(const SearchProgress&)> progress = {};  // called by one thread at a time
  const std::atomic<bool>* stop = nullptr;                   // set it to end early with the best so far
};

// The plans of one model on one machine.
class SearchSpace {
 public:
  // Errors: those of resolve; a machine of unknown size; GPUs that do not fill nodes; a space of more than kMostPlans
  // plans, with how many they are at least and the fields to narrow; a space without any plan. Where the watch stopped
  // it, the size is 0.
  static Result<SearchSpace> make(SearchRequest request, const Catalog& catalog, const SearchWatch& watch = {});
  ~SearchSpace();
  SearchSpace(SearchSpace&&) noexcept;
  SearchSpace& operator=(SearchSpace&&) noexcept;

  // The machine, the model and all that does not vary.
  const Scenario& base() const;
  const Scenario* from() const;  // of the request; none: nullptr
  std::int64_t gpus() const;
  // Plans, valid or not. Products of degrees that are not the number of GPUs are no plans of the space.
  std::uint64_t size() const;
  // Whether replicas of some plan may have whole microbatches of the global batch: no other plan is possible.
  bool may_share_batch() const;
  // Errors: a plan of the space that no framework runs, with a schedule that nobody asked for by name.
  Result<void> check(const Scenario& plan) const;
  // Calls `visit` for every plan, in the order of the space, until it returns false. Most of them are found to be
  // invalid by check_plan only.
  void for_each(const std::function<bool(const Scenario&)>& visit) const;

  class Contents;
  const Contents& contents() const { return *contents_; }

 private:
  explicit SearchSpace(std::unique_ptr<Contents> contents);
  std::unique_ptr<Contents> contents_;
};
inline constexpr double kMostPlans = 1e8;

struct SearchOptions {
  unsigned threads = 1;
  double within = 0.10;               // answers other than the fastest are at most this much slower than it
  std::optional<Seconds> below = {};  // ends with the first plan whose step, as of a SearchPoint, is shorter
  SearchWatch watch = {};
  Team* team = nullptr;  // processes that search the same space at the same time
};

struct SearchAnswer {
  std::vector<std::string> why;         // "fastest", "most memory headroom", ...
  Report report;                        // as `simulate` reports the plan
  std::vector<Assignment> assignments;  // the least that repeats it, with what the request fixed
  StepDifference behind;                // the first answer
  Seconds network;                      // what collectives and messages of the busiest stage take alone, hidden or not
  // Kinds of parallelism: degrees above 1, model chunks, a split backward pass, recomputation.
  int kinds = 0;
  std::optional<Seconds> unequal_step;  // of unequal GPUs (time_to_train.h), where somebody asked for it
};

// A plan that fits and is, by what is known of it, within the limit: for a picture.
struct SearchPoint {
  Seconds step;  // for as many tokens as the base scenario trains in a step
  Bytes memory;
  bool timed = false;  // otherwise the step is a lower bound
};

struct SearchResult {
  std::vector<SearchAnswer> answers;  // fastest first; empty where no plan fits
  std::vector<SearchPoint> points;    // where no interrupt came: every plan that could be an answer, by its bound
  std::uint64_t plans = 0;            // of the space; 0: interrupted before they were counted
  std::uint64_t evaluated = 0;        // timed exactly
  // Timed exactly as well: plans of the space that recompute all layers, with fewer of them recomputed.
  std::uint64_t evaluated_with_fewer_layers = 0;
  std::uint64_t bounded = 0;  // left out, because the step without sharing is too long
  std::uint64_t skipped = 0;  // left out, because their passes take too long; not checked for memory
  std::uint64_t unseen = 0;   // not looked at, when interrupted
  std::map<std::string, std::uint64_t> infeasible;  // by reason: "memory", or the field at fault
  // Of each reason, the first in the order of the space; of a global batch at fault, that of least_sequences.
  std::map<std::string, std::string> examples;
  std::optional<std::int64_t> least_sequences;  // micro-batch x dp, of plans that do not divide the global batch
  std::optional<Bytes> least_memory;            // of the plans that do not fit
  bool interrupted = false;
  double seconds = 0;  // that the search took
};

// Errors: those of the answers' forecasts, which no plan of a checked space should have. No plan that fits is no error:
// `answers` is empty. The result does not depend on the number of threads
// or of members of a team, which all have it.
Result<SearchResult> search(const SearchSpace& space, const Session& session, const SearchOptions& options = {});

}  // namespace ns_dist
