#include "ns_dist/network_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "ns_dist/catalog.h"
#include "ns_dist/network_model.h"
#include "support/clusters.h"
#include "support/files.h"

namespace ns_dist {
namespace {

using namespace units;

// Measurements of a machine that takes `factor` times what NCCL's constants say.
std::vector<CollectiveMeasurement> measured(const Cluster& cluster, CollectiveKind kind, std::int64_t ranks,
                                            std::int64_t ranks_per_node, double factor) {
  const auto published = *make_network_model(cluster, {.calibrated = false});
  std::vector<CollectiveMeasurement> rows;
  for (double bytes = 512; bytes < 1e9; bytes *= 2) {
    const RankGroup group = *measured_group(cluster, ranks, ranks_per_node);
    const Forecast f = *published->forecast({kind, bytes * B, group});
    rows.push_back({0, kind, ranks, ranks_per_node, bytes * B, factor * f.latency});
  }
  return rows;
}

NetworkModelOptions with(const NetworkCalibration& calibration) {
  NetworkModelOptions options;
  options.calibration = std::make_shared<NetworkCalibration>(calibration);
  return options;
}

TEST(NetworkFit, RecoversAFactor) {
  const Cluster cluster = test::dgx_a100();
  const auto rows = measured(cluster, CollectiveKind::kAllGather, 8, 8, 1.3);
  const auto fitted = fit_network(std::vector{cluster}, rows);
  ASSERT_TRUE(fitted) << to_text(fitted.error());
  ASSERT_EQ(fitted->curves.size(), 1u);
  EXPECT_EQ(fitted->curves[0].fabric, "nvlink");
  EXPECT_EQ(fitted->curves[0].architecture, "ampere");
  for (const double value : fitted->curves[0].log_ratio) EXPECT_NEAR(value, std::log(1.3), 1e-6);
  const auto model = *make_network_model(cluster, with(*fitted));
  const auto published = *make_network_model(cluster, {.calibrated = false});
  const Collective unseen{CollectiveKind::kAllGather, 3e6 * B, {0, {{8, 1}}}};
  EXPECT_NEAR(model->forecast(unseen)->latency / published->forecast(unseen)->latency, 1.3, 1e-6);
}

// Sizes below 1 MiB scatter by 30 %, longer ones not at all: the interval is wide for the former alone.
TEST(NetworkFit, ShortMessagesHaveTheirOwnInterval) {
  const Cluster cluster = test::dgx_a100();
  std::vector<CollectiveMeasurement> rows = measured(cluster, CollectiveKind::kAllGather, 8, 8, 1.0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].size < 256 * KiB) rows[i].latency *= i % 2 == 0 ? 1.3 : 1 / 1.3;
  }
  const auto fitted = read_network_calibration(to_json(*fit_network(std::vector{cluster}, rows)), "test");
  ASSERT_TRUE(fitted);
  ASSERT_EQ(fitted->curves.size(), 1u);
  EXPECT_GT(fitted->curves[0].deviation_short, std::log(1.3) / 1.645) << "at least the scatter itself";
  EXPECT_LT(fitted->curves[0].deviation, 0.25 * fitted->curves[0].deviation_short);
  const auto model = *make_network_model(cluster, with(*fitted));
  const auto width = [&](Bytes size) {
    const Forecast f = *model->forecast({CollectiveKind::kAllGather, size, {0, {{8, 1}}}});
    return f.high / f.latency;
  };
  EXPECT_GT(width(64 * KiB), 1.3);
  EXPECT_LT(width(64 * MiB), 1.15);
}

// A curve that follows a lonely measurement says nothing of how far it is off there.
TEST(NetworkFit, IntervalCountsWhatTheCurveWasNotFittedOn) {
  const Cluster cluster = test::dgx_a100();
  std::vector<CollectiveMeasurement> rows = measured(cluster, CollectiveKind::kAllGather, 8, 8, 1.0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].size >= 1 * MiB) rows[i].latency *= i % 2 == 0 ? 1.1 : 1 / 1.1;
  }
  const auto fitted = *fit_network(std::vector{cluster}, rows, {.source = "", .smoothness = 1e-6});
  EXPECT_GT(fitted.curves[0].deviation, std::log(1.1) / 1.645);
}

