// The plans of a search as a tree: one level for each field that varies. Levels above `groups` decide which kernels a
// step runs; those below only when and where.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/search.h"

namespace ns_dist {

class SearchSpace::Contents {
 public:
  // What all plans have in common, and values depend on.
  struct Common {
    std::int64_t gpus = 0;
    std::int64_t loss_layers = 0;  // that take as long as what follows the last one: the loss, further predictions
    bool varies_last_stage = false, varies_chunks = false;  // nobody gave values
    // Of the plan that the search starts from.
    std::int64_t last_stage_layers = 0;  // 0: as many as the others
    std::int64_t shard = 0;
    std::int64_t chunks = 1;  // that were given
    std::string zero, recompute, overlap_grad_reduce, overlap_param_gather;
  };
  struct Level {
    std::string field;
    std::vector<std::string> given;  // values of the request; empty: `free`
    std::vector<std::string> (*free)(const Scenario&, const Common&) = nullptr;
    void (*set)(Scenario&, std::string_view text) = nullptr;  // of texts that can be read; null: as any field is set
    bool is_read = false;                                     // values of a later level depend on it
    bool is_read_below = false;                               // of a level behind `groups`
    std::vector<std::size_t> limits = {};  // in the base's framework_only: of those of their fields this is the last
  };

  Scenario base;
  Common common;
  std::vector<Level> levels;
  std::size_t groups = 0;         // levels that decide the kernels
  std::size_t budgets = 0;        // and those that decide what a stage holds
  bool follows_context = false;   // cp_inner is what the heads and the node allow
  bool follows_schedule = false;  // overlap_p2p is what the schedule does
  bool follows_tokens = false;    // overlap_ep is off where the schedule hides tokens
  bool names_schedule = false;    // the request does
  std::uint64_t size = 0;
  ScenarioSpec fixed;
  std::shared_ptr<const Scenario> from;
  std::optional<Catalog> catalog;

  // Errors: degrees of which none divides the GPUs.
  Result<void> add_levels(const SearchRequest& request);
  // Limits of the framework, each to the last level that it reads.
  void attach_limits();
  std::vector<std::string> values(const Level& level, const Scenario& scenario) const;
  // Calls visit(scenario, texts) for every choice of the levels [first, last); `scenario` has those above. Ends early,
  // and returns false, where `visit` does.
  template <class Visit>
  bool walk(std::size_t first, std::size_t last, Scenario& scenario, std::vector<std::string>& texts,
            const Visit& visit) const {
    if (first == last) {
      finish(scenario);
      return visit(scenario, texts);
    }
    const Level& level = levels[first];
    for (std::string& text : values(level, scenario)) {
      if (!set(scenario, level, text)) continue;
      texts.push_back(std::move(text));
      const bool go_on = walk(first + 1, last, scenario, texts, visit);
      texts.pop_back();
      if (!go_on) return false;
    }
    return true;
  }
  Result<void> check(const Scenario& plan) const;
  // Gives the levels from `first` to before `end` their values, text(level), and sets what follows from all.
  template <class Text>
  void apply(Scenario& scenario, std::size_t first, std::size_t end, const Text& text) const {
    for (std::size_t i = first; i < end; ++i) {
      const bool fills = set(scenario, levels[i], text(i));
      NS_EXPECTS(fills);
    }
    finish(scenario);
  }
  // The plans that the levels from `first` on have, when those above have their values in `scenario`; of more than
  // kMostPlans some. Levels that no later one reads multiply. Ends early where `go_on` does not.
  template <class GoOn>
  double count(std::size_t first, Scenario& scenario, const GoOn& go_on) const {
    if (first == levels.size()) return 1;
    const Level& level = levels[first];
    const std::vector<std::string> all = values(level, scenario);
    double plans = 0;
    for (const std::string& text : all) {
      if (!go_on()) return plans;
      if (!set(scenario, level, text)) continue;
      const double below = count(first + 1, scenario, go_on);
      if (!level.is_read) return static_cast<double>(all.size()) * below;
      plans += below;
      if (plans > kMostPlans) return plans;  // too many, however many more
    }
    return plans;
  }
  double count(std::size_t first, Scenario& scenario) const {
    return count(first, scenario, [] { return true; });
  }
  // False where the degrees then are not those of the cluster.
  bool set(Scenario& scenario, const Level& level, const std::string& text) const;

 private:
  void finish(Scenario& scenario) const;
};

}  // namespace ns_dist
