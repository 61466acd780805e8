// The plans of a search by number. Plans of a group run the same kernels; a leaf tells when and where they run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/search.h"
#include "search/crew.h"
#include "search/space.h"

namespace ns_dist {

class SearchGroups {
 public:
  using Texts = std::vector<std::string>;
  // Groups that lie side by side and have the same shape of the pipeline: the loops of their schedules are made once.
  struct Family {
    std::uint32_t first = 0, end = 0;
    double bound = 0;  // the least of its groups
  };

  // Where the crew is told to stop, some of the groups.
  SearchGroups(const SearchSpace& space, const Crew& crew);

  const SearchSpace::Contents& space() const { return space_; }
  const Scenario& base() const { return base_; }
  std::uint32_t size() const { return size_; }
  std::vector<Family> families;

  // The level of a field; that of none: as many as there are.
  std::size_t level_of(std::string_view field) const;
  // Of each level of groups, the number of its text, and that of a text.
  const std::uint32_t* chosen(std::uint32_t group) const { return chosen_.data() + group * space_.groups; }
  std::uint32_t number_of(std::string_view text) const;

  // Runs: groups side by side that differ in the micro-batch and what comes behind it.
  bool starts_run(std::uint32_t group) const;

  static constexpr std::uint32_t kNoGroup = 0xffffffffu;
  // Gives a scenario that has what the plans of group `last` have in common, or of kNoGroup, what those of `group`
  // have.
  void apply(Scenario& scenario, std::uint32_t& last, std::uint32_t group) const;
  void apply(Scenario& scenario, std::uint32_t group) const { give(scenario, group, 0); }

  // Calls visit(scenario, leaf) for the plans of a group until it returns false. `scenario` has what they have in
  // common.
  template <class Visit>
  void for_each_leaf(Scenario& scenario, const Visit& visit) const {
    Texts texts;
    std::uint32_t leaf = 0;
    space_.walk(space_.groups, space_.levels.size(), scenario, texts,
                [&](const Scenario& each, const Texts&) { return visit(each, leaf++); });
  }

  // A plan as a scenario like `base`, and the texts of all its levels.
  Scenario scenario_of(std::uint32_t group, std::uint32_t leaf, const Scenario& base) const;
  Texts texts_of(std::uint32_t group, std::uint32_t leaf) const;

  // Seconds for the tokens of the base scenario.
  double scaled(const Scenario& scenario, double seconds) const;

 private:
  // The values of a group's levels from `first` on.
  void give(Scenario& scenario, std::uint32_t group, std::size_t first) const;

  const SearchSpace::Contents& space_;
  const Scenario& base_;
  double tokens_ = 0;
  std::size_t micro_batch_ = 0;  // its level
  std::uint32_t size_ = 0;
  std::vector<std::string> texts_;     // each once
  std::vector<std::uint32_t> chosen_;  // of each group, its texts
};

}  // namespace ns_dist
