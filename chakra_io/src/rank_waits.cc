#include "rank_waits.h"

#include <algorithm>
#include <utility>

namespace ns_dist::chakra {

void RankWaits::add(const std::vector<Waiter>& waiters, std::vector<Rank> awaited, std::string what) {
  for (const Waiter& each : waiters) waits_[each.rank].push_back({each.node, awaited_.size()});
  awaited_.push_back({std::move(awaited), std::move(what)});
}

// Depth first. Each rank of what several wait for is walked to once.
std::vector<TraceWait> RankWaits::circle() const {
  enum class Mark : std::uint8_t { kNew, kOpen, kDone };
  std::map<Rank, Mark> marks;
  std::vector<std::size_t> in_no_circle(awaited_.size(), 0);  // so many ranks of each, from the first one on
  struct Step {
    Rank rank;
    std::size_t wait = 0, next = 0;  // of its waits; of the ranks that this one is for
  };
  for (const auto& [first, unused] : waits_) {
    if (marks[first] != Mark::kNew) continue;
    std::vector<Step> path = {{first}};
    marks[first] = Mark::kOpen;
    while (!path.empty()) {
      Step& step = path.back();
      const auto waits = waits_.find(step.rank);
      if (waits == waits_.end() || step.wait == waits->second.size()) {
        marks[step.rank] = Mark::kDone;
        path.pop_back();
        continue;
      }
      const std::size_t index = waits->second[step.wait].awaited;
      const std::vector<Rank>& ranks = awaited_[index].ranks;
      std::size_t& checked = in_no_circle[index];
      while (checked < ranks.size() && marks[ranks[checked]] == Mark::kDone) ++checked;
      step.next = std::max(step.next, checked);
      if (step.next == ranks.size()) {
        ++step.wait, step.next = 0;
        continue;
      }
      const Rank on = ranks[step.next++];
      if (marks[on] == Mark::kNew) {
        marks[on] = Mark::kOpen;
        path.push_back({on});
      } else if (marks[on] == Mark::kOpen) {
        std::vector<TraceWait> circle;
        for (auto each = std::ranges::find(path, on, &Step::rank); each != path.end(); ++each) {
          const Wait& wait = waits_.at(each->rank)[each->wait];
          const Awaited& awaited = awaited_[wait.awaited];
          circle.push_back({each->rank, wait.node, awaited.ranks[each->next - 1], awaited.what});
        }
        return circle;
      }
    }
  }
  return {};
}

}  // namespace ns_dist::chakra