// A size that was measured nine times more pulls no more at the curve.
TEST(NetworkFit, EverySizeCountsOnce) {
  const Cluster cluster = test::dgx_a100();
  std::vector<CollectiveMeasurement> rows = measured(cluster, CollectiveKind::kAllGather, 8, 8, 1.0);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].latency *= i % 2 == 0 ? 1.1 : 1 / 1.1;
  const auto once = *fit_network(std::vector{cluster}, rows);
  rows.insert(rows.end(), 9, CollectiveMeasurement(rows[10]));
  const auto often = *fit_network(std::vector{cluster}, rows);
  for (std::size_t k = 0; k < once.curves[0].log_ratio.size(); ++k) {
    EXPECT_NEAR(often.curves[0].log_ratio[k], once.curves[0].log_ratio[k], 1e-9);
  }
}

// Each size measured once 30 % above and once 30 % below the curve: all held-out errors are ln 1.3, that of nine in
// ten, too, which is 1.645 deviations of a normal distribution.
TEST(NetworkFit, TheDeviationHasNineOfTenErrorsWithin) {
  const Cluster cluster = test::dgx_a100();
  std::vector<CollectiveMeasurement> rows = measured(cluster, CollectiveKind::kAllGather, 8, 8, 1.3);
  const std::vector<CollectiveMeasurement> below = measured(cluster, CollectiveKind::kAllGather, 8, 8, 1 / 1.3);
  rows.insert(rows.end(), below.begin(), below.end());
  const auto fitted = *fit_network(std::vector{cluster}, rows);
  EXPECT_NEAR(fitted.curves[0].deviation, std::log(1.3) / 1.645, 1e-6);
  EXPECT_NEAR(fitted.curves[0].deviation_short, std::log(1.3) / 1.645, 1e-6);
}

// On a base that knows nothing, 0.15 counts as four measurements, beside ten of long messages, from 1 MiB, and eleven
// of short ones, all of which lie on the curve.
TEST(NetworkFit, FewMeasurementsLeaveDoubt) {
  const Cluster cluster = test::dgx_a100();
  const NetworkCalibration nothing;
  const auto fitted = *fit_network(std::vector{cluster}, measured(cluster, CollectiveKind::kAllGather, 8, 8, 1.0),
                                   {.source = "", .base = &nothing});
  EXPECT_NEAR(fitted.curves[0].deviation, 0.15 * std::sqrt(4.0 / (10 + 4)), 1e-6);
  EXPECT_NEAR(fitted.curves[0].deviation_short, 0.15 * std::sqrt(4.0 / (11 + 4)), 1e-6);
}

// Nobody knows whether a card with GDDR sends over PCIe alone or through the host's memory, four times slower on the
// measured one: in between, and the interval holds both. Who knows that GPUs reach each other has NCCL's constants.
TEST(NetworkFit, AnUnknownRouteLiesBetweenBoth) {
  Cluster cluster = test::dgx_a100();
  cluster.gpu.id = "measured", cluster.gpu.architecture = "ada", cluster.gpu.memory_type = "GDDR6";
  cluster.levels = {{{"pcie", "PCIe", FabricKind::kPcie, 32 * GB / s, 1 * us}, 8, 1, 1}};
  const auto fitted = *fit_network(std::vector{cluster}, measured(cluster, CollectiveKind::kAllGather, 8, 8, 4.0));
  cluster.id = cluster.gpu.id = "another", cluster.gpu.architecture = "blackwell";
  const Collective call{CollectiveKind::kAllGather, 64 * MiB, {0, {{8, 1}}}};
  const auto published = (*make_network_model(cluster, {.calibrated = false}))->forecast(call);
  const auto forecast = (*make_network_model(cluster, with(fitted)))->forecast(call);
  EXPECT_NEAR(forecast->latency / published->latency, 2, 1e-6);
  EXPECT_LT(forecast->low, published->latency);
  EXPECT_GT(forecast->high, 4 * published->latency);
  cluster.levels[0].fabric.peer_to_peer = true;
  EXPECT_EQ((*make_network_model(cluster, with(fitted)))->forecast(call)->latency, published->latency);
}

