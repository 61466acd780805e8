// Does the replay follow the feeder's rules, and does it find what would hang there?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "unit/chakra_io/traces.h"

namespace ns_dist {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TraceNode timed_kernel(std::uint64_t id, std::uint64_t micros, std::vector<std::uint64_t> deps = {}) {
  TraceNode node;
  node.id = id;
  node.name = "kernel";
  node.type = TraceNodeType::kCompute;
  node.duration_micros = micros;
  node.data_deps = std::move(deps);
  return node;
}

TraceNode collective(std::uint64_t id, const std::string& group, std::int64_t size,
                     std::vector<std::uint64_t> deps = {}, TraceCollective type = TraceCollective::kAllReduce) {
  TraceNode node = timed_kernel(id, 1, std::move(deps));
  node.name = "collective";
  node.type = TraceNodeType::kCollective;
  node.attributes = {{"comm_type", static_cast<std::int64_t>(type)}, {"comm_size", size}, {"pg_name", group}};
  return node;
}

TraceNode message(TraceNodeType type, std::uint64_t id, std::int64_t peer, std::int64_t size, std::int64_t tag,
                  std::vector<std::uint64_t> deps = {}) {
  TraceNode node = timed_kernel(id, 1, std::move(deps));
  node.name = "message";
  node.type = type;
  node.attributes = {{type == TraceNodeType::kSend ? "comm_dst" : "comm_src", peer},
                     {"comm_size", size},
                     {"comm_tag", static_cast<std::uint64_t>(tag)}};
  return node;
}
TraceNode send(std::uint64_t id, std::int64_t to, std::int64_t size, std::int64_t tag,
               std::vector<std::uint64_t> deps = {}) {
  return message(TraceNodeType::kSend, id, to, size, tag, std::move(deps));
}
TraceNode receive(std::uint64_t id, std::int64_t from, std::int64_t size, std::int64_t tag,
                  std::vector<std::uint64_t> deps = {}) {
  return message(TraceNodeType::kReceive, id, from, size, tag, std::move(deps));
}

using Traces = std::vector<std::vector<TraceNode>>;
const CommGroups kPair = {{1, {0, 1}}};

std::string problem_of(const ReplayReport& report, Rank rank) {
  for (const TraceProblem& problem : report.problems) {
    if (problem.rank == rank) return problem.message;
  }
  return "";
}

TEST(Replay, KernelsRunOneAtATimeLowestIdFirst) {
  // 5 and 3 are ready at once: 3 goes first; 9 waits for 3 alone and comes before 10.
  TraceNode last = timed_kernel(10, 1);
  last.ctrl_deps = {5};
  const ReplayReport report =
      replay(Traces{{timed_kernel(5, 2), timed_kernel(3, 4), timed_kernel(9, 8, {3}), last}}, {});
  EXPECT_TRUE(report.ok()) << text_of(report);
  EXPECT_THAT(report.finish_ns, ElementsAre(15000U));
}

TEST(Replay, AZeroIsTakenForOneNanosecond) {
  const ReplayReport report =
      replay(Traces{{timed_kernel(1, 0), timed_kernel(2, 0, {1}), timed_kernel(3, 0, {2})}}, {});
  EXPECT_THAT(report.finish_ns, ElementsAre(3U));
}

// 2^64 ns are 584 years: longer sums would begin anew at zero.
TEST(Replay, NoTraceTakesCenturies) {
  constexpr std::uint64_t kMost = 9'007'199'254'740;  // us: 2^53 ns, 104 days
  const auto after = [](std::uint64_t count) {
    std::vector<TraceNode> nodes;
    for (std::uint64_t id = 1; id <= count; ++id) nodes.push_back(timed_kernel(id, kMost));
    return replay(Traces{nodes}, {}, ReplayOptions{});
  };
  const auto century = after(512);
  ASSERT_TRUE(century) << to_text(century.error());
  EXPECT_THAT(century->finish_ns, ElementsAre(512 * kMost * 1000));
  const auto refused = after(513);
  ASSERT_FALSE(refused);
  EXPECT_THAT(to_text(refused.error()), HasSubstr("it ends more than 146 years after the beginning"));
}

// ASTRA-Sim 518bd513 hangs in a kernel of 2^47 us.
TEST(Replay, NoKernelTakesMonths) {
  for (const std::uint64_t micros : {std::uint64_t{9'007'199'254'741}, ~std::uint64_t{0} - 4}) {
    TraceNode node = timed_kernel(3, micros);
    EXPECT_EQ(problem_of(replay(Traces{{node}}, {}), 0),
              "duration_micros is " + std::to_string(micros) +
                  ", expected at most 9007199254740 (104 days): ASTRA-Sim's clock loses what is later");
    node.attributes = {{"num_ops", std::int64_t{1500}}, {"tensor_size", std::int64_t{1}}};
    EXPECT_TRUE(replay(Traces{{node}}, {}, TraceEncoding::kRoofline).ok()) << "nobody reads it";
    node.attributes.push_back({"is_cpu_op", true});
    EXPECT_THAT(problem_of(replay(Traces{{node}}, {}, TraceEncoding::kRoofline), 0), HasSubstr("104 days"));
    node = collective(1, "", 8, {}, TraceCollective::kBroadcast);
    node.duration_micros = micros;
    EXPECT_THAT(problem_of(replay(Traces{{node}}, {}), 0), HasSubstr("104 days"));
  }
}

TEST(Replay, KernelsOverlapCommunicationButCommunicationDoesNotOverlapItself) {
  Traces traces(2);
  for (auto& trace : traces) trace = {timed_kernel(1, 5), collective(2, "1", 8), collective(3, "", 8)};
  const ReplayReport report = replay(traces, kPair);
  EXPECT_TRUE(report.ok()) << text_of(report);
  EXPECT_THAT(report.finish_ns, ElementsAre(5000U, 5000U));
  for (auto& trace : traces) trace[0] = timed_kernel(1, 1);
  EXPECT_THAT(replay(traces, kPair).finish_ns, ElementsAre(2000U, 2000U));
}

TEST(Replay, ACollectiveStartsWhenItsLastMemberDoes) {
  const ReplayReport report =
      replay(Traces{{collective(1, "1", 8)}, {timed_kernel(1, 7), collective(2, "1", 8, {1})}}, kPair);
  EXPECT_THAT(report.finish_ns, ElementsAre(8000U, 8000U));
}

// ASTRA-Sim 518bd513 hangs in the second of these: num_streams counts collectives of groups, too.
TEST(Replay, CollectivesWithoutAGroupAreNumberedAmongAllOfTheirRank) {
  const CommGroups half = {{1, {0, 1}}, {2, {0, 1, 2}}};
  const auto traces = [](const std::string& last) {
    Traces all(3);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      if (rank < 2) all[rank].push_back(collective(1, "1", 8));
      all[rank].push_back(
          collective(2, last, 8, rank < 2 ? std::vector<std::uint64_t>{1} : std::vector<std::uint64_t>{}));
    }
    return all;
  };
  EXPECT_TRUE(replay(traces("2"), half).ok());
  const ReplayReport report = replay(traces(""), half);
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(problem_of(report, 0),
              HasSubstr("collective number 2 of group 0, ALL_REDUCE of 8 bytes, waits for rank 2; "
                        "without a group, ranks meet at the number of all their collectives"));
  EXPECT_THAT(problem_of(report, 2), HasSubstr("waits for ranks 0, 1"));
}

