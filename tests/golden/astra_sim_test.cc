// Does `ns-dist replay` say what ASTRA-Sim said? Each folder of tests/golden/astra_sim holds the traces of a small run
// with its network, and when each rank finished in ASTRA-Sim (README.md there). NS_DIST_UPDATE_GOLDEN does not touch
// them: they are not ours.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "support/run_command.h"

namespace ns_dist {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::vector<fs::path> runs() {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(fs::path(NS_DIST_SOURCE_DIR) / "tests/golden/astra_sim")) {
    if (entry.is_directory()) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

class AstraSimRun : public ::testing::TestWithParam<fs::path> {};

TEST_P(AstraSimRun, EveryRankFinishesWhenItDidThere) {
  const json expected = json::parse(read_text(GetParam() / "finish.json"))["finish_ns"];
  const CommandResult result = run_command("ns-dist replay '" + GetParam().string() + "' --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const json ranks = json::parse(result.out)["ranks"];
  ASSERT_EQ(ranks.size(), expected.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const double there = expected[rank].get<double>(), here = ranks[rank]["finish_ns"].get<double>();
    EXPECT_LE(std::fabs(here - there), 1e-5 * there) << "rank " << rank << ": " << there << " ns there, " << here;
  }
}

INSTANTIATE_TEST_SUITE_P(All, AstraSimRun, ::testing::ValuesIn(runs()),
                         [](const auto& run) { return run.param.filename().string(); });

}  // namespace
}  // namespace ns_dist
