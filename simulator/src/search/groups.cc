#include "search/groups.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "ns_dist/planner.h"

namespace ns_dist {

SearchGroups::SearchGroups(const SearchSpace& space, const Crew& crew)
    : space_(space.contents()),
      base_(space.base()),
      tokens_(tokens_of_step(space.base().training)),
      micro_batch_(level_of("training/micro_batch")) {
  std::unordered_map<std::string, std::uint32_t> ids;
  Scenario scenario = base_;
  Texts walked;
  std::array<std::int64_t, 4> last{};
  space_.walk(0, space_.groups, scenario, walked, [&](const Scenario& each, const Texts& texts) {
    for (const std::string& text : texts) {
      const auto [known, is_new] = ids.try_emplace(text, static_cast<std::uint32_t>(texts_.size()));
      if (is_new) texts_.push_back(text);
      chosen_.push_back(known->second);
    }
    const ParallelPlan& plan = each.plan;
    const std::array shape{plan.tp, plan.pp, plan.dp, microbatches_of(plan, each.training)};
    if (families.empty() || shape != last) families.push_back({size_, size_, 0});
    last = shape;
    families.back().end = ++size_;
    return !crew.told_to_stop();
  });
}

std::size_t SearchGroups::level_of(std::string_view field) const {
  const auto is_it = [field](const auto& level) { return level.field == field; };
  return static_cast<std::size_t>(std::find_if(space_.levels.begin(), space_.levels.end(), is_it) -
                                  space_.levels.begin());
}

std::uint32_t SearchGroups::number_of(std::string_view text) const {
  return static_cast<std::uint32_t>(std::find(texts_.begin(), texts_.end(), text) - texts_.begin());
}

bool SearchGroups::starts_run(std::uint32_t group) const {
  return group == 0 || !std::equal(chosen(group), chosen(group) + micro_batch_, chosen(group - 1));
}

void SearchGroups::apply(Scenario& scenario, std::uint32_t& last, std::uint32_t group) const {
  const std::uint32_t* const now = chosen(group);
  const std::uint32_t* const changed =
      last == kNoGroup ? now : std::mismatch(now, now + space_.groups, chosen(last)).first;
  give(scenario, group, static_cast<std::size_t>(changed - now));
  last = group;
}

void SearchGroups::give(Scenario& scenario, std::uint32_t group, std::size_t first) const {
  const std::uint32_t* const now = chosen(group);
  space_.apply(scenario, first, space_.groups,
               [&](std::size_t level) -> const std::string& { return texts_[now[level]]; });
}

Scenario SearchGroups::scenario_of(std::uint32_t group, std::uint32_t leaf, const Scenario& base) const {
  Scenario found, scenario = base;
  apply(scenario, group);
  for_each_leaf(scenario, [&](const Scenario& each, std::uint32_t here) {
    if (here == leaf) found = each;
    return here != leaf;
  });
  return found;
}

SearchGroups::Texts SearchGroups::texts_of(std::uint32_t group, std::uint32_t leaf) const {
  Scenario scenario = base_;
  apply(scenario, group);
  Texts all, walked;
  for (std::size_t i = 0; i < space_.groups; ++i) all.push_back(texts_[chosen(group)[i]]);
  std::uint32_t here = 0;
  space_.walk(space_.groups, space_.levels.size(), scenario, walked, [&](const Scenario&, const Texts& each) {
    if (here == leaf) all.insert(all.end(), each.begin(), each.end());
    return here++ != leaf;
  });
  return all;
}

double SearchGroups::scaled(const Scenario& scenario, double seconds) const {
  return seconds * (tokens_ / tokens_of_step(scenario.training));
}

}  // namespace ns_dist