TEST(Replay, SendsAreEagerAndReceivesTakeNoSlot) {
  // Rank 1's receives are posted before its collective; the late one finds its message there.
  const Traces traces = {{send(1, 1, 64, 5), send(2, 1, 64, 6, {1}), collective(3, "1", 8, {2})},
                         {receive(1, 0, 64, 6), receive(2, 0, 64, 5), collective(3, "1", 8), timed_kernel(4, 9),
                          receive(5, 0, 64, 5, {4})}};
  const ReplayReport report = replay(traces, kPair);
  EXPECT_THAT(problem_of(report, 1), HasSubstr("no node there sends it"));  // 5 would need a second message of tag 5
  Traces whole = traces;
  whole[0].push_back(send(4, 1, 64, 5, {3}));
  const ReplayReport complete = replay(whole, kPair);
  EXPECT_TRUE(complete.ok()) << text_of(complete);
  EXPECT_THAT(complete.finish_ns, ElementsAre(4000U, 9000U));
}

TEST(Replay, FindsAMissingReceiveAndAMissingSend) {
  const ReplayReport unread = replay(Traces{{send(1, 1, 64, 5)}, {timed_kernel(1, 1)}}, {});
  EXPECT_EQ(unread.finished, 2);  // the feeder would not notice
  EXPECT_FALSE(unread.ok());
  EXPECT_THAT(problem_of(unread, 0), HasSubstr("rank 1 never receives it (tag 5, 64 bytes)"));

  const ReplayReport unsent = replay(Traces{{timed_kernel(1, 1)}, {receive(3, 0, 64, 5), timed_kernel(4, 1, {3})}}, {});
  EXPECT_EQ(unsent.finished, 1);
  ASSERT_EQ(unsent.problems.size(), 1U);
  EXPECT_EQ(unsent.problems[0].rank, 1);
  EXPECT_EQ(unsent.problems[0].node, 3U);
  EXPECT_THAT(unsent.problems[0].message, HasSubstr("waits for a message from rank 0 (tag 5, 64 bytes)"));
}

