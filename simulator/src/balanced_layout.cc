#include "ns_dist/balanced_layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "search/bounds.h"

namespace ns_dist {
namespace {

constexpr double kAlike = 1e-9;  // of the model's time

// How bad a division is: smaller is better.
struct Badness {
  double busiest = 0;                // stage, or of chunks that take turns, the sum of the longest of each
  double stages = 0, positions = 0;  // sums of squares

  bool operator<(const Badness& other) const {
    // Sums of the same times in another order are the same.
    const auto less = [](double a, double b) { return a < b * (1 - kAlike); };
    for (const auto& [a, b] :
         {std::pair(busiest, other.busiest), std::pair(stages, other.stages), std::pair(positions, other.positions)}) {
      if (less(a, b)) return true;
      if (less(b, a)) return false;
    }
    return false;
  }
};

class Division {
 public:
  Division(const PartTimes& times, const Seats& seats, std::size_t predicting, std::int64_t most_first)
      : times_(times),
        seats_(seats),
        predicting_(predicting),
        most_first_(most_first),
        before_(times.layers.size() + 1) {
    std::partial_sum(times.layers.begin(), times.layers.end(), before_.begin() + 1);
    std::int64_t stages = 0;
    for (const std::vector<Seat>& direction : seats) {
      for (const Seat& seat : direction) stages = std::max<std::int64_t>(stages, seat.stage + 1);
    }
    busy_.resize(static_cast<std::size_t>(stages));
    const std::vector<Seat>& first = seats[0];
    takes_turns_ = seats.size() == 1 && first.size() > busy_.size();
    for (std::size_t i = 0; i < first.size(); ++i) {
      takes_turns_ &= first[i].stage == static_cast<std::int64_t>(i % busy_.size());
    }
    longest_.resize((first.size() + busy_.size() - 1) / busy_.size());
  }

  Badness of(const std::vector<std::int64_t>& counts) {
    std::fill(busy_.begin(), busy_.end(), 0.0);
    std::fill(longest_.begin(), longest_.end(), 0.0);
    Badness bad;
    std::size_t layer = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const std::size_t end = layer + static_cast<std::size_t>(counts[i]);
      double here = before_[end] - before_[layer];
      layer = end;
      if (i == 0) here += times_.embedding;
      if (i == predicting_) here += times_.predictions;
      if (i + 1 == counts.size()) here += times_.loss;
      bad.positions += here * here;
      double& longest = longest_[i / busy_.size()];
      longest = std::max(longest, here);
      for (const std::vector<Seat>& direction : seats_) busy_[static_cast<std::size_t>(direction[i].stage)] += here;
    }
    if (takes_turns_) bad.busiest = std::accumulate(longest_.begin(), longest_.end(), 0.0);
    for (const double busy : busy_) {
      bad.busiest = std::max(bad.busiest, busy);
      bad.stages += busy * busy;
    }
    return bad;
  }

  // Moves single layers as long as that helps.
  Badness improve(std::vector<std::int64_t>& counts) {
    Badness now = of(counts);
    while (true) {
      const auto busiest = std::max_element(busy_.begin(), busy_.end()) - busy_.begin();
      const std::size_t fullest = fullest_of(counts, busiest);
      Badness best = now;
      std::pair<std::size_t, std::size_t> move;
      // With few positions, from all of them: what makes others even leaves room for the next move. Else from the
      // busiest stage's fullest.
      constexpr std::size_t kFew = 64;
      for (std::size_t from = 0; from < counts.size(); ++from) {
        if (counts[from] == 0 || (counts.size() > kFew && from != fullest)) continue;
        for (std::size_t to = 0; to < counts.size(); ++to) {
          if (to == from || (to == 0 && counts[0] >= most_first_)) continue;
          --counts[from], ++counts[to];
          if (const Badness bad = of(counts); bad < best) best = bad, move = {from, to};
          ++counts[from], --counts[to];
        }
      }
      if (!(best < now)) break;
      --counts[move.first], ++counts[move.second];
      now = of(counts);
    }
    return now;
  }

