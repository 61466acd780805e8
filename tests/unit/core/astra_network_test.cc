// Is a cluster the same machine in ASTRA-Sim's words?
#include "ns_dist/astra_network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/clusters.h"
#include "support/gpus.h"

namespace ns_dist {
namespace {

using namespace units;
using ::testing::HasSubstr;

FabricLevel level_of(FabricKind kind, double gigabytes_per_second, Seconds latency, std::int64_t size) {
  return {{"fabric", "fabric", kind, gigabytes_per_second * GB / s, latency}, size, 1, 1};
}

Cluster dgx_a100(std::int64_t nodes = 0) {
  Cluster cluster = test::dgx_a100(nodes);
  cluster.gpu.memory_bandwidth = a100().memory_bandwidth;
  return cluster;
}

TEST(AstraNetwork, ClusterKeepsItsBandwidthAndLatency) {
  const auto system = to_astra(dgx_a100(), 32);
  ASSERT_TRUE(system) << to_text(system.error());
  ASSERT_EQ(system->dimensions.size(), 2u);
  EXPECT_EQ(system->dimensions[0].npus, 8);
  EXPECT_EQ(system->dimensions[1].npus, 4);
  EXPECT_EQ(system->dimensions[0].topology, AstraTopology::kSwitch);
  EXPECT_NEAR(system->dimensions[0].bandwidth_gib * 1073741824, 300e9, 3000);
  EXPECT_DOUBLE_EQ(system->dimensions[0].latency_ns * 2, 600);
  // ASTRA-Sim would add three passes over a memory of such a bandwidth to each step of a reduction.
  EXPECT_EQ(system->local_memory_gbs, 0);
  EXPECT_TRUE(system->local_bandwidth_aware);
  for (const AstraDimension& d : system->dimensions) {
    EXPECT_EQ(d.algorithm.of(CollectiveKind::kAllReduce), "ring");
    EXPECT_EQ(d.algorithm.of(CollectiveKind::kAllToAll), "direct");
  }
  EXPECT_FALSE(to_astra(dgx_a100(2), 32));
  EXPECT_FALSE(to_astra(dgx_a100(), 1));
}

// ASTRA-Sim's network is a grid: 12 ranks on nodes of eight are none.
TEST(AstraNetwork, RanksThatDoNotFillNodesAreOneDimension) {
  const auto system = to_astra(dgx_a100(), 12);
  ASSERT_TRUE(system) << to_text(system.error());
  ASSERT_EQ(system->dimensions.size(), 1u);
  EXPECT_EQ(system->dimensions[0].npus, 12);
  EXPECT_NEAR(system->dimensions[0].bandwidth_gib * 1073741824, 25e9, 300);  // between nodes
  EXPECT_EQ(to_astra(dgx_a100(), 6)->dimensions[0].latency_ns, 300);         // in one node
}

TEST(AstraNetwork, ReadsWhatItWrites) {
  const auto system = to_astra(dgx_a100(), 32);
  ASSERT_TRUE(system);
  const auto read = read_astra_system(to_network_yml(*system), "network.yml",
                                      R"({"preferred-dataset-splits": 1, "collective-optimization": "localBWAware",
                                          "scheduling-policy": "FIFO",
                                          "all-reduce-implementation": ["ring", "ring"],
                                          "all-gather-implementation": ["ring", "ring"],
                                          "reduce-scatter-implementation": ["ring", "ring"],
                                          "all-to-all-implementation": ["direct", "direct"]})",
                                      "system.json");
  ASSERT_TRUE(read) << to_text(read.error());
  EXPECT_EQ(*read, *system);
}

TEST(AstraNetwork, ReadsOtherSpellingsOfTheYml) {
  const auto read = read_astra_system(
      "# a comment\n---\ntopology:\n  - \"Ring\"\n  - FullyConnected # here\nnpus_count: [ 4,\n  2 ]\r\nbandwidth: "
      "[50,1e1]\nlatency: [ 500, 7.5 ]\nother: 3\n",
      "n.yml", R"({"preferred-dataset-splits": 2, "local-mem-bw": 1600, "roofline-enabled": 1, "peak-perf": 900.5,
                   "all-reduce-implementation": ["direct4"], "endpoint-delay": 3, "unknown": [],
                   "scheduling-policy": "LIFO", "collective-optimization": "baseline"})",
      "s.json");
  ASSERT_TRUE(read) << to_text(read.error());
  ASSERT_EQ(read->dimensions.size(), 2u);
  EXPECT_EQ(read->dimensions[1].topology, AstraTopology::kFullyConnected);
  EXPECT_EQ(read->npus(), 8);
  EXPECT_EQ(read->dimensions[1].bandwidth_gib, 10);
  EXPECT_EQ(read->dimensions[0].algorithm.all_reduce, "direct4");
  EXPECT_EQ(read->dimensions[1].algorithm.all_reduce, "");  // the list reaches one dimension
  EXPECT_TRUE(read->roofline);
  EXPECT_EQ(read->splits, 2);
  EXPECT_EQ(read->notes,
            (std::vector<std::string>{"s.json#/all-reduce-implementation: 1 algorithm for 2 dimensions: ASTRA-Sim's "
                                      "collectives leave the others out"}))
      << "ASTRA-Sim ignores other keys, too";
}