// Sys::front_end_sim_send; ASTRA-Sim 518bd513 runs the first of these, and waits for ever in the second.
TEST(Replay, TagsMeetModuloFiveHundredMillion) {
  EXPECT_TRUE(replay(Traces{{send(1, 1, 64, 500'000'001)}, {receive(1, 0, 64, 1)}}, {}).ok());
  EXPECT_FALSE(replay(Traces{{send(1, 1, 64, 500'000'001)}, {receive(1, 0, 64, 2)}}, {}).ok());
}

TEST(Replay, FindsMessagesOfDifferentSizes) {
  const ReplayReport report = replay(Traces{{send(1, 1, 64, 5)}, {receive(1, 0, 65, 5)}}, {});
  EXPECT_THAT(problem_of(report, 1), HasSubstr("node 1 there sends 64 bytes with this tag"));
}

TEST(Replay, FindsCollectivesInDifferentOrder) {
  const auto rs = TraceCollective::kReduceScatter;
  const Traces traces = {{collective(1, "1", 8), collective(2, "1", 8, {1}, rs)},
                         {collective(1, "1", 8, {}, rs), collective(2, "1", 8, {1})}};
  const ReplayReport report = replay(traces, kPair);
  EXPECT_EQ(report.finished, 0);
  EXPECT_THAT(problem_of(report, 0), HasSubstr("meets REDUCE_SCATTER of 8 bytes (rank 1, node 1)"));
}

TEST(Replay, FindsCollectivesOfDifferentSizesAndAMissingMember) {
  const ReplayReport sizes = replay(Traces{{collective(1, "1", 8)}, {collective(1, "1", 16)}}, kPair);
  EXPECT_THAT(problem_of(sizes, 1), HasSubstr("type and size must agree"));
  const ReplayReport member = replay(Traces{{collective(1, "1", 8)}, {timed_kernel(1, 1)}}, kPair);
  EXPECT_EQ(member.finished, 1);
  EXPECT_THAT(problem_of(member, 0),
              HasSubstr("collective number 1 of group 1, ALL_REDUCE of 8 bytes, waits for rank 1"));
}

TEST(Replay, FindsTheDeadlockOfTheSharedSlot) {
  // Rank 0's collective holds the slot that its send needs, and rank 1 enters only after receiving it.
  const Traces traces = {{collective(1, "1", 8), send(2, 1, 64, 5)},
                         {receive(1, 0, 64, 5), collective(2, "1", 8, {1})}};
  const ReplayReport report = replay(traces, kPair);
  EXPECT_EQ(report.finished, 0);
  EXPECT_THAT(problem_of(report, 0), HasSubstr("waits for rank 1"));
  EXPECT_THAT(problem_of(report, 1), HasSubstr("node 2 there, which sends it, waits for the slot"));
  Traces better = traces;
  std::swap(better[0][0].id, better[0][1].id);  // send first
  EXPECT_TRUE(replay(better, kPair).ok());
}

TEST(Replay, FindsACycleThatTheFeederDrops) {
  const ReplayReport report = replay(Traces{{timed_kernel(1, 1), timed_kernel(2, 1, {4}), timed_kernel(3, 1, {2}),
                                             timed_kernel(4, 1, {3}), timed_kernel(5, 1, {4})}},
                                     {});
  EXPECT_EQ(report.finished, 0);
  ASSERT_EQ(report.problems.size(), 1U);
  EXPECT_EQ(report.problems[0].node, 2U);
  EXPECT_THAT(report.problems[0].message, HasSubstr("it waits for itself: 2 after 4 after 3 after 2"));  // as lint
  const ReplayReport self = replay(Traces{{timed_kernel(1, 1, {1})}}, {});
  EXPECT_THAT(problem_of(self, 0), HasSubstr("1 after 1"));
}