// Where no machine of the kind was measured, the slower route is that of a host which moves one message at a time, in
// and out: 2 x 8 ranks.
TEST(NetworkFit, ARouteThatNobodyMeasuredHoldsTheHostsOwn) {
  Cluster cluster = test::dgx_a100();
  cluster.gpu.memory_type = "GDDR7";
  cluster.levels = {{{"pcie", "PCIe", FabricKind::kPcie, 32 * GB / s, 1 * us}, 8, 1, 1}};
  const Collective call{CollectiveKind::kAllGather, 1 * GiB, {0, {{8, 1}}}};
  const auto published = (*make_network_model(cluster, {.calibrated = false}))->forecast(call);
  const auto forecast = (*make_network_model(cluster, with({})))->forecast(call);
  EXPECT_NEAR(forecast->latency / published->latency, 4, 0.01);
  EXPECT_LT(forecast->low, published->latency);
  EXPECT_GT(forecast->high, 16 * published->latency);
  EXPECT_TRUE(forecast->extrapolated);
  cluster.gpu.memory_type = "HBM2";  // its servers have switches of PCIe
  EXPECT_EQ((*make_network_model(cluster, with({})))->forecast(call)->latency, published->latency);
}

// Two machines of one family, 10 % apart: each keeps its own, a third of the family gets their mean.
TEST(NetworkFit, TellsTheGpusOfAFamilyApart) {
  std::vector<Cluster> clusters = {test::dgx_a100(), test::dgx_a100(), test::dgx_a100()};
  const char* ids[] = {"slow", "fast", "third"};
  for (std::size_t i = 0; i < 3; ++i) clusters[i].gpu.id = ids[i];
  std::vector<CollectiveMeasurement> rows = measured(clusters[0], CollectiveKind::kAllGather, 8, 8, 1.4);
  for (CollectiveMeasurement row : measured(clusters[1], CollectiveKind::kAllGather, 8, 8, 1.4 / 1.21)) {
    row.cluster = 1;
    rows.push_back(row);
  }
  const auto read = read_network_calibration(to_json(*fit_network(clusters, rows)), "test");
  ASSERT_TRUE(read);
  ASSERT_EQ(read->curves.size(), 3u);
  const Collective unseen{CollectiveKind::kAllGather, 3e6 * B, {0, {{8, 1}}}};
  const double factors[] = {1.4, 1.4 / 1.21, 1.4 / 1.1};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto forecast = (*make_network_model(clusters[i], with(*read)))->forecast(unseen);
    const auto published = (*make_network_model(clusters[i], {.calibrated = false}))->forecast(unseen);
    EXPECT_NEAR(forecast->latency / published->latency, factors[i], 1e-3) << ids[i];
  }
}

// A reduce-scatter of a size that nobody measured has the bump that all-gathers of that size have.
TEST(NetworkFit, AllGathersAndReduceScattersShareTheirShape) {
  const Cluster cluster = test::dgx_a100();
  std::vector<CollectiveMeasurement> rows;
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    for (CollectiveMeasurement row : measured(cluster, kind, 8, 8, kind == CollectiveKind::kAllGather ? 1.0 : 1.1)) {
      if (row.size == 32 * MiB) {
        if (kind == CollectiveKind::kReduceScatter) continue;
        row.latency *= 1.3;
      }
      rows.push_back(row);
    }
  }
  const auto fitted = *fit_network(std::vector{cluster}, rows);
  const Collective unseen{CollectiveKind::kReduceScatter, 32 * MiB, {0, {{8, 1}}}};
  const auto forecast = (*make_network_model(cluster, with(fitted)))->forecast(unseen);
  const auto published = (*make_network_model(cluster, {.calibrated = false}))->forecast(unseen);
  // Without the all-gathers it would be 1.1; smoothing takes a little of the bump away.
  EXPECT_GT(forecast->latency / published->latency, 1.1 * 1.2);
  EXPECT_LT(forecast->latency / published->latency, 1.1 * 1.3);
}

