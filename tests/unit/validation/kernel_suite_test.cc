#include "ns_dist/kernel_suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "error_table.h"
#include "neusight/caching_allocator.h"
#include "neusight/eager.h"
#include "ns_dist/catalog.h"
#include "recipes.h"
#include "support/run_command.h"
#include "support/simulator_fakes.h"

namespace ns_dist {
namespace {

using namespace units;
using ::testing::HasSubstr;

Result<Gpu> gpu_of(std::string_view id) { return Catalog::standard().gpu(id); }
Result<Cluster> usual(std::string_view gpu) {
  const Catalog catalog = Catalog::standard();
  NS_TRY(const Gpu found, catalog.gpu(gpu));
  return catalog.cluster(found.usual_cluster);
}

// A model of one linear layer of 32 rows, repeated, between a table and a softmax.
constexpr const char* kNodes =
    "graph,idx,name,op_name,in_layer,in_shapes,out_shape,prev\n"
    "toy-train-8-4,0,ids,misc,0,,4x8,\n"
    "toy-train-8-4,1,wte,EMBEDDING,0,4x8,4x8x128,0\n"
    "toy-train-8-4,2,fc,Linear,1,4x8x128,4x8x128,1\n"
    "toy-train-8-4,3,softmax,VECsoftmax,0,4x8x128,4x8x128,2\n";
constexpr const char* kOps =
    "graph,idx,phase,sub,op,b,m,n,k,h,elems,in_elems,out_elems\n"
    "toy-train-8-4,1,fw,0,MEM,,,,,,4128,,\n"
    "toy-train-8-4,1,bw,0,MEM,,,,,,12800,,\n"
    "toy-train-8-4,1,acc,0,VECadd,1,,,,12800,,,\n"
    "toy-train-8-4,2,fw,0,Linear,1,32,128,128,,,,\n"
    "toy-train-8-4,2,bw,0,Linear,1,32,128,128,,,,\n"
    "toy-train-8-4,2,bw,1,Linear,1,128,128,32,,,,\n"
    "toy-train-8-4,2,acc,0,VECadd,1,,,,16384,,,\n"
    "toy-train-8-4,3,fw,0,VECsoftmax,32,,,,128,,4096,4096\n"
    "toy-train-8-4,3,bw,0,VECmul,32,,,,128,,4096,4096\n"
    "toy-train-8-4,3,bw,1,VECsoftmax,32,,,,128,,4096,4096\n";

class KernelSuiteFolder : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    const auto path = folder_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  Result<KernelSuite> check() { return check_kernels({.data = folder_.path()}, gpu_of, usual); }
  ModelGraph toy() {
    write("n.csv", kNodes), write("o.csv", kOps);
    std::vector<Error> mistakes;
    auto graphs = read_model_graphs(folder_.path() / "n.csv", folder_.path() / "o.csv", mistakes);
    EXPECT_TRUE(graphs && mistakes.empty());
    return graphs->at("toy-train-8-4");
  }
  ScratchFolder folder_;
};

std::vector<std::string> texts(const std::vector<Operator>& operators) {
  std::vector<std::string> out;
  for (const Operator& op : operators) out.push_back(to_text(op));
  return out;
}

TEST_F(KernelSuiteFolder, BackwardRunsTheKernelsThatPyTorchRuns) {
  const ModelGraph graph = toy();
  const ModelNode &linear = graph.nodes[2], &softmax = graph.nodes[3];
  EXPECT_EQ(texts(eager_kernels(graph, linear, ModelPhase::kBackward, 0)),
            (std::vector<std::string>{"gemm 32x128x128 nn fp32", "gemm 128x128x32 tn fp32"}));
  // softmax_backward_cuda_out: the product of gradient and output first, then the reduction.
  EXPECT_EQ(texts(eager_kernels(graph, softmax, ModelPhase::kBackward, 0)),
            (std::vector<std::string>{"mul 4096 elements, 2 in, 1 out fp32", "softmax 32x128 backward fp32"}));
}

TEST_F(KernelSuiteFolder, AStepIsEveryKernelAsOftenAsItsLayerStands) {
  const ModelGraph graph = toy();
  std::map<std::string, int> asked;
  FakeCompute one_second([&](const Operator& op) {
    ++asked[to_text(op)];
    return 1 * s;
  });
  KernelClock clock(one_second);
  Gpu gpu;
  gpu.memory = 1 * GiB;
  const auto forward = eager_step(graph, 5, false, gpu, clock), training = eager_step(graph, 5, true, gpu, clock);
  ASSERT_TRUE(forward && training);
  EXPECT_DOUBLE_EQ(forward->total().value(), 1 + 5 + 1);
  EXPECT_NEAR(training->forward.value(), 1 + 5 + 1, 1e-5);                // and mapping 2 MiB
  EXPECT_DOUBLE_EQ(training->backward.value(), 2 + 5 * 2 + 2 + (1 + 5));  // and gradients added to
  for (const auto& [text, times] : asked) EXPECT_EQ(times, 1) << text;    // each distinct operator once
}

TEST_F(KernelSuiteFolder, MemoryHoldsWhatBackwardReads) {
  EXPECT_DOUBLE_EQ(weight_bytes(toy(), 5), 4 * (12800 + 5 * 16384.0));
  // Seven tensors of 16 KiB share one small segment.
  const MappedMemory mapped = mapped_by_forward(toy(), 5);
  EXPECT_EQ(mapped.calls, 1);
  EXPECT_DOUBLE_EQ(mapped.bytes, 2 << 20);
}

TEST_F(KernelSuiteFolder, WhatBackwardReadsIsMappedForEachLayer) {
  std::string wide = kNodes;  // 64 MiB a tensor
  for (std::size_t at = 0; (at = wide.find("4x8x128", at)) != std::string::npos;) wide.replace(at, 7, "512x256x128");
  write("n.csv", wide), write("o.csv", kOps);
  std::vector<Error> mistakes;
  const auto graphs = read_model_graphs(folder_.path() / "n.csv", folder_.path() / "o.csv", mistakes);
  ASSERT_TRUE(graphs && mistakes.empty());
  // The embedding feeds a linear layer and stays, so does the softmax' output; layers feed no layer in this graph, so
  // their outputs wait for the softmax.
  EXPECT_EQ(mapped_by_forward(graphs->at("toy-train-8-4"), 5).calls, 1 + 5 + 1);
}

TEST(CachingAllocator, SegmentsGoBySizeAndAreShared) {
  constexpr std::int64_t kMiB = 1 << 20;
  CachingAllocator allocator;
  allocator.allocate(1);
  allocator.allocate(kMiB);  // 512 B and 1 MiB in 2 MiB
  EXPECT_EQ(allocator.calls(), 1);
  EXPECT_EQ(allocator.mapped(), 2 * kMiB);
  for (int i = 0; i < 5; ++i) allocator.allocate(4 * kMiB);  // five in 20 MiB
  EXPECT_EQ(allocator.calls(), 2);
  EXPECT_EQ(allocator.mapped(), 22 * kMiB);
  allocator.allocate(10 * kMiB + 1);  // its own, in steps of 2 MiB
  EXPECT_EQ(allocator.calls(), 3);
  EXPECT_EQ(allocator.mapped(), 34 * kMiB);
}

TEST(CachingAllocator, FreeNeighboursJoinAndAreTakenAgain) {
  constexpr std::int64_t kMiB = 1 << 20;
  CachingAllocator allocator;
  std::vector<CachingAllocator::Block> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(allocator.allocate(5 * kMiB));
  for (const std::size_t i : {0U, 2U, 1U}) allocator.release(blocks[i]);
  allocator.allocate(15 * kMiB);  // the first three
  EXPECT_EQ(allocator.calls(), 1);
  allocator.allocate(kMiB + 1);
  EXPECT_EQ(allocator.calls(), 2);
}

TEST_F(KernelSuiteFolder, ABroadcastOperandThatLeavesTheCacheIsReadEachTime) {
  write("n.csv",
        "graph,idx,name,op_name,in_layer,in_shapes,out_shape,prev\n"
        "g,0,add,VECadd,0,2x16x64x64;2x1x64x64,2x16x64x64,\n");
  write("o.csv",
        "graph,idx,phase,sub,op,b,m,n,k,h,elems,in_elems,out_elems\n"
        "g,0,fw,0,VECadd,2048,,,,64,,139264,131072\n");
  std::vector<Error> mistakes;
  const auto graphs = read_model_graphs(folder_.path() / "n.csv", folder_.path() / "o.csv", mistakes);
  ASSERT_TRUE(graphs);
  const ModelGraph& graph = graphs->at("g");
  const auto inputs = [&](double l2) {
    return std::get<Elementwise>(eager_kernels(graph, graph.nodes[0], ModelPhase::kForward, l2)[0].kind).inputs;
  };
  EXPECT_DOUBLE_EQ(inputs(1e9), 1 + 1.0 / 16);
  EXPECT_DOUBLE_EQ(inputs(1e3), 2);
}

TEST_F(KernelSuiteFolder, DataParallelGradientsHideBehindBackward) {
  write("n.csv", std::string(kNodes) + "toy-train-8-4,4,fc_grad,allreduce,1,,,\n");
  write("o.csv", std::string(kOps) + "toy-train-8-4,4,bw,0,ALLREDUCE_ASYNC,,,,,,16384,,\n");
  std::vector<Error> mistakes;
  const auto graphs = read_model_graphs(folder_.path() / "n.csv", folder_.path() / "o.csv", mistakes);
  ASSERT_TRUE(graphs && mistakes.empty());
  FakeCompute compute([](const Operator&) { return 1 * s; });
  double seconds = 0;
  FakeNetwork network([&](const Collective& c) {
    EXPECT_EQ(c.group.size(), 4);
    EXPECT_DOUBLE_EQ(c.size / B, 4 * 16384.0);
    return seconds * s;
  });
  const auto step = [&](double message) {
    seconds = message;
    KernelClock clock(compute);
    const auto span = distributed_step(graphs->at("toy-train-8-4"), 5, {.data = 4}, Gpu{}, clock, network);
    EXPECT_TRUE(span);
    return span->value();
  };
  const double backward = 2 + 5 * 2 + 2, free = step(0);
  EXPECT_DOUBLE_EQ(step(backward / 5), free);          // five buckets just fit under backward
  EXPECT_DOUBLE_EQ(step(backward / 5 + 1), free + 5);  // and no more
}

TEST(ErrorTable, CountsWorstFirst) {
  ErrorTable table("Things", {"them"});
  for (const double forecast : {1.0, 1.1, 0.8}) table.add("good", {"g", 1, forecast, 0.85, 1.2, {{"them", 2}}});
  table.add("bad", {"the bad one", 1, 3, 2, 4, {}});
  const std::string text = table.markdown("", 1);
  EXPECT_LT(text.find("| bad | 1 | 200.0 | 200.0 | 200.0 | 200.0 | +200.0 | 0 | - |"),
            text.find("| good | 3 | 10.0 | 10.0 | 20.0 | 20.0 | -3.3 | 100 | 100.0 |"));
  EXPECT_THAT(text, HasSubstr("| all | 4 | 57.5 |"));
  EXPECT_THAT(text, HasSubstr("the bad one: 1 ms measured, 3 forecast (+200.0 %)"));
}

TEST_F(KernelSuiteFolder, SaysWhereARowIsWrongAndAnswersTheOthers) {
  write("models_fp32/graph_nodes.csv", kNodes);
  write("models_fp32/graph_ops.csv", kOps);
  write("models_fp32/labels.csv",
        "gpu,graph,model,phase,option,num_layer,e2e_ms\n"
        "l4,toy-train-8-4,toy,train,,5,1\n"
        "l4,unknown-graph,toy,train,,5,1\n"
        "l4,toy-train-8-4,toy,train,,5,fast\n"
        "l4,toy-train-8-4,toy,train,,5,\n"
        "warp-drive,toy-train-8-4,toy,train,,5,1\n");
  write("models_fp32/class_sums.csv",
        "gpu,model,phase,seq,batch,cls,label_e2e_ms,neusight_e2e_ms\n"
        "l4,toy,train,8,4,Linear,1,2\n"
        "l4,toy,train,8,4,VECln,1,2\n");
  write("kernels/fp32_test_linear.csv",
        "gpu,op,dtype,b,m,n,k,latency_ms\n"
        "l4,linear,fp32,1,1024,1024,1024,0.3\n"
        "l4,linear,fp32,1,1024,0,1024,0.3\n");
  const auto suite = check();
  ASSERT_TRUE(suite) << to_text(suite.error());
  std::string mistakes;
  for (const Error& mistake : suite->mistakes) mistakes += to_text(mistake) + "\n";
  EXPECT_EQ(suite->mistakes.size(), 5u) << mistakes;
  EXPECT_THAT(mistakes, HasSubstr("labels.csv:3: no graph \"unknown-graph\""));
  EXPECT_THAT(mistakes, HasSubstr("labels.csv:4: e2e_ms is \"fast\""));
  EXPECT_THAT(mistakes, HasSubstr("labels.csv:6"));
  EXPECT_THAT(mistakes, HasSubstr("class_sums.csv:3: graph \"toy-train-8-4\" has nothing of class \"VECln\""));
  EXPECT_THAT(mistakes, HasSubstr("fp32_test_linear.csv:3"));
  EXPECT_EQ(suite->rows, 3u + 5u);
  EXPECT_THAT(suite->markdown, HasSubstr("| l4 training | 1 |"));
  EXPECT_THAT(suite->markdown, HasSubstr("| Linear | 1 |"));
  EXPECT_THAT(suite->markdown, HasSubstr("| l4 linear | 1 |"));
  EXPECT_THAT(suite->markdown, HasSubstr(" 100.0 |"));  // NeuSight's 2 ms of 1 ms
}

TEST_F(KernelSuiteFolder, BadGraphRowsAreNamed) {
  write("n.csv", std::string(kNodes) + "toy-train-8-4,x,a,misc,0,,4,\ntoy-train-8-4,9,b,misc,0,4y8,4,\n");
  write("o.csv", std::string(kOps) + "toy-train-8-4,77,fw,0,MEM,,,,,,1,,\ntoy-train-8-4,2,sideways,0,MEM,,,,,,1,,\n");
  std::vector<Error> mistakes;
  ASSERT_TRUE(read_model_graphs(folder_.path() / "n.csv", folder_.path() / "o.csv", mistakes));
  ASSERT_EQ(mistakes.size(), 4u);
  EXPECT_THAT(to_text(mistakes[0]), HasSubstr("n.csv:6: idx is \"x\""));
  EXPECT_THAT(to_text(mistakes[1]), HasSubstr("n.csv:7: node \"b\" has an unreadable"));
  EXPECT_THAT(to_text(mistakes[2]), HasSubstr("o.csv:12: graph \"toy-train-8-4\" has no node 77"));
  EXPECT_THAT(to_text(mistakes[3]), HasSubstr("o.csv:13: phase is \"sideways\""));
}

TEST_F(KernelSuiteFolder, NodesWithoutAWidthAreRefusedWhereKernelsNeedIt) {
  write("n.csv", std::string(kNodes) +
                     "toy-train-8-4,4,a,EMBEDDING,0,4x8,,0\n"
                     "toy-train-8-4,5,b,VECln,0,4x8,4x0,0\n"
                     "toy-train-8-4,6,c,Linear,0,4x8,4x8x0,0\n"
                     "toy-train-8-4,7,d,getitem,0,4x8,0x8,0\n"
                     "toy-train-8-4,8,e,misc,0,,4294967296x4294967296x0,0\n"
                     "toy-train-8-4,9,f,misc,0,2000000000x2000000000,4,0\n");
  write("o.csv", std::string(kOps) +
                     "toy-train-8-4,2,fw,0,Linear,1,-32,128,128,,,,\n"
                     "toy-train-8-4,2,fw,0,MEM,,,,,,1e300,,\n");
  std::vector<Error> mistakes;
  const auto graphs = read_model_graphs(folder_.path() / "n.csv", folder_.path() / "o.csv", mistakes);
  ASSERT_TRUE(graphs);
  ASSERT_EQ(mistakes.size(), 7u);
  EXPECT_THAT(to_text(mistakes[0]), HasSubstr("n.csv:6: node \"a\" is EMBEDDING with nothing in its output"));
  EXPECT_THAT(to_text(mistakes[1]), HasSubstr("n.csv:7: node \"b\" is VECln with nothing"));
  EXPECT_THAT(to_text(mistakes[2]), HasSubstr("n.csv:8: node \"c\" is Linear with nothing"));
  EXPECT_THAT(to_text(mistakes[3]), HasSubstr("n.csv:10: node \"e\" has a tensor too large"));
  EXPECT_THAT(to_text(mistakes[4]), HasSubstr("n.csv:11: node \"f\" has a tensor too large"));
  EXPECT_THAT(to_text(mistakes[5]), HasSubstr("o.csv:12: operator \"Linear\" has a size out of range"));
  EXPECT_THAT(to_text(mistakes[6]), HasSubstr("o.csv:13: operator \"MEM\" has a size out of range"));
  EXPECT_EQ(graphs->at("toy-train-8-4").nodes.back().name, "d");  // a view of nothing is a view
}

TEST_F(KernelSuiteFolder, ACircleOfViewsHasAnEnd) {
  write("n.csv",
        "graph,idx,name,op_name,in_layer,in_shapes,out_shape,prev\n"
        "g,0,a,misc,0,,100x100,1\n"
        "g,1,b,misc,0,,100x100,0\n"
        "g,2,fc,Linear,0,100x100,100x100,1\n");
  write("o.csv",
        "graph,idx,phase,sub,op,b,m,n,k,h,elems,in_elems,out_elems\n"
        "g,2,fw,0,Linear,1,100,100,100,,,,\n");
  std::vector<Error> mistakes;
  const auto graphs = read_model_graphs(folder_.path() / "n.csv", folder_.path() / "o.csv", mistakes);
  ASSERT_TRUE(graphs && mistakes.empty());
  EXPECT_EQ(mapped_by_forward(graphs->at("g"), 3).calls, 1);
}

TEST_F(KernelSuiteFolder, ABadRowLosesNoOther) {
  // Shapes that no kernel has are found when it is forecast: a softmax of no rows.
  write("models_fp32/graph_nodes.csv", std::string(kNodes) + "bad-train-8-4,3,softmax,VECsoftmax,0,4x8x128,4x8x128,\n");
  write("models_fp32/graph_ops.csv", std::string(kOps) + "bad-train-8-4,3,fw,0,VECsoftmax,0,,,,128,,4096,4096\n");
  write("models_fp32/labels.csv",
        "gpu,graph,model,phase,option,num_layer,e2e_ms\n"
        "l4,bad-train-8-4,bad,train,,5,1\n"
        "l4,toy-train-8-4,toy,train,,5,1\n"
        "l4,toy-train-8-4,deep,train,,1e15,1\n"
        "l4,toy-train-8-4,odd,train,,many,1\n"
        "l4,toy-train-8-4,silent,train,,0,1\n");
  write("models_fp32/class_sums.csv",
        "gpu,model,phase,seq,batch,cls,label_e2e_ms\n"
        "l4,bad,train,8,4,VECsoftmax,1\n"
        "l4,toy,train,8,4,Linear,1\n");
  const auto suite = check();
  ASSERT_TRUE(suite) << to_text(suite.error());
  std::string mistakes;
  for (const Error& mistake : suite->mistakes) mistakes += to_text(mistake) + "\n";
  EXPECT_EQ(suite->mistakes.size(), 4u) << mistakes;
  EXPECT_THAT(mistakes, HasSubstr("labels.csv:4: num_layer is \"1e15\""));
  EXPECT_THAT(mistakes, HasSubstr("labels.csv:5: num_layer is \"many\""));
  EXPECT_THAT(mistakes, HasSubstr("labels.csv:2: "));
  EXPECT_THAT(mistakes, HasSubstr("class_sums.csv:2: "));
  EXPECT_THAT(suite->markdown,
              HasSubstr("| l4 training | 2 |"));  // of a model of five layers, and of one that says none
  EXPECT_THAT(suite->markdown, HasSubstr("| Linear | 1 |"));
}

TEST_F(KernelSuiteFolder, AFolderWithoutTablesOrColumnsIsRefused) {
  const auto empty = check();
  ASSERT_FALSE(empty);
  EXPECT_THAT(to_text(empty.error()), HasSubstr("no measured kernels or models"));
  write("models_fp32/labels.csv", "gpu,graph,model\n");
  EXPECT_FALSE(check());  // without graphs
  write("models_fp32/graph_nodes.csv", kNodes);
  write("models_fp32/graph_ops.csv", kOps);
  const auto columns = check();
  ASSERT_FALSE(columns);
  EXPECT_THAT(to_text(columns.error()), HasSubstr("labels.csv:1: no column \"phase\""));
}

// The cards beside the shipped weights say the command that wrote them.
TEST(KernelRecipes, AreThoseOfTheShippedWeights) {
  const std::filesystem::path folder = std::filesystem::path(NS_DIST_SOURCE_DIR) / "compute_model/weights";
  for (const KernelRecipe& recipe : kKernelRecipes) {
    const KernelFitOptions options = fit_options(recipe);
    std::string command = "Written by `ns-dist fit --data DIR";
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
  const auto suite = check_kernels({.data = folder_.path(), .threads = 2, .refit = true}, gpu_of, usual);
  ASSERT_TRUE(suite) << to_text(suite.error());
  const std::string anew = suite->markdown.substr(suite->markdown.find("## GPUs left out, fitted anew"));
  EXPECT_THAT(anew, HasSubstr("| gemm_fp32 | p4 | GPU |"));
  EXPECT_THAT(anew, HasSubstr("| gemm_fp32 | v100-pcie-32gb | shapes |"));
  EXPECT_THAT(anew, ::testing::Not(HasSubstr("l4")));  // a table for tests
  EXPECT_THAT(suite->markdown, HasSubstr("these rows set the interval"));
  // A GPU that nobody knows is told, not taken for a predictor without rows; so is a folder with nothing to fit.
  table("bf16_moe", {"warp-drive"});
  EXPECT_FALSE(check_kernels({.data = folder_.path(), .refit = true}, gpu_of, usual));
  std::filesystem::remove_all(folder_.path() / "kernels");
  table("a100_mi210_llmcompass", {"a100-sxm-80gb"});
  const auto nothing = check_kernels({.data = folder_.path(), .refit = true}, gpu_of, usual);
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
