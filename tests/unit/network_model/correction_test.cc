#include "correction.h"

#include <gtest/gtest.h>

#include "algorithms.h"
#include "estimate.h"
#include "links.h"
#include "support/clusters.h"
#include "topology.h"

namespace ns_dist::network {
namespace {

TEST(Correction, NoneLeavesTimesAlone) {
  const Correction none;
  for (const double t : {1e-6, 5e-6, 1e-3, 10.0}) EXPECT_DOUBLE_EQ(none.apply(t), t);
}

TEST(Correction, PassesThroughItsKnots) {
  Correction::Knots knots{};
  for (std::size_t k = 0; k < kKnots; ++k) knots[k] = 0.1 * static_cast<double>(k % 3);
  const Correction correction(knots);
  for (std::size_t k = 0; k < kKnots; ++k) {
    EXPECT_NEAR(correction.log_ratio(time_at(static_cast<double>(k))), knots[k], 1e-12) << k;
  }
}

TEST(Correction, GrowsWithTheTimeItCorrects) {
  Correction::Knots knots{};
  for (std::size_t k = 0; k < kKnots; ++k) knots[k] = k % 2 == 0 ? 2 : -2;  // far steeper down than time goes up
  Correction correction(knots);
  correction.add({5.5, 0.7});
  correction.add({9.5, -3});  // steps down are no steps
  double last = 0;
  for (double t = 1e-6; t < 0.1; t *= 1.003) {
    const double now = correction.apply(t);
    EXPECT_GE(now, last) << t;
    last = now;
  }
}

// A curve that rises by a factor of e within an octave: as the links become faster, times fall in proportion, on links
// that were measured to be four times as slow as on them, and on faster ones; not to an e-th.
TEST(Correction, FasterLinksSaveNoMoreThanTheirShare) {
  Correction::Knots knots{};
  for (std::size_t k = 0; k < kKnots; ++k) knots[k] = k < 10 ? 0 : k < 12 ? 0.5 * static_cast<double>(k - 9) : 1.5;
  Correction correction(knots);
  correction.add({14, 0.4});
  constexpr double kLatency = 10e-6, kTransfer = 600e-6;  // on the links that were measured
  const auto time = [&](double transfer, double faster) {
    return correction.apply(kLatency + transfer / faster, kLatency + transfer, faster);
  };
  double last = time(kTransfer, 1.0 / 8);
  for (double faster = 1.0 / 8; faster < 8; faster *= 1.01) {
    const double now = time(kTransfer, faster);
    EXPECT_LE(now, last * (1 + 1e-12)) << faster;
    EXPECT_GE(now, last / 1.01 * (1 - 1e-3)) << faster;
    last = now;
  }
  EXPECT_DOUBLE_EQ(time(kTransfer, 1), correction.apply(kLatency + kTransfer));
  for (const double faster : {0.3, 3.0}) {  // longer messages take longer on these, too
    last = 0;
    for (double transfer = 1e-6; transfer < 0.1; transfer *= 1.01) {
      const double now = time(transfer, faster);
      EXPECT_GE(now, last) << faster << ' ' << transfer;
      last = now;
    }
  }
}

// Ports of 25 GB/s, on a curve of ports of 50 that rises by a factor of e just above what these took: a long all-reduce
// takes twice as long here, no more.
TEST(Correction, SlowerPortsTakeNoMoreThanTheirShare) {
  const Cluster cluster = test::dgx_a100();
  const Collective sum{CollectiveKind::kAllReduce, 128 * units::MiB, {0, {{16, 8}}}};
  const Topology topology = *Topology::of(cluster);
  const Placement placement = *place(topology, sum);
  const std::vector<Link> links = links_of(cluster);
  const Call call = call_of(sum, placement, links.data());
  const Choice choice = choose(call, {}, Transport::kMessages);
  const double modeled = choice.cost.time();
  Correction::Knots knots{};
  for (std::size_t k = 0; k < kKnots; ++k) knots[k] = time_at(static_cast<double>(k)) > 0.75 * modeled ? 1 : 0;
  Corrected corrected;
  corrected.correction = Correction(knots);
  EXPECT_GT(corrected.correction.apply(modeled), 2 * modeled);
  corrected.link = 2 * links[1].peak;
  EXPECT_NEAR(corrected_time(call, {}, Transport::kMessages, choice, &corrected) / modeled, 1, 0.05);
}

TEST(Correction, StepRaisesEverythingBeyondIt) {
  Correction correction;
  correction.add({8, 0.5});
  EXPECT_DOUBLE_EQ(correction.log_ratio(time_at(7.9)), 0);
  EXPECT_DOUBLE_EQ(correction.log_ratio(time_at(8.1)), 0.5);
}

TEST(Correction, BlurredStepsRiseOverAnOctave) {
  Correction sharp;
  sharp.add({8, 0.5});
  const Correction blurred = sharp.blurred();
  for (const double knots : {-1.0, -0.5, 0.0, 0.5, 1.0}) {
    EXPECT_NEAR(blurred.log_ratio(time_at(8 + knots)), 0.25 * (1 + knots), 1e-12) << knots;
  }
  EXPECT_DOUBLE_EQ(blurred.log_ratio(time_at(9.5)), 0.5);
  // Mixtures keep it.
  EXPECT_NEAR(blurred.mixed(Correction(), 0.5).log_ratio(time_at(8.5)), 0.1875, 1e-12);
}

TEST(Correction, MixtureLiesBetween) {
  Correction::Knots low{}, high{};
  high.fill(1);
  Correction a(low), b(high);
  b.add({4, 1});
  const Correction mixture = a.mixed(b, 0.25);
  EXPECT_DOUBLE_EQ(mixture.log_ratio(time_at(2)), 0.25);
  EXPECT_DOUBLE_EQ(mixture.log_ratio(time_at(10)), 0.5);
}

}  // namespace
}  // namespace ns_dist::network