TEST(Replay, FindsWhatTheFeederRefusesInANode) {
  const auto of_node = [](const TraceNode& node) {
    return problem_of(replay(Traces{{node}, {timed_kernel(1, 1)}}, {{1, {0, 1}}, {2, {1, 0, 0}}, {3, {0}}, {4, {1}}}),
                      0);
  };
  TraceNode node = collective(1, "1", 8);
  node.attributes[1].value = 8.0;
  EXPECT_THAT(of_node(node), HasSubstr("comm_size is no integer"));
  node.attributes.erase(node.attributes.begin() + 1);
  EXPECT_THAT(of_node(node), HasSubstr("comm_size is missing"));
  EXPECT_THAT(of_node(collective(1, "1", 0)), HasSubstr("comm_size is 0"));
  EXPECT_THAT(of_node(collective(1, "1", std::int64_t{1} << 58)),
              HasSubstr("comm_size is 288230376151711744, expected 1 to 288230376151711743"));
  EXPECT_THAT(of_node(collective(1, "7", 8)), HasSubstr("group 7 is not defined"));
  EXPECT_THAT(of_node(collective(1, "x", 8)), HasSubstr("decimal integer"));
  EXPECT_THAT(of_node(collective(1, "2", 8)), HasSubstr("twice"));
  EXPECT_THAT(of_node(collective(1, "3", 8)), HasSubstr("one member"));
  EXPECT_THAT(of_node(collective(1, "4", 8)), HasSubstr("no member"));
  EXPECT_THAT(of_node(collective(1, "1", 8, {}, TraceCollective::kBarrier)), HasSubstr("BARRIER is not supported"));
  node = collective(1, "1", 8);
  node.attributes[2].value = std::int64_t{1};
  EXPECT_THAT(of_node(node), HasSubstr("pg_name is no string"));
  // Read of every collective, whatever the scheduling policy.
  for (const TraceCollective type : {TraceCollective::kAllReduce, TraceCollective::kBroadcast}) {
    for (const TraceValue& value : {TraceValue(5.0), TraceValue(std::string("5"))}) {
      node = collective(1, "1", 8, {}, type);
      node.attributes.push_back({"comm_priority", value});
      EXPECT_THAT(of_node(node), HasSubstr("comm_priority is no integer; the feeder aborts"));
    }
    node.attributes.back().value = std::int64_t{5};
    EXPECT_EQ(of_node(node).find("comm_priority"), std::string::npos);
    node.attributes.back() = {"involved_dim", std::vector<std::int64_t>{1}};
    EXPECT_THAT(of_node(node), HasSubstr("involved_dim is no list of bool"));
    EXPECT_THAT(of_node(collective(1, "7", 8, {}, type)), HasSubstr("group 7 is not defined"));
  }
  EXPECT_EQ(of_node(collective(1, "4", 8, {}, TraceCollective::kBroadcast)), "") << "each rank for itself";
  EXPECT_THAT(of_node(send(1, 0, 8, 1)), HasSubstr("to itself"));
  EXPECT_THAT(of_node(send(1, 5, 8, 1)), HasSubstr("comm_dst is 5"));
  EXPECT_THAT(of_node(send(1, 1, 8, std::int64_t{1} << 31)),
              HasSubstr("comm_tag is 2147483648, expected 0 to 2147483647"));
  node = send(1, 1, 8, 0);
  node.attributes.back().value = std::int64_t{-1};
  EXPECT_THAT(of_node(node), HasSubstr("comm_tag is -1"));
  node = send(1, 1, 8, 1);
  node.attributes.push_back({"comm_src", std::int64_t{1}});
  EXPECT_THAT(of_node(node), HasSubstr("comm_src is another rank"));
  node.attributes.push_back({"is_cpu_op", true});
  EXPECT_THAT(of_node(node), HasSubstr("is_cpu_op"));
  EXPECT_THAT(of_node(timed_kernel(1, 1, {9})), HasSubstr("node 9, which is not there"));
  node = timed_kernel(1, 1);
  node.type = TraceNodeType::kMetadata;
  EXPECT_THAT(of_node(node), HasSubstr("METADATA_NODE"));
  node.type = TraceNodeType::kMemStore;
  EXPECT_THAT(of_node(node), HasSubstr("tensor_size is missing"));
  EXPECT_THAT(problem_of(replay(Traces{{timed_kernel(1, 1), timed_kernel(1, 2)}}, {}), 0), HasSubstr("same id"));
  EXPECT_THAT(problem_of(replay(Traces{{}, {timed_kernel(1, 1)}}, {}), 0), HasSubstr("no node"));
}

