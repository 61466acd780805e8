// Are the inputs beside the traces what ASTRA-Sim needs for this cluster?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "unit/chakra_io/traces.h"

namespace ns_dist {
namespace {

using namespace units;
using ::testing::HasSubstr;

Cluster cluster_of(FabricKind inside, std::int64_t nodes) {
  Cluster cluster;
  cluster.id = "test";
  cluster.gpu.memory_bandwidth = 2000 * GB / s;
  cluster.gpu.tensor[DType::kBf16] = 312 * TFLOP / s;
  cluster.levels.push_back({{"inside", "inside", inside, 300 * GB / s, 1 * us}, 8, 1, 1});
  cluster.levels.push_back({{"outside", "outside", FabricKind::kInfiniband, 25 * GB / s, 4 * us}, nodes, 1, 2});
  return cluster;
}

std::string text_of_file(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(AstraInputs, NetworkIsAGridOfTheClustersLevelsInGibibytes) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_astra_inputs(cluster_of(FabricKind::kNvswitch, 0), 32, {.directory = folder.path()}));
  const std::string text = text_of_file(folder.path() / "network.yml");
  EXPECT_THAT(text, HasSubstr("topology: [ Switch, Switch ]"));
  EXPECT_THAT(text, HasSubstr("npus_count: [ 8, 4 ]"));
  // 300e9 / 2^30 and, at 2:1 oversubscription, 12.5e9 / 2^30.
  EXPECT_THAT(text, HasSubstr("bandwidth: [ 279.396"));
  EXPECT_THAT(text, HasSubstr(", 11.6415"));
  EXPECT_THAT(text, HasSubstr("latency: [ 500, 2000 ]"));  // two hops through a switch make the fabric's latency
}

TEST(AstraInputs, LinksBetweenPairsOfGpusAreSharedOutAmongThem) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_astra_inputs(cluster_of(FabricKind::kXgmi, 0), 4, {.directory = folder.path()}));
  const std::string text = text_of_file(folder.path() / "network.yml");
  EXPECT_THAT(text, HasSubstr("topology: [ FullyConnected ]"));
  EXPECT_THAT(text, HasSubstr("npus_count: [ 4 ]"));
  EXPECT_THAT(text, HasSubstr("bandwidth: [ 93.132"));  // 300e9 / 3 / 2^30
  EXPECT_THAT(text, HasSubstr("latency: [ 1000 ]"));
}

TEST(AstraInputs, SystemHasWhatTheSimulatorLeavesUninitialised) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_astra_inputs(cluster_of(FabricKind::kNvswitch, 0), 16, {.directory = folder.path()}));
  auto system = nlohmann::json::parse(text_of_file(folder.path() / "system.json"));
  EXPECT_EQ(system["preferred-dataset-splits"], 1);  // absent: SIGFPE
  EXPECT_EQ(system["all-reduce-implementation"], (nlohmann::json{"ring", "ring"}));
  EXPECT_EQ(system["roofline-enabled"], 0);
  EXPECT_EQ(system["local-mem-bw"], 2000.0);
  EXPECT_EQ(system["peak-perf"], 312.0);
  EXPECT_TRUE(system.contains("scheduling-policy") && system.contains("collective-optimization"));
  const auto memory = nlohmann::json::parse(text_of_file(folder.path() / "remote_memory.json"));
  EXPECT_EQ(memory["memory-type"], "NO_MEMORY_EXPANSION");
  EXPECT_THAT(text_of_file(folder.path() / "README.md"), HasSubstr("--workload-configuration=trace "));

  ASSERT_TRUE(write_astra_inputs(cluster_of(FabricKind::kNvswitch, 0), 16,
                                 {.directory = folder.path(), .encoding = TraceEncoding::kRoofline}));
  system = nlohmann::json::parse(text_of_file(folder.path() / "system.json"));
  EXPECT_EQ(system["roofline-enabled"], 1);
  EXPECT_EQ(system["peak-perf"], 1.0);
}

TEST(AstraInputs, RanksThatFillNoGridAreRefused) {
  const ScratchFolder folder;
  for (const auto& [ranks, nodes] : {std::pair<std::int64_t, std::int64_t>{12, 0}, {1, 0}, {0, 0}, {32, 2}}) {
    const auto written =
        write_astra_inputs(cluster_of(FabricKind::kNvswitch, nodes), ranks, {.directory = folder.path()});
    ASSERT_FALSE(written) << ranks;
    EXPECT_EQ(written.error().code, ErrorCode::kInfeasible);
  }
}

}  // namespace
}  // namespace ns_dist
