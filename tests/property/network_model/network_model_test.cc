// What holds for every collective on every cluster.
#include "ns_dist/network_model.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>

#include "support/random_plans.h"

namespace ns_dist {
namespace {

using namespace units;

double between(double low, double high) {
  constexpr int kGrid = 10000;
  return low + (high - low) * *rc::gen::inRange(0, kGrid + 1) / kGrid;
}
double log_between(double low, double high) { return std::exp(between(std::log(low), std::log(high))); }

Fabric any_fabric(std::initializer_list<FabricKind> kinds, double least, double most) {
  return {"fabric", "a fabric", *rc::gen::elementOf(std::vector<FabricKind>(kinds)), log_between(least, most) * GB / s,
          between(0, 5) * us};
}

struct Case {
  Cluster cluster;
  Collective call;
};

Case any_case() {
  Case c;
  c.cluster.id = "any";
  c.cluster.gpu.architecture =
      *rc::gen::elementOf(std::vector<std::string>{"volta", "ampere", "ada", "hopper", "blackwell", "cdna3"});
  c.cluster.gpu.boost_clock = between(1000, 2600) * MHz;
  const std::int64_t node = *rc::gen::elementOf(std::vector<std::int64_t>{1, 2, 4, 8, 16});
  const std::int64_t leaf = *rc::gen::elementOf(std::vector<std::int64_t>{2, 3, 4, 8});
  c.cluster.levels = {
      {any_fabric({FabricKind::kNvswitch, FabricKind::kNvlink, FabricKind::kPcie, FabricKind::kXgmi}, 10, 2000), node,
       1, 1},
      {any_fabric({FabricKind::kInfiniband, FabricKind::kRoce, FabricKind::kEfa}, 1, 200), leaf, between(0.25, 4), 1},
      {any_fabric({FabricKind::kInfiniband, FabricKind::kRoce}, 1, 200), 0, 1, between(1, 4)}};
  for (FabricLevel& level : c.cluster.levels) level.ring = *rc::gen::inRange(0, 4) == 0;  // a torus, or a part of one

  // Ranks as innermost x middle x outermost; the group takes one to three of the axes.
  const std::int64_t a = *rc::gen::inRange<std::int64_t>(1, 9), b = *rc::gen::inRange<std::int64_t>(1, 9),
                     d = *rc::gen::inRange<std::int64_t>(1, 9);
  std::vector<Stride> axes = {{a, 1}, {b, a}, {d, a * b}};
  c.call.kind = any_enum<CollectiveKind>();
  if (c.call.kind == CollectiveKind::kSendRecv) {
    axes = {{2, *rc::gen::inRange<std::int64_t>(1, 100)}};
  } else {
    const int mask = *rc::gen::inRange(1, 8);
    std::vector<Stride> taken;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if ((mask >> i & 1) != 0) taken.push_back(axes[i]);
    }
    axes = taken;
  }
  c.call.group = {0, axes};
  c.call.size = log_between(1, 1e11) * B;
  c.call.integer = *rc::gen::arbitrary<bool>();
  RC_PRE(c.call.group.size() >= 2);
  return c;
}

Forecast forecast(const Cluster& cluster, const Collective& call) {
  const auto model = make_network_model(cluster);
  RC_ASSERT(model.has_value());
  const auto result = (*model)->forecast(call);
  RC_ASSERT(result.has_value());
  return *result;
}

// Rounding of sums in another order.
constexpr double kRoundingOfTimes = 1 + 1e-12;

TEST(NetworkModelProperty, NeverBelowTheFloorAndInsideTheInterval) {
  EXPECT_TRUE(rc::check([] {
    const Case c = any_case();
    const Forecast f = forecast(c.cluster, c.call);
    RC_ASSERT(std::isfinite(f.latency / s));
    RC_ASSERT(f.latency > 0 * s);
    RC_ASSERT(f.latency >= f.floor);
    RC_ASSERT(f.low <= f.latency);
    RC_ASSERT(f.latency <= f.high);
    RC_ASSERT(f.utilization >= 0);
    RC_ASSERT(f.utilization <= 1);
  }));
}

TEST(NetworkModelProperty, FewerBytesAreNeverSlower) {
  EXPECT_TRUE(rc::check([] {
    const Case c = any_case();
    Collective less = c.call;
    less.size *= between(0.001, 1);
    RC_ASSERT(forecast(c.cluster, less).latency <= kRoundingOfTimes * forecast(c.cluster, c.call).latency);
  }));
}

TEST(NetworkModelProperty, MoreBandwidthOnAnyLevelIsNeverSlower) {
  EXPECT_TRUE(rc::check([] {
    const Case c = any_case();
    Cluster faster = c.cluster;
    faster.levels[*rc::gen::inRange<std::size_t>(0, 3)].fabric.bandwidth *= between(1, 10);
    RC_ASSERT(forecast(faster, c.call).latency <= kRoundingOfTimes * forecast(c.cluster, c.call).latency);
  }));
}

// Curves were measured over sizes, not over links.
TEST(NetworkModelProperty, TwiceTheBandwidthSavesAtMostHalf) {
  EXPECT_TRUE(rc::check([] {
    const Case c = any_case();
    Cluster faster = c.cluster;
    const double times = between(1, 10);
    for (FabricLevel& level : faster.levels) level.fabric.bandwidth *= times;
    RC_ASSERT(kRoundingOfTimes * times * forecast(faster, c.call).latency >= forecast(c.cluster, c.call).latency);
  }));
}

TEST(NetworkModelProperty, UnevenAllToAllIsBoundByItsBusiestPort) {
  EXPECT_TRUE(rc::check([] {
    Case c = any_case();
    c.call.kind = CollectiveKind::kAllToAll;
    const auto ranks = static_cast<double>(c.call.group.size());
    const Forecast even = forecast(c.cluster, c.call);
    Collective uneven = c.call;
    uneven.imbalance = 1;
    RC_ASSERT(forecast(c.cluster, uneven).latency == even.latency);
    uneven.imbalance = between(1, ranks);
    const Forecast first = forecast(c.cluster, uneven);
    RC_ASSERT(even.latency <= kRoundingOfTimes * first.latency);
    // What leaves the busiest rank, over all ports that it has.
    BytesPerSecond ports;
    for (const FabricLevel& level : c.cluster.levels) ports += level.bandwidth_per_gpu();
    RC_ASSERT(kRoundingOfTimes * first.latency >= uneven.imbalance * (ranks - 1) / ranks * uneven.size / ports);
    RC_ASSERT(kRoundingOfTimes * first.latency >= uneven.imbalance * even.floor);
    uneven.imbalance = between(uneven.imbalance, ranks);
    RC_ASSERT(first.latency <= kRoundingOfTimes * forecast(c.cluster, uneven).latency);
  }));
}

TEST(NetworkModelProperty, LessLatencyOnAnyLevelIsNeverSlower) {
  EXPECT_TRUE(rc::check([] {
    const Case c = any_case();
    Cluster faster = c.cluster;
    faster.levels[*rc::gen::inRange<std::size_t>(0, 3)].fabric.latency *= between(0, 1);
    RC_ASSERT(forecast(faster, c.call).latency <= kRoundingOfTimes * forecast(c.cluster, c.call).latency);
  }));
}

TEST(NetworkModelProperty, OversubscriptionIsNeverFaster) {
  EXPECT_TRUE(rc::check([] {
    const Case c = any_case();
    Cluster narrower = c.cluster;
    narrower.levels[2].oversubscription *= between(1, 8);
    RC_ASSERT(forecast(narrower, c.call).latency * kRoundingOfTimes >= forecast(c.cluster, c.call).latency);
  }));
}

TEST(NetworkModelProperty, OrderAndNamesOfRanksInsideALevelDoNotMatter) {
  EXPECT_TRUE(rc::check([] {
    const Case c = any_case();
    RC_PRE(c.call.kind != CollectiveKind::kSendRecv);
    Collective renamed = c.call;
    std::reverse(renamed.group.strides.begin(), renamed.group.strides.end());
    // The group of another rank: the whole orbit takes the same time, where groups lie along the units.
    RC_ASSERT(forecast(c.cluster, renamed).latency == forecast(c.cluster, c.call).latency);
    Collective elsewhere = c.call;
    elsewhere.group.first +=
        *rc::gen::inRange<std::int64_t>(0, 4) * c.cluster.levels[0].size * c.cluster.levels[1].size;
    RC_ASSERT(forecast(c.cluster, elsewhere).latency == forecast(c.cluster, c.call).latency);
  }));
}

TEST(NetworkModelProperty, ChoiceIsTheFastestAllowed) {
  EXPECT_TRUE(rc::check([] {
    const Case c = any_case();
    const Forecast best = forecast(c.cluster, c.call);
    for (const NetworkAlgorithm& algorithm : network_algorithms()) {
      if (!algorithm.automatic) continue;
      for (const NetworkAlgorithm& protocol : network_protocols()) {
        NetworkModelOptions options;
        options.algorithm = algorithm.name;
        options.protocol = protocol.name;
        const auto model = make_network_model(c.cluster, options);
        RC_ASSERT(model.has_value());
        const auto other = (*model)->forecast(c.call);
        if (other) RC_ASSERT(best.latency <= kRoundingOfTimes * other->latency);
      }
    }
  }));
}

TEST(NetworkModelProperty, ContinuousInBytes) {
  EXPECT_TRUE(rc::check([] {
    Case c = any_case();
    // From 1 MiB on, measured errors are counted apart.
    if (*rc::gen::inRange(0, 4) == 0) c.call.size = (1 - 5e-8) * MiB;
    Collective more = c.call;
    more.size *= 1 + 1e-7;
    const Forecast less = forecast(c.cluster, c.call), next = forecast(c.cluster, more);
    RC_ASSERT(next.latency / less.latency < 1 + 1e-4);
    RC_ASSERT(std::fabs(next.high / less.high - 1) < 1e-4);
    RC_ASSERT(std::fabs((next.low - less.low) / less.latency) < 1e-4);
  }));
}

TEST(NetworkModelProperty, RequestedAlgorithmsStayAboveTheFloorToo) {
  EXPECT_TRUE(rc::check([] {
    const Case c = any_case();
    for (const NetworkAlgorithm& algorithm : network_algorithms()) {
      NetworkModelOptions options;
      options.algorithm = algorithm.name;
      const auto result = (*make_network_model(c.cluster, options))->forecast(c.call);
      if (!result) continue;  // it does not do this collective on this group
      RC_ASSERT(result->latency >= result->floor);
    }
  }));
}

}  // namespace
}  // namespace ns_dist