TEST(Replay, RooflineTimesComeFromWork) {
  TraceNode node = timed_kernel(1, 99);
  node.attributes = {{"num_ops", std::int64_t{1'234'500}}, {"tensor_size", std::int64_t{1}}};
  EXPECT_THAT(replay(Traces{{node}}, {}, TraceEncoding::kRoofline).finish_ns, ElementsAre(1234U));
  node.attributes.pop_back();
  EXPECT_THAT(problem_of(replay(Traces{{node}}, {}, TraceEncoding::kRoofline), 0), HasSubstr("tensor_size is missing"));
}

TEST(Replay, FindsTheRanksThatWaitInACircle) {
  // Rank 0 is in a collective with rank 1, which waits for a message of rank 2, which waits for one of rank 0, whose
  // send waits for the slot that the collective has. Rank 3 waits for nobody.
  const Traces traces = {{collective(1, "1", 8), send(2, 2, 8, 7)},
                         {receive(1, 2, 8, 9), collective(2, "1", 8, {1})},
                         {receive(1, 0, 8, 7), send(2, 1, 8, 9, {1})},
                         {timed_kernel(1, 1)}};
  const ReplayReport report = replay(traces, kPair);
  EXPECT_EQ(report.complete, (std::vector<bool>{false, false, false, true}));
  ASSERT_EQ(report.deadlock.size(), 3U);
  EXPECT_EQ(report.deadlock[0], (TraceWait{0, 1, 1, "collective number 1 of group 1"}));
  EXPECT_EQ(report.deadlock[1], (TraceWait{1, 1, 2, "a message with tag 9"}));
  EXPECT_EQ(report.deadlock[2], (TraceWait{2, 1, 0, "a message with tag 7"}));
  EXPECT_THAT(replay(Traces{{receive(1, 1, 8, 7)}, {timed_kernel(1, 1)}}, {}).deadlock, testing::IsEmpty());
}

// Many ranks wait for the same ones: the circle goes through the last of these, and each is walked to once.
TEST(Replay, FindsTheCircleAmongManyThatWaitForMany) {
  constexpr std::int64_t kRanks = 2000, kAbsent = 1000;
  Traces traces;
  CommGroups groups = {{1, {}}, {2, {0, kRanks - 1}}};
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    groups[1].push_back(rank);
    if (rank < kAbsent) {
      traces.push_back({collective(1, "1", 8)});
    } else {
      traces.push_back({receive(1, rank - 1, 8, 3)});  // that nobody sends
    }
  }
  traces.front() = {collective(1, "1", 8), collective(2, "2", 8, {1})};
  traces.back() = {collective(1, "2", 8), collective(2, "1", 8, {1})};
  traces[kAbsent] = {timed_kernel(1, 1)};
  const ReplayReport report = replay(traces, groups);
  ASSERT_EQ(report.deadlock.size(), 2U);
  EXPECT_EQ(report.deadlock[0], (TraceWait{0, 1, kRanks - 1, "collective number 1 of group 1"}));
  EXPECT_EQ(report.deadlock[1], (TraceWait{kRanks - 1, 1, 0, "collective number 1 of group 2"}));
}

