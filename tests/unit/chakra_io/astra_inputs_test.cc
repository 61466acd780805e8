// Are the inputs beside the traces what ASTRA-Sim needs for this cluster?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "ns_dist/astra_formulas.h"
#include "ns_dist/astra_network.h"
#include "ns_dist/catalog.h"
#include "ns_dist/network_model.h"
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

TEST(AstraInputs, NetworkIsAGridOfTheClustersLevelsInGibibytes) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_astra_inputs(cluster_of(FabricKind::kNvswitch, 0), 32, {.directory = folder.path()}));
  const std::string text = read_text(folder.path() / "network.yml");
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
  const std::string text = read_text(folder.path() / "network.yml");
  EXPECT_THAT(text, HasSubstr("topology: [ FullyConnected ]"));
  EXPECT_THAT(text, HasSubstr("npus_count: [ 4 ]"));
  EXPECT_THAT(text, HasSubstr("bandwidth: [ 39.9138"));  // of eight GPUs, each has seven links: 300e9 / 7 / 2^30
  EXPECT_THAT(text, HasSubstr("latency: [ 1000 ]"));
}

TEST(AstraInputs, SystemHasWhatTheSimulatorLeavesUninitialized) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_astra_inputs(cluster_of(FabricKind::kNvswitch, 0), 16,
                                 {.directory = folder.path(), .encoding = TraceEncoding::kDurations}));
  auto system = nlohmann::json::parse(read_text(folder.path() / "system.json"));
  EXPECT_EQ(system["preferred-dataset-splits"], 1);  // absent: SIGFPE
  EXPECT_EQ(system["all-reduce-implementation"], (nlohmann::json{"ring", "ring"}));
  EXPECT_EQ(system["roofline-enabled"], 0);
  EXPECT_EQ(system["all-to-all-implementation"], (nlohmann::json{"direct", "direct"}));
  EXPECT_EQ(system["local-mem-bw"], 0.0);  // otherwise three passes over memory in every reducing step
  EXPECT_EQ(system["peak-perf"], 312.0);
  EXPECT_TRUE(system.contains("scheduling-policy") && system.contains("collective-optimization"));
  const auto memory = nlohmann::json::parse(read_text(folder.path() / "remote_memory.json"));
  EXPECT_EQ(memory["memory-type"], "NO_MEMORY_EXPANSION");
  EXPECT_THAT(read_text(folder.path() / "README.md"), HasSubstr("--workload-configuration=trace "));

  ASSERT_TRUE(write_astra_inputs(cluster_of(FabricKind::kNvswitch, 0), 16,
                                 {.directory = folder.path(), .encoding = TraceEncoding::kRoofline}));
  system = nlohmann::json::parse(read_text(folder.path() / "system.json"));
  EXPECT_EQ(system["roofline-enabled"], 1);
  EXPECT_EQ(system["peak-perf"], 1.0);
  EXPECT_EQ(system["local-mem-bw"], 1e9);  // 0 would make every kernel endless
}

// Chunks of a collective, and how many of them are under way at a time.
TEST(AstraInputs, SplitsAndActiveChunksHaveKeysOfTheirOwn) {
  const ScratchFolder folder;
  const Cluster cluster = cluster_of(FabricKind::kNvswitch, 0);
  AstraSystem system = *to_astra(cluster, 16);
  system.splits = 8, system.active_chunks = 2;
  ASSERT_TRUE(write_astra_inputs(cluster, 16, {.directory = folder.path()}, system));
  const auto written = nlohmann::json::parse(read_text(folder.path() / "system.json"));
  EXPECT_EQ(written["preferred-dataset-splits"], 8);
  EXPECT_EQ(written["active-chunks-per-dimension"], 2);
}

// The command of the README is one for a shell, whatever the prefix is.
TEST(AstraInputs, ThePrefixIsOneWord) {
  const ScratchFolder folder;
  const auto text_of = [&](const std::string& prefix) {
    EXPECT_TRUE(
        write_astra_inputs(cluster_of(FabricKind::kNvswitch, 0), 16, {.directory = folder.path(), .prefix = prefix}));
    return read_text(folder.path() / "README.md");
  };
  EXPECT_THAT(text_of("x$(id)"), HasSubstr("--workload-configuration='x$(id)' "));
  EXPECT_THAT(text_of("a b"), HasSubstr("--workload-configuration='a b' "));
  EXPECT_THAT(text_of("it's"), HasSubstr("--workload-configuration='it'\\''s' "));
}

