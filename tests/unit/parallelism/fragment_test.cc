// What runs after what, and what runs beside what, in the passes of a layer.
#include "fragment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <span>

#include "ns_dist/planner.h"
#include "parallelism_models.h"

namespace ns_dist {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct FragmentPasses : ::testing::Test {
  Model model = llama(1, 512, 8, 8, 1024);
  ParallelPlan plan{.tp = 2, .dp = 4, .sequence_parallel = true};
  Training training{4, 1, 128, Precision::kBf16};
  WorkTable works;

  Fragment pass(PassKind kind, bool moe = false) {
    const Shape shape(model, plan, training);
    return FragmentMaker(shape, mesh_of(plan), works)
        .pass(layer_block(shape, LayerKind{.feed_forward = moe ? FeedForward::kExperts : FeedForward::kDense}), kind);
  }
  const WorkItem& work(const FragmentNode& node) const { return works[index(node.work)]; }
  std::size_t find(const Fragment& fragment, const std::string& name) const {
    for (std::size_t n = 0; n < fragment.nodes.size(); ++n) {
      if (work(fragment.nodes[n]).name == name) return n;
    }
    ADD_FAILURE() << "no node " << name;
    return 0;
  }
  // Names of what a node waits for.
  std::vector<std::string> waits(const Fragment& fragment, const std::string& name) const {
    const FragmentNode& node = fragment.nodes[find(fragment, name)];
    std::vector<std::string> on;
    for (std::uint32_t d = 0; d < node.dependency_count; ++d) {
      const std::int32_t dependency = fragment.dependencies[node.first_dependency + d];
      on.push_back(dependency == kEntry            ? "entry"
                   : dependency == kPreviousKernel ? "previous kernel"
                                                   : work(fragment.nodes[static_cast<std::size_t>(dependency)]).name);
    }
    return on;
  }
  std::int64_t count(const Fragment& fragment, Category category) const {
    return std::count_if(fragment.nodes.begin(), fragment.nodes.end(),
                         [&](const FragmentNode& node) { return work(node).category == category; });
  }
  // Names of the kernels of a category, in order.
  std::vector<std::string> kernels(const Fragment& fragment, Category category) const {
    std::vector<std::string> found;
    for (const FragmentNode& node : fragment.nodes) {
      if (work(node).category == category) found.push_back(work(node).name);
    }
    return found;
  }
};

TEST_F(FragmentPasses, CommunicationBlocksInTheForwardPass) {
  const Fragment forward = pass(PassKind::kForward);
  EXPECT_THAT(waits(forward, "attention.norm"), ElementsAre("entry"));
  EXPECT_THAT(waits(forward, "attention.all_gather"), ElementsAre("attention.norm"));
  EXPECT_THAT(waits(forward, "attention.qkv"), ElementsAre("attention.all_gather"));
  EXPECT_THAT(waits(forward, "attention.flash"), IsEmpty());
  EXPECT_THAT(forward.exits, IsEmpty());
}

// Korthikanti et al. 2022, s.4.2.2.
TEST_F(FragmentPasses, BackwardGathersBesideOneProductAndReducesBesideTheOther) {
  const Fragment backward = pass(PassKind::kBackward);
  EXPECT_THAT(waits(backward, "mlp.fc1.input.all_gather"), ElementsAre("mlp.activation.backward"));
  EXPECT_THAT(waits(backward, "mlp.fc1.dgrad"), IsEmpty());
  EXPECT_THAT(waits(backward, "mlp.fc1.dgrad.reduce_scatter"), ElementsAre("mlp.fc1.dgrad"));
  EXPECT_THAT(waits(backward, "mlp.fc1.wgrad"), ElementsAre("mlp.fc1.input.all_gather"));
  EXPECT_THAT(waits(backward, "mlp.norm.backward"), ElementsAre("mlp.fc1.dgrad.reduce_scatter"));
}

TEST_F(FragmentPasses, BlockingTensorParallelismReducesAfterBothProducts) {
  plan.blocking_tp = TensorBlocking::kOn;
  const Fragment backward = pass(PassKind::kBackward);
  EXPECT_THAT(waits(backward, "mlp.fc1.dgrad"), ElementsAre("mlp.fc1.input.all_gather"));
  EXPECT_THAT(waits(backward, "mlp.fc1.dgrad.reduce_scatter"), ElementsAre("mlp.fc1.wgrad"));
  EXPECT_THAT(waits(backward, "mlp.norm.backward"), ElementsAre("mlp.fc1.dgrad.reduce_scatter"));
}

TEST_F(FragmentPasses, BlockingReductionsGatherBesideAProductAllTheSame) {
  plan.blocking_tp = TensorBlocking::kReductions;
  const Fragment backward = pass(PassKind::kBackward);
  EXPECT_THAT(waits(backward, "mlp.fc1.input.all_gather"), ElementsAre("mlp.activation.backward"));
  EXPECT_THAT(waits(backward, "mlp.fc1.dgrad"), IsEmpty());
  EXPECT_THAT(waits(backward, "mlp.fc1.wgrad"), ElementsAre("mlp.fc1.input.all_gather"));
  EXPECT_THAT(waits(backward, "mlp.fc1.dgrad.reduce_scatter"), ElementsAre("mlp.fc1.wgrad"));
  EXPECT_THAT(waits(backward, "mlp.norm.backward"), ElementsAre("mlp.fc1.dgrad.reduce_scatter"));
}

TEST_F(FragmentPasses, OneGradientAloneWaitsForItsCommunication) {
  const Fragment input = pass(PassKind::kInputGradient), weight = pass(PassKind::kWeightGradient);
  EXPECT_THAT(waits(input, "mlp.norm.backward"), ElementsAre("mlp.fc1.dgrad.reduce_scatter"));
  EXPECT_THAT(waits(weight, "mlp.fc1.wgrad"), ElementsAre("mlp.fc1.input.all_gather"));
  EXPECT_EQ(input.nodes.size() + weight.nodes.size(), pass(PassKind::kBackward).nodes.size());
}

TEST_F(FragmentPasses, RecomputationRunsAgainWhatWasDropped) {
  const std::int64_t forward = count(pass(PassKind::kForward), Category::kForward);
  EXPECT_EQ(count(pass(PassKind::kBackward), Category::kRecompute), 0);
  plan.recompute = Recompute::kSelective;
  const Fragment selective = pass(PassKind::kBackward);
  EXPECT_EQ(count(selective, Category::kRecompute), 1);
  EXPECT_EQ(find(selective, "attention.flash") + 1, find(selective, "attention.flash.backward"));
  plan.recompute = Recompute::kFull;
  EXPECT_EQ(count(pass(PassKind::kBackward), Category::kRecompute), forward);
  EXPECT_EQ(count(pass(PassKind::kInputGradient), Category::kRecompute), forward);
  EXPECT_EQ(count(pass(PassKind::kWeightGradient), Category::kRecompute), 0);
  const Shape shape(model, plan, training);
  EXPECT_EQ(count(FragmentMaker(shape, mesh_of(plan), works).pass(loss_block(shape), PassKind::kBackward),
                  Category::kRecompute),
            0);
}

// A module is a part of the graph that is computed again as a whole, before its backward pass begins (Megatron-Core,
// tensor_parallel/random.py, CheckpointFunction). Its first step may be the last that reads what it makes.
TEST_F(FragmentPasses, AModuleRunsAgainForwardBeforeItsBackwardPass) {
  model.moe = Experts{8, 2, 256, 1, 128, 0};
  plan = {.dp = 4, .ep = 4};
  std::vector<std::string> forward = kernels(pass(PassKind::kForward, true), Category::kForward);
  const auto router = std::find(forward.begin(), forward.end(), "moe.router");
  const auto add = std::find(forward.begin(), forward.end(), "moe.add");
  const std::vector<std::string> layer(router, add);  // Megatron-Core, moe_layer.py, custom_forward
  plan.recompute = Recompute::kSelective;
  plan.recompute_modules = set_of(RecomputeModule::kMoe);
  for (const PassKind kind : {PassKind::kBackward, PassKind::kInputGradient}) {
    const Fragment again = pass(kind, true);
    EXPECT_EQ(kernels(again, Category::kRecompute), layer);
    EXPECT_LT(find(again, "moe.shared.add"), find(again, "moe.shared.fc2.dgrad"));
    EXPECT_LT(find(again, "moe.unpermute"), find(again, "moe.unpermute.backward"));
  }
  plan.recompute_modules = set_of(RecomputeModule::kSharedExperts);
  const Fragment shared = pass(PassKind::kBackward, true);
  EXPECT_THAT(kernels(shared, Category::kRecompute),
              ElementsAre("moe.shared.fc1", "moe.shared.activation", "moe.shared.fc2"));
  EXPECT_LT(find(shared, "moe.shared.fc2"), find(shared, "moe.shared.fc2.dgrad"));
  // The weight gradient of the projection reads the norm's output.
  plan.recompute_modules = set_of(RecomputeModule::kNorm);
  const Fragment norms = pass(PassKind::kBackward);
  EXPECT_LT(find(norms, "mlp.norm"), find(norms, "mlp.fc1.wgrad"));
  EXPECT_LT(find(norms, "mlp.norm.backward"), find(norms, "attention.norm"));
  EXPECT_LT(find(norms, "attention.norm"), find(norms, "attention.qkv.wgrad"));
  // What another module dropped comes first.
  plan.recompute_modules |= set_of(RecomputeModule::kMlp);
  EXPECT_THAT(kernels(pass(PassKind::kBackward), Category::kRecompute),
              ElementsAre("mlp.norm", "mlp.fc1", "mlp.activation", "mlp.fc2", "attention.norm"));
  model.mla = LatentAttention{32, 32, 16, 16, 16};
  plan.recompute_modules = set_of(RecomputeModule::kLatentUpProjection);
  EXPECT_THAT(kernels(pass(PassKind::kBackward), Category::kRecompute),
              ElementsAre("attention.q_up", "attention.kv_up", "attention.rotary.queries", "attention.rotary.keys",
                          "attention.assemble"));
}

// Whatever a pass computes of the shared experts runs beside the exchange, and nothing else: what comes behind reads
// the tokens.
TEST_F(FragmentPasses, SharedExpertsAloneRunBesideTheExchange) {
  model.moe = Experts{8, 2, 256, 1, 128, 0};
  plan = {.dp = 4, .ep = 4, .overlap_ep = true};
  const auto expect_beside = [&](const Fragment& fragment, const std::string& exchange, const std::string& reader) {
    const std::size_t begin = find(fragment, exchange), end = find(fragment, reader);
    EXPECT_THAT(waits(fragment, reader), ElementsAre(exchange));
    ASSERT_GT(end, begin + 1);
    for (std::size_t n = begin + 1; n < end; ++n) {
      EXPECT_THAT(work(fragment.nodes[n]).name, ::testing::StartsWith("moe.shared."));
      EXPECT_EQ(fragment.nodes[n].dependency_count, 0u);
    }
  };
  for (const bool again : {false, true}) {
    plan.recompute = again ? Recompute::kSelective : Recompute::kNone;
    plan.recompute_modules = set_of(RecomputeModule::kSharedExperts);
    expect_beside(pass(PassKind::kForward, true), "moe.dispatch", "moe.sort");
    expect_beside(pass(PassKind::kBackward, true), "moe.dispatch.backward", "moe.permute.backward");
    expect_beside(pass(PassKind::kInputGradient, true), "moe.dispatch.backward", "moe.permute.backward");
  }
}

TEST_F(FragmentPasses, RecomputationMayStopEarly) {
  plan.recompute = Recompute::kFull;
  const std::int64_t all = count(pass(PassKind::kBackward), Category::kRecompute);
  plan.recompute_early_stop = true;
  // The second product of the MLP and the sum.
  EXPECT_EQ(count(pass(PassKind::kBackward), Category::kRecompute), all - 2);
  EXPECT_EQ(count(pass(PassKind::kInputGradient), Category::kRecompute), all - 2);
  plan.recompute = Recompute::kNone;
  EXPECT_EQ(count(pass(PassKind::kBackward), Category::kRecompute), 0);
}

TEST_F(FragmentPasses, ACallAlone) {
  const Shape shape(model, plan, training);
  const FragmentMaker make(shape, mesh_of(plan), works);
  const Fragment gather = make.of(
      {"gather", Communication{CollectiveKind::kAllGather, shape.hidden_states(), Axis::kTensor}}, Category::kForward);
  EXPECT_THAT(gather.dependencies, ElementsAre(kEntry, kPreviousKernel));
  EXPECT_THAT(gather.exits, ElementsAre(0));
  EXPECT_EQ(std::get<Collective>(work(gather.nodes[0]).work).group, (RankGroup{0, {{2, 1}}}));
  const Fragment none = make.of(
      {"exchange", Communication{CollectiveKind::kAllToAll, shape.hidden_states(), Axis::kExpert}}, Category::kForward);
  EXPECT_THAT(none.nodes, IsEmpty());
  EXPECT_THAT(none.exits, ElementsAre(kEntry));
}

// Ends of the nodes when a kernel takes 1 and a communication 3.
double length(const Fragment& fragment) {
  std::vector<double> ends;
  std::array<double, kStreamCount> free{};
  for (const FragmentNode& node : fragment.nodes) {
    double start = free[static_cast<std::size_t>(node.stream)];
    for (std::uint32_t d = 0; d < node.dependency_count; ++d) {
      const std::int32_t on = fragment.dependencies[node.first_dependency + d];
      if (on >= 0) start = std::max(start, ends[static_cast<std::size_t>(on)]);
    }
    ends.push_back(start + (node.stream == Stream::kCompute ? 1 : 3));
    free[static_cast<std::size_t>(node.stream)] = ends.back();
  }
  return *std::max_element(ends.begin(), ends.end());
}

TEST_F(FragmentPasses, BesideHidesCommunicationBehindTheOtherPass) {
  model.moe = Experts{8, 2, 256, 1, 128, 0};
  plan = {.dp = 4, .ep = 4};
  const Fragment forward = pass(PassKind::kForward, true), backward = pass(PassKind::kBackward, true);
  const Fragment both = beside(forward, backward);
  ASSERT_EQ(both.nodes.size(), forward.nodes.size() + backward.nodes.size());
  // All nodes are there, each fragment's own in their order.
  std::map<std::uint32_t, int> left;
  for (const FragmentNode& node : both.nodes) ++left[index(node.work)];
  for (const Fragment* part : {&forward, &backward}) {
    for (const FragmentNode& node : part->nodes) --left[index(node.work)];
  }
  for (const auto& [id, surplus] : left) EXPECT_EQ(surplus, 0) << works[id].name;
  EXPECT_THAT(waits(both, "moe.fc1"), IsEmpty());
  EXPECT_THAT(waits(both, "moe.sort"), ElementsAre("moe.dispatch"));
  EXPECT_LT(length(both), length(forward) + length(backward));
  // Two exchanges of each pass; all but the first and the last can hide.
  EXPECT_LE(length(both), length(forward) + length(backward) - 6);
}

TEST_F(FragmentPasses, BesideKeepsEntriesAndExits) {
  const Shape shape(model, plan, training);
  const FragmentMaker make(shape, mesh_of(plan), works);
  const Call gather{"gather", Communication{CollectiveKind::kAllGather, shape.hidden_states(), Axis::kTensor}};
  const Fragment one = make.of(gather, Category::kForward);
  const Fragment both = beside(one, one);
  EXPECT_THAT(both.dependencies, ElementsAre(kEntry, kPreviousKernel, kEntry, kPreviousKernel));
  EXPECT_THAT(both.exits, ElementsAre(0, 1));
  EXPECT_EQ(beside(one, Fragment{{}, {}, {kEntry}}).nodes, one.nodes);
}

TEST(WorkTable, EqualWorkIsOneItem) {
  WorkTable works;
  const auto item = [](double bytes, Category category) {
    return WorkItem{"copy", category, Operator{Copy{bytes * units::B}, DType::kBf16}};
  };
  const WorkId first = works.intern(item(1, Category::kForward));
  EXPECT_EQ(works.intern(item(1, Category::kForward)), first);
  EXPECT_NE(works.intern(item(2, Category::kForward)), first);
  EXPECT_NE(works.intern(item(1, Category::kRecompute)), first);
  EXPECT_EQ(works.size(), 3u);
}

// Programs share the works of a model's parts and add their own behind them.
TEST(WorkTable, StandsOnAnother) {
  const auto item = [](double bytes) {
    return WorkItem{"copy", Category::kForward, Operator{Copy{bytes * units::B}, DType::kBf16}};
  };
  const auto base = std::make_shared<WorkTable>();
  const WorkId shared = base->intern(item(1));
  base->intern(item(2));
  WorkTable works(base);
  EXPECT_EQ(works.intern(item(1)), shared);
  const WorkId own = works.intern(item(3));
  EXPECT_EQ(own, WorkId{2});
  EXPECT_EQ(works.intern(item(3)), own);
  EXPECT_EQ(works.add(item(3)), WorkId{3});
  EXPECT_EQ(works[1], item(2));
  EXPECT_EQ(works[3], item(3));
  EXPECT_EQ(base->size(), 2u);
  WorkTable alone;
  for (const double bytes : {1, 2, 3, 3}) alone.add(item(bytes));
  EXPECT_TRUE(works == alone);
  alone.add(item(4));
  EXPECT_FALSE(works == alone);
}

TEST(Bodies, AnInstructionAtTheEndOfABodyLeavesTheOthers) {
  const auto run = [](std::int32_t times) {
    Instruction instruction;
    instruction.times = times;
    return instruction;
  };
  const auto times = [](std::span<const Instruction> body) {
    std::vector<std::int32_t> found;
    for (const Instruction& instruction : body) found.push_back(instruction.times);
    return found;
  };
  Bodies bodies;
  bodies.add();
  bodies.push_back(run(1));
  bodies.push_back(run(2));
  bodies.add();
  EXPECT_EQ(bodies.last(), nullptr);
  bodies.add();
  bodies.push_back(run(3));
  EXPECT_EQ(bodies.last()->times, 3);
  bodies.insert(BodyId{1}, run(4));
  bodies.insert(BodyId{0}, run(5));
  bodies.insert(BodyId{2}, run(6));
  EXPECT_THAT(times(bodies[0]), ElementsAre(1, 2, 5));
  EXPECT_THAT(times(bodies[1]), ElementsAre(4));
  EXPECT_THAT(times(bodies[2]), ElementsAre(3, 6));
}

}  // namespace
}  // namespace ns_dist