// A network that tells what it was asked. The group lists rank 1 first, and so goes the feeder's ring.
TEST(Replay, TheNetworkTimesMessagesAndCollectives) {
  ReplayOptions options;
  options.network.message = [](Rank from, Rank to, std::int64_t bytes) -> Result<std::int64_t> {
    return 1000 * (to - from) + bytes;
  };
  options.network.collective = [](CollectiveKind kind, std::int64_t bytes, std::span<const Rank> ranks,
                                  std::span<std::int64_t> times) -> Result<void> {
    EXPECT_EQ(kind, CollectiveKind::kAllGather);
    EXPECT_EQ(bytes, 8);
    EXPECT_EQ(std::vector<Rank>(ranks.begin(), ranks.end()), (std::vector<Rank>{1, 0}));
    EXPECT_EQ(std::vector<std::int64_t>(times.begin(), times.end()), (std::vector<std::int64_t>{5000, 0}));
    times[0] = 6000;
    times[1] = 7000;
    return {};
  };
  const Traces traces = {
      {collective(1, "1", 8, {}, TraceCollective::kAllGather), send(2, 1, 500, 3, {1})},
      {timed_kernel(1, 5), collective(2, "1", 8, {1}, TraceCollective::kAllGather), receive(3, 0, 500, 3)}};
  std::vector<ReplayedNode> seen;
  options.visit = [&seen](const ReplayedNode& node) { seen.push_back(node); };
  const Result<ReplayReport> report = replay(traces, {{1, {1, 0}}}, options);
  ASSERT_TRUE(report) << to_text(report.error());
  EXPECT_TRUE(report->ok()) << text_of(*report);
  EXPECT_THAT(report->finish_ns, ElementsAre(8500U, 8500U));
  EXPECT_THAT(report->kernel_ns, ElementsAre(0U, 5000U));
  EXPECT_THAT(report->communication_ns, ElementsAre(8500U, 1000U));  // receives hold no slot
  EXPECT_EQ(report->nodes, 5U);
  ASSERT_EQ(seen.size(), 5U);
  EXPECT_EQ(seen[1].rank, 1);
  EXPECT_EQ(seen[1].start_ns, 5000U);
  EXPECT_EQ(seen[1].end_ns, 6000U);

  options.network.message = [](Rank, Rank, std::int64_t) -> Result<std::int64_t> {
    return fail({ErrorCode::kInvalidInput, "no such link", ""});
  };
  EXPECT_THAT(to_text(replay(traces, {{1, {1, 0}}}, options).error()),
              HasSubstr("rank 0: node 2 (message): no such link"));
  options.network.message = [](Rank, Rank, std::int64_t) -> Result<std::int64_t> {
    return fail({ErrorCode::kInvalidInput, "no such link", "s.json#/x"});
  };
  EXPECT_EQ(to_text(replay(traces, {{1, {1, 0}}}, options).error()),
            "s.json#/x: rank 0, node 2 (message): no such link");
}

ReplayOptions on_a_clock(std::vector<AstraDimension> dimensions) {
  ReplayOptions options;
  options.system.emplace().dimensions = std::move(dimensions);
  options.network.message = [](Rank, Rank, std::int64_t) -> Result<std::int64_t> { return 1000; };
  options.network.collective = [](CollectiveKind, std::int64_t, std::span<const Rank>,
                                  std::span<std::int64_t> times) -> Result<void> {
    for (std::int64_t& time : times) time += 1000;
    return {};
  };
  return options;
}