// One file stays open for each rank. A shell's soft limit is usually 1,024; a lower one would be a step back, and a
// lower hard one could not be undone.
TEST(AstraInputs, TheReadmeRaisesTheLimitOfOpenFilesWhereItMust) {
  const ScratchFolder folder;
  for (const auto& [ranks, line] : {std::pair(16, ""), std::pair(960, ""), std::pair(968, "    ulimit -Sn 1032\n")}) {
    ASSERT_TRUE(write_astra_inputs(cluster_of(FabricKind::kNvswitch, 0), ranks, {.directory = folder.path()}));
    EXPECT_THAT(read_text(folder.path() / "README.md"),
                HasSubstr("backend:\n\n" + std::string(line) + "    AstraSim_Analytical"));
  }
}

TEST(AstraInputs, TheReadmeSaysWhatCpuOperatorsDo) {
  const ScratchFolder folder;
  for (const bool host_work : {false, true}) {
    ASSERT_TRUE(write_astra_inputs(cluster_of(FabricKind::kNvswitch, 0), 16,
                                   {.directory = folder.path(), .host_work = host_work}));
    EXPECT_EQ(read_text(folder.path() / "README.md").find("are CPU operators") != std::string::npos, host_work);
  }
}

TEST(AstraInputs, RanksThatTheClusterDoesNotHaveAreRefused) {
  const ScratchFolder folder;
  for (const auto& [ranks, nodes] : {std::pair<std::int64_t, std::int64_t>{1, 0}, {0, 0}, {32, 2}}) {
    const auto written =
        write_astra_inputs(cluster_of(FabricKind::kNvswitch, nodes), ranks, {.directory = folder.path()});
    ASSERT_FALSE(written) << ranks;
    EXPECT_EQ(written.error().code, ErrorCode::kInfeasible);
  }
}

// Numbers of one list of the yml, as they are written.
std::vector<std::string> list_of(const std::string& yml, const std::string& key) {
  const std::size_t begin = yml.find("\n" + key + ": [ ") + key.size() + 5;
  std::istringstream items(yml.substr(begin, yml.find(" ]", begin) - begin));
  std::vector<std::string> out;
  for (std::string item; std::getline(items, item, ',');) out.push_back(item.substr(item.find_first_not_of(' ')));
  return out;
}

// Whoever runs the export in ASTRA-Sim gets the network that --network-model astra computes with.
TEST(AstraInputs, EveryClusterOfTheCatalogIsTheAstraModelsNetwork) {
  const Catalog catalog = Catalog::standard();
  int clusters = 0, full = 0;
  for (const CatalogEntry& entry : catalog.list(CatalogKind::kCluster)) {
    const Cluster cluster = *catalog.cluster(entry.id);
    // A node, two nodes, and all (of an open cluster, four nodes): each fills the levels that it spans.
    const std::int64_t node = cluster.gpus_per_node(), all = cluster.gpu_count();
    for (const std::int64_t gpus : {node, 2 * node, all > 0 ? all : 4 * node}) {
      const auto system = to_astra(cluster, gpus);
      if (!system) continue;
      const auto model = make_network_model(cluster, {.model = NetworkModelKind::kAstra, .ranks = gpus});
      ASSERT_TRUE(model) << entry.id;
      const ScratchFolder folder;
      ASSERT_TRUE(
          write_astra_inputs(cluster, gpus, {.directory = folder.path(), .encoding = TraceEncoding::kDurations}));
      const std::string yml = read_text(folder.path() / "network.yml");
      const auto topology = list_of(yml, "topology"), npus = list_of(yml, "npus_count"),
                 bandwidth = list_of(yml, "bandwidth"), latency = list_of(yml, "latency");
      const Collective call{CollectiveKind::kAllReduce, 64 * MiB, {0, {{gpus, 1}}}};
      const auto explained = (*model)->explain(call);
      ASSERT_TRUE(explained) << entry.id << " " << to_text(explained.error());
      std::size_t i = 0;
      EXPECT_EQ(explained->forecast.method, "astra/ring") << entry.id;
      for (const auto& step : explained->steps) {
        if (step.name != "dimension") continue;
        ASSERT_LT(i, topology.size()) << entry.id;
        EXPECT_EQ(step.value, npus[i] + " NPUs") << entry.id;
        EXPECT_EQ(step.note, topology[i] + ", " + bandwidth[i] + " GiB/s, " + latency[i] + " ns a hop") << entry.id;
        full += topology[i] == "FullyConnected" ? 1 : 0;
        ++i;
      }
      EXPECT_EQ(i, topology.size()) << entry.id;
      EXPECT_DOUBLE_EQ(explained->forecast.latency / ns,
                       static_cast<double>(*astra_time_ns(*system, call.kind, 64 << 20)));
      // What is read from the files is what the model computes with.
      auto read = read_astra_system(yml, "network.yml", read_text(folder.path() / "system.json"), "system.json");
      ASSERT_TRUE(read) << to_text(read.error());
      read->peak_tflops = 0;
      EXPECT_EQ(*read, *system) << entry.id;
      ++clusters;
    }
  }
  EXPECT_GT(clusters, 50);
  EXPECT_GT(full, 5);
}

}  // namespace
}  // namespace ns_dist
