#include "ns_dist/network_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "ns_dist/catalog.h"
#include "support/clusters.h"

namespace ns_dist {
namespace {

using namespace units;
using testing::Contains;
using testing::Field;
using testing::HasSubstr;

std::unique_ptr<NetworkCost> model_of(const Cluster& cluster, const NetworkModelOptions& options = {}) {
  auto model = make_network_model(cluster, options);
  EXPECT_TRUE(model) << (model ? "" : to_text(model.error()));
  return std::move(*model);
}

TEST(NetworkModel, LongRingAllReduceReachesNcclsBandwidth) {
  // nccl-tests' bus bandwidth on a DGX A100 with 8 GPUs is 220-235 GB/s of 300 GB/s.
  const auto model = model_of(test::dgx_a100());
  const Collective call{CollectiveKind::kAllReduce, 1 * GiB, {0, {{8, 1}}}};
  const Forecast f = *model->forecast(call);
  const double bus = 2.0 * 7 / 8 * (call.size / f.latency) / (GB / s);
  EXPECT_GT(bus, 210);
  EXPECT_LT(bus, 240);
  EXPECT_EQ(f.bound, Bound::kBandwidth);
}

TEST(NetworkModel, OneRankANodeIsBoundByItsPort) {
  const auto model = model_of(test::dgx_a100());
  const Forecast f = *model->forecast({CollectiveKind::kAllGather, 1 * GiB, {0, {{4, 8}}}});
  EXPECT_DOUBLE_EQ(f.floor / s, 0.75 * (1 * GiB / B) / 25e9);
  EXPECT_GT(f.latency, f.floor);
  EXPECT_LT(f.latency, 1.2 * f.floor);
}

TEST(NetworkModel, RanksOfANodeUseAllTheirPorts) {
  const auto model = model_of(test::dgx_a100());
  const Forecast one = *model->forecast({CollectiveKind::kAllGather, 1 * GiB, {0, {{4, 8}}}});
  const Forecast four = *model->forecast({CollectiveKind::kAllGather, 1 * GiB, {0, {{4, 1}, {4, 8}}}});
  EXPECT_NEAR(one.latency / four.latency, 4 * (3.0 / 4) / (15.0 / 16), 0.1);
}

// Of a ring, or a pipeline, that fills a node, one GPU sends out of it, and has the port that all of its GPUs share. Of
// a ring with one rank in each node, all GPUs send: each has its part.
TEST(NetworkModel, AMessageHasThePortsThatTheOthersDoNotUse) {
  Cluster cluster = test::dgx_a100();
  cluster.levels[1].nics_per_gpu = 1.0 / 8;
  const auto model = model_of(cluster);
  Collective across{CollectiveKind::kSendRecv, 1 * GiB, {0, {{2, 8}}}};
  const auto rate = [&](const Collective& call) { return call.size / model->forecast(call)->latency / (GB / s); };
  const double shared = rate(across);
  EXPECT_LT(shared, 25.0 / 8);
  for (Stride Collective::*all : {&Collective::ring, &Collective::stages}) {
    Collective one = across;
    one.*all = {16, 1};
    EXPECT_NEAR(rate(one) / shared, 8, 0.1);
    one.*all = {8, 2};  // two such rings
    EXPECT_NEAR(rate(one) / shared, 4, 0.05);
    one.*all = {2, 8};
    EXPECT_NEAR(rate(one) / shared, 1, 1e-9);
  }
  // A ring's step takes as long as one of the all-gather by the same ring.
  Collective step = across;
  step.ring = {16, 1};
  const Forecast gather = *model->forecast({CollectiveKind::kAllGather, 16 * GiB, {0, {{16, 1}}}});
  EXPECT_NEAR(gather.latency / model->forecast(step)->latency, 15, 0.5);
}

// Over PCIe through the host, many senders are slower than two: a ring's step is one of the all-gather's.
TEST(NetworkModel, RingsThroughAHostSendAtOnce) {
  const auto model = model_of(*Catalog::standard().cluster("l40s-server"));
  Collective step{CollectiveKind::kSendRecv, 16 * MiB, {0, {{2, 4}}}};
  const Seconds alone = model->forecast(step)->latency;
  step.ring = {8, 1};
  const Seconds gather = model->forecast({CollectiveKind::kAllGather, 8 * 16 * MiB, {0, {{8, 1}}}})->latency;
  EXPECT_EQ(model->forecast(step)->latency, gather / 7);
  EXPECT_GT(gather / 7, 2 * alone);
  const Seconds of_three = model->forecast({CollectiveKind::kAllGather, 3 * 16 * MiB, {0, {{3, 1}}}})->latency;
  step = {CollectiveKind::kSendRecv, 16 * MiB, {0, {{2, 1}}}};
  step.ring = {3, 1};
  EXPECT_EQ(model->forecast(step)->latency, of_three / 2);
}

// Racks of 72 GPUs have a network as wide as they are, and corrections for each of the two were measured on other
// machines.
TEST(NetworkModel, TwoRacksAreNotFasterThanOne) {
  for (const char* name : {"gb200-nvl72", "hgx-b200", "dgx-h100"}) {
    const Cluster cluster = *Catalog::standard().cluster(name);
    const std::int64_t rack = cluster.gpus_per_node();
    const auto model = model_of(cluster);
    for (const CollectiveKind kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
      for (const double mib : {0.01, 1.0, 64.0, 1024.0}) {
        const auto seconds = [&](const RankGroup& group) { return model->forecast({kind, mib * MiB, group})->latency; };
        EXPECT_GE(seconds({0, {{2 * rack, 1}}}), seconds({0, {{rack, 1}}})) << name << name_of(kind) << mib;
        EXPECT_GE(seconds({0, {{rack, 1}}}), 0.999 * seconds({0, {{2, 1}}})) << name << name_of(kind) << mib;
      }
    }
  }
}

// `explain` names the node wherever it decides, and then the node's time is the answer.
TEST(NetworkModel, AnExplanationNamesTheNodeThatDecides) {
  const Cluster cluster = *Catalog::standard().cluster("gb200-nvl72");
  const auto model = model_of(cluster);
  int named = 0, silent = 0;
  for (const double mib : {0.01, 64.0, 4096.0}) {
    const RankGroup two{0, {{144, 1}}}, one{0, {{72, 1}}};
    const Explanation told = *model->explain({CollectiveKind::kAllReduce, mib * MiB, two});
    const Forecast alone = *model->forecast({CollectiveKind::kAllReduce, mib * MiB, one});
    const bool decides = std::any_of(told.steps.begin(), told.steps.end(),
                                     [](const auto& step) { return step.name == "one node alone"; });
    (decides ? named : silent) += 1;
    EXPECT_EQ(decides, told.forecast.latency == alone.latency) << mib;
  }
  EXPECT_GT(named, 0);
  EXPECT_GT(silent, 0);
}

// Two of eight MI300X, of four GH200, of four V100: what one link, or the pair of it, takes. MI250's pairs are unequal.
TEST(NetworkModel, PairsOfTheCatalogsMeshesHaveTheirLinksAlone) {
  for (const auto& [name, gigabytes] :
       {std::pair("mi300x-node", 64.0), std::pair("mi355x-node", 76.8), std::pair("mi100-server", 46.0),
        std::pair("gh200-quad", 150.0), std::pair("jean-zay-v100", 50.0), std::pair("h100-pcie-bridged", 300.0),
        std::pair("frontier", 150.0), std::pair("dgx-1-v100", 150.0)}) {
    const auto model = model_of(*Catalog::standard().cluster(name));
    const Forecast f = *model->forecast({CollectiveKind::kSendRecv, 1 * GB, {0, {{2, 1}}}});
    EXPECT_NEAR(1 / (f.floor / s), gigabytes, 1e-9 * gigabytes) << name;
  }
}

// Where the node decides, its own certainty counts, and not that of the network. Nobody knows which route this
// machine's transfers take in a node.
TEST(NetworkModel, TheIntervalIsThatOfWhatDecides) {
  const auto model = model_of(*Catalog::standard().cluster("rtx-pro-6000-server-node"));
  const Forecast one = *model->forecast({CollectiveKind::kAllReduce, 64 * MiB, {0, {{8, 1}}}});
  const Forecast two = *model->forecast({CollectiveKind::kAllReduce, 64 * MiB, {0, {{16, 1}}}});
  ASSERT_EQ(two.latency, one.latency) << "the node decides";
  EXPECT_EQ(two.high, one.high);
  EXPECT_GE(one.high, 4 * one.latency);
  EXPECT_LE(two.low, 0.3 * two.latency);
  EXPECT_TRUE(two.extrapolated);
}

// Where the network decides by little, the node may still be what takes longer: its route is not known here.
TEST(NetworkModel, TheIntervalHoldsThatOfTheNodeToo) {
  const auto model = model_of(*Catalog::standard().cluster("rtx-4090-server"));
  int network = 0;
  for (double bytes = 1e4; bytes < 1e9; bytes *= 1.3) {
    const Forecast one = *model->forecast({CollectiveKind::kAllReduce, bytes * B, {0, {{8, 1}}}});
    const Forecast many = *model->forecast({CollectiveKind::kAllReduce, bytes * B, {0, {{64, 1}}}});
    EXPECT_GE(many.high, one.high) << bytes;
    EXPECT_GE(many.low, one.low) << bytes;
    network += many.latency > one.latency ? 1 : 0;
  }
  EXPECT_GT(network, 5);
}

// Of an all-gather between two ranks a half crosses PCIe, at 0.75 of its rate. The copy of the other half takes no time
// of the link: memory is a hundred times as fast.
TEST(NetworkModel, OnlyWhatTravelsTakesTheTimeOfPcie) {
  const auto model = model_of(*Catalog::standard().cluster("a100-pcie-80gb-server"));
  const Forecast pair = *model->forecast({CollectiveKind::kAllGather, 1024 * MiB, {0, {{2, 1}}}});
  EXPECT_NEAR(pair.latency / (512 * MiB / (0.75 * 32 * GB / s)), 1, 0.01);
  const Forecast exchange = *model->forecast({CollectiveKind::kAllToAll, 1024 * MiB, {0, {{2, 1}}}});
  EXPECT_NEAR(exchange.latency / pair.latency, 1, 0.01);
}

// Two channels of a port have buffers of 4 MiB, and a round trip of 2 ms for each: 4.2 GB/s, whatever the port could
// do.
TEST(NetworkModel, LongLatenciesLimitWhatIsOnItsWay) {
  Cluster cluster = *Catalog::standard().cluster("dgx-h100");
  const auto rate = [&](Seconds latency) {
    cluster.levels.back().fabric.latency = latency;
    const Forecast sent = *model_of(cluster)->forecast({CollectiveKind::kSendRecv, 4 * GB, {0, {{2, 8}}}});
    return 4 * GB / sent.latency;
  };
  EXPECT_NEAR(rate(1 * ms) / (GB / s), 2 * 4.194304 / 2, 0.05);
  EXPECT_NEAR(rate(10 * us) / rate(2 * us), 1, 0.01);
}

// The transfers in an L40S server go through its host. What stays in a node takes as long as it does there alone: of an
// all-to-all, a gather or a scatter the half of two nodes, of a broadcast or a reduction all of it.
TEST(NetworkModel, WhatStaysInANodeIsNotFasterThanThere) {
  const auto model = model_of(*Catalog::standard().cluster("l40s-server"));
  for (const auto& [kind, share] :
       {std::pair(CollectiveKind::kAllToAll, 0.5), std::pair(CollectiveKind::kGather, 0.5),
        std::pair(CollectiveKind::kScatter, 0.5), std::pair(CollectiveKind::kBroadcast, 1.0),
        std::pair(CollectiveKind::kReduce, 1.0), std::pair(CollectiveKind::kAllGather, 1.0)}) {
    for (const double mib : {1.5, 64.0}) {  // half of 1.5 MiB has the interval of short messages
      const Forecast two = *model->forecast({kind, mib * MiB, {0, {{16, 1}}}});
      const Forecast one = *model->forecast({kind, share * mib * MiB, {0, {{8, 1}}}});
      EXPECT_EQ(two.latency, one.latency) << name_of(kind) << mib;
      EXPECT_GE(two.high, one.high) << name_of(kind) << mib;
    }
  }
  // A rank a node has nothing that stays.
  const Forecast apart = *model->forecast({CollectiveKind::kAllToAll, 64 * MiB, {0, {{2, 8}}}});
  EXPECT_LT(apart.latency, 10 * ms);
}

// One server with L40S was measured, and others may have another route: the forecast is that server's, the interval
// holds direct transfers, too.
TEST(NetworkModel, OneServersRouteIsNotEveryServers) {
  Cluster cluster = *Catalog::standard().cluster("l40s-server");
  const Collective call{CollectiveKind::kAllReduce, 256 * MiB, {0, {{8, 1}}}};
  const Forecast measured = *model_of(cluster)->forecast(call);
  EXPECT_THAT(model_of(cluster)->explain(call)->steps,
              Contains(Field(&ExplanationStep::note, HasSubstr("one server"))));
  cluster.levels.front().fabric.peer_to_peer = true;
  const Forecast direct = *model_of(cluster)->forecast(call);
  EXPECT_GT(measured.latency, 10 * direct.latency);
  EXPECT_LE(measured.low, direct.latency);
  EXPECT_LT(measured.high, 1.3 * measured.latency);
}

// A GPU whose file changes that of a measured one is forecast from the same curves, and not called measured.
TEST(NetworkModel, AGpuLikeAMeasuredOneHasItsCurves) {
  Cluster cluster = *Catalog::standard().cluster("l40s-server");
  const Collective call{CollectiveKind::kAllGather, 64 * MiB, {0, {{8, 1}}}};
  const Forecast measured = *model_of(cluster)->forecast(call);
  cluster.id = "mine", cluster.gpu.id = "my-card";
  const Forecast unknown = *model_of(cluster)->forecast(call);
  EXPECT_LT(unknown.latency, 0.8 * measured.latency);
  cluster.gpu.like = "l40s";
  const Forecast like = *model_of(cluster)->forecast(call);
  EXPECT_EQ(like.latency, measured.latency);
  EXPECT_FALSE(measured.extrapolated);
  EXPECT_TRUE(like.extrapolated);
  // Links of another bandwidth were not measured.
  Cluster nvlink = *Catalog::standard().cluster("dgx-h100");
  const auto width_of = [&](double times, bool* extrapolated) {
    Cluster changed = nvlink;
    changed.levels.front().fabric.bandwidth *= times;
    const Forecast forecast = *model_of(changed)->forecast(call);
    *extrapolated = forecast.extrapolated;
    return forecast.high / forecast.low;
  };
  bool usual = true, twice = true, four_times = false;
  EXPECT_LT(width_of(1, &usual), width_of(1.9, &twice));
  EXPECT_GT(width_of(4, &four_times), width_of(1.9, &twice));
  EXPECT_FALSE(usual || twice);
  EXPECT_TRUE(four_times);
  // Twice the bandwidth halves its transfers, and no more.
  cluster.levels.front().fabric.bandwidth *= 2;
  const Forecast faster = *model_of(cluster)->forecast(call);
  EXPECT_GE(faster.latency, 0.5 * measured.latency);
  EXPECT_LT(faster.latency, 0.6 * measured.latency);
}

// The same for a node of two levels, four pairs of GPUs whose transfers over PCIe may go through the host.
TEST(NetworkModel, WhatStaysInANodeOfPairsIsNotFasterThanThere) {
  Cluster cluster = test::dgx_a100();
  cluster.gpu.id = "pairs";
  cluster.gpu.memory_type = "GDDR6";
  cluster.levels = {{{"bridge", "NVLink", FabricKind::kNvlink, 300 * GB / s, 0.6 * us}, 2, 1, 1},
                    {{"pcie", "PCIe", FabricKind::kPcie, 32 * GB / s, 1 * us}, 4, 1, 1},
                    {test::infiniband(10'000), 0, 1, 1}};
  const auto model = model_of(cluster);
  for (const auto& [kind, share] :
       {std::pair(CollectiveKind::kAllToAll, 0.5), std::pair(CollectiveKind::kGather, 0.5),
        std::pair(CollectiveKind::kBroadcast, 1.0), std::pair(CollectiveKind::kAllGather, 1.0),
        std::pair(CollectiveKind::kAllReduce, 1.0)}) {
    const Forecast two = *model->forecast({kind, 64 * MiB, {0, {{16, 1}}}});
    const Forecast one = *model->forecast({kind, share * 64 * MiB, {0, {{8, 1}}}});
    EXPECT_EQ(two.latency, one.latency) << name_of(kind);
    EXPECT_GE(two.high, one.high) << name_of(kind);
  }
}

// Whether what leaves a server passes its host, as its own transfers do, was not measured: the interval holds both.
TEST(NetworkModel, WhatLeavesByPciePortsMayPassTheHost) {
  const auto model = model_of(*Catalog::standard().cluster("l40s-server"));
  for (const CollectiveKind kind : {CollectiveKind::kAllToAll, CollectiveKind::kGather, CollectiveKind::kScatter}) {
    for (const std::int64_t ranks : {16, 128}) {
      const Forecast many = *model->forecast({kind, 64 * MiB, {0, {{ranks, 1}}}});
      const double all = (1 - 1 / static_cast<double>(ranks)) / (1 - 1.0 / 8);
      const Forecast one = *model->forecast({kind, all * 64 * MiB, {0, {{8, 1}}}});
      EXPECT_LT(many.latency, 0.7 * one.latency) << name_of(kind) << ranks;
      EXPECT_NEAR(many.high / one.high, 1, 1e-9) << name_of(kind) << ranks;
    }
  }
  const auto nvlink = model_of(test::dgx_a100());
  const Forecast many = *nvlink->forecast({CollectiveKind::kAllToAll, 64 * MiB, {0, {{128, 1}}}});
  EXPECT_LT(many.high, 2 * many.latency);
}

// A step of a measured curve is where that collective changes its protocol. Those that were not measured change theirs
// elsewhere: their forecasts rise over an octave.
TEST(NetworkModel, MeasuredStepsOfOthersAreNoJumps) {
  for (const auto& [name, kind, ranks] :
       {std::tuple("dgx-a100", CollectiveKind::kBroadcast, 2), std::tuple("dgx-a100", CollectiveKind::kReduce, 2),
        std::tuple("gb200-nvl72", CollectiveKind::kAllGather, 12),
        std::tuple("hgx-b300", CollectiveKind::kReduceScatter, 5)}) {
    const auto model = model_of(*Catalog::standard().cluster(name));
    Seconds last = 1 * s;
    for (double bytes = 1024; bytes < 8e9; bytes *= 1.1) {
      const Forecast f = *model->forecast({kind, bytes * B, {0, {{ranks, 1}}}});
      EXPECT_LT(f.latency, 1.25 * last) << name << ' ' << name_of(kind) << ' ' << bytes;
      last = f.latency;
    }
  }
}

// A tenth more bytes is about as certain: at 1 MiB, where measured errors are counted apart, where NCCL changes the
// protocol, and where the switch begins to reduce. (L40S's intervals begin at direct transfers, which do not have the
// steps of the measured route.)
TEST(NetworkModel, IntervalsChangeLittleFromSizeToSize) {
  for (const char* name : {"l40s-server", "dgx-a100", "dgx-h100", "hgx-b300", "gb200-nvl72", "dgx-2"}) {
    const Cluster cluster = *Catalog::standard().cluster(name);
    const auto model = model_of(cluster);
    for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                      CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll}) {
      for (const std::int64_t ranks :
           {std::int64_t{2}, std::int64_t{4}, std::int64_t{8}, 64 * cluster.gpus_per_node()}) {
        double last = 0;
        for (double bytes = 1024; bytes < 8e9; bytes *= 1.1) {
          const Forecast f = *model->forecast({kind, bytes * B, {0, {{ranks, 1}}}});
          const double width = std::log(f.high / f.low);
          if (last > 0) {
            EXPECT_LT(std::max(width / last, last / width), cluster.gpu.has_gddr() ? 1.5 : 1.2)
                << name << ' ' << name_of(kind) << ' ' << ranks << ' ' << bytes;
          }
          last = width;
        }
      }
    }
  }
}

// Eight GPUs of a rack are measured. Of 72, most hops are NCCL's constants; of 16, one doubling in four.
TEST(NetworkModel, MoreRanksThanMeasuredAreLessCertain) {
  const auto model = model_of(*Catalog::standard().cluster("gb200-nvl72"));
  const auto uncalibrated = model_of(*Catalog::standard().cluster("gb200-nvl72"), {.calibrated = false});
  for (const double mib : {0.01, 1.0, 1024.0}) {
    double last = 0;
    for (const std::int64_t ranks : {8, 9, 16, 32, 72}) {
      const Collective call{CollectiveKind::kAllGather, mib * MiB, {0, {{ranks, 1}}}};
      const Forecast f = *model->forecast(call), constants = *uncalibrated->forecast(call);
      const double width = f.high / f.latency;
      EXPECT_GE(width, last) << mib << " MiB, " << ranks;
      EXPECT_LE(width, std::max(last, 1.02 * (constants.high / constants.latency))) << mib << " MiB, " << ranks;
      EXPECT_TRUE(mib > 2 || ranks == 8 || width > last) << mib << " MiB, " << ranks;
      last = width;
    }
  }
}

TEST(NetworkModel, EveryKindHasAnAlgorithm) {
  const auto model = model_of(test::dgx_a100());
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
        CollectiveKind::kAllToAll, CollectiveKind::kBroadcast, CollectiveKind::kReduce, CollectiveKind::kGather,
        CollectiveKind::kScatter, CollectiveKind::kBarrier}) {
    const auto f = model->forecast({kind, kind == CollectiveKind::kBarrier ? 0 * B : 1 * MiB, {0, {{16, 1}}}});
    ASSERT_TRUE(f) << name_of(kind) << ": " << to_text(f.error());
    EXPECT_GT(f->latency, 0 * s) << name_of(kind);
  }
  EXPECT_TRUE(model->forecast({CollectiveKind::kSendRecv, 1 * MiB, {0, {{2, 8}}}}));
}

TEST(NetworkModel, BusiestPortDecidesAnUnevenAllToAll) {
  // Two nodes of eight, 25 GB/s a rank: of 1 GB, half leaves the node; the busiest rank sends 1.5 times as much.
  const auto model = model_of(test::dgx_a100(), {.calibrated = false});
  Collective call{CollectiveKind::kAllToAll, 1 * GB, {0, {{16, 1}}}};
  const Forecast even = *model->forecast(call);
  call.imbalance = 1.5;
  const Forecast uneven = *model->forecast(call);
  EXPECT_NEAR(uneven.floor / s, 1.5 * 0.5 / 25, 1e-12);
  EXPECT_NEAR((uneven.latency - even.latency) / s, 0.5 * 0.5 / (0.94 * 25), 1e-9);
  EXPECT_TRUE(uneven.extrapolated) << "nobody measured one";
}

// Tokens of 1 GB go to 8 of 256 experts on 64 ranks, 8 nodes: one copy for each node, 7/8 of them to others.
TEST(NetworkModel, OneCopyOfATokenGoesToEachOfItsNodes) {
  const auto call = [](std::int64_t top_groups, double gigabytes = 1) {
    const Routing routing{256, 8, 8, top_groups};
    return Collective{.kind = CollectiveKind::kAllToAll,
                      .size = gigabytes * parts_reached(routing, 64) * GB,
                      .group = {0, {{64, 1}}},
                      .routing = routing};
  };
  const auto model = model_of(test::dgx_a100(), {.calibrated = false});
  const Forecast limited = *model->forecast(call(4)), all = *model->forecast(call(8));
  EXPECT_NEAR(limited.floor / s, 3.6290109244 * 7 / 8 / 25, 1e-10);
  EXPECT_NEAR(all.floor / s, 5.294652 * 7 / 8 / 25, 1e-8);
  EXPECT_NEAR((all.latency - limited.latency) / s, (5.294652 - 3.6290109) * 7 / 8 / (0.94 * 25), 1e-8);
  for (std::int64_t top = 2; top <= 8; ++top) {
    EXPECT_LE(model->forecast(call(top - 1))->latency, model->forecast(call(top))->latency) << top;
  }
  // Nodes that one network joins take equally long on two levels of it.
  Cluster racks = test::dgx_a100();
  racks.levels[1].size = 2;
  racks.levels.push_back({test::infiniband(25), 0, 1, 1});
  EXPECT_NEAR(model_of(racks, {.calibrated = false})->forecast(call(4))->floor / s, 3.6290109244 * 7 / 8 / 25, 1e-10)
      << "the cut around a node, whose ports lead to both";

  // Where the network is fast, links in the nodes decide: they carry a copy for each rank, 7/8 of them to others, and
  // a 64th that the rank keeps.
  Cluster fast = test::dgx_a100();
  fast.levels[1].fabric.bandwidth *= 1000;
  const auto inside = model_of(fast, {.calibrated = false});
  const double copies = parts_reached({256, 8, 8, 4}, 64);
  EXPECT_NEAR((inside->forecast(call(4, 2))->latency - inside->forecast(call(4))->latency) / s,
              copies * (7.0 / 8 + 0.35 / 64) / (0.8 * 300), 1e-9);

  // In one node, and with a rank on each node, an ordinary all-to-all of as many copies.
  for (const Stride& ranks : {Stride{8, 1}, Stride{8, 8}}) {
    Collective one = call(4);
    one.group = {0, {ranks}};
    Collective plain = one;
    plain.routing = {};
    EXPECT_EQ(model->forecast(one)->latency, model->forecast(plain)->latency) << ranks.stride;
  }
  Collective wrong = call(4);
  wrong.routing.groups = 7;
  EXPECT_FALSE(model->forecast(wrong));
  wrong = call(4);
  wrong.kind = CollectiveKind::kAllReduce;
  EXPECT_FALSE(model->forecast(wrong));
}

TEST(NetworkModel, DragonflyIsTwoLevelsTheOuterOneNarrower) {
  // Groups of 4 nodes; between groups half of what the nodes' ports reach.
  Cluster dragonfly = test::dgx_a100();
  dragonfly.levels[1].size = 4;
  dragonfly.levels.push_back({test::infiniband(25), 0, 1, 2});
  const auto model = model_of(dragonfly, {.calibrated = false});
  // All-to-all of two groups: half of 1 TB goes to the other group at 0.94 x 12.5 GB/s a GPU; in a group all but an
  // eighth of the nodes' traffic goes at 0.94 x 25.
  const Forecast both = *model->forecast({CollectiveKind::kAllToAll, 1e12 * B, {0, {{64, 1}}}});
  EXPECT_NEAR(both.latency / s, 0.5 * 1e12 / (0.94 * 12.5e9), 1e-3);
  const Forecast one = *model->forecast({CollectiveKind::kAllToAll, 1e12 * B, {0, {{32, 1}}}});
  EXPECT_NEAR(one.latency / s, 0.75 * 1e12 / (0.94 * 25e9), 1e-3);
}

TEST(NetworkModel, RefusesImpossibleImbalances) {
  const auto model = model_of(test::dgx_a100());
  for (const double imbalance : {0.0, 0.99, 8.01, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_FALSE(model->forecast({CollectiveKind::kAllToAll, 1 * MiB, {0, {{8, 1}}}, false, imbalance})) << imbalance;
  }
  EXPECT_TRUE(model->forecast({CollectiveKind::kAllToAll, 1 * MiB, {0, {{8, 1}}}, false, 8}));
  EXPECT_FALSE(model->forecast({CollectiveKind::kAllReduce, 1 * MiB, {0, {{8, 1}}}, false, 1.5}));
}

TEST(NetworkModel, RefusesWhatIsNoCollective) {
  const auto model = model_of(test::dgx_a100(2));
  const RankGroup group{0, {{8, 1}}};
  EXPECT_FALSE(model->forecast({CollectiveKind::kAllReduce, 0 * B, group}));
  EXPECT_FALSE(model->forecast({CollectiveKind::kAllReduce, -1 * B, group}));
  EXPECT_FALSE(model->forecast({CollectiveKind::kAllReduce, std::nan("") * B, group}));
  EXPECT_FALSE(model->forecast({CollectiveKind::kAllReduce, std::numeric_limits<double>::infinity() * B, group}));
  EXPECT_FALSE(model->forecast({CollectiveKind::kAllReduce, 1 * B, {0, {{1, 1}}}}));
  EXPECT_FALSE(model->forecast({CollectiveKind::kAllReduce, 1 * B, {0, {{17, 1}}}}));
  EXPECT_FALSE(model->forecast({CollectiveKind::kSendRecv, 1 * B, group}));
}

TEST(NetworkModel, ErrorsNameCollectivesWithTheirArticle) {
  const auto model = model_of(test::dgx_a100());
  const RankGroup one{0, {{1, 1}}};
  EXPECT_EQ(model->forecast({CollectiveKind::kAllReduce, 1 * B, one}).error().message, "an all_reduce of one rank");
  EXPECT_EQ(model->forecast({CollectiveKind::kBroadcast, 1 * B, one}).error().message, "a broadcast of one rank");
}

TEST(NetworkModel, RefusesUnknownNamesAndDeadLinks) {
  const auto unknown = make_network_model(test::dgx_a100(), {.algorithm = "rong"});
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().expected.find("ring"), std::string::npos);
  EXPECT_FALSE(make_network_model(test::dgx_a100(), {.protocol = "l"}));
  Cluster dead = test::dgx_a100();
  dead.levels[1].fabric.bandwidth = 0 * GB / s;
  EXPECT_FALSE(make_network_model(dead));
  dead.levels[1].fabric.bandwidth = std::nan("") * GB / s;
  EXPECT_FALSE(make_network_model(dead));
}

TEST(NetworkModel, ChoosesTheFastestAllowed) {
  const Cluster cluster = test::dgx_a100();
  const auto best = model_of(cluster);
  for (double bytes = 1; bytes < 4e9; bytes *= 3) {
    const Collective call{CollectiveKind::kAllReduce, bytes * B, {0, {{8, 1}, {4, 8}}}};
    Seconds fastest = 1e9 * s;
    for (const NetworkAlgorithm& algorithm : network_algorithms()) {
      if (!algorithm.automatic) continue;
      const auto f = model_of(cluster, {.algorithm = std::string(algorithm.name)})->forecast(call);
      if (f) fastest = min(fastest, f->latency);
    }
    EXPECT_EQ(best->forecast(call)->latency / s, fastest / s) << bytes;
  }
}

TEST(NetworkModel, ExplanationShowsLevelsAndTheChoice) {
  const auto model = model_of(test::dgx_a100());
  const auto e = model->explain({CollectiveKind::kAllReduce, 64 * MiB, {0, {{8, 1}, {4, 8}}}});
  ASSERT_TRUE(e);
  int levels = 0, chosen = 0;
  for (const ExplanationStep& step : e->steps) {
    levels += step.name.rfind("level", 0) == 0;
    chosen += step.name.rfind("chosen", 0) == 0;
  }
  EXPECT_EQ(levels, 2);
  EXPECT_EQ(chosen, 1);
}

}  // namespace
}  // namespace ns_dist