// What lint says that ASTRA-Sim does not run, the replay does not run either, where it speaks for ASTRA-Sim.
TEST(Replay, RunsNothingThatAstraSimDoesNot) {
  const TraceNode all = collective(1, "", 8);
  const auto refused = [&](const Traces& traces, ReplayOptions options) {
    const ReplayReport report = *replay(traces, {}, options);
    EXPECT_EQ(report.ok(), report.problems.empty());
    const std::string text = report.problems.empty() ? "" : report.problems.front().message;
    options.network = {};
    EXPECT_TRUE(replay(traces, {}, options)->ok()) << "recorded times: " << text;
    return text;
  };
  const Traces pair = {{all}, {all}};
  ReplayOptions options = on_a_clock({{AstraTopology::kRing, 2, 50, 500, "ring"}});
  EXPECT_EQ(refused(pair, options), "");
  options.system->endpoint_delay_ns = 0;
  EXPECT_EQ(refused(pair, options),
            "a collective comes first, and \"endpoint-delay\" is 0: ASTRA-Sim stops (an assertion)");
  EXPECT_EQ(refused({{timed_kernel(1, 1), collective(2, "", 8, {1})}, {timed_kernel(1, 1), collective(2, "", 8, {1})}},
                    options),
            "");
  options.system->dimensions.front().algorithm.all_reduce.clear();
  EXPECT_THAT(refused(pair, options), HasSubstr("the system json has no \"all-reduce-implementation\""));
  options = on_a_clock({{AstraTopology::kRing, 2, 50, 500, "ring"}});
  options.system->splits = 16;
  const TraceNode gather = collective(1, "", 8, {}, TraceCollective::kAllGather);
  EXPECT_THAT(refused({{gather}, {gather}}, options), HasSubstr("fewer than the 16 splits: it never ends"));
  options = on_a_clock({{AstraTopology::kSwitch, 3, 50, 500, "halvingDoubling"}});
  EXPECT_THAT(refused(Traces(3, {all}), options), HasSubstr("of 3 ranks, which are no power of two"));
  options = on_a_clock(std::vector<AstraDimension>(5, {AstraTopology::kRing, 2, 50, 500, "ring"}));
  EXPECT_THAT(refused(Traces(32, {all}), options),
              HasSubstr("the network has 5 dimensions, and involved_dim, where it is missing, has 4"));
  EXPECT_EQ(replay(Traces(32, {all}), {}, options)->problems.size(), 1U) << "told once";
  EXPECT_EQ(replay(Traces(32, {all}), {}, options)->finished, 0);
  TraceNode kernel = timed_kernel(1, 1);
  kernel.attributes = {{"num_ops", std::int64_t{900}}, {"tensor_size", std::int64_t{1}}};
  options = on_a_clock({{AstraTopology::kRing, 2, 50, 500, "ring"}});
  options.roofline = options.system->roofline = true;
  options.peak_tflops = options.system->peak_tflops = 1;
  options.local_memory_gbs = options.system->local_memory_gbs = 1e9;
  EXPECT_THAT(refused({{kernel}, {kernel}}, options), HasSubstr("the first kernel takes less than 1 ns"));
}

// ASTRA-Sim runs it; who meets whom is not worked out here.
TEST(Replay, LeavesNoDimensionsOut) {
  TraceNode some = collective(1, "", 8);
  some.attributes.push_back({"involved_dim", std::vector<bool>{true, false}});
  ReplayOptions options =
      on_a_clock({{AstraTopology::kRing, 2, 50, 500, "ring"}, {AstraTopology::kSwitch, 2, 50, 500, "ring"}});
  const auto of = [&] { return problem_of(*replay(Traces(4, {some}), {}, options), 0); };
  const std::string not_here = ": ASTRA-Sim runs it, and `ns-dist replay` does not; write a group instead (pg_name)";
  EXPECT_EQ(of(), "attribute involved_dim leaves out dimensions of the network" + not_here);
  options.network = {};
  EXPECT_EQ(of(), "attribute involved_dim leaves out dimensions of the network" + not_here);
  options.system.reset();
  EXPECT_EQ(of(), "attribute involved_dim leaves out dimensions, if the network has as many" + not_here);
  options = on_a_clock({{AstraTopology::kRing, 4, 50, 500, "ring"}});
  EXPECT_EQ(of(), "") << "the first value is that of the only dimension";
}

TEST(Replay, ReplayOnlyTakesEveryNodesOwnTime) {
  ReplayOptions options;
  options.replay_only = true;
  const Result<ReplayReport> report =
      replay(Traces{{timed_kernel(1, 3), receive(2, 1, 8, 7, {1})}, {timed_kernel(1, 0)}}, {}, options);
  ASSERT_TRUE(report);
  EXPECT_THAT(report->finish_ns, ElementsAre(4000U, 1U));
}

TEST(Replay, NodesOfMemoryAreCounted) {
  TraceNode load = timed_kernel(1, 3);
  load.type = TraceNodeType::kMemLoad;
  load.attributes = {{"tensor_size", std::int64_t{64}}};
  const ReplayReport report = replay(Traces{{load}, {timed_kernel(1, 1)}}, {});
  EXPECT_EQ(report.memory_nodes, 1U);
  EXPECT_THAT(report.finish_ns, ElementsAre(3000U, 1000U));
}

