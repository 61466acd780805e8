#include "ns_dist/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "ns_dist/memory.h"
#include "ns_dist/simulator.h"
#include "step_difference.h"
#include "step_interval.h"
#include "support/simulator_fakes.h"

namespace ns_dist {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

SearchRequest request(std::int64_t gpus, std::string_view model = "gpt3-13b") {
  return {.fixed = ScenarioSpec().set("model", model), .gpus = gpus};
}

constexpr double kForever = std::numeric_limits<double>::infinity();

Result<SearchSpace> space(SearchRequest request) { return SearchSpace::make(std::move(request), Catalog::standard()); }

TEST(SearchValues, ListsAndRanges) {
  EXPECT_THAT(read_values("plan/tp", "8")->values, ElementsAre("8"));
  EXPECT_THAT(read_values("plan/tp", "1,2,4..6")->values, ElementsAre("1", "2", "4", "5", "6"));
  EXPECT_THAT(read_values("plan/tp", " 1, 2 , 4 .. 6")->values, ElementsAre("1", "2", "4", "5", "6"));
  EXPECT_THAT(read_values("plan/recompute", "selective:core_attn, mlp, full")->values,
              ElementsAre("selective:core_attn,mlp", "full"));
  EXPECT_FALSE(read_values("plan/tp", "1, ,2").has_value());
  EXPECT_THAT(read_values("plan/recompute", "none,full")->values, ElementsAre("none", "full"));
  EXPECT_THAT(read_values("plan/recompute", "selective:core_attn,mlp,none,full:2")->values,
              ElementsAre("selective:core_attn,mlp", "none", "full:2"));
  EXPECT_THAT(read_values("plan/tp", "2,1..3")->values, ElementsAre("2", "1", "3"));
}

TEST(SearchValues, MistakesNameTheFieldAndWhatToWrite) {
  struct Case {
    const char *field, *text, *says;
  };
  for (const Case& each : {Case{"plan/tp", "8..1", "write 1..8"}, Case{"plan/tp", "1,,2", "empty value"},
                           Case{"plan/tp", "", "empty value"}, Case{"plan/tp", "1..x", "1..x"},
                           Case{"plan/tp", "0..4", "plan/tp"}, Case{"plan/tp", "1..1000000000", "at most"},
                           Case{"plan/recompute", "none,nothing", "nothing"}, Case{"plan/tpp", "1", "no such field"}}) {
    const auto refused = read_values(each.field, each.text);
    ASSERT_FALSE(refused.has_value()) << each.text;
    EXPECT_EQ(refused.error().where, each.field);
    EXPECT_THAT(to_text(refused.error()), HasSubstr(each.says));
  }
}

// llm-foundry has replicas alone: 480 sequences are 480 / 96 for each of 96, and none of 64 has as many.
TEST(SearchSpace, KnowsWhetherReplicasMayShareTheBatch) {
  const auto may = [](std::int64_t gpus, const char* framework, std::string micro_batch) {
    SearchRequest made = request(gpus, "llama3-8b");
    made.fixed.set("framework", framework).set("training/global_batch", 480);
    if (!micro_batch.empty()) made.fixed.set("training/micro_batch", std::string_view(micro_batch));
    return space(made)->may_share_batch();
  };
  EXPECT_TRUE(may(96, "llm-foundry", ""));
  EXPECT_FALSE(may(64, "llm-foundry", ""));
  EXPECT_TRUE(may(64, "megatron-core", "")) << "two of them to a replica";
  EXPECT_TRUE(may(96, "llm-foundry", "5"));
  EXPECT_FALSE(may(96, "llm-foundry", "2"));
}

// Twelve layers on eight stages: Megatron-Core wants them written, DeepSpeed divides them itself.
TEST(Search, WritesTheLayoutThatAFrameworkAsksFor) {
  const auto layout = [](const char* framework) {
    SearchRequest made = request(8, "gpt3-125m");
    made.fixed.set("framework", framework).set("plan/schedule", "1f1b").set("plan/pp", 8);
    made.fixed.set("training/micro_batch", 1).set("training/global_batch", 8).set("plan/recompute", "none");
    const auto plans = space(made);
    EXPECT_TRUE(plans) << to_text(plans.error());
    const auto found = search(*plans, *Session::make(plans->base()));
    EXPECT_TRUE(found) << to_text(found.error());
    const SearchAnswer& best = found->answers.front();
    ScenarioSpec spec;
    spec.assignments = best.assignments;
    const auto again = simulate(*resolve(spec, Catalog::standard()));
    EXPECT_EQ(again->step, best.report.step);
    std::string text = "even";
    for (const Assignment& each : best.assignments) {
      if (each.field == "plan/pipeline_layout") text = each.text;
    }
    return text;
  };
  EXPECT_EQ(layout("megatron-core"), "Ett|(tt|)*3t|t|t|tL");
  EXPECT_EQ(layout("deepspeed"), "even");
}

// Asked for any step below another one, a search ends with one that is, or without an answer.
TEST(Search, EndsWithTheFirstStepBelow) {
  SearchRequest made = request(16);
  made.fixed.set("plan/schedule", "1f1b").set("training/micro_batch", 1).set("plan/cp", 1);
  const auto plans = space(made);
  ASSERT_TRUE(plans);
  const Session session = *Session::make(plans->base());
  const Seconds best = search(*plans, session)->answers.front().report.step;
  SearchOptions options;
  options.within = 0;
  options.below = best;
  EXPECT_TRUE(search(*plans, session, options)->answers.empty()) << "as long is not below";
  options.below = 1.5 * best;
  const auto found = search(*plans, session, options);
  ASSERT_FALSE(found->answers.empty());
  EXPECT_LT(found->answers.front().report.step, *options.below);
}

// The table names fields of scenario_fields() that a search may vary, each once.
TEST(SearchSpace, SearchedFieldsAreFields) {
  std::set<std::string_view> known, seen;
  for (const FieldDescription& description : scenario_fields()) known.insert(description.field.name);
  for (const std::string_view field : searched_fields()) {
    EXPECT_TRUE(known.contains(field)) << field;
    EXPECT_TRUE(can_be_searched(field)) << field;
    EXPECT_TRUE(seen.insert(field).second) << field;
  }
  EXPECT_FALSE(can_be_searched("training/layers")) << "another model";
  EXPECT_FALSE(can_be_searched("training/sequence")) << "another task";
  EXPECT_FALSE(can_be_searched("machine/gpu"));
  EXPECT_FALSE(can_be_searched("plan/nothing"));
}

TEST(SearchSpace, PlansUseEveryGpuAndAreCounted) {
  const auto found = space(request(16));
  ASSERT_TRUE(found.has_value());
  std::uint64_t plans = 0;
  found->for_each([&](const Scenario& scenario) {
    const ParallelPlan& plan = scenario.plan;
    EXPECT_EQ(plan.tp * plan.cp * plan.pp * plan.dp, 16);
    return ++plans < 1'000'000;
  });
  EXPECT_EQ(plans, found->size());
  EXPECT_EQ(found->gpus(), 16);
}

// A plan is counted by the fields that others depend on (kSearched): one that is missing there counts too many or too
// few. Experts, shards and listed passes, with nothing given.
TEST(SearchSpace, PlansOfEveryKindAreCounted) {
  struct Case {
    const char *model, *framework;
    std::vector<FieldValues> listed;
  };
  for (const Case& each : {Case{"mixtral-8x7b", "megatron-core", {}}, Case{"llama3-8b", "torchtitan", {}},
                           Case{"gpt3-1.3b", "deepspeed", {{"plan/passes", {"training", "forward"}}}},
                           Case{"gpt3-1.3b", "megatron-core", {{"plan/passes", {"forward", "training"}}}},
                           Case{"mixtral-8x7b", "megatron-core", {{"plan/zero_library", {"default", "fsdp2"}}}},
                           Case{"llama3-8b", "megatron-core", {{"plan/account_loss", {"off", "on"}}}}}) {
    SearchRequest made = request(8, each.model);
    made.fixed.set("framework", each.framework).set("training/global_batch", 16);
    made.listed = each.listed;
    const auto found = space(std::move(made));
    ASSERT_TRUE(found) << each.model << " " << to_text(found.error());
    std::uint64_t plans = 0;
    found->for_each([&](const Scenario&) { return ++plans < 10'000'000; });
    EXPECT_EQ(plans, found->size()) << each.model << " " << each.framework;
    EXPECT_GT(plans, 100U);
  }
}

// Llama 3 8B's logits are 6 x 4,096 x 128,256 FLOP a token, 2.3 of its layers: of 8 layers its last stage may have 5,
// since with 6 three stages do not share 26. A loss of one layer is not worth another division (GPT-3's).
TEST(SearchSpace, AStageWithALongLossMayHaveFewerLayers) {
  const auto sizes = [](const SearchRequest& asked) {
    std::map<std::int64_t, std::set<std::int64_t>> of_stages;
    space(asked)->for_each([&](const Scenario& scenario) {
      of_stages[scenario.plan.pp].insert(scenario.plan.last_stage_layers);
      return true;
    });
    return of_stages;
  };
  const std::set<std::int64_t> even = {0}, fewer = {0, 5};
  SearchRequest llama = request(8, "llama3-8b");
  llama.fixed.set("plan/schedule", "1f1b").set("plan/recompute", "none").set("plan/tp", 1);
  EXPECT_EQ(sizes(llama)[1], even);
  EXPECT_EQ(sizes(llama)[4], fewer);
  llama.fixed.set("plan/account_loss", "on");
  EXPECT_EQ(sizes(llama)[4], even) << "the user has another rule";
  Scenario own = *resolve(ScenarioSpec().set("model", "llama3-8b").set("plan/pp", 4), Catalog::standard());
  own.plan.first_stage_layers = own.plan.last_stage_layers = 7;
  SearchRequest repeated;
  repeated.gpus = 4;
  repeated.from = std::make_shared<const Scenario>(own);
  repeated.fixed.set("plan/schedule", "1f1b").set("plan/recompute", "none").set("plan/pp", 4);
  EXPECT_EQ(sizes(repeated)[4], std::set<std::int64_t>{7}) << "a report's plan has it";
  SearchRequest gpt = request(8, "gpt3-6.7b");
  gpt.fixed.set("plan/schedule", "1f1b").set("plan/recompute", "none").set("plan/tp", 1);
  EXPECT_EQ(sizes(gpt)[4], even);
}

// gpt-oss's 36 layers make 9 on each of 4 stages: chunks of 3 or 1. Before a last stage of 6, which its long loss
// allows, the others have 10: chunks of 5 or 2.
TEST(SearchSpace, ChunksMayBeEvenBesideAShorterLastStage) {
  SearchRequest asked = request(32, "gpt-oss-120b");
  asked.fixed.set("plan/schedule", "interleaved").set("plan/recompute", "none").set("plan/pp", 4).set("plan/tp", 1);
  const auto divisions = [](const SearchRequest& of) {
    std::set<std::pair<std::int64_t, std::int64_t>> found;  // chunks, layers of the last stage
    space(of)->for_each([&](const Scenario& scenario) {
      found.emplace(scenario.plan.vpp, scenario.plan.last_stage_layers);
      return true;
    });
    return found;
  };
  using Divisions = std::set<std::pair<std::int64_t, std::int64_t>>;
  EXPECT_EQ(divisions(asked), (Divisions{{2, 6}, {3, 0}, {9, 0}}));
  SearchRequest even = asked;
  even.fixed.set("plan/last_stage_layers", 0);
  EXPECT_EQ(divisions(even), (Divisions{{3, 0}, {9, 0}})) << "the user wants no other last stage";
  asked.listed = {{"plan/vpp", {"2", "3"}}};
  EXPECT_EQ(divisions(asked), (Divisions{{2, 0}, {2, 6}, {3, 0}})) << "the user wants two chunks";
}

// Products of such sizes do not fit into integers: they are refused before anything is sized.
TEST(SearchSpace, RefusesMicrobatchesThatAreTooLarge) {
  SearchRequest large = request(8, "llama3-8b");
  large.fixed.set("training/global_batch", 80'000'000).set("training/micro_batch", 10'000'000);
  large.fixed.set("training/sequence", 100'000'000).set("plan/tp", 1).set("plan/cp", 1).set("plan/schedule", "1f1b");
  const auto space = SearchSpace::make(std::move(large), Catalog::standard());
  ASSERT_TRUE(space.has_value()) << to_text(space.error());
  const auto result = search(*space, *Session::make(space->base()), {.threads = 1});
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(result->answers.empty());
  ASSERT_FALSE(result->infeasible.empty());
  EXPECT_EQ(result->evaluated, 0u);
}

// Most plans of small kernels wait for the host, and differ little without it: a bound that knows the host's launches
// leaves few to be timed.
TEST(Search, BoundsHaveTheHostsLaunches) {
  SearchRequest small = request(8, "qwen3-30b-a3b");
  small.fixed.set("training/global_batch", 8).set("training/sequence", 512).set("plan/schedule", "1f1b");
  small.fixed.set("plan/pp", 1);
  const auto found = space(std::move(small));
  ASSERT_TRUE(found.has_value()) << to_text(found.error());
  const auto result = search(*found, *Session::make(found->base()), {.threads = 1});
  ASSERT_TRUE(result.has_value());
  ASSERT_FALSE(result->answers.empty());
  EXPECT_LT(result->evaluated, 100u) << "of " << result->plans;
}

TEST(SearchSpace, WhatIsGivenIsNotVaried) {
  SearchRequest some = request(16);
  some.fixed.set("plan/tp", 2).set("plan/schedule", "1f1b").set("training/micro_batch", 1);
  some.listed.push_back({"plan/recompute", {"none", "full"}});
  const auto found = space(std::move(some));
  ASSERT_TRUE(found.has_value());
  std::set<std::string> recomputations;
  found->for_each([&](const Scenario& scenario) {
    EXPECT_EQ(scenario.plan.tp, 2);
    EXPECT_EQ(scenario.plan.schedule, "1f1b");
    EXPECT_EQ(scenario.plan.vpp, 1);
    EXPECT_EQ(scenario.training.micro_batch, 1);
    recomputations.insert(field_text(scenario.plan.recompute));
    return true;
  });
  EXPECT_THAT(recomputations, ElementsAre("full", "none"));
}

// PyTorch's FSDP spreads replicas alone. What the user asks for is tried all the same.
TEST(SearchSpace, AFrameworkHasOnlyWhatItHas) {
  SearchRequest sharded = request(16);
  sharded.fixed.set("framework", "fsdp");
  std::set<std::int64_t> stages;
  std::set<std::string> spread;
  const auto visit = [&](const Scenario& scenario) {
    EXPECT_EQ(scenario.plan.tp * scenario.plan.cp, 1);
    stages.insert(scenario.plan.pp);
    spread.insert(field_text(scenario.plan.zero));
    return true;
  };
  space(sharded)->for_each(visit);
  EXPECT_THAT(stages, ElementsAre(1));
  EXPECT_THAT(spread, ElementsAre("0", "3"));
  stages.clear();
  sharded.listed.push_back({"plan/pp", {"2"}});
  space(sharded)->for_each(visit);
  EXPECT_THAT(stages, ElementsAre(2));
}

// The framework's own recomputation is tried beside the usual ones, and of these what it has.
TEST(SearchSpace, RecomputationIsVariedByModules) {
  const auto tried = [](const char* framework, const char* model) {
    SearchRequest made = request(16, model);
    made.fixed.set("framework", framework).set("plan/tp", 1).set("plan/cp", 1).set("plan/pp", 1);
    made.fixed.set("training/micro_batch", 1).set("plan/schedule", "1f1b").set("plan/zero", "1");
    std::set<std::string> texts;
    space(std::move(made))->for_each([&](const Scenario& scenario) {
      const ParallelPlan& plan = scenario.plan;
      texts.insert(field_text(Recomputation{plan.recompute, plan.recompute_modules, plan.recompute_layers}));
      return true;
    });
    return texts;
  };
  EXPECT_THAT(tried("megatron-core", "llama3-8b"),
              ElementsAre("full", "none", "selective:layernorm", "selective:layernorm,mlp"));
  EXPECT_THAT(tried("megatron-core", "mixtral-8x7b"),
              ElementsAre("full", "none", "selective:layernorm,moe", "selective:layernorm,moe_act"));
  EXPECT_THAT(tried("hai-llm", "deepseek-v3"),
              ElementsAre("full", "none", "selective:layernorm,moe,mla_up_proj", "selective:layernorm,moe_act",
                          "selective:layernorm,moe_act,mla_up_proj"));
  EXPECT_THAT(tried("deepspeed", "llama3-8b"), ElementsAre("full", "none"));
  EXPECT_THAT(tried("megatron-lm-2021", "gpt3-1.3b"), ElementsAre("full", "none", "selective"));
}

// Replicas that share weights in a node, or in several, as far as there are as many.
TEST(SearchSpace, SetsOfReplicasAreVaried) {
  SearchRequest made = request(64, "llama3-8b");
  made.fixed.set("framework", "torchtitan").set("plan/pp", 1).set("plan/cp", 1).set("plan/recompute", "none");
  std::map<std::int64_t, std::set<std::int64_t>> sets;  // by tp
  space(std::move(made))->for_each([&](const Scenario& scenario) {
    const bool shares_weights = scenario.plan.zero == ZeroStage::kParameters;
    EXPECT_TRUE(shares_weights || scenario.plan.shard == 0);
    if (shares_weights) sets[scenario.plan.tp].insert(scenario.plan.shard);
    return true;
  });
  EXPECT_THAT(sets[1], ElementsAre(0, 2, 8, 32));
  EXPECT_THAT(sets[4], ElementsAre(0, 2, 8));
}

// A search from a plan that shares over 8 ranks tries those and all ranks; under ZeRO 0 nothing is shared.
TEST(SearchSpace, TheSetsOfAPlanAreOneChoiceOfMany) {
  SearchRequest made = request(32, "llama3-8b");
  made.fixed.set("plan/pp", 1).set("plan/cp", 1).set("plan/recompute", "none").set("plan/tp", 1);
  ScenarioSpec plan = made.fixed;
  plan.set("machine/nodes", 4).set("plan/dp", 32).set("plan/zero", 1).set("plan/shard", 8);
  made.from = std::make_shared<const Scenario>(*resolve(plan, Catalog::standard()));
  std::map<std::string, std::set<std::int64_t>> sets;  // by ZeRO
  space(std::move(made))->for_each([&](const Scenario& scenario) {
    return sets[field_text(scenario.plan.zero)].insert(scenario.plan.shard), true;
  });
  EXPECT_THAT(sets["0"], ElementsAre(0));
  EXPECT_THAT(sets["1"], ElementsAre(0, 8));
  EXPECT_THAT(sets["2"], ElementsAre(0, 8));
  EXPECT_THAT(sets["3"], ElementsAre(0, 2, 8));
}

// Chunks that are given hold for plans of one stage, too, but for Megatron-Core, which refuses them there.
TEST(SearchSpace, GivenChunksLeavePlansOfOneStage) {
  for (const std::string_view framework : {"megatron-core", "megatron-lm-2021"}) {
    SearchRequest made = request(8, "gpt3-1.3b");
    made.fixed.set("framework", framework).set("plan/recompute", "none").set("plan/vpp", 2).set("plan/cp", 1);
    std::set<std::int64_t> stages;
    const Result<SearchSpace> found = space(std::move(made));
    ASSERT_TRUE(found) << to_text(found.error());
    found->for_each([&](const Scenario& scenario) {
      if (found->check(scenario)) stages.insert(scenario.plan.pp);
      EXPECT_EQ(scenario.plan.vpp, 2);
      return true;
    });
    EXPECT_EQ(stages.contains(1), framework != "megatron-core") << framework;
    EXPECT_TRUE(stages.contains(2)) << framework;
  }
}

// torchtitan gathers beside products: a switch that ZeRO 3 does not read is left as the framework has it.
TEST(SearchSpace, ASwitchWithoutEffectStaysAsItIs) {
  SearchRequest made = request(16, "llama3-8b");
  made.fixed.set("framework", "torchtitan").set("plan/recompute", "none").set("plan/pp", 1);
  const Result<SearchSpace> found = space(std::move(made));
  ASSERT_TRUE(found->base().plan.overlap_param_gather);
  found->for_each([&](const Scenario& scenario) {
    EXPECT_TRUE(scenario.plan.overlap_param_gather);
    return true;
  });
}

// What runs layer by layer has no overlap to choose (ZeRO 2: gradients; 3: weights, too), and ZeRO 0 gathers nothing.
// Of the four pairs of ZeRO 1 Megatron-Core does not have gathers without reductions.
TEST(SearchSpace, OverlapIsVariedWhereThereIsSomethingToOverlap) {
  const auto plans_by_stage = [](SearchRequest made) {
    made.fixed.set("plan/recompute", "none").set("training/micro_batch", 1).set("plan/sequence_parallel", "on");
    made.fixed.set("plan/schedule", "1f1b").set("plan/shard", 0);
    std::map<std::string, std::set<std::pair<bool, bool>>> overlaps;
    std::size_t plans = 0;
    space(std::move(made))->for_each([&](const Scenario& scenario) {
      const ParallelPlan& plan = scenario.plan;
      overlaps[field_text(plan.zero)].insert({plan.overlap_grad_reduce, plan.overlap_param_gather});
      return ++plans > 0;
    });
    std::map<std::string, std::size_t> counts;
    std::size_t distinct = 0;
    for (const auto& [zero, each] : overlaps) distinct += counts[zero] = each.size();
    EXPECT_EQ(distinct, plans);
    return counts;
  };
  const auto alone = [](std::int64_t tp, std::int64_t cp) {
    SearchRequest made = request(8);
    made.fixed.set("plan/tp", tp).set("plan/cp", cp).set("plan/pp", 1);
    return made;
  };
  using Counts = std::map<std::string, std::size_t>;
  const Counts replicas = {{"0", 2}, {"1", 3}, {"2", 2}, {"3", 1}};
  EXPECT_EQ(plans_by_stage(alone(2, 1)), replicas);
  EXPECT_EQ(plans_by_stage(alone(1, 8)), replicas);  // ranks of a context hold the same weights
  EXPECT_EQ(plans_by_stage(alone(8, 1)), (Counts{{"1", 1}}));
  // Tensor-parallel ranks that hold whole experts: the same ones with ep 1, others with ep 8.
  SearchRequest experts = request(8, "mixtral-8x7b");
  experts.fixed.set("plan/tp", 8).set("plan/cp", 1).set("plan/pp", 1).set("plan/etp", 1).set("plan/ep", 1);
  EXPECT_EQ(plans_by_stage(experts), replicas);
  experts.fixed.set("plan/ep", 8);
  EXPECT_EQ(plans_by_stage(experts), (Counts{{"1", 1}}));
}

// What delayed scaling quantizes while it is made cannot be made again.
TEST(SearchSpace, NumberFormatsHaveTheirRecomputations) {
  const auto tried = [](const char* dtype) {
    SearchRequest made = request(8);
    made.fixed.set("plan/tp", 8).set("plan/pp", 1).set("plan/cp", 1).set("training/dtype", dtype);
    std::set<std::string> all;
    space(std::move(made))->for_each([&](const Scenario& each) {
      Recomputation again{each.plan.recompute, each.plan.recompute_modules, each.plan.recompute_layers};
      return all.insert(field_text(again)), true;
    });
    return all;
  };
  EXPECT_EQ(tried("bf16"), (std::set<std::string>{"full", "none", "selective:layernorm", "selective:layernorm,mlp"}));
  EXPECT_EQ(tried("fp8"), (std::set<std::string>{"full", "none", "selective:mlp"}));
  EXPECT_EQ(tried("mxfp8"), tried("bf16"));
}

// Nobody wrote DualPipe for JAX.
TEST(SearchSpace, AFrameworkHasItsSchedules) {
  SearchRequest compiled = request(16);
  compiled.fixed.set("framework", "jax").set("plan/tp", 1).set("plan/cp", 1);
  std::set<std::string> schedules;
  space(compiled)->for_each([&](const Scenario& scenario) {
    schedules.insert(scenario.plan.schedule);
    return true;
  });
  EXPECT_THAT(schedules, ElementsAre("1f1b", "breadth-first", "gpipe", "interleaved"));
}

// The machine: nodes of the GPU's usual machine; less than a node is a smaller node.
TEST(SearchSpace, TheMachineHasAsManyGpus) {
  EXPECT_EQ(space(request(4))->base().cluster.gpu_count(), 4);
  EXPECT_EQ(space(request(24))->base().cluster.gpu_count(), 24);
  SearchRequest nodes = request(0);
  nodes.gpus.reset();
  nodes.fixed.set("machine/nodes", 3);
  EXPECT_EQ(space(std::move(nodes))->gpus(), 24);
  SearchRequest none = request(0);
  none.gpus.reset();
  EXPECT_THAT(to_text(space(std::move(none)).error()), HasSubstr("--gpus"));
  EXPECT_THAT(to_text(space(request(12)).error()), HasSubstr("write 8 or 16"));
}

// Tensor parallelism across nodes is never proposed; racks of 72 are used by 64.
// 14 GPUs lie on two nodes of 8 with 7 each and 126 on two racks of 72 with 63 each, but few plans divide these: whole
// nodes, and 64 of 72, are named.
TEST(SearchSpace, SizesThatDoNotFillNodesNameTheNearestWholeNodes) {
  const auto hint = [](const char* gpu, std::int64_t gpus) {
    SearchRequest request;
    request.fixed.set("machine/gpu", gpu);
    request.gpus = gpus;
    const auto made = space(std::move(request));
    return made ? std::string("possible") : made.error().hint;
  };
  EXPECT_EQ(hint("h100-sxm-80gb", 12), "write 8 or 16");
  EXPECT_EQ(hint("h100-sxm-80gb", 14), "possible");
  EXPECT_EQ(hint("gb200", 96), "write 72, 128 or 144");
  EXPECT_EQ(hint("gb200", 126), "possible");
  EXPECT_EQ(hint("gb200", 143), "write 128 or 144");
}

TEST(SearchSpace, TensorParallelismStaysInNodes) {
  SearchRequest racks = request(256);
  racks.fixed.set("machine/gpu", "gb200");
  EXPECT_EQ(space(racks)->base().cluster.gpus_per_node(), 64);
  SearchRequest nodes = request(64, "gpt3-175b");
  nodes.fixed.set("plan/schedule", "1f1b").set("plan/recompute", "none").set("training/micro_batch", 1);
  std::int64_t widest = 0;
  space(nodes)->for_each([&](const Scenario& scenario) {
    widest = std::max(widest, scenario.plan.tp);
    return true;
  });
  EXPECT_EQ(widest, 8);
  nodes.fixed.set("plan/tp", 16);  // who asks for it has it
  EXPECT_TRUE(space(nodes).has_value());
}

TEST(SearchSpace, SaysThatItIsTooLargeBeforeItStarts) {
  SearchRequest large = request(256);
  const auto range = read_values("training/micro_batch", "1..10000");
  large.listed.push_back(*range);
  large.listed.push_back({"plan/vpp", range->values});
  const auto refused = space(std::move(large));
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(to_text(refused.error()), HasSubstr("plans or more; expected at most 1e+08"));
  EXPECT_THAT(to_text(refused.error()), HasSubstr("training/micro_batch (10000 values)"));

  SearchRequest empty = request(16);
  empty.listed.push_back({"plan/tp", {"3", "5"}});
  EXPECT_THAT(to_text(space(std::move(empty)).error()), HasSubstr("16 GPUs"));
}

TEST(SearchSpace, UnknownSchedulesAreRefused) {
  SearchRequest unknown = request(16);
  unknown.fixed.set("plan/schedule", "1f2b");
  EXPECT_THAT(to_text(space(std::move(unknown)).error()), HasSubstr("did you mean \"1f1b\""));
}

TEST(SearchTest, NothingFitsIsAnAnswer) {
  const auto found = space(request(4, "gpt3-175b"));
  const auto session = Session::make(found->base());
  const auto result = search(*found, *session);
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(result->answers.empty());
  EXPECT_EQ(result->infeasible.at("memory"), result->plans);
  ASSERT_TRUE(result->least_memory.has_value());
  EXPECT_GT(*result->least_memory, found->base().cluster.gpu.memory);
}

TEST(SearchTest, StopsWhenItIsTold) {
  const auto found = space(request(16));
  const auto session = Session::make(found->base());
  const std::atomic<bool> stop{true};
  const auto result = search(*found, *session, {.watch = {.stop = &stop}});
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(result->interrupted);
  EXPECT_EQ(result->unseen, result->plans);
}

TEST(SearchTest, StopsInEachPhase) {
  SearchRequest many = request(8);
  many.fixed.set("plan/schedule", "1f1b").set("plan/zero", "1");
  many.listed.push_back({"training/global_batch", {"64", "128", "192", "256"}});
  std::atomic<bool> stop{true};
  const auto uncounted = SearchSpace::make(many, Catalog::standard(), {.stop = &stop});
  ASSERT_TRUE(uncounted.has_value());
  EXPECT_EQ(uncounted->size(), 0u);

  const auto found = space(many);
  ASSERT_TRUE(found.has_value());
  const auto session = Session::make(found->base());
  for (const double share : {0.0, 0.1, 0.31, 0.601}) {  // groups are listed, refused, bounded, timed
    stop = false;
    std::chrono::steady_clock::time_point told;
    SearchOptions options{.threads = 2};
    options.watch.stop = &stop;
    options.watch.progress = [&](const SearchProgress& at) {
      if (at.share < share || stop.exchange(true)) return;
      told = std::chrono::steady_clock::now();
    };
    const auto result = search(*found, *session, options);
    ASSERT_TRUE(result.has_value());
    EXPECT_TRUE(result->interrupted) << share;
    EXPECT_GT(result->unseen, 0u) << share;
    EXPECT_LT(std::chrono::steady_clock::now() - told, std::chrono::seconds(10)) << share;
    // One that recomputes some layers is timed, but is no plan of the space.
    EXPECT_GE(result->answers.size(), result->evaluated > 0 ? 1u : 0u) << share;
    EXPECT_LE(result->answers.size(), 1u) << share;
  }
}

TEST(SearchTest, TellsItsProgressFromTheBeginning) {
  int counting = 0;
  const auto found = SearchSpace::make(request(16), Catalog::standard(), {.progress = [&](const SearchProgress& at) {
                                         ++counting;
                                         EXPECT_EQ(at.plans, 0u);
                                       }});
  ASSERT_TRUE(found.has_value());
  EXPECT_GE(counting, 1);
  const auto session = Session::make(found->base());
  std::vector<double> shares;
  std::vector<std::uint64_t> checked;
  const auto result = search(*found, *session, {.threads = 2, .watch = {.progress = [&](const SearchProgress& at) {
                                                                shares.push_back(at.share);
                                                                checked.push_back(at.checked);
                                                                EXPECT_EQ(at.plans, found->size());
                                                              }}});
  ASSERT_TRUE(result.has_value());
  ASSERT_GE(shares.size(), 3u);
  EXPECT_EQ(shares.front(), 0);
  EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
  EXPECT_LE(shares.back(), 1);
  EXPECT_EQ(checked.front(), 0u);
  EXPECT_TRUE(std::is_sorted(checked.begin(), checked.end()));
  EXPECT_GT(checked.back(), 0u);
  EXPECT_LE(checked.back(), found->size());
}

// What a search leaves out is slower than the limit: every plan within it is a point, however many stages it has. Where
// nothing is shared and nobody waits for the host, the bound of a plan is its step.
TEST(SearchTest, EveryPlanWithinTheLimitIsAPoint) {
  SearchRequest some = request(16);
  some.fixed.set("plan/schedule", "1f1b").set("plan/recompute", "full").set("plan/zero", "1");
  some.fixed.set("network/contention", "off").set("network/compute_slowdown", "off").set("host/cuda_graphs", "on");
  some.listed.push_back({"training/micro_batch", {"1", "2"}});
  const auto found = space(std::move(some));
  ASSERT_TRUE(found.has_value());
  const auto session = Session::make(found->base());
  const auto result = search(*found, *session, {.within = 0.5});
  ASSERT_TRUE(result.has_value());
  std::vector<Seconds> steps;
  std::int64_t most_stages = 0;
  found->for_each([&](const Scenario& scenario) {
    const auto memory = memory_budget(scenario.model, scenario.plan, scenario.training);
    const auto step = step_time(scenario, *session);
    if (!memory || memory->needed() > scenario.cluster.gpu.memory || !step) return true;
    if (*step < 1.5 * result->answers.front().report.step) most_stages = std::max(most_stages, scenario.plan.pp);
    steps.push_back(*step);
    return true;
  });
  const Seconds limit = 1.5 * *std::min_element(steps.begin(), steps.end());
  const auto within = std::count_if(steps.begin(), steps.end(), [&](Seconds step) { return step <= limit; });
  EXPECT_EQ(static_cast<std::ptrdiff_t>(result->points.size()), within);
  EXPECT_GE(most_stages, 4);
}

// A search names the fastest plan, and the fastest that is not tight, of all that recompute some or all layers of a
// stage. A whole recomputation takes a quarter longer; the fewest layers with which a plan fits take a few percent.
TEST(SearchTest, IsAPlanFasterThatRecomputesSomeLayers) {
  struct Case {
    const char *model, *gpu, *framework;
    std::int64_t batch, layers;
  };
  for (const Case& each : {Case{"llama3-8b", "h100", "fsdp", 64, 32}, Case{"llama2-7b", "a100-40gb", "fsdp", 64, 32},
                           Case{"qwen3-14b", "h100", "torchtune", 64, 40}}) {
    SCOPED_TRACE(each.model);
    SearchRequest free = request(8, each.model);
    free.fixed.set("machine/gpu", each.gpu).set("framework", each.framework);
    free.fixed.set("training/global_batch", each.batch).set("plan/tp", 1).set("plan/pp", 1);
    SearchRequest all = free;
    FieldValues listed{"plan/recompute", {"none", "full"}};
    for (std::int64_t layers = 1; layers < each.layers; ++layers) {
      listed.values.push_back("full:" + std::to_string(layers));
    }
    all.listed.push_back(std::move(listed));
    const auto steps = [](SearchRequest some) {  // of the fastest, and of the fastest that is not tight
      const auto found = space(std::move(some));
      const auto session = Session::make(found->base());
      const auto result = search(*found, *session);
      std::pair<double, double> least{kForever, kForever};
      for (const SearchAnswer& answer : result->answers) {
        const Report& report = answer.report;
        const double step = report.step / units::s;
        least.first = std::min(least.first, step);
        if (report.memory.device() <= report.scenario.cluster.gpu.memory) least.second = std::min(least.second, step);
      }
      return least;
    };
    const auto counted = space(free);
    EXPECT_GT(search(*counted, *Session::make(counted->base()))->evaluated_with_fewer_layers, 0u);
    const auto [fastest, not_tight] = steps(free);
    const auto [fastest_of_all, not_tight_of_all] = steps(all);
    EXPECT_LE(fastest, fastest_of_all);
    EXPECT_LE(not_tight, not_tight_of_all);
  }
}

// What a plan has no use for is no part of the command that repeats it: without experts nothing is dispatched, on one
// stage nothing is scheduled.
TEST(SearchTest, DoAnswersNameWhatChangesNothing) {
  SearchRequest some = request(8, "llama3-8b");
  some.fixed.set("training/global_batch", 64).set("plan/pp", 1).set("plan/cp", 1).set("plan/recompute", "none");
  some.listed = {{"plan/cp_comm", {"a2a", "p2p"}},
                 {"plan/expert_dispatch", {"deepep", "a2a"}},
                 {"plan/reshard", {"off", "on"}},
                 {"plan/schedule", {"1f1b", "zb-h1"}}};
  const auto found = space(std::move(some));
  const auto session = Session::make(found->base());
  const auto result = search(*found, *session);
  ASSERT_FALSE(result->answers.empty());
  for (const SearchAnswer& answer : result->answers) {
    for (const Assignment& each : answer.assignments) {
      EXPECT_THAT(each.field, AllOf(Not(HasSubstr("cp_comm")), Not(HasSubstr("dispatch")), Not(HasSubstr("schedule"))));
      if (answer.report.scenario.plan.zero != ZeroStage::kParameters) {
        EXPECT_THAT(each.field, Not(HasSubstr("reshard")));
      }
    }
  }
}

// A stage between others sends each microbatch on and its gradient back; the last one only sends back.
TEST(SearchTest, NetworkTimeIsThatOfTheBusiestStage) {
  SearchRequest some = request(4, "gpt3-1.3b");
  some.fixed.set("plan/tp", 1).set("plan/pp", 4).set("plan/schedule", "1f1b").set("plan/recompute", "full");
  some.fixed.set("training/micro_batch", 1).set("training/global_batch", 1024);
  some.listed.push_back({"plan/zero", {"1"}});
  const auto found = space(std::move(some));
  ASSERT_TRUE(found.has_value()) << to_text(found.error());
  const auto session = Session::make(found->base());
  const auto result = search(*found, *session);
  ASSERT_TRUE(result.has_value());
  ASSERT_FALSE(result->answers.empty());
  const double hidden = 2048.0 * 2048 * 2;  // bytes
  const auto message =
      session->network(Precision::kBf16).forecast({CollectiveKind::kSendRecv, hidden * units::B, {0, {{2, 1}}}});
  ASSERT_TRUE(message.has_value());
  EXPECT_NEAR(result->answers.front().network / (2 * 1024.0 * message->latency), 1, 0.01);
}

// Plans of several batches are compared by the time of as many tokens; an answer has the time of its own batch.
TEST(SearchTest, NetworkTimeIsThatOfTheAnswersOwnBatch) {
  const auto network_of = [](const char* batches) {
    SearchRequest some = request(4, "gpt3-1.3b");
    some.fixed.set("plan/tp", 1).set("plan/pp", 4).set("plan/schedule", "1f1b").set("plan/recompute", "full");
    some.fixed.set("training/micro_batch", 1);
    some.listed.push_back({"plan/zero", {"1"}});
    some.listed.push_back({"training/global_batch", {batches}});
    const auto found = space(std::move(some));
    const auto result = search(*found, *Session::make(found->base()));
    return result->answers.front().network;
  };
  EXPECT_NEAR(network_of("64") / network_of("128"), 0.5, 0.01);
}

// Members of a team in one process: what they say is gathered where all of them meet.
class Meeting {
 public:
  explicit Meeting(int members) : said_(static_cast<std::size_t>(members)), barrier_(members) {}
  std::size_t next(std::size_t count) { return given_.fetch_add(count); }
  std::vector<std::string> exchange(int member, const std::string& mine) {
    said_[static_cast<std::size_t>(member)] = mine;
    barrier_.arrive_and_wait();
    const std::vector<std::string> all = said_;
    given_ = 0;
    barrier_.arrive_and_wait();
    return all;
  }