 private:
  std::size_t fullest_of(const std::vector<std::int64_t>& counts, std::ptrdiff_t stage) const {
    std::size_t fullest = 0;
    std::int64_t most = -1;
    for (const std::vector<Seat>& direction : seats_) {
      for (std::size_t i = 0; i < direction.size(); ++i) {
        if (direction[i].stage == stage && counts[i] > most) most = counts[i], fullest = i;
      }
    }
    return fullest;
  }

  const PartTimes& times_;
  const Seats& seats_;
  std::size_t predicting_;
  std::int64_t most_first_;
  std::vector<double> before_;  // times of the layers before each
  std::vector<double> busy_;    // by stage
  // Chunks around the stages: all stages run the same one for as many microbatches as there are stages, and then the
  // next (Narayanan et al. 2021, s.2.2), so that each is as long as its longest.
  bool takes_turns_ = false;
  std::vector<double> longest_;  // by chunk
};

}  // namespace

std::vector<PositionParts> balanced(const PartTimes& times, const Seats& seats, std::vector<std::int64_t> start,
                                    std::int64_t most_first) {
  const std::size_t last = start.size() - 1;
  std::vector<std::int64_t> counts;
  std::size_t predicting = last;
  std::optional<Badness> least;
  for (const std::size_t at : {last, last - std::min<std::size_t>(last, times.prediction_count > 0 ? 1 : 0)}) {
    std::vector<std::int64_t> moved = start;
    // Layers for multi-token prediction are behind the others.
    if (at < last) moved[at] += std::exchange(moved[last], 0);
    Division division(times, seats, at, most_first);
    const Badness bad = division.improve(moved);
    if (at < last && moved[last] > 0) continue;
    if (least && !(bad < *least)) continue;
    least = bad;
    counts = std::move(moved);
    predicting = at;
  }
  std::vector<PositionParts> parts;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    parts.push_back({counts[i], i == predicting ? times.prediction_count : 0});
  }
  return parts;
}

std::vector<std::string> balanced_layouts(const Scenario& scenario, const Session& session) {
  const ParallelPlan& plan = scenario.plan;
  if (plan.pp == 1) return {};
  const auto schedule = pipeline_schedule(plan.schedule);
  if (!schedule || !(*schedule)->has_chunks(plan.vpp)) return {};
  constexpr std::int64_t kMostPositions = 1024;  // nobody writes more by hand
  if (plan.pp * plan.vpp > kMostPositions) return {};
  const Seats seats = (*schedule)->seats({plan.pp, 1, plan.vpp});
  const std::size_t positions = seats[0].size();
  const auto layers = static_cast<std::size_t>(scenario.model.layers);
  const PassesOfOne one = passes_on_one_stage(scenario, session);
  PartTimes times;
  times.embedding = one.embedding().apart();
  for (std::int64_t i = 0; i < scenario.model.layers; ++i) times.layers.push_back(one.layer(i).apart());
  times.prediction_count = scenario.training.mtp ? scenario.model.prediction_layers : 0;
  times.predictions = one.predictions().apart();
  times.loss = one.loss().apart();
  if (!(times.loss > 0)) return {};
  std::vector<std::int64_t> start(positions);
  for (std::size_t i = 0; i < positions; ++i) {
    start[i] = static_cast<std::int64_t>(layers / positions + (i < layers % positions ? 1 : 0));
  }
  const std::int64_t even = start.front();
  std::vector<std::string> layouts;
  const std::vector<PositionParts> best = balanced(times, seats, start);
  layouts.push_back(pipeline_layout_text(best));
  if (best.front().layers > even) layouts.push_back(pipeline_layout_text(balanced(times, seats, start, even)));
  return layouts;
}

}  // namespace ns_dist