TEST(Replay, TheRooflineIsTheSmallerOfPeakAndMemory) {
  TraceNode node = timed_kernel(1, 99);
  node.attributes = {{"num_ops", std::int64_t{4'000'000}}, {"tensor_size", std::int64_t{1'000'000}}};
  ReplayOptions options;
  options.roofline = true;
  options.peak_tflops = 2;
  options.local_memory_gbs = 1000;
  EXPECT_THAT(replay(Traces{{node}}, {}, options)->finish_ns, ElementsAre(2000U));  // 4e6 / 2e12
  options.local_memory_gbs = 100;
  EXPECT_THAT(replay(Traces{{node}}, {}, options)->finish_ns, ElementsAre(10000U));  // 1e6 / 1e11
  options.local_memory_gbs = 0;
  EXPECT_THAT(problem_of(*replay(Traces{{node}}, {}, options), 0),
              HasSubstr("endless: the system json has no \"local-mem-bw\""));
  // However many there are: their sum is not what is wrong.
  options.local_memory_gbs = 100;
  options.peak_tflops = 0;
  std::vector<TraceNode> many;
  for (std::uint64_t id = 1; id <= 6; ++id) many.push_back(node), many.back().id = id;
  const Result<ReplayReport> endless = replay(Traces{many}, {}, options);
  ASSERT_TRUE(endless) << to_text(endless.error());
  EXPECT_THAT(problem_of(*endless, 0), HasSubstr("endless: the system json has no \"peak-perf\""));
}

TEST(TraceSets, AreFoundByFolderAndByPrefix) {
  const ScratchFolder folder;
  const auto make = [&](const char* name) { ASSERT_TRUE(write_trace(folder.path() / name, {})); };
  EXPECT_EQ(find_traces(folder.path()).error().code, ErrorCode::kNotFound);
  make("a.0.et");
  make("a.1.et.gz");
  make("a.2.et");
  make("a.x.et");   // no rank
  make("a.01.et");  // no rank either
  const auto found = find_traces(folder.path());
  ASSERT_TRUE(found) << to_text(found.error());
  EXPECT_EQ(found->prefix, folder.path() / "a");
  ASSERT_EQ(found->files.size(), 3U);
  EXPECT_EQ(found->files[1], folder.path() / "a.1.et.gz");
  EXPECT_EQ(find_traces(folder.path() / "a")->files, found->files);
  make("a.1.et");
  EXPECT_THAT(find_traces(folder.path()).error().message, HasSubstr("rank 1 is there twice"));
  std::filesystem::remove(folder.path() / "a.1.et");
  std::filesystem::remove(folder.path() / "a.1.et.gz");
  EXPECT_THAT(find_traces(folder.path()).error().message, HasSubstr("rank 1 is missing"));
  make("b.0.et");
  EXPECT_THAT(find_traces(folder.path()).error().message, HasSubstr("2 prefixes"));
  EXPECT_TRUE(find_traces(folder.path() / "b"));
  EXPECT_EQ(ranks_beside(folder.path() / "a.2.et"), 2);  // rank 1 is missing
  EXPECT_EQ(ranks_beside(folder.path() / "b.0.et"), 1);
  EXPECT_EQ(ranks_beside(folder.path() / "a.x.et"), 1);
  EXPECT_FALSE(find_traces(folder.path() / "none" / "c"));
}

TEST(CommGroups, ReadsWhatTheFeederReadsAndRefusesTheRest) {
  const ScratchFolder folder;
  const auto read = [&](const std::string& text) {
    std::ofstream(folder.path() / "groups.json") << text;
    return read_comm_groups(folder.path() / "groups.json");
  };
  EXPECT_EQ(read(R"({"2": [3, 1], "10": [0, 5]})").value(), (CommGroups{{2, {3, 1}}, {10, {0, 5}}}));
  for (const char* text : {"", "[]", "{", R"({"0": [1]})", R"({"x": [1]})", R"({"1": 5})", R"({"1": ["0"]})",
                           R"({"1": [-1]})", R"({"1": [0.5]})", R"({"1": []})", R"({"1": [99999999999999]})",
                           R"({"2147483648": [0, 1]})", R"({"1": [0, 1], "01": [2, 3]})"}) {
    const auto groups = read(text);
    ASSERT_FALSE(groups) << text;
    EXPECT_THAT(groups.error().where, HasSubstr("groups.json"));
  }
  EXPECT_THAT(read("{\"1\": " + std::string(200'000, '[') + std::string(200'000, ']') + "}").error().message,
              HasSubstr("nested deeper"));
  EXPECT_EQ(read_comm_groups(folder.path() / "none.json").error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace ns_dist
