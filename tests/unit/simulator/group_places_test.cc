// Do groups of one stage that straddle nodes or racks slow the step, and only where some really do?
#include "group_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ns_dist/simulator.h"
#include "support/simulator_fakes.h"

namespace ns_dist {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Cluster nodes_of(std::int64_t gpus) {
  Cluster cluster;
  cluster.levels.resize(2);
  cluster.levels[0].size = gpus;
  cluster.levels[1].size = 0;
  return cluster;
}

std::vector<Rank> firsts(const std::vector<RankGroup>& groups) {
  std::vector<Rank> found;
  for (const RankGroup& group : groups) found.push_back(group.first);
  return found;
}

TEST(GroupPlaces, GroupsThatFitAreNowhereElse) {
  const Mesh mesh = Mesh::innermost_first({"tp", "cp", "dp", "pp"}, {4, 2, 6, 3});
  EXPECT_THAT(otherwise_placed({0, {{4, 1}}}, mesh, nodes_of(8)), IsEmpty());
  EXPECT_THAT(otherwise_placed({0, {{2, 4}}}, mesh, nodes_of(8)), IsEmpty());
  EXPECT_THAT(otherwise_placed({0, {{6, 8}}}, mesh, nodes_of(8)), IsEmpty()) << "longer than any node";
  EXPECT_THAT(otherwise_placed({0, {{4, 1}}}, Mesh::innermost_first({"tp", "dp"}, {4, 2}), nodes_of(72)), IsEmpty());
}

TEST(GroupPlaces, SixRanksOnNodesOfEight) {
  // Ranks 6 to 11 lie 2 + 4, 12 to 17 lie 4 + 2, 18 to 23 in one node; then it begins again.
  const Mesh mesh = Mesh::innermost_first({"tp", "dp"}, {6, 8});
  EXPECT_THAT(firsts(otherwise_placed({0, {{6, 1}}}, mesh, nodes_of(8))), ElementsAre(6, 12));
}

TEST(GroupPlaces, PartOfAnAxisOnRacksOf72) {
  // 16 of 144: ranks 64 to 79 lie 8 + 8, all others in one rack.
  const Mesh mesh = Mesh::innermost_first({"dp"}, {144});
  EXPECT_THAT(firsts(otherwise_placed({0, {{16, 1}}}, mesh, nodes_of(72))), ElementsAre(64));
  EXPECT_THAT(otherwise_placed({0, {{8, 1}}}, mesh, nodes_of(72)), IsEmpty());
}

TEST(GroupPlaces, ARingThatStraddlesIsFound) {
  // The two ranks stand for a ring of 6, half of it apart. Ranks 6 to 11 lie 2 + 4: 6 and 9 do, or 7 and 10.
  const Mesh mesh = Mesh::innermost_first({"cp", "dp"}, {6, 4});
  EXPECT_THAT(firsts(otherwise_placed({0, {{2, 3}}}, mesh, nodes_of(8))), ElementsAre(6, 7, 13));
  EXPECT_THAT(otherwise_placed({0, {{2, 2}}}, Mesh::innermost_first({"cp", "dp"}, {4, 4}), nodes_of(8)), IsEmpty());
}

TEST(GroupPlaces, StagesAreOtherRows) {
  const Mesh mesh = Mesh::innermost_first({"tp", "pp"}, {6, 4});
  EXPECT_THAT(otherwise_placed({0, {{6, 1}}}, mesh, nodes_of(8)), IsEmpty());
}

// A step waits for the replicas whose groups straddle, whether its representative's does or not.
TEST(GroupPlaces, AStepWaitsForTheSlowestReplica) {
  const auto tensor_time = [](std::int64_t node, std::int64_t nodes) {
    Scenario scenario = small_scenario();
    scenario.plan.tp = 4, scenario.plan.dp = 6;
    scenario.training.global_batch = 6 * scenario.training.micro_batch;
    scenario.cluster.levels.resize(2);
    scenario.cluster.levels[0].size = node, scenario.cluster.levels[1].size = nodes;
    const FakeCompute free_kernels([](const Operator&) { return Seconds(); });
    const FakeNetwork network(
        [node](const Collective& call) { return (call.group.first % node + 4 > node ? 3.0 : 1.0) * units::ms; });
    const auto answer = simulate(scenario, Session(free_kernels, network));
    EXPECT_TRUE(answer);
    return answer ? answer->breakdown.tp_exposed / units::ms : 0;
  };
  const double inside = tensor_time(4, 6);
  EXPECT_GT(inside, 0);
  EXPECT_NEAR(tensor_time(6, 4), 3 * inside, 1e-6) << "ranks 4 to 7 lie 2 + 2";
}

// Of stages of 4 ranks on nodes of 8, two neighbors lie in a node and the next ones do not.
TEST(GroupPlaces, SomeMessagesLeaveTheNode) {
  const FakeCompute compute([](const Operator&) { return 1 * units::ms; });
  const FakeNetwork network([](const Collective& call) {
    if (call.kind != CollectiveKind::kSendRecv) return 1 * units::us;
    const Rank first = call.group.first, last = first + call.group.strides[0].stride;
    return first / 8 == last / 8 ? 1 * units::ms : 2 * units::ms;
  });
  Scenario scenario = small_scenario();
  scenario.plan = {.tp = 4, .pp = 4, .sequence_parallel = true};
  const auto prediction = predict(scenario, Session(compute, network));
  ASSERT_TRUE(prediction) << to_text(prediction.error());
  int messages = 0;
  for (std::size_t work = 0; work < prediction->program.works.size(); ++work) {
    const auto* message = std::get_if<Message>(&prediction->program.works[work].work);
    if (message == nullptr) continue;
    const bool leaves = std::min(message->from_stage, message->to_stage) == 1;  // of nodes of two stages
    const auto& forecasts = prediction->costs.row(static_cast<std::size_t>(message->from_stage)).forecasts;
    EXPECT_EQ(forecasts[work].latency, leaves ? 2 * units::ms : 1 * units::ms)
        << message->from_stage << message->to_stage;
    ++messages;
  }
  EXPECT_EQ(messages, 2 * 3);
}

}  // namespace
}  // namespace ns_dist
