#include "ns_dist/collective_suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "ns_dist/catalog.h"
#include "ns_dist/collective_table.h"
#include "support/run_command.h"

namespace ns_dist {
namespace {

using namespace units;
using ::testing::HasSubstr;

Result<Cluster> usual(std::string_view gpu) {
  const Catalog catalog = Catalog::standard();
  NS_TRY(const Gpu found, catalog.gpu(gpu));
  return catalog.usual_machine(found);
}

constexpr const char* kHeader = "gpu,collective,ranks,gpus_per_node,bytes,dtype,latency_ms\n";

// Two machines whose all-gathers take twice what NCCL's constants say.
std::string twice_as_slow() {
  CollectiveForecaster published([](auto gpu, auto) { return usual(gpu); }, {.calibrated = false});
  std::string text = kHeader;
  for (const char* gpu : {"a100-sxm-80gb", "h200-sxm"}) {
    for (int octave = 9; octave <= 29; ++octave) {
      CollectiveRow row;
      row.gpu = gpu;
      row.kind = CollectiveKind::kAllGather;
      row.ranks = row.gpus_per_node = 8;
      row.size = std::exp2(octave) * B;
      const auto answer = published.forecast(row);
      EXPECT_TRUE(answer);
      text += std::string(gpu) + ",all_gather,8,8," + std::to_string(std::int64_t{1} << octave) + ",half," +
              std::to_string(2 * (answer->forecast.latency / ms)) + "\n";
    }
  }
  return text;
}

std::string line_after(const std::string& markdown, const std::string& title, const std::string& start) {
  const std::size_t section = markdown.find("### " + title);
  const std::size_t line = markdown.find("\n" + start, section);
  if (section == std::string::npos || line == std::string::npos) return "";
  return markdown.substr(line + 1, markdown.find('\n', line + 1) - line - 1);
}

double field(const std::string& line, int index) {
  std::size_t at = 0;
  for (int i = 0; i <= index; ++i) at = line.find('|', at) + 1;
  return std::stod(line.substr(at));
}

TEST(CollectiveSuite, KnowsWhatWasSeenAndWhatWasNot) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path() / "collectives");
  std::ofstream(folder.path() / "collectives/nccl.csv") << twice_as_slow();
  const auto suite = check_collectives(folder.path(), Catalog::standard());
  ASSERT_TRUE(suite) << to_text(suite.error());
  EXPECT_EQ(suite->rows, 42u);
  EXPECT_TRUE(suite->mistakes.empty());
  // A size between others that are twice as slow is twice as slow; half of that is 50 % off. Columns: rows, mean, ...
  const std::string sizes = line_after(to_markdown(*suite), "One node, sizes left out of the fit, 1 MiB", "| all |");
  ASSERT_FALSE(sizes.empty()) << to_markdown(*suite);
  EXPECT_LT(field(sizes, 2), 2);
  EXPECT_NEAR(field(sizes, 8), 50, 0.1);
  // Of a GPU that was left out one other is known: half of the logarithm of two is believed, sqrt(2) / 2 - 1 is left.
  const std::string gpus = line_after(to_markdown(*suite), "One node, the GPU left out of the fit, 1 MiB", "| all |");
  ASSERT_FALSE(gpus.empty()) << to_markdown(*suite);
  EXPECT_NEAR(field(gpus, 2), 100 * (1 - std::sqrt(0.5)), 3);
}

// Ring of 4, 50 GiB/s, 500 ns: 2 x 3 messages of 256 KiB of 500 + 4882.8 ns, cut to whole ns, and 7 delays of 10.
TEST(CollectiveSuite, RepeatsAstraSim) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path() / "collectives");
  std::ofstream(folder.path() / "collectives/astra_sim_analytical.csv")
      << "collective,comm_size_attr_bytes,topology_per_dim,npus_per_dim,bandwidth_GiBps_per_dim,latency_ns_per_dim,"
         "algorithm_per_dim,preferred_dataset_splits,active_chunks_per_dimension,endpoint_delay_ns,local_mem_bw_GBps,"
         "collective_optimization,backend,formula_ns,finish_ns_max\n"
         "all-reduce,1048576,Ring,4,50,500,ring,1,1,10,0,localBWAware,unaware,32362,32362\n"
         "all-reduce,1048576,Ring,4,50,500,ring,1,1,10,0,localBWAware,unaware,32362,32363\n"
         "all-reduce,1048576,Ring,4,50,500,ring,1,1,10,0,localBWAware,unaware,32362,40000\n"
         "all-reduce,1048576,Ring,4,50,500,ring,1,1,10,0,localBWAware,aware,,40000\n"
         "all-reduce,1048576,Ring,4x2,50,500,ring,1,1,10,0,localBWAware,unaware,1,1\n";
  const auto suite = check_collectives(folder.path(), Catalog::standard());
  ASSERT_TRUE(suite) << to_text(suite.error());
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| 3 | 1 | 1 | 1 | 1 |"));
  ASSERT_EQ(suite->mistakes.size(), 1u);
  EXPECT_THAT(to_text(suite->mistakes[0]), HasSubstr("astra_sim_analytical.csv:6"));
}

TEST(CollectiveSuite, NamesTheRowsThatItCannotRead) {
  const ScratchFolder folder;
  EXPECT_FALSE(check_collectives(folder.path(), Catalog::standard()));
  std::filesystem::create_directories(folder.path() / "collectives");
  std::ofstream(folder.path() / "collectives/nccl.csv")
      << twice_as_slow() << "h200-sxm,all_gather,1,1,1024,half,0.1\nh200-sxm,all_gather,8,8,1024,half,\n";
  const auto suite = check_collectives(folder.path(), Catalog::standard());
  ASSERT_TRUE(suite);
  ASSERT_EQ(suite->mistakes.size(), 2u);
  EXPECT_THAT(to_text(suite->mistakes[0]), HasSubstr("nccl.csv:44"));
  EXPECT_THAT(to_text(suite->mistakes[1]), HasSubstr("nccl.csv:45"));
  std::ofstream(folder.path() / "collectives/nccl.csv") << "gpu,collective\n";
  EXPECT_FALSE(check_collectives(folder.path(), Catalog::standard()));
}

}  // namespace
}  // namespace ns_dist
