#include "ns_dist/model_suite.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ns_dist/scenario.h"
#include "ns_dist/simulator.h"
#include "support/run_command.h"

namespace ns_dist {
namespace {

using ::testing::HasSubstr;

constexpr const char* kGpt2 =
    R"({"architectures": ["GPT2LMHeadModel"], "n_layer": 3, "n_embd": 512, "n_head": 8, "vocab_size": 5000,
        "n_positions": 256, "activation_function": "gelu_new"})";

class ModelSuiteFolder : public ::testing::Test {
 protected:
  ModelSuiteFolder() {
    write("model_configs.json",
          fmt::format(R"({{"gpt": {}, "t5": {{"architectures": ["T5Model"], "num_decoder_layers": 2}}}})", kGpt2));
  }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(folder_.path() / "models_fp32");
    std::ofstream(folder_.path() / "models_fp32" / name) << text;
  }
  Result<SuiteReport> check() { return check_models(folder_.path(), Catalog::built_in()); }

  // The answer of `ns-dist simulate`, in ms, as the table writes it.
  std::string simulated(ScenarioSpec spec) {
    write("gpt.json", kGpt2);
    spec.set("model", (folder_.path() / "models_fp32/gpt.json").string())
        .set("plan/dp", 1)
        .set("training/dtype", "fp32");
    spec.set("training/global_batch", 2).set("training/micro_batch", 2).set("training/sequence", 128);
    const auto scenario = resolve(spec, Catalog::built_in());
    EXPECT_TRUE(scenario) << to_text(scenario.error());
    return fmt::format("{:.4g} |", simulate(*scenario)->step / units::ms);
  }
  ScratchFolder folder_;
};

constexpr const char* kHead = "gpu,graph,model,phase,seq,batch,option,e2e_ms,neusight_e2e_ms\n";

// A row is the scenario that it says, asked as a user would ask.
TEST_F(ModelSuiteFolder, ARowIsWhatSimulateAnswers) {
  write("labels.csv", std::string(kHead) +
                          "l4,a,gpt,train,128,2,,0.001,0.002\n"
                          "l4,b,gpt,inf,128,2,,0.001,\n"
                          "v100-pcie-32gb,c,gpt,inf,128,2,,0.001,\n"
                          "l4,d,gpt,inf,128,2,fusion,0.001,\n");
  const auto suite = check();
  ASSERT_TRUE(suite) << to_text(suite.error());
  EXPECT_TRUE(suite->mistakes.empty());
  EXPECT_EQ(suite->rows, 4u);
  ScenarioSpec l4;
  l4.set("machine/gpu", "l4").set("framework", "transformers");
  ScenarioSpec training = l4, forward = l4, compiled = l4;
  training.set("plan/passes", "gradients").set("host/empty_cache", true);
  forward.set("plan/passes", "forward");
  compiled.set("plan/passes", "forward").set("framework", "transformers-compile");
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| l4 a | 0.001 | " + simulated(training)));
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| l4 b | 0.001 | " + simulated(forward)));
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| l4 d | 0.001 | " + simulated(compiled)));
  EXPECT_NE(simulated(compiled), simulated(forward));
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| l4 training | 1 |"));
  EXPECT_THAT(to_markdown(*suite), HasSubstr(" 100.0 |"));  // 0.002 ms of 0.001 ms
  const std::string text = to_markdown(*suite);
  const std::size_t fitted = text.find("### Fitted GPUs");
  EXPECT_GT(text.find("| v100-pcie-32gb inference | 1 |"), fitted);
}

// A graph without a product as wide as the vocabulary has no logits; 5,000 columns of 256 tokens take their time.
TEST_F(ModelSuiteFolder, GraphsSayWhetherThereAreLogits) {
  write("labels.csv", std::string(kHead) + "l4,words,gpt,inf,128,2,,1,\nl4,classes,gpt,inf,128,2,,1,\n");
  write("graph_ops.csv", "graph,op,n\nwords,Linear,5000\nwords,Linear,512\nclasses,Linear,512\n");
  const auto suite = check();
  ASSERT_TRUE(suite) << to_text(suite.error());
  ScenarioSpec forward;
  forward.set("machine/gpu", "l4").set("framework", "transformers").set("plan/passes", "forward");
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| l4 words | 1 | " + simulated(forward)));
  EXPECT_THAT(to_markdown(*suite), ::testing::Not(HasSubstr("| l4 classes | 1 | " + simulated(forward))));
}

TEST_F(ModelSuiteFolder, BadRowsAreNamedAndOthersGoOn) {
  write("labels.csv", std::string(kHead) +
                          "l4,a,gpt,inf,128,2,,1,\n"
                          "l4,a,unknown,inf,128,2,,1,\n"
                          "l4,a,gpt,inf,128,2,,fast,\n"
                          "warp-drive,a,gpt,inf,128,2,,1,\n"
                          "l4,a,gpt,inf,0,2,,1,\n"
                          "l4,a,gpt,inf,128,2,,,\n"
                          "l4,a,t5,inf,128,2,,1,\n");
  write("distributed.csv",
        "gpu,model,seq,global_batch,per_rank_batch,dp,tp,pp,e2e_ms,graph\n"
        "a100-sxm-40gb,gpt,128,4,1,4,1,1,1,g\n"
        "a100-sxm-40gb,gpt,128,4,1,3,1,1,1,g\n");
  const auto suite = check();
  ASSERT_TRUE(suite) << to_text(suite.error());
  std::string mistakes;
  for (const Error& mistake : suite->mistakes) mistakes += to_text(mistake) + "\n";
  EXPECT_EQ(suite->mistakes.size(), 4u) << mistakes;
  EXPECT_THAT(mistakes, HasSubstr("labels.csv:4: e2e_ms is \"fast\""));
  EXPECT_THAT(mistakes, HasSubstr("labels.csv:5"));
  EXPECT_THAT(mistakes, HasSubstr("labels.csv:6"));
  EXPECT_THAT(mistakes, HasSubstr("distributed.csv:3"));
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| l4 inference | 1 |"));
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| dp 4 | 1 |"));
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| t5 | 1 | "));
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| unknown | 1 | no configuration of it |"));
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| ran | 2 | 2 | 0 |\n| ran out of memory | 1 | 1 | 0 |"));
}

TEST_F(ModelSuiteFolder, AFolderWithoutTablesOrColumnsIsRefused) {
  const auto empty = check();
  ASSERT_FALSE(empty);
  EXPECT_THAT(to_text(empty.error()), HasSubstr("no measured models"));
  write("labels.csv", "gpu,graph,model\n");
  const auto columns = check();
  ASSERT_FALSE(columns);
  EXPECT_THAT(to_text(columns.error()), HasSubstr("labels.csv:1: no column \"phase\""));
}

}  // namespace
}  // namespace ns_dist