TEST(NetworkFit, HoldsForItsOwnClusterOnlyWhenAsked) {
  Cluster cluster = test::dgx_a100();
  const auto rows = measured(cluster, CollectiveKind::kAllReduce, 16, 8, 4.0);
  const auto fitted = *fit_network(std::vector{cluster}, rows, {.source = "", .for_one_cluster = true});
  EXPECT_EQ(fitted.curves[0].fabric, "network");
  const Collective call{CollectiveKind::kAllReduce, 64 * MiB, {0, {{16, 1}}}};
  const auto published = (*make_network_model(cluster, {.calibrated = false}))->forecast(call);
  const auto own = (*make_network_model(cluster, with(fitted)))->forecast(call);
  EXPECT_NEAR(own->latency / published->latency, 4, 1e-6);
  EXPECT_FALSE(own->extrapolated);
  cluster.id = "another";
  const auto other = (*make_network_model(cluster, with(fitted)))->forecast(call);
  EXPECT_DOUBLE_EQ(other->latency / s, published->latency / s);
  EXPECT_TRUE(other->extrapolated);
}

// Rows of one cluster that take `factor` times their forecasts.
std::vector<CollectiveMeasurement> forecast_rows(const Cluster& cluster, CollectiveKind kind, std::int64_t ranks,
                                                 std::int64_t per_node, std::vector<double> mebibytes, double factor,
                                                 double imbalance = 1) {
  const auto model = *make_network_model(cluster);
  std::vector<CollectiveMeasurement> rows;
  for (const double mib : mebibytes) {
    const RankGroup group = *measured_group(cluster, ranks, per_node);
    const Forecast f = *model->forecast({kind, mib * MiB, group, false, imbalance});
    rows.push_back({0, kind, ranks, per_node, mib * MiB, factor * f.latency, false, imbalance});
  }
  return rows;
}

NetworkFitOptions over_builtin() {
  return {.source = "", .for_one_cluster = true, .base = &builtin_network_calibration()};
}

// The forecast with what was fitted and the compiled-in curves, over that without.
double changed(const Cluster& cluster, const NetworkCalibration& fitted, const Collective& call) {
  return (*make_network_model(cluster, with(before_builtin(fitted))))->forecast(call)->latency /
         (*make_network_model(cluster))->forecast(call)->latency;
}

// All-to-alls of two L40S servers take as long as their transfers inside: they say nothing of the network.
TEST(NetworkFit, RowsThatTheirNodesDecideTellNothingOfTheNetwork) {
  const Cluster cluster = *Catalog::built_in().cluster("l40s-server");
  std::vector<CollectiveMeasurement> rows =
      forecast_rows(cluster, CollectiveKind::kAllToAll, 16, 8, {1, 16, 64, 1024}, 1.2);
  const auto nothing = fit_network(std::vector{cluster}, rows, over_builtin());
  ASSERT_FALSE(nothing);
  EXPECT_NE(nothing.error().message.find("no measurement tells of the network"), std::string::npos);
  const auto far = forecast_rows(cluster, CollectiveKind::kAllToAll, 128, 8, {16, 64, 1024}, 1.2);
  rows.insert(rows.end(), far.begin(), far.end());
  const auto fitted = *fit_network(std::vector{cluster}, rows, over_builtin());
  EXPECT_EQ(fitted.left_out, (std::vector<std::size_t>{0, 1, 2, 3}));
  EXPECT_NEAR(changed(cluster, fitted, {CollectiveKind::kAllToAll, 64 * MiB, {0, {{128, 1}}}}), 1.2, 0.01);
}

// Where the nodes decide by the forecast, but rows take much longer than that, the network decides.
TEST(NetworkFit, RowsThatTakeMuchLongerThanTheirNodesTellOfTheNetwork) {
  const Cluster cluster = *Catalog::built_in().cluster("dgx-h100");
  std::vector<CollectiveMeasurement> rows = forecast_rows(cluster, CollectiveKind::kAllReduce, 8, 8, {64, 256}, 1.3);
  for (const CollectiveMeasurement& inside : std::vector(rows)) {
    rows.push_back({0, inside.kind, 16, 8, inside.size, 1.6 * inside.latency});
  }
  const auto fitted = *fit_network(std::vector{cluster}, rows, over_builtin());
  EXPECT_TRUE(fitted.left_out.empty());
  const Collective call{CollectiveKind::kAllReduce, 256 * MiB, {0, {{16, 1}}}};
  const auto model = *make_network_model(cluster, with(before_builtin(fitted)));
  EXPECT_NEAR(model->forecast(call)->latency / rows.back().latency, 1, 0.02);
}