 private:
  std::vector<std::string> said_;
  std::atomic<std::size_t> given_{0};
  std::barrier<> barrier_;
};

class Member final : public Team {
 public:
  Member(Meeting& meeting, int member, int size) : meeting_(meeting), member_(member), size_(size) {}
  int member() const override { return member_; }
  int size() const override { return size_; }
  std::size_t next(std::size_t count) override { return meeting_.next(count); }
  std::vector<std::string> exchange(const std::string& mine) override { return meeting_.exchange(member_, mine); }

 private:
  Meeting& meeting_;
  int member_, size_;
};

std::string text_of(const SearchResult& result) {
  std::string text;
  for (const SearchAnswer& answer : result.answers) {
    for (const std::string& why : answer.why) text += why + " ";
    text += to_json(answer.report) + std::to_string(answer.network / units::s);
  }
  for (const SearchPoint& point : result.points) text += std::to_string(point.step / units::s) + " ";
  for (const auto& [reason, count] : result.infeasible) {
    text += reason + std::to_string(count) + result.examples.at(reason);
  }
  for (const std::uint64_t count : {result.plans, result.evaluated, result.bounded, result.skipped, result.unseen}) {
    text += std::to_string(count) + " ";
  }
  return text;
}

// Every member of a team has the answer of one process.
TEST(SearchTest, ATeamFindsWhatOneProcessFinds) {
  SearchRequest some = request(16);
  some.fixed.set("plan/recompute", "none");
  some.listed.push_back({"plan/schedule", {"1f1b", "interleaved"}});
  const auto found = space(std::move(some));
  const auto session = Session::make(found->base());
  const std::string alone = text_of(*search(*found, *session));
  for (const int size : {1, 2, 3}) {
    Meeting meeting(size);
    std::vector<std::string> texts(static_cast<std::size_t>(size));
    std::vector<std::jthread> members;
    for (int i = 0; i < size; ++i) {
      members.emplace_back([&, i] {
        Member member(meeting, i, size);
        const auto own = Session::make(found->base());
        texts[static_cast<std::size_t>(i)] = text_of(*search(*found, *own, {.threads = 2, .team = &member}));
      });
    }
    members.clear();
    for (const std::string& text : texts) EXPECT_EQ(text, alone) << size;
  }
}

// One member that is told to stop stops all of them, and nobody waits for ever.
TEST(SearchTest, ATeamStopsTogether) {
  const auto found = space(request(16));
  Meeting meeting(2);
  const std::atomic<bool> stop{true}, go{false};
  std::vector<std::jthread> members;
  for (int i = 0; i < 2; ++i) {
    members.emplace_back([&, i] {
      Member member(meeting, i, 2);
      const auto own = Session::make(found->base());
      const auto result = search(*found, *own, {.watch = {.stop = i == 0 ? &stop : &go}, .team = &member});
      ASSERT_TRUE(result.has_value());
      EXPECT_TRUE(result->interrupted);
    });
  }
}

// Steps of models with experts are less certain, and so is the difference of two of them.
TEST(SearchTest, DifferencesAreWiderWithExperts) {
  const Session session = *Session::make(small_scenario());
  const Prediction from = *predict(small_scenario(), session);
  Prediction to = from;
  to.step = 1.5 * from.step;  // with the same path: no forecast explains the difference
  Scenario experts = small_scenario();
  experts.model.moe = Experts{};
  const Interval dense = step_difference(small_scenario(), from, to), wide = step_difference(experts, from, to);
  // In the same proportion as the difference, and each plan by itself as the longer step.
  EXPECT_NEAR((dense.high - 0.5 * from.step) / from.step, std::hypot(0.5 * 0.13, 1.5 * 0.09), 1e-6);
  EXPECT_NEAR((0.5 * from.step - wide.low) / from.step, std::hypot(0.5 * 0.20, 1.5 * 0.27), 1e-6);
  EXPECT_NEAR((wide.high - 0.5 * from.step) / from.step, std::hypot(0.5 * 0.40, 1.5 * 0.27), 1e-6);
  // Two plans that take as long may still differ.
  const Interval equal = step_difference(small_scenario(), from, from);
  EXPECT_NEAR(equal.high / from.step, 0.09, 1e-6);
  EXPECT_EQ(equal.low, -equal.high);
}

// The ratio of two steps that err by themselves is never beyond that of the one's least to the other's most: of 1.7 s
// (1.5 to 2.2) over 2.2 s (1.7 to 3.2) it is at least 1.5 / 3.2.
TEST(SearchTest, TheShareOfADifferenceIsThatOfTheRatio) {
  const Scenario one = small_scenario();
  Scenario gpu = one;
  gpu.cluster.gpu.id = "another";
  const Prediction slow = *predict(one, *Session::make(one));
  Prediction fast = slow;
  fast.step *= 0.6;
  const auto interval = [](const Scenario& scenario, const Prediction& prediction) {
    return step_interval(prediction.step,
                         interval_parts(scenario, prediction.step, path_interval(prediction.critical_path)));
  };
  const Interval before = interval(one, slow), after = interval(gpu, fast);
  const StepDifference difference = compare(one, slow, gpu, fast);
  EXPECT_NEAR(difference.share, -0.4, 1e-12);
  EXPECT_GT(1 + difference.share_low, after.low / before.high);
  EXPECT_LT(1 + difference.share_high, after.high / before.low);
  EXPECT_LT(1 + difference.share_low, after.low / fast.step * 0.6);
  EXPECT_GT(1 + difference.share_high, after.high / fast.step * 0.6);
}

// Steps of two machines, or of two models, have few errors in common; a plan on two networks has all but those of its
// collectives.
TEST(SearchTest, DifferencesOfOtherMachinesAreThoseOfIndependentSteps) {
  const Scenario one = small_scenario();
  const Prediction from = *predict(one, *Session::make(one));
  const Report alone = *simulate(one);
  const auto width = [&](const Scenario& to) {
    const StepDifference difference = compare(one, from, to, from);
    EXPECT_EQ(difference.longer, Seconds());
    EXPECT_EQ(difference.from, from.step);
    return (difference.high - difference.low) / units::s;
  };
  EXPECT_NEAR(width(one), 0, 1e-12);
  Scenario plan = one, gpu = one, model = one, framework = one;
  plan.plan.vpp += 1;
  gpu.cluster.gpu.id = "another";
  model.model.layers += 1;
  framework.framework = "another";
  EXPECT_NEAR(width(plan), 2 * 0.09 * (from.step / units::s), 1e-6);
  const double below = (alone.step - alone.step_low) / units::s, above = (alone.step_high - alone.step) / units::s;
  for (const Scenario* other : {&gpu, &model}) EXPECT_NEAR(width(*other), 2 * std::hypot(below, above), 1e-6);
  EXPECT_GT(width(framework), width(plan));
}

// The interval of a difference holds it, and is narrower than if the two steps had nothing in common.
TEST(SearchTest, DifferencesAreNarrowerThanThoseOfIndependentSteps) {
  SearchRequest some = request(16);
  some.fixed.set("plan/schedule", "1f1b");
  const auto found = space(std::move(some));
  const auto session = Session::make(found->base());
  const auto result = search(*found, *session, {.within = 0.3});
  ASSERT_TRUE(result.has_value());
  ASSERT_GE(result->answers.size(), 2u);
  EXPECT_EQ(result->answers.front().behind.longer, Seconds());
  const auto width = [](const Report& report) { return (report.step_high - report.step_low) / units::s; };
  for (std::size_t i = 1; i < result->answers.size(); ++i) {
    const SearchAnswer& answer = result->answers[i];
    EXPECT_EQ(answer.behind.longer, answer.report.step - result->answers.front().report.step);
    EXPECT_LE(answer.behind.low, answer.behind.longer);
    EXPECT_GE(answer.behind.high, answer.behind.longer);
    EXPECT_LT((answer.behind.high - answer.behind.low) / units::s,
              std::hypot(width(answer.report), width(result->answers.front().report)));
  }
}

// FSDP2 in a pipeline reduces behind its last pass: no plan overlaps that, and the space counts what it visits.
// Megatron-Core refuses an interleaved schedule of fewer microbatches than stages. Who names it gets it.
TEST(Search, AScheduleHasTheMicrobatchesThatItNeeds) {
  const auto answered = [](bool names) {
    SearchRequest made = request(64, "llama3-8b");
    made.fixed.set("training/global_batch", 16).set("plan/tp", 2).set("plan/cp", 1).set("plan/pp", 8);
    made.fixed.set("plan/recompute", "full").set("training/micro_batch", 1);
    if (names) made.listed.push_back({"plan/schedule", {"interleaved"}});
    const SearchSpace plans = *space(std::move(made));
    return *search(plans, *Session::make(plans.base()), {});
  };
  const SearchResult free = answered(false);
  ASSERT_FALSE(free.answers.empty());
  for (const SearchAnswer& each : free.answers) EXPECT_EQ(each.report.scenario.plan.schedule, "1f1b");
  EXPECT_THAT(free.examples.at("plan/schedule"), ::testing::HasSubstr("interleaved has 4 microbatches on 8 stages"));
  EXPECT_FALSE(answered(true).answers.empty());
}

TEST(Search, DoesNotOverlapWhatReducesAtTheEnd) {
  SearchRequest request;
  request.fixed.set("model", "llama3.2-1b").set("framework", "torchtitan").set("training/global_batch", 16);
  request.fixed.set("plan/zero", "3").set("training/micro_batch", 1).set("plan/schedule", "1f1b");
  request.gpus = 8;
  const auto space = SearchSpace::make(std::move(request), Catalog::standard());
  ASSERT_TRUE(space) << to_text(space.error());
  std::uint64_t visited = 0, in_pipelines = 0;
  space->for_each([&](const Scenario& each) {
    ++visited;
    if (each.plan.pp == 1 || each.plan.dp == 1) return true;
    ++in_pipelines;
    EXPECT_FALSE(each.plan.overlap_grad_reduce);
    return true;
  });
  EXPECT_EQ(visited, space->size());
  EXPECT_GT(in_pipelines, 0u);
}

}  // namespace
}  // namespace ns_dist
