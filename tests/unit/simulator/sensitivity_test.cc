// Does a changed part of the machine change the step as it must?
#include "ns_dist/sensitivity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ns_dist/session.h"
#include "ns_dist/simulator.h"
#include "step_difference.h"

namespace ns_dist {
namespace {

using ::testing::HasSubstr;

Scenario scenario(const std::vector<Assignment>& more = {}) {
  ScenarioSpec spec;
  spec.set("model", "gpt3-13b").set("plan/tp", 4).set("plan/pp", 2).set("plan/dp", 4);
  spec.set("training/global_batch", 64);
  spec.assignments.insert(spec.assignments.end(), more.begin(), more.end());
  return *resolve(spec, Catalog::standard());
}

Seconds step_of(const Scenario& scenario) { return *step_time(scenario, *Session::make(scenario)); }

Sensitivity changed(const Scenario& scenario, std::string_view text) {
  const auto found = what_if(scenario, *read_part_changes(text));
  EXPECT_TRUE(found.has_value());
  return found->back();
}

TEST(WhatIf, ReadsPartsAndFactors) {
  const auto changes = read_part_changes("inter-bandwidth x2, hbm x1.5,launch x0.5");
  ASSERT_TRUE(changes.has_value());
  ASSERT_EQ(changes->size(), 3u);
  EXPECT_EQ((*changes)[0].part, "inter-bandwidth");
  EXPECT_EQ((*changes)[1].part, "memory-bandwidth");
  EXPECT_EQ((*changes)[1].factor, 1.5);
  EXPECT_EQ((*changes)[2].part, "launch-cost");
  for (const char* bad :
       {"", "hbm", "hbm 2", "hbm x0", "hbm x1000", "hbm x2,", "hbm x2, memory-bandwidth x3", "bhm x2"}) {
    const auto refused = read_part_changes(bad);
    ASSERT_FALSE(refused.has_value()) << bad;
    EXPECT_EQ(refused.error().where, "--what-if");
  }
  EXPECT_EQ(read_part_changes("Inter-Bandwidth x2")->front().part, "inter-bandwidth");
  EXPECT_EQ(read_part_changes("HBM x2")->front().part, "memory-bandwidth");
  for (const char* near : {"inter-bandwith x2", "inter-bandwidth=\"100 GB/s\""}) {
    EXPECT_THAT(to_text(read_part_changes(near).error()), HasSubstr("did you mean --what-if \"inter-bandwidth x2\""));
  }
}

// What a user can also set says the same.
TEST(WhatIf, IsWhatTheFlagSays) {
  const Scenario base = scenario();
  EXPECT_EQ(changed(base, "inter-bandwidth x2").step, step_of(scenario({{"machine/inter_bandwidth", "100 GB/s"}})));
  EXPECT_EQ(changed(base, "intra-bandwidth x0.5").step, step_of(scenario({{"machine/intra_bandwidth", "225 GB/s"}})));
  const Scenario launches = scenario({{"host/launch_cost", "1 ms"}});
  EXPECT_EQ(changed(launches, "launch-cost x0.5").step, step_of(scenario({{"host/launch_cost", "500 us"}})));
  EXPECT_LT(changed(launches, "launch-cost x0.5").change, -0.1);
}

// Where everything takes half its time, but kernels stay above their floors, the step is between a half and the whole.
TEST(WhatIf, EverythingTwiceAsFastIsAtMostTwiceAsFast) {
  const Scenario base = scenario({{"host/cuda_graphs", "on"}});
  const Sensitivity faster =
      changed(base, "kernel-efficiency x2, intra-bandwidth x2, inter-bandwidth x2, latency x0.5");
  EXPECT_EQ(faster.part, "all");
  EXPECT_GT(faster.step, 0.5 * step_of(base)) << "kernels do not go below their floors";
  EXPECT_LT(faster.step, changed(base, "kernel-efficiency x2").step);
  EXPECT_LT(changed(base, "kernel-efficiency x2").step, 0.95 * step_of(base));
}

// A CPU that updates the optimizer's states is no kernel of the GPU.
TEST(WhatIf, KernelsAreTheGpus) {
  const Scenario base =
      scenario({{"plan/pp", "1"}, {"plan/dp", "1"}, {"plan/offload_optimizer", "1"}, {"training/global_batch", "1"}});
  const auto answer = simulate(base);
  ASSERT_TRUE(answer.has_value());
  const Seconds gpu = answer->breakdown.compute + answer->breakdown.recompute;
  ASSERT_GT(answer->breakdown.optimizer, 2 * gpu);
  EXPECT_LE(changed(base, "kernel-efficiency x0.5").step, answer->step + 1.01 * gpu);
}

// Amdahl 1967: where a share f of the step is made k times as fast, it takes 1 - f + f / k of its time. Here f is the
// all-reduce and all-gather of the replicas, which nothing overlaps with and links between nodes alone decide.
TEST(WhatIf, AShareOfTheStepFollowsAmdahl) {
  const Scenario base = scenario({{"plan/pp", "1"},
                                  {"plan/dp", "8"},
                                  {"plan/overlap_grad_reduce", "off"},
                                  {"plan/overlap_param_gather", "off"},
                                  {"network/contention", "off"},
                                  {"network/compute_slowdown", "off"},
                                  {"network/algorithm", "ring"},
                                  {"network/protocol", "simple"},
                                  {"machine/inter_bandwidth", "5 GB/s"}});
  const auto answer = simulate(base);
  ASSERT_TRUE(answer.has_value());
  const double share = answer->breakdown.dp_exposed / answer->step;
  ASSERT_GT(share, 0.3);
  for (const double k : {2.0, 4.0, 8.0}) {
    const Sensitivity faster = changed(base, "inter-bandwidth x" + std::to_string(k));
    EXPECT_NEAR(faster.step / answer->step, 1 - share + share / k, 0.002 * share) << k;
  }
}

// The interval of a change is that of the difference of both steps, as of two plans on one GPU. What is better makes no
// step longer, what is worse none shorter. The efficiency of kernels is no forecast, so it has none.
TEST(WhatIf, ChangesHaveIntervals) {
  const Scenario base = scenario(), slower = scenario({{"machine/inter_bandwidth", "25 GB/s"}});
  const auto difference = compare(base, slower, *Session::make(slower));
  ASSERT_TRUE(difference.has_value());
  const Sensitivity half = changed(base, "inter-bandwidth x0.5");
  ASSERT_TRUE(half.range.has_value());
  const Seconds step = step_of(base);
  EXPECT_NEAR(half.range->first, std::max(0.0, difference->low / step), 1e-12);
  EXPECT_NEAR(half.range->second, difference->high / step, 1e-12);
  EXPECT_GT(half.range->second, half.change);
  for (const char* better : {"flops x1.5", "hbm x1.5", "intra x2", "latency x0.5", "launch x0.5", "flops x2, hbm x2"}) {
    const Sensitivity found = changed(base, better);
    ASSERT_TRUE(found.range.has_value()) << better;
    EXPECT_LT(found.range->first, found.change + 1e-15) << better;
    EXPECT_LE(found.range->second, 0) << better;
    EXPECT_GE(found.range->second, found.change) << better;
  }
  EXPECT_FALSE(changed(base, "kernels x1.1").range.has_value());
  // Where nearly all of a step lies between nodes whose links are in doubt, too: half of it is the most, or twice.
  const Scenario doubtful =
      scenario({{"machine/gpu", "rtx-pro-6000"}, {"plan/tp", "1"}, {"plan/pp", "1"}, {"plan/dp", "16"}});
  const Sensitivity twice = changed(doubtful, "intra x2"), slow = changed(doubtful, "intra x0.5");
  EXPECT_LT(twice.change, -0.3);
  EXPECT_GE(twice.range->first, -0.5);
  EXPECT_LE(slow.range->second, 1);
}

// Of what a change saves beyond its forecast, the step is longer than forecast: all of it is never saved.
TEST(Advice, SavesLessThanTheStep) {
  using units::s;
  EXPECT_DOUBLE_EQ(most_saved(10 * s, 4 * s, 4 * s), 0.4);
  EXPECT_DOUBLE_EQ(most_saved(10 * s, 4 * s, 14 * s), 14.0 / 20);
  EXPECT_LT(most_saved(10 * s, 4 * s, 1e6 * s), 1);
  EXPECT_DOUBLE_EQ(most_saved(10 * s, -1 * s, 2 * s), 2.0 / 13);
  EXPECT_DOUBLE_EQ(most_saved(10 * s, -4 * s, -2 * s), -0.2);
}

// One node has no links between nodes: with the only part that it has, "all of these" would say the same again.
TEST(WhatIf, AbsentPartsChangeNothing) {
  const Scenario alone = scenario({{"plan/dp", "1"}, {"machine/nodes", "1"}});
  const auto one = what_if(alone, *read_part_changes("inter-bandwidth x2, hbm x2"));
  ASSERT_TRUE(one.has_value());
  ASSERT_EQ(one->size(), 2u);
  EXPECT_EQ((*one)[0].step, step_of(alone));
  EXPECT_EQ((*one)[0].change, 0);
  EXPECT_TRUE((*one)[0].fits);
  EXPECT_LT((*one)[1].change, 0);
  // A GPU's PCIe port, whose payload is 0.75 of 64 GB/s, stands before the network of several nodes alone.
  EXPECT_EQ((*one)[0].name, "bandwidth between nodes");
  EXPECT_EQ(changed(scenario(), "inter-bandwidth x2").name, "bandwidth between nodes (PCIe port 48 GB/s)");
  const auto both = what_if(alone, *read_part_changes("inter-bandwidth x2, hbm x2, kernels x2"));
  ASSERT_EQ(both->size(), 4u);
  EXPECT_LT(both->back().step, (*both)[1].step);
}

// Twice the FLOP/s at half of the energy of each: power limits the clock as much as before, so that a step of products
// alone takes half of its time, and a little more for what memory decides. Of GPUs whose power is modeled otherwise:
// with HBM and with GDDR, of both vendors.
TEST(WhatIf, TwiceTheFlopsIsNearlyTwiceAsFast) {
  for (const char* gpu : {"h100", "a100", "b200", "mi300x", "l40s"}) {
    const Scenario products = scenario({{"machine/gpu", gpu},
                                        {"plan/tp", "1"},
                                        {"plan/pp", "1"},
                                        {"plan/dp", "1"},
                                        {"training/micro_batch", "4"},
                                        {"host/cuda_graphs", "on"}});
    EXPECT_EQ(changed(products, "flops x1").change, 0) << gpu;
    const double twice = changed(products, "flops x2").change;
    EXPECT_GT(twice, -0.5) << gpu;
    EXPECT_LT(twice, -0.42) << gpu;
    const double little = changed(products, "flops x1.01").change;
    EXPECT_GT(little, -0.01) << gpu;
    EXPECT_LT(little, -0.0085) << gpu;
    // More power helps as much as before, but for the larger share that memory has of a shorter step.
    EXPECT_NEAR(changed(products, "flops x2, board-power x1.1").step / changed(products, "flops x2").step,
                changed(products, "board-power x1.1").step / step_of(products), 0.015)
        << gpu;
  }
}

TEST(WhatIf, MemoryChangesWhatFitsAlone) {
  const Sensitivity same = changed(scenario(), "memory x1"), little = changed(scenario(), "memory x0.1");
  EXPECT_EQ(same.change, 0);
  EXPECT_EQ(little.change, 0);
  EXPECT_TRUE(same.fits);
  EXPECT_FALSE(little.fits);
}

// Every part is there once, largest change first; none of them saves more than its share, and none costs time.
TEST(Sensitivities, OnePercentOfAPartSavesAtMostOnePercent) {
  const auto found = sensitivities(scenario({{"training/micro_batch", "4"}}));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->size(), part_names().size());
  double before = 1;
  for (const Sensitivity& each : *found) {
    EXPECT_LE(std::fabs(each.change), before) << each.part;
    EXPECT_GT(each.change, -0.0101) << each.part;
    EXPECT_LT(each.change, 0.0005) << each.part;
    before = std::fabs(each.change);
  }
  EXPECT_EQ(found->front().part, "kernel-efficiency") << "products of a dense model are most of its step";
}

// One node has no links between nodes, and replayed graphs have no launches.
TEST(Sensitivities, PartsThatAMachineDoesNotHaveAreLeftOut) {
  const auto found = sensitivities(scenario({{"plan/dp", "1"}, {"machine/nodes", "1"}, {"host/cuda_graphs", "on"}}));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->size(), part_names().size() - 2);
  for (const Sensitivity& each : *found) {
    EXPECT_NE(each.part, "launch-cost");
    EXPECT_NE(each.part, "inter-bandwidth");
  }
}

// A quarter better: a quarter more bandwidth, and latencies of which 1.25 take as long as one did.
TEST(Sensitivities, WhatShouldBeShortIsDivided) {
  const auto found = sensitivities(scenario(), 0.25);
  ASSERT_TRUE(found.has_value());
  for (const Sensitivity& each : *found) {
    const bool shorter = each.part == "latency" || each.part == "launch-cost";
    EXPECT_DOUBLE_EQ(each.factor, shorter ? 0.8 : 1.25) << each.part;
  }
}

}  // namespace
}  // namespace ns_dist