// What was measured inside a node of this table decides what its rows across nodes tell.
TEST(NetworkFit, SlowerNodesOfTheSameTableTakeTheirShare) {
  const Cluster cluster = *Catalog::built_in().cluster("dgx-h100");
  std::vector<CollectiveMeasurement> rows =
      forecast_rows(cluster, CollectiveKind::kAllGather, 8, 8, {64, 256, 1024}, 3);
  for (const CollectiveMeasurement& inside : std::vector(rows)) {
    rows.push_back({0, inside.kind, 32, 8, inside.size, inside.latency});  // as long as in a node
  }
  const auto fitted = *fit_network(std::vector{cluster}, rows, over_builtin());
  EXPECT_EQ(fitted.left_out, (std::vector<std::size_t>{3, 4, 5}));
}

// Measurements equal to the forecasts change nothing, whatever decides and however uneven they are.
TEST(NetworkFit, RowsAsForecastChangeNothing) {
  for (const char* name : {"dgx-h100", "l40s-server", "gb200-nvl72"}) {
    const Cluster cluster = *Catalog::built_in().cluster(name);
    const std::int64_t node = cluster.gpus_per_node();
    std::vector<CollectiveMeasurement> rows;
    for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllToAll}) {
      for (const std::int64_t nodes : {1, 2, 16}) {
        for (const double imbalance : {1.0, 1.5}) {
          if (imbalance > 1 && kind != CollectiveKind::kAllToAll) continue;
          const auto more = forecast_rows(cluster, kind, nodes * node, node, {0.01, 1, 64, 1024}, 1, imbalance);
          rows.insert(rows.end(), more.begin(), more.end());
        }
      }
    }
    const auto fitted = *fit_network(std::vector{cluster}, rows, over_builtin());
    for (const CollectiveMeasurement& row : rows) {
      const Collective call{row.kind, row.size, *measured_group(cluster, row.ranks, row.ranks_per_node), false,
                            row.imbalance};
      EXPECT_NEAR(changed(cluster, fitted, call), 1, 1e-6) << name << name_of(row.kind) << row.ranks << row.size / MiB;
    }
  }
}

// One row across two nodes is certain there, and less and less so with other sizes and numbers of nodes.
TEST(NetworkFit, ARowAcrossNodesIsCertainWhereItWasMeasured) {
  const Cluster cluster = *Catalog::built_in().cluster("dgx-h100");
  const auto fitted = read_network_calibration(
      to_json(*fit_network(std::vector{cluster}, forecast_rows(cluster, CollectiveKind::kAllReduce, 16, 8, {64}, 3),
                           over_builtin())),
      "test");
  ASSERT_TRUE(fitted) << to_text(fitted.error());
  const auto model = *make_network_model(cluster, with(before_builtin(*fitted)));
  const auto plain = *make_network_model(cluster);
  const auto of = [&](Bytes size, std::int64_t ranks) {
    return *model->forecast({CollectiveKind::kAllReduce, size, {0, {{ranks, 1}}}});
  };
  EXPECT_FALSE(of(64 * MiB, 16).extrapolated);
  EXPECT_FALSE(of(100 * MiB, 32).extrapolated) << "less than twice as far";
  for (const auto& [size, ranks] : {std::pair(64 * MiB, 1024), std::pair(8 * B, 16), std::pair(8 * B, 1024)}) {
    const Forecast near = of(64 * MiB, 16), far = of(size, ranks);
    EXPECT_TRUE(far.extrapolated) << ranks;
    EXPECT_GT(far.high / far.low, 1.5 * (near.high / near.low)) << ranks;
  }
  // Where nothing alike was measured, the interval holds that there is no correction.
  EXPECT_LT(of(8 * B, 16).low, plain->forecast({CollectiveKind::kAllReduce, 8 * B, {0, {{16, 1}}}})->latency);
}

