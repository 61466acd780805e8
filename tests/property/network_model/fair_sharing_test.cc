// What max-min fairness transport, for any links and flows.
#include "ns_dist/fair_sharing.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>

#include "support/completion_times.h"

namespace ns_dist {
namespace {

using namespace units;
using test::completion_times;
using test::TimedFlow;

struct Scene {
  std::vector<BytesPerSecond> capacities;
  std::vector<TimedFlow> flows;
};

Scene any_scene() {
  Scene scene;
  const int links = *rc::gen::inRange(1, 7), flows = *rc::gen::inRange(1, 13);
  for (int l = 0; l < links; ++l) scene.capacities.push_back(*rc::gen::inRange(1, 100) * GB / s);
  for (int f = 0; f < flows; ++f) {
    TimedFlow flow;
    const int hops = *rc::gen::inRange(1, links + 1), first = *rc::gen::inRange(0, links);
    for (int h = 0; h < hops; ++h) {
      flow.uses.push_back({static_cast<std::size_t>((first + h) % links), *rc::gen::inRange(1, 4) * 0.5});
    }
    flow.size = *rc::gen::inRange(0, 100) * GB;
    flow.start = *rc::gen::inRange(0, 10) * 0.1 * s;
    if (*rc::gen::arbitrary<bool>()) flow.limit = *rc::gen::inRange(1, 50) * GB / s;
    scene.flows.push_back(flow);
  }
  return scene;
}

constexpr double kRounding = 1e-9;

TEST(FairSharingProperty, LinksAreNotOverfullAndNobodyCouldHaveMore) {
  EXPECT_TRUE(rc::check([] {
    const Scene scene = any_scene();
    const auto rates = max_min_rates(scene.capacities, std::vector<SharedFlow>(scene.flows.begin(), scene.flows.end()));
    RC_ASSERT(rates.has_value());
    std::vector<double> load(scene.capacities.size(), 0);
    for (std::size_t f = 0; f < scene.flows.size(); ++f) {
      for (const LinkUse& use : scene.flows[f].uses) load[use.link] += use.share * (*rates)[f].in_base();
    }
    for (std::size_t l = 0; l < load.size(); ++l) {
      RC_ASSERT(load[l] <= scene.capacities[l].in_base() * (1 + kRounding));
    }
    // Bertsekas and Gallager 1992, s. 6.5.2: every flow is at its own limit, or has a full link on which no other flow
    // is faster.
    for (std::size_t f = 0; f < scene.flows.size(); ++f) {
      const double rate = (*rates)[f].in_base();
      bool stopped = rate >= scene.flows[f].limit.in_base() * (1 - kRounding);
      for (const LinkUse& use : scene.flows[f].uses) {
        if (load[use.link] < scene.capacities[use.link].in_base() * (1 - kRounding)) continue;
        bool fastest = true;
        for (std::size_t g = 0; g < scene.flows.size(); ++g) {
          for (const LinkUse& other : scene.flows[g].uses) {
            fastest = fastest && (other.link != use.link || (*rates)[g].in_base() <= rate * (1 + kRounding));
          }
        }
        stopped = stopped || fastest;
      }
      RC_ASSERT(stopped);
    }
  }));
}

TEST(FairSharingProperty, FlowsEndAfterWhatTheyNeedAlone) {
  EXPECT_TRUE(rc::check([] {
    const Scene scene = any_scene();
    const auto ends = completion_times(scene.capacities, scene.flows);
    RC_ASSERT(ends.has_value());
    for (std::size_t f = 0; f < scene.flows.size(); ++f) {
      const TimedFlow& flow = scene.flows[f];
      TimedFlow alone = flow;
      const auto own = completion_times(scene.capacities, std::vector<TimedFlow>{alone});
      RC_ASSERT((*ends)[f].in_base() >= (*own)[0].in_base() * (1 - kRounding));
    }
  }));
}

TEST(FairSharingProperty, TimeScalesWithSpeed) {
  EXPECT_TRUE(rc::check([] {
    const Scene scene = any_scene();
    Scene wider = scene;
    for (BytesPerSecond& capacity : wider.capacities) capacity *= 2;
    for (TimedFlow& flow : wider.flows) {
      flow.limit *= 2;
      flow.start /= 2;
    }
    // Twice the speed and half of the starts: everything in half of the time.
    const auto ends = completion_times(scene.capacities, scene.flows),
               half = completion_times(wider.capacities, wider.flows);
    for (std::size_t f = 0; f < scene.flows.size(); ++f) {
      RC_ASSERT(std::abs(2 * (*half)[f].in_base() - (*ends)[f].in_base()) <= kRounding * (1 + (*ends)[f].in_base()));
    }
  }));
}

}  // namespace
}  // namespace ns_dist
