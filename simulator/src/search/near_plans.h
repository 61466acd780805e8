// Plans of a search that may be an answer: their step is, by what is known, within the limit of the best one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "ns_dist/search.h"
#include "ns_dist/session.h"
#include "search/crew.h"
#include "search/groups.h"

namespace ns_dist {

inline constexpr double kForever = std::numeric_limits<double>::infinity();

// Times are seconds for as many tokens as the base scenario trains in a step.
struct NearPlan {
  double bound = 0;  // the step without sharing
  double step = -1;  // -1: not timed yet; kForever: it cannot be timed
  double network = 0;
  double memory = 0, device = 0;  // bytes; device: that nvidia-smi would show
  std::uint32_t group = 0, leaf = 0;
  // Of each chunk that are recomputed, where the plan of the space recomputes all; 0: as many as there.
  std::uint32_t layers = 0;
  int kinds = 0;

  bool is(const NearPlan& other) const { return group == other.group && leaf == other.leaf && layers == other.layers; }
  bool is_of_space() const { return layers == 0; }
};

class NearPlans {
 public:
  NearPlans(const SearchGroups& groups, const Session& session, const SearchOptions& options, Crew& crew);

  double limit() const { return best_ * (1 + within_); }
  bool found() const { return best_ < most_; }
  double best() const { return best_; }
  std::uint64_t timed_with_fewer_layers() const { return timed_with_fewer_layers_; }
  // Of the plans of the space.
  std::uint64_t timed() const { return timed_; }
  std::uint64_t forgotten() const { return forgotten_; }  // that were never timed

  std::vector<NearPlan>& all() { return plans_; }
  Scenario scenario_of(const NearPlan& plan, const Scenario& base) const;

  // Takes further plans, times those whose bound is below the best step, and forgets the slow ones.
  void add(const std::vector<NearPlan>& plans);
  void sort();

  // Of plans in the order of their bounds, the fastest that is within the limit.
  const NearPlan* fastest(const std::vector<NearPlan*>& plans);
  // The plan with the least key(plan) among those within the limit; of equal keys the fastest.
  template <class Key>
  const NearPlan* least(const Key& key) {
    std::vector<NearPlan*> order = pointers();
    std::sort(order.begin(), order.end(), [&](const NearPlan* a, const NearPlan* b) {
      const auto key_a = key(*a), key_b = key(*b);
      return key_a != key_b ? key_a < key_b : before(*a, *b);
    });
    for (auto first = order.begin(); first != order.end() && !crew_.stop();) {
      const auto end =
          std::find_if(first, order.end(), [&](const NearPlan* each) { return key(*each) != key(**first); });
      if (const NearPlan* best = fastest({first, end}); best != nullptr) return best;
      first = end;
    }
    return nullptr;
  }
  std::vector<NearPlan*> pointers();

 private:
  static bool before(const NearPlan& a, const NearPlan& b);
  // Times plans in parallel, those that are not timed yet.
  void time(std::vector<NearPlan*> plans);
  void time_the_best(std::size_t from);
  void forget_slow();

  const SearchGroups& groups_;
  const Session& session_;
  Crew& crew_;
  double within_, most_, best_;
  std::uint64_t timed_ = 0, timed_with_fewer_layers_ = 0, forgotten_ = 0;
  std::vector<NearPlan> plans_;
};

}  // namespace ns_dist