// What was measured is forecast so, wherever it was: in a rack, between GPUs of AMD, and of integers across nodes.
TEST(NetworkFit, EachRowOfItsOwnClusterIsReadAgain) {
  struct Case {
    const char* cluster;
    CollectiveKind kind;
    std::int64_t ranks, per_node;
  };
  for (const auto& [id, kind, ranks, per_node] :
       {Case{"gb200-nvl72", CollectiveKind::kAllReduce, 36, 36}, Case{"gb200-nvl72", CollectiveKind::kAllToAll, 72, 72},
        Case{"gb200-nvl72", CollectiveKind::kAllGather, 8, 8}, Case{"mi300x-node", CollectiveKind::kAllReduce, 8, 8},
        Case{"dgx-h100", CollectiveKind::kReduceScatter, 16, 8}}) {
    const Cluster cluster = *Catalog::built_in().cluster(id);
    std::vector<CollectiveMeasurement> rows = forecast_rows(cluster, kind, ranks, per_node, {16, 64, 256}, 3);
    if (kind == CollectiveKind::kReduceScatter) {
      for (CollectiveMeasurement row : forecast_rows(cluster, kind, ranks, per_node, {16, 64, 256}, 9)) {
        row.integer = true;
        rows.push_back(row);
      }
    }
    const auto fitted = fit_network(std::vector{cluster}, rows, over_builtin());
    ASSERT_TRUE(fitted) << to_text(fitted.error());
    const auto model = *make_network_model(cluster, with(before_builtin(*fitted)));
    for (const CollectiveMeasurement& row : rows) {
      const RankGroup group = *measured_group(cluster, row.ranks, row.ranks_per_node);
      const Forecast forecast = *model->forecast({row.kind, row.size, group, row.integer});
      EXPECT_NEAR(forecast.latency / row.latency, 1, 0.02) << id << row.ranks << row.integer;
      EXPECT_FALSE(forecast.extrapolated) << id;
    }
  }
}

// Measurements end the doubt about the route of transfers.
TEST(NetworkFit, AMeasuredRouteIsKnown) {
  const Cluster cluster = *Catalog::built_in().cluster("rtx-4090-server");
  const auto rows =
      forecast_rows(cluster, CollectiveKind::kAllGather, 8, 8, {16, 32, 64, 128, 256, 512, 1024, 2048}, 1.5);
  const auto fitted = *fit_network(std::vector{cluster}, rows, over_builtin());
  const Collective call{CollectiveKind::kAllGather, 400 * MiB, {0, {{8, 1}}}};
  const Forecast before = *(*make_network_model(cluster))->forecast(call);
  const Forecast after = *(*make_network_model(cluster, with(before_builtin(fitted))))->forecast(call);
  EXPECT_GT(before.high / before.low, 10);
  EXPECT_LT(after.high / after.low, 1.5);
}

TEST(NetworkFit, UnmeasuredFamilyGetsPartOfWhatIsKnown) {
  const Cluster ampere = test::dgx_a100();
  const auto fitted = *fit_network(std::vector{ampere}, measured(ampere, CollectiveKind::kAllGather, 8, 8, 1.5));
  Cluster hopper = ampere;
  hopper.gpu.architecture = "hopper";
  const Collective call{CollectiveKind::kAllGather, 256 * MiB, {0, {{8, 1}}}};
  const auto published = (*make_network_model(hopper, {.calibrated = false}))->forecast(call);
  const auto forecast = (*make_network_model(hopper, with(fitted)))->forecast(call);
  // One family known: half of the logarithm.
  EXPECT_NEAR(forecast->latency / published->latency, std::sqrt(1.5), 1e-6);
  EXPECT_TRUE(forecast->extrapolated);
  EXPECT_GT((forecast->high - forecast->low) / forecast->latency, 0.3);
}

TEST(NetworkFit, JsonComesBackTheSame) {
  const Cluster cluster = test::dgx_a100();
  NetworkCalibration calibration =
      *fit_network(std::vector{cluster}, measured(cluster, CollectiveKind::kReduceScatter, 4, 4, 1.25));
  calibration.source = "a \"quoted\" source";
  calibration.curves[0].cluster = "dgx-a100";
  calibration.curves[0].integer = true;
  calibration.curves[0].steps.assign(13, {20 * us, 0.25});
  EXPECT_THAT(to_text(read_network_calibration(to_json(calibration), "test").error()),
              ::testing::HasSubstr("13 steps; expected at most 12"));
  calibration.curves[0].steps = {{20 * us, 0.25}};
  const std::string text = to_json(calibration);
  const auto read = read_network_calibration(text, "memory");
  ASSERT_TRUE(read) << to_text(read.error());
  EXPECT_EQ(to_json(*read), text);
  EXPECT_EQ(read->curves[0].cluster, "dgx-a100");
  EXPECT_TRUE(read->curves[0].integer);
  EXPECT_EQ(read->curves[0].steps.size(), 1u);
}