TEST(AstraNetwork, KeysThatAreNearlyReadAreNoted) {
  const auto read = read_astra_system("topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 50 ]\nlatency: [ 500 ]\n",
                                      "n.yml", R"({"preferred-dataset-splits": 1, "all-reduce-implementaton": ["ring"],
                                          "scheduling-policy": "FIFO", "collective-optimization": "baseline",
                                          "comment": "mine"})",
                                      "s.json");
  ASSERT_TRUE(read) << to_text(read.error());
  EXPECT_EQ(read->notes, (std::vector<std::string>{"s.json#/all-reduce-implementaton: nobody reads it: did you mean "
                                                   "\"all-reduce-implementation\"?"}));
}

// ASTRA-Sim reads members that nothing sets. "oneRing" is one ring over all dimensions.
TEST(AstraNetwork, WhatNothingSetsIsNoted) {
  const auto read = read_astra_system(
      "topology: [ Ring, Ring ]\nnpus_count: [ 4, 2 ]\nbandwidth: [ 50, 50 ]\nlatency: [ 500, 500 ]\n", "n.yml",
      R"({"preferred-dataset-splits": 1, "all-reduce-implementation": ["oneRing"]})", "s.json");
  ASSERT_TRUE(read) << to_text(read.error());
  const std::string why = " is missing: ASTRA-Sim then reads a member that was never set";
  EXPECT_EQ(read->notes, (std::vector<std::string>{"s.json: \"scheduling-policy\"" + why,
                                                   "s.json: \"collective-optimization\"" + why}));
}

TEST(AstraNetwork, WrongFilesAreRefusedWithTheirPlace) {
  const std::string yml = "topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 50 ]\nlatency: [ 500 ]\n";
  const std::string json = R"({"preferred-dataset-splits": 1})";
  const auto text = [](const std::string& y, const std::string& j) {
    const auto read = read_astra_system(y, "n.yml", j, "s.json");
    return read ? std::string("accepted") : to_text(read.error());
  };
  EXPECT_EQ(text(yml, json), "accepted");
  EXPECT_THAT(text("topology: [ Mesh ]\nnpus_count: [ 4 ]\nbandwidth: [ 50 ]\nlatency: [ 500 ]\n", json),
              HasSubstr("n.yml#/topology/0: topology \"Mesh\"; expected Ring, FullyConnected or Switch"));
  EXPECT_THAT(text("topology: [ Ring ]\n", json), HasSubstr("\"npus_count\" is missing"));
  EXPECT_THAT(text(yml + "bandwidth: [ 1, 2 ]\n", json), HasSubstr("1, 1, 2 and 1 values"));
  EXPECT_THAT(text(yml + "npus_count: [ 1 ]\n", json), HasSubstr("n.yml#/npus_count/0"));
  EXPECT_THAT(text(yml + "latency: [ nan ]\n", json), HasSubstr("n.yml#/latency/0"));
  EXPECT_THAT(text(yml + "latency: [ 5\n", json), HasSubstr("not closed"));
  EXPECT_THAT(text("[ 5 ]\n", json), HasSubstr("n.yml:1"));
  EXPECT_THAT(text("- 5\n", json), HasSubstr("n.yml:1"));
  EXPECT_THAT(text("", json), HasSubstr("\"topology\" is missing"));
  EXPECT_THAT(text(yml, "{}"), HasSubstr("preferred-dataset-splits"));
  EXPECT_THAT(text(yml, "{"), HasSubstr("s.json"));
  EXPECT_THAT(text(yml, "[]"), HasSubstr("s.json"));
  EXPECT_THAT(text(yml, R"({"preferred-dataset-splits": 1, "all-reduce-implementation": ["ring", "ring"]})"),
              HasSubstr("2 algorithms for 1 dimensions"));
  EXPECT_THAT(text(yml, R"({"preferred-dataset-splits": 1, "all-reduce-implementation-custom": ["x"]})"),
              HasSubstr("not supported"));
}

