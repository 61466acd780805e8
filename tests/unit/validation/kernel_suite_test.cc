#include "ns_dist/kernel_suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "error_table.h"
#include "ns_dist/catalog.h"
#include "recipes.h"
#include "support/run_command.h"

namespace ns_dist {
namespace {

using ::testing::HasSubstr;

Result<Gpu> gpu_of(std::string_view id) { return Catalog::standard().gpu(id); }
class KernelSuiteFolder : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    const auto path = folder_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  Result<SuiteReport> check() { return check_kernels({.data = folder_.path()}, gpu_of); }
  ScratchFolder folder_;
};

TEST(ErrorTable, CountsWorstFirst) {
  ErrorTable table("Things", {"them"});
  for (const double forecast : {1.0, 1.1, 0.8}) table.add("good", {"g", 1, forecast, 0.85, 1.2, {{"them", 2}}});
  table.add("bad", {"the bad one", 1, 3, 2, 4, {}});
  SuiteReport report;
  table.add_to(report, "", 1);
  const std::string text = to_markdown(report);
  EXPECT_LT(text.find("| bad | 1 | 200.0 | 200.0 | 200.0 | 200.0 | +200.0 | 0 | - |"),
            text.find("| good | 3 | 10.0 | 10.0 | 20.0 | 20.0 | -3.3 | 100 | 100.0 |"));
  EXPECT_THAT(text, HasSubstr("| all | 4 | 57.5 |"));
  EXPECT_THAT(text, HasSubstr("| the bad one | 1 | 3 | +200.0 |"));
}

TEST_F(KernelSuiteFolder, SaysWhereARowIsWrongAndAnswersTheOthers) {
  write("kernels/fp32_test_linear.csv",
        "gpu,op,dtype,b,m,n,k,latency_ms\n"
        "l4,linear,fp32,1,1024,1024,1024,0.3\n"
        "l4,linear,fp32,1,1024,0,1024,0.3\n");
  const auto suite = check();
  ASSERT_TRUE(suite) << to_text(suite.error());
  ASSERT_EQ(suite->mistakes.size(), 1u);
  EXPECT_THAT(to_text(suite->mistakes.front()), HasSubstr("fp32_test_linear.csv:3"));
  EXPECT_EQ(suite->rows, 1u + 1u);
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| l4 linear | 1 |"));
}

TEST_F(KernelSuiteFolder, AFolderWithoutTablesIsRefused) {
  const auto empty = check();
  ASSERT_FALSE(empty);
  EXPECT_THAT(to_text(empty.error()), HasSubstr("no measured kernels"));
}

TEST_F(KernelSuiteFolder, AFolderInTheDataSaysWhatToWrite) {
  write("kernels/README.md", "");
  const CommandResult told = run_command("ns-dist validate --suite kernels --data kernels/", folder_.path());
  EXPECT_EQ(told.code, 1);
  EXPECT_THAT(told.err, HasSubstr("no measured kernels; expected kernels/*.csv.gz"));
  EXPECT_THAT(told.err, HasSubstr("; write --data " + std::filesystem::canonical(folder_.path()).string() + "\n"));
}

// The cards beside the shipped weights say the command that wrote them.
TEST(KernelRecipes, AreThoseOfTheShippedWeights) {
  const std::filesystem::path folder = std::filesystem::path(NS_DIST_SOURCE_DIR) / "compute_model/weights";
  for (const KernelRecipe& recipe : kKernelRecipes) {
    const KernelFitOptions options = fit_options(recipe);
    std::string command = "Written by `ns-dist fit --data DIR";
    if (recipe.own) command += " --data compute_model/measurements";
    for (const std::string& predictor : options.predictors) command += " --predictor " + predictor;
    for (const std::string& table : options.tables) command += " --table " + table;
    for (const std::string& framework : options.prefer_frameworks) command += " --prefer-framework " + framework;
    EXPECT_THAT(read_text(folder / (std::string(recipe.predictor) + "-v1.md")), HasSubstr(command + "`."));
  }
  std::size_t cards = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().string().ends_with("-v1.md")) ++cards;
  }
  EXPECT_EQ(cards, kKernelRecipes.size());
}

TEST_F(KernelSuiteFolder, FitsAnewAsTheShippedWeightsWere) {
  const auto table = [&](const std::string& name, std::initializer_list<const char*> gpus) {
    std::string text = "gpu,op,dtype,b,m,n,k,latency_ms\n";
    for (const char* gpu : gpus) {
      for (int i = 1; i <= 300; ++i) {
        text += std::string(gpu) + ",linear,fp32,1," + std::to_string(64 * i) + ",1024,512," +
                std::to_string(0.01 * i) + "\n";
      }
    }
    write("kernels/" + name + ".csv", text);
  };
  table("fp32_train_linear", {"p4", "v100-pcie-32gb"});
  table("fp32_test_linear", {"l4"});
  const auto suite = check_kernels({.data = folder_.path(), .threads = 2, .refit = true}, gpu_of);
  ASSERT_TRUE(suite) << to_text(suite.error());
  const std::string anew = suite->text;
  EXPECT_THAT(anew, HasSubstr("| gemm_fp32 | p4 | GPU |"));
  EXPECT_THAT(anew, HasSubstr("| gemm_fp32 | v100-pcie-32gb | shapes |"));
  EXPECT_THAT(anew, ::testing::Not(HasSubstr("l4")));  // a table for tests
  EXPECT_THAT(to_markdown(*suite), HasSubstr("these rows set the interval"));
  // A GPU that nobody knows is told, not taken for a predictor without rows; so is a folder with nothing to fit.
  table("bf16_moe", {"warp-drive"});
  EXPECT_FALSE(check_kernels({.data = folder_.path(), .refit = true}, gpu_of));
  std::filesystem::remove_all(folder_.path() / "kernels");
  table("a100_mi210_llmcompass", {"a100-sxm-80gb"});
  const auto nothing = check_kernels({.data = folder_.path(), .refit = true}, gpu_of);
  ASSERT_FALSE(nothing);
  EXPECT_THAT(to_text(nothing.error()), HasSubstr("no table of measured kernels"));
}

TEST_F(KernelSuiteFolder, TheCommandTellsBadRowsByItsExitCode) {
  EXPECT_EQ(run_command("ns-dist validate --suite kernels", folder_.path()).code, 2);
  EXPECT_EQ(run_command("ns-dist validate --suite kernel --data .", folder_.path()).code, 2);
  EXPECT_EQ(run_command("ns-dist validate --suite kernels --data .", folder_.path()).code, 1);
  write("kernels/fp32_test_linear.csv",
        "gpu,op,dtype,b,m,n,k,latency_ms\n"
        "l4,linear,fp32,1,1024,1024,1024,0.3\n");
  const CommandResult good = run_command("ns-dist validate --suite kernels --data .", folder_.path());
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_THAT(good.out, HasSubstr("### fp32_test_linear"));
  std::ofstream(folder_.path() / "kernels/fp32_test_linear.csv", std::ios::app) << "l4,linear,fp32,1,8,8,,0.3\n";
  const CommandResult bad = run_command("ns-dist validate --suite kernels --data .", folder_.path());
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.err, HasSubstr("fp32_test_linear.csv:3"));
  EXPECT_THAT(bad.out, HasSubstr("| l4 linear | 1 |"));
}

}  // namespace
}  // namespace ns_dist