TEST(NetworkFit, RefusesBrokenFiles) {
  for (const char* text :
       {"", "[]", "{}", R"({"schema": "ns-dist/network-calibration/2", "curves": []})",
        R"({"schema": "ns-dist/network-calibration/1"})",
        R"({"schema": "ns-dist/network-calibration/1", "curves": [], "curve": 1})",
        R"({"schema": "ns-dist/network-calibration/1", "curves": [{"fabric": "nvlink"}]})",
        R"({"schema": "ns-dist/network-calibration/1", "curves": [{"fabric": "nvlink", "collective": "all_reduce",
            "ranks": 8, "ranks_per_node": 8, "deviation": 0.1, "log_ratio": [1, 2, 3]}]})"}) {
    EXPECT_FALSE(read_network_calibration(text, "memory")) << text;
  }
  NetworkCalibration unknown = builtin_network_calibration();
  unknown.curves.front().fabric = "nvlnk";
  const auto refused = read_network_calibration(to_json(unknown), "memory");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().where, "memory#/curves/0/fabric");
}

TEST(NetworkFit, RefusesMeasurementsThatCannotBe) {
  const std::vector<Cluster> clusters = {test::dgx_a100(2)};
  const auto refused = [&](const CollectiveMeasurement& m) {
    return !fit_network(clusters, std::vector{m}).has_value();
  };
  EXPECT_TRUE(refused({1, CollectiveKind::kAllReduce, 8, 8, 1 * MiB, 1 * ms}));
  EXPECT_TRUE(refused({0, CollectiveKind::kAllReduce, 1, 1, 1 * MiB, 1 * ms}));
  EXPECT_TRUE(refused({0, CollectiveKind::kAllReduce, 8, 3, 1 * MiB, 1 * ms}));
  EXPECT_TRUE(refused({0, CollectiveKind::kAllReduce, 16, 16, 1 * MiB, 1 * ms}));
  EXPECT_TRUE(refused({0, CollectiveKind::kAllReduce, 8, 8, 0 * MiB, 1 * ms}));
  EXPECT_TRUE(refused({0, CollectiveKind::kAllReduce, 8, 8, 1 * MiB, -1 * ms}));
  EXPECT_TRUE(refused({0, CollectiveKind::kAllReduce, 8, 8, 1 * MiB, std::nan("") * ms}));
  EXPECT_FALSE(fit_network(clusters, {}));
}

TEST(NetworkFit, BuiltInCurvesAreComplete) {
  const NetworkCalibration& builtin = builtin_network_calibration();
  EXPECT_FALSE(builtin.curves.empty());
  for (const CalibrationCurve& curve : builtin.curves) EXPECT_EQ(curve.log_ratio.size(), 23u);
}

// The tables that the build makes of weights/ are what the strict reader reads there.
TEST(NetworkFit, BuiltInCurvesAreTheFilesOfWeights) {
  const std::filesystem::path folder = std::filesystem::path(NS_DIST_SOURCE_DIR) / "network_model" / "weights";
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  NetworkCalibration all;
  for (const std::filesystem::path& file : files) {
    const auto read = read_network_calibration(read_text(file), file.string());
    ASSERT_TRUE(read) << to_text(read.error());
    all.curves.insert(all.curves.end(), read->curves.begin(), read->curves.end());
    all.source += (all.source.empty() ? "" : "; ") + read->source;
  }
  for (CalibrationCurve& curve : all.curves) curve.compiled_in = true;
  EXPECT_EQ(all.curves.size(), builtin_network_calibration().curves.size());
  EXPECT_TRUE(all == builtin_network_calibration());
}

TEST(NetworkFit, DeepNestingIsRefusedAndNotPrinted) {
  const std::string deep(200'000, '[');
  for (const std::string& text :
       std::vector<std::string>{deep, "{\"schema\": " + deep + std::string(200'000, ']') + "}",
                                R"({"schema": [[[[[[[[[[[[1]]]]]]]]]]]], "curves": []})"}) {
    const auto read = read_network_calibration(text, "memory");
    ASSERT_FALSE(read);
    EXPECT_LT(to_text(read.error()).size(), 300u);
  }
}

}  // namespace
}  // namespace ns_dist