TEST(AstraNetwork, FullConnectionsShareOutAGpusBandwidth) {
  // One link to each of the level's seven peers, however many of them take part.
  for (const std::int64_t npus : {2, 4, 8}) {
    const AstraDimension d = astra_dimension(level_of(FabricKind::kXgmi, 448, 600 * ns, 8), npus);
    EXPECT_EQ(d.topology, AstraTopology::kFullyConnected);
    EXPECT_NEAR(d.bandwidth_gib * 1073741824, 64e9, 640) << npus;
    EXPECT_DOUBLE_EQ(d.latency_ns, 600);
  }
  EXPECT_NEAR(astra_dimension(level_of(FabricKind::kNvlink, 300, 1 * us, 0), 4).bandwidth_gib * 1073741824, 100e9,
              1000);
  FabricLevel six = level_of(FabricKind::kXgmi, 448, 600 * ns, 6);  // a plan of 12 ranks leaves two of eight idle
  six.spare = 2;
  EXPECT_NEAR(astra_dimension(six, 6).bandwidth_gib * 1073741824, 64e9, 640);
}

TEST(AstraNetwork, TorusDimensionsAreRingsOfHalfTheBandwidth) {
  FabricLevel level = level_of(FabricKind::kXgmi, 900, 600 * ns, 4);
  level.ring = true;
  const AstraDimension d = astra_dimension(level, 4);
  EXPECT_EQ(d.topology, AstraTopology::kRing);
  EXPECT_NEAR(d.bandwidth_gib * 1073741824, 450e9, 4500);
  EXPECT_DOUBLE_EQ(d.latency_ns, 600);
}

// 8 experts, 2 of them for a token: it goes to 2 (1 - C(4, 2) / C(8, 2)) = 44/28 of two nodes and to
// 4 (1 - C(6, 2) / C(8, 2)) = 52/28 of four ranks.
TEST(AstraNetwork, OneCopyForEachNodeIsAnExchangeBetweenNodesAndOneInEach) {
  Collective routed{
      .kind = CollectiveKind::kAllToAll, .size = 13 * MiB, .group = {}, .routing = {.experts = 8, .top_k = 2}};
  const auto groups_of = [&](std::vector<Stride> strides, std::int64_t node) {
    routed.group = {3, std::move(strides)};
    std::vector<RankGroup> groups;
    for (const Collective& exchange : astra_exchanges(routed, node)) {
      EXPECT_EQ(exchange.kind, CollectiveKind::kAllToAll);
      EXPECT_EQ(exchange.routing.experts, 0);
      const bool between = exchange.group.size() < routed.group.size() && groups.empty();
      EXPECT_NEAR(exchange.size / MiB, between ? 11 : 13, 1e-9);
      groups.push_back(exchange.group);
    }
    return groups;
  };
  using Groups = std::vector<RankGroup>;
  EXPECT_EQ(groups_of({{4, 1}}, 2), (Groups{{3, {{2, 2}}}, {3, {{2, 1}}}}));
  EXPECT_EQ(groups_of({{4, 4}}, 8), (Groups{{3, {{2, 8}}}, {3, {{2, 4}}}}));
  EXPECT_EQ(groups_of({{2, 1}, {2, 8}}, 8), (Groups{{3, {{2, 8}}}, {3, {{2, 1}}}}));
  for (const std::int64_t node : {0, 1, 3, 4, 8}) {  // unknown, a rank each, across nodes unevenly, in a node
    EXPECT_EQ(groups_of({{4, 1}}, node), (Groups{{3, {{4, 1}}}})) << node;
  }
  EXPECT_EQ(groups_of({{4, 8}}, 8), (Groups{{3, {{4, 8}}}}));
  routed.routing = {};
  EXPECT_EQ(astra_exchanges(routed, 2), std::vector<Collective>{routed});
}

TEST(AstraNetwork, YmlHasFourLists) {
  AstraSystem system;
  system.dimensions = {{AstraTopology::kFullyConnected, 8, 279.3968, 300.25, "ring"},
                       {AstraTopology::kRing, 4, 10, 7, "ring"},
                       {AstraTopology::kSwitch, 128, 23.2830644, 1350, "ring"}};
  EXPECT_THAT(to_network_yml(system), HasSubstr("\ntopology: [ FullyConnected, Ring, Switch ]\n"
                                                "npus_count: [ 8, 4, 128 ]\n"
                                                "bandwidth: [ 279.3968, 10, 23.2830644 ]\n"
                                                "latency: [ 300.25, 7, 1350 ]\n"));
}

}  // namespace
}  // namespace ns_dist
