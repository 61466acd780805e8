// Does lint find what is broken, name rank and node, and keep quiet about what is whole?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/chakra_io/traces.h"

namespace ns_dist {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TraceNode node_of(std::uint64_t id, TraceNodeType type, std::vector<std::uint64_t> deps = {}) {
  TraceNode node;
  node.id = id;
  node.name = "n";
  node.type = type;
  node.duration_micros = 1;
  node.data_deps = std::move(deps);
  return node;
}
TraceNode compute(std::uint64_t id, std::vector<std::uint64_t> deps = {}) {
  return node_of(id, TraceNodeType::kCompute, std::move(deps));
}
TraceNode collective_of(std::uint64_t id, std::int64_t size, std::vector<std::uint64_t> deps = {},
                        TraceCollective type = TraceCollective::kAllReduce, const std::string& group = "1") {
  TraceNode node = node_of(id, TraceNodeType::kCollective, std::move(deps));
  node.attributes = {{"comm_type", static_cast<std::int64_t>(type)}, {"comm_size", size}, {"pg_name", group}};
  return node;
}
TraceNode message(TraceNodeType type, std::uint64_t id, std::int64_t peer, std::int64_t size, std::int64_t tag) {
  TraceNode node = node_of(id, type);
  node.attributes = {
      {type == TraceNodeType::kSend ? "comm_dst" : "comm_src", peer}, {"comm_size", size}, {"comm_tag", tag}};
  return node;
}

class LintedTraces {
 public:
  explicit LintedTraces(const std::vector<std::vector<TraceNode>>& ranks) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_TRUE(write_trace(file(rank), ranks[rank]));
    }
  }
  std::filesystem::path file(std::size_t rank) const { return folder_.path() / ("t." + std::to_string(rank) + ".et"); }
  LintReport lint(const CommGroups& groups = {{1, {0, 1}}}, const LintOptions& options = {}) const {
    const Result<TraceSet> set = find_traces(folder_.path());
    EXPECT_TRUE(set);
    const Result<LintReport> report = ns_dist::lint(*set, groups, options);
    EXPECT_TRUE(report) << to_text(report.error());
    return *report;
  }

 private:
  ScratchFolder folder_;
};

std::string text_of(const LintReport& report) {
  std::string text;
  for (const TraceProblem& p : report.problems) {
    text += "rank " + std::to_string(p.rank) + " node " + std::to_string(p.node) + ": " + p.message + "\n";
  }
  for (const std::string& note : report.notes) text += "note: " + note + "\n";
  return text;
}

TEST(Lint, ReadingEndsWhereMistakesDoNot) {
  std::vector<TraceNode> bad(20, node_of(1, TraceNodeType::kInvalid));
  const LintedTraces traces({bad, bad});
  LintOptions options;
  options.most_problems = 30;
  const LintReport report = traces.lint({{1, {0, 1}}}, options);
  EXPECT_EQ(report.problem_count, 30U);
  EXPECT_EQ(report.nodes, 20U);  // and as many repeated ids: rank 1 is not read
  EXPECT_THAT(text_of(report), HasSubstr("note: reading ended at mistake number 30"));
}

TEST(Lint, WholeTracesHaveNothing) {
  const LintedTraces traces({{compute(1), collective_of(2, 8, {1}), message(TraceNodeType::kSend, 3, 1, 64, 5)},
                             {collective_of(7, 8), compute(9, {7}), message(TraceNodeType::kReceive, 11, 0, 64, 5)}});
  const LintReport report = traces.lint();
  EXPECT_EQ(text_of(report), "");
  EXPECT_TRUE(report.ran);
  EXPECT_EQ(report.nodes, 6U);
  EXPECT_EQ(report.kernels, 2U);
  EXPECT_EQ(report.collectives, 2U);
  EXPECT_EQ(report.sends, 1U);
  EXPECT_EQ(report.receives, 1U);
  LintOptions options;
  options.most_nodes_to_run = 0;
  EXPECT_FALSE(traces.lint({{1, {0, 1}}}, options).ran);
}

TEST(Lint, FindsWhatIsWrongInOneTrace) {
  const auto of = [](const std::vector<TraceNode>& nodes) { return text_of(LintedTraces({nodes}).lint({})); };
  EXPECT_THAT(of({compute(1), compute(1)}), HasSubstr("rank 0 node 1: another node has the same id"));
  EXPECT_THAT(of({compute(5), compute(6), compute(5)}), HasSubstr("node 5: another node has the same id"));
  EXPECT_THAT(of({compute(1), compute(2, {9})}), HasSubstr("node 2: it waits for node 9, which is not there"));
  EXPECT_THAT(of({compute(10), compute(30, {20})}), HasSubstr("waits for node 20"));
  EXPECT_THAT(of({compute(1), compute(2, {4}), compute(3, {2}), compute(4, {3})}),
              HasSubstr("it waits for itself: 2 after 4 after 3 after 2"));
  EXPECT_THAT(of({compute(3, {3})}), HasSubstr("3 after 3"));
  EXPECT_THAT(of({}), HasSubstr("no node"));
  EXPECT_THAT(of({node_of(1, TraceNodeType::kMetadata)}), HasSubstr("METADATA_NODE"));
  EXPECT_THAT(of({collective_of(1, 8, {}, TraceCollective::kAllReduce, "3")}), HasSubstr("group 3 is not defined"));
  EXPECT_EQ(of({compute(2, {1}), compute(1)}), "");  // any order in the file
}

TEST(Lint, FindsMessagesWithoutTheirOtherEnd) {
  const LintedTraces lost({{message(TraceNodeType::kSend, 1, 1, 64, 5)}, {compute(1)}});
  EXPECT_EQ(text_of(lost.lint()), "rank 0 node 1: rank 1 never receives it (tag 5, 64 bytes)\n");
  const LintedTraces sizes(
      {{message(TraceNodeType::kSend, 1, 1, 64, 5)}, {message(TraceNodeType::kReceive, 4, 0, 63, 5)}});
  EXPECT_EQ(text_of(sizes.lint()),
            "rank 0 node 1: rank 1 never receives it (tag 5, 64 bytes); node 4 there has this tag with 63 bytes, and "
            "sizes must agree\n"
            "rank 1 node 4: rank 0 never sends it (tag 5, 63 bytes); node 1 there has this tag with 64 bytes, and "
            "sizes must agree\n");
  const LintedTraces two(
      {{message(TraceNodeType::kSend, 1, 1, 64, 5)},
       {message(TraceNodeType::kReceive, 4, 0, 64, 5), message(TraceNodeType::kReceive, 6, 0, 64, 5)}});
  EXPECT_EQ(text_of(two.lint()), "rank 1 node 6: rank 0 never sends it (tag 5, 64 bytes)\n");
}

TEST(Lint, TagsThatAstraSimMakesEqualAreNoted) {
  const auto of = [](std::int64_t first, std::int64_t second) {
    std::vector<std::vector<TraceNode>> ranks(2);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const TraceNodeType type = rank == 0 ? TraceNodeType::kSend : TraceNodeType::kReceive;
      const auto peer = static_cast<std::int64_t>(1 - rank);
      ranks[rank] = {message(type, 1, peer, 64, first), message(type, 2, peer, 64, second)};
    }
    return text_of(LintedTraces(ranks).lint());
  };
  EXPECT_EQ(of(1, 500'000'001),
            "note: messages from rank 0 to rank 1: tags 1 and 500000001 are the same one in ASTRA-Sim, which takes "
            "them modulo 500000000\n");
  EXPECT_EQ(of(2, 500'000'001), "");
  const LintedTraces met(
      {{message(TraceNodeType::kSend, 1, 1, 64, 1'000'000'007)}, {message(TraceNodeType::kReceive, 1, 0, 64, 7)}});
  EXPECT_THAT(text_of(met.lint()), HasSubstr("tags 1000000007 and 7 are the same one"));
}

TEST(Lint, FindsCollectivesThatDisagree) {
  const LintedTraces sizes(
      {{collective_of(1, 8), collective_of(2, 16, {1})}, {collective_of(3, 8), collective_of(4, 24, {3})}});
  EXPECT_EQ(text_of(sizes.lint()),
            "rank 1 node 4: collective number 2 of group 1, ALL_REDUCE of 24 bytes, meets ALL_REDUCE of 16 bytes (rank "
            "0, node 2): type and size must agree\n");
  const LintedTraces types({{collective_of(1, 8)}, {collective_of(1, 8, {}, TraceCollective::kAllGather)}});
  EXPECT_THAT(text_of(types.lint()), HasSubstr("ALL_GATHER of 8 bytes, meets ALL_REDUCE of 8 bytes"));
  const LintedTraces fewer({{collective_of(1, 8), collective_of(2, 8, {1})}, {collective_of(1, 8)}});
  EXPECT_EQ(
      text_of(fewer.lint()),
      "rank 0 node 2: collective number 2 of group 1, ALL_REDUCE of 8 bytes: rank 0 has 2 of that group, rank 1 has "
      "1\n");
  const LintedTraces none({{collective_of(1, 8)}, {compute(1)}});
  EXPECT_THAT(text_of(none.lint()), HasSubstr("1 collectives of group 1: rank 1, a member, has none of them"));
}

// The feeder goes by ids, wherever a node stands in its file.
TEST(Lint, TheOrderOfAFileIsNotThatOfItsCollectives) {
  const TraceNode first = collective_of(1, 8), second = collective_of(2, 16);
  EXPECT_EQ(text_of(LintedTraces({{first, second}, {second, first}}).lint()), "");
  const std::string swapped = text_of(
      LintedTraces({{collective_of(1, 8), collective_of(2, 16)}, {collective_of(1, 16), collective_of(2, 8)}}).lint());
  EXPECT_THAT(swapped, HasSubstr("rank 1 numbers its collectives in another order than rank 0"));
}

// A collective's recorded time is read by nobody where the network tells it.
TEST(Lint, ATimeThatNobodyReadsIsNoMistake) {
  TraceNode endless = collective_of(2, 8, {1});
  endless.duration_micros = ~std::uint64_t{0};
  const LintReport report = LintedTraces({{compute(1), endless}, {compute(1), collective_of(2, 8, {1})}}).lint();
  EXPECT_EQ(text_of(report), "");
  EXPECT_TRUE(report.ran);
}

TEST(Lint, TimesAndSizesHaveALimit) {
  TraceNode endless = compute(3);
  endless.duration_micros = ~std::uint64_t{0};
  EXPECT_THAT(text_of(LintedTraces({{endless}}).lint({})), HasSubstr("rank 0 node 3: duration_micros is 184467"));
  // Nobody reads it where work tells the time.
  endless.attributes = {{"num_ops", std::int64_t{1500}}, {"tensor_size", std::int64_t{1}}};
  LintOptions options;
  options.system.emplace();
  options.system->dimensions = {{AstraTopology::kRing, 2, 50, 500, "ring"}};
  options.system->roofline = true;
  options.system->peak_tflops = options.system->local_memory_gbs = 1;
  EXPECT_EQ(text_of(LintedTraces({{endless}, {endless}}).lint({}, options)), "");
  const TraceNode all = collective_of(2, std::int64_t{1} << 62);
  EXPECT_THAT(text_of(LintedTraces({{all}, {all}}).lint()), HasSubstr("rank 1 node 2: attribute comm_size is 46116"));
}

// Every trace is whole by itself; only running them shows the circle.
TEST(Lint, FindsTheDeadlockOfTheSharedSlot) {
  const LintedTraces traces({{collective_of(1, 8), message(TraceNodeType::kSend, 2, 1, 8, 7)},
                             {message(TraceNodeType::kReceive, 1, 0, 8, 7), collective_of(2, 8, {1})}});
  const LintReport report = traces.lint();
  EXPECT_EQ(report.deadlock.size(), 2U);
  EXPECT_THAT(text_of(report), HasSubstr("rank 0 node 1: collective number 1 of group 1"));
}

TEST(Lint, SaysWhatRunsButIsOdd) {
  std::vector<TraceNode> loose;
  for (std::uint64_t id = 1; id <= 10; ++id) loose.push_back(compute(id));
  EXPECT_THAT(text_of(LintedTraces({loose}).lint({})), HasSubstr("note: 10 of 10 kernels have no successor"));
  LintOptions options;
  options.system.emplace();
  options.system->dimensions.resize(5);
  options.system->splits = 16;
  options.system->notes = {"s.json#/x: nobody reads it"};
  const LintedTraces traces(
      {{collective_of(1, 8, {}, TraceCollective::kAllGather)}, {collective_of(1, 8, {}, TraceCollective::kAllGather)}});
  const std::string text = text_of(traces.lint({{1, {0, 1}}, {2, {0, 7}}}, options));
  EXPECT_THAT(text, HasSubstr("an all-gather of 8 bytes, fewer than the 16 splits"));
  EXPECT_THAT(text, HasSubstr("note: the network has 5 dimensions"));
  EXPECT_THAT(text, HasSubstr("note: s.json#/x: nobody reads it"));
  EXPECT_THAT(text, HasSubstr("note: group 2 holds rank 7"));
}

// ASTRA-Sim opens a file for each NPU of the network, and for no other.
TEST(Lint, EachNpuNeedsATrace) {
  LintOptions options;
  options.system.emplace();
  const LintedTraces traces({{compute(1)}, {compute(1)}});
  for (const auto& [npus, rank] : {std::pair(4, 2), std::pair(1, 1)}) {
    options.system->dimensions = {{AstraTopology::kRing, npus, 50, 500, "ring"}};
    EXPECT_THAT(text_of(traces.lint({}, options)),
                HasSubstr("rank " + std::to_string(rank) + " node 0: the network has " + std::to_string(npus) +
                          " NPUs, and there are traces of 2 ranks"));
  }
  options.system->dimensions.front().npus = 2;
  EXPECT_EQ(traces.lint({}, options).problem_count, 0U);
}

// "absent + used: exception" (ASTRA-Sim); told once.
TEST(Lint, ACollectiveNeedsAnAlgorithm) {
  LintOptions options;
  options.system.emplace();
  options.system->dimensions = {{AstraTopology::kRing, 2, 50, 500, "ring"}};
  options.system->dimensions.front().algorithm.all_reduce.clear();
  const LintedTraces reduces({{collective_of(1, 8), collective_of(2, 8)}, {collective_of(1, 8), collective_of(2, 8)}});
  EXPECT_EQ(text_of(reduces.lint({{1, {0, 1}}}, options)),
            "rank 0 node 1: ALL_REDUCE: the system json has no \"all-reduce-implementation\", and ASTRA-Sim stops\n");
  const TraceNode gather = collective_of(1, 8, {}, TraceCollective::kAllGather);
  EXPECT_EQ(LintedTraces({{gather}, {gather}}).lint({{1, {0, 1}}}, options).problem_count, 0U);
}

LintOptions on(std::vector<AstraDimension> dimensions) {
  LintOptions options;
  options.system.emplace();
  options.system->dimensions = std::move(dimensions);
  return options;
}

std::vector<std::vector<TraceNode>> each(std::size_t ranks, const TraceNode& node) {
  return std::vector<std::vector<TraceNode>>(ranks, {node});
}

// ASTRA-Sim: halvingDoubling on no power of two hangs, and its binary trees have no place for the ranks beyond one.
TEST(Lint, SomeAlgorithmsNeedAPowerOfTwo) {
  const TraceNode all = collective_of(1, 1 << 20, {}, TraceCollective::kAllReduce, "");
  const LintedTraces six(each(6, all));
  const auto of = [&](const char* algorithm) {
    return text_of(six.lint({}, on({{AstraTopology::kRing, 6, 50, 500, algorithm}})));
  };
  EXPECT_EQ(of("ring"), "");
  EXPECT_EQ(of("halvingDoubling"),
            "rank 0 node 1: ALL_REDUCE: \"halvingDoubling\" of 6 ranks, which are no power of two: ASTRA-Sim hangs\n");
  EXPECT_THAT(of("oneHalvingDoubling"), HasSubstr("of 6 ranks, which are no power of two: ASTRA-Sim hangs"));
  EXPECT_THAT(of("doubleBinaryTree"), HasSubstr("of 6 ranks, which are no power of two: ASTRA-Sim crashes"));
  // Each dimension has its own number, and one algorithm over all of them has the product.
  const auto two = [&](const char* algorithm) {
    return six.lint({}, on({{AstraTopology::kRing, 2, 50, 500, algorithm}, {AstraTopology::kRing, 3, 50, 500, "ring"}}))
        .problem_count;
  };
  EXPECT_EQ(two("halvingDoubling"), 0U);
  EXPECT_EQ(two("oneHalvingDoubling"), 1U);
  // Some of the ranks: as the only dimension says; rings where there are several.
  std::vector<std::vector<TraceNode>> some = each(6, compute(1));
  for (std::size_t rank = 0; rank < 3; ++rank) some[rank] = {collective_of(1, 1 << 20)};
  const LintedTraces three(some);
  EXPECT_THAT(text_of(three.lint({{1, {0, 1, 2}}}, on({{AstraTopology::kRing, 6, 50, 500, "halvingDoubling"}}))),
              HasSubstr("of 3 ranks"));
  EXPECT_EQ(three
                .lint({{1, {0, 1, 2}}}, on({{AstraTopology::kRing, 2, 50, 500, "halvingDoubling"},
                                            {AstraTopology::kRing, 3, 50, 500, "halvingDoubling"}}))
                .problem_count,
            0U);
}

// Checked with ASTRA-Sim 518bd513.
TEST(Lint, SomeAlgorithmsDoNotRunEveryCollective) {
  const auto of = [&](const char* algorithm, TraceCollective kind, std::int64_t bytes, std::int64_t splits = 1) {
    LintOptions options = on({{AstraTopology::kSwitch, 4, 50, 500, algorithm}});
    options.system->splits = splits;
    return text_of(LintedTraces(each(4, collective_of(1, bytes, {}, kind, ""))).lint({}, options));
  };
  for (const char* halving : {"halvingDoubling", "oneHalvingDoubling"}) {
    EXPECT_EQ(of(halving, TraceCollective::kAllReduce, 8), "");
    EXPECT_THAT(of(halving, TraceCollective::kAllReduce, 7),
                HasSubstr("of 4 ranks in chunks of 7 bytes, fewer than 8: ASTRA-Sim stops"));
    EXPECT_EQ(of(halving, TraceCollective::kAllReduce, 16, 2), "");
    EXPECT_THAT(of(halving, TraceCollective::kAllReduce, 15, 2), HasSubstr("in chunks of 7 bytes"));
    EXPECT_EQ(of(halving, TraceCollective::kReduceScatter, 1), "");
    EXPECT_EQ(of(halving, TraceCollective::kAllGather, 1), "");
    EXPECT_THAT(of(halving, TraceCollective::kAllToAll, 1 << 20), HasSubstr("ALL_TO_ALL: \"" + std::string(halving)));
  }
  EXPECT_EQ(of("doubleBinaryTree", TraceCollective::kAllToAll, 1), "");
  // A chunk has a byte for each NPU, also that of a group of some of them: 4 bytes of 4 ranks of 16 become 16.
  EXPECT_THAT(of("halvingDoubling", TraceCollective::kAllReduce, 3), HasSubstr("in chunks of 4 bytes"));
  std::vector<std::vector<TraceNode>> quarter = each(16, compute(1));
  for (std::size_t rank = 0; rank < 4; ++rank) quarter[rank] = {collective_of(1, 4)};
  EXPECT_EQ(text_of(LintedTraces(quarter).lint({{1, {0, 1, 2, 3}}},
                                               on({{AstraTopology::kSwitch, 16, 50, 500, "halvingDoubling"}}))),
            "");
  std::vector<std::vector<TraceNode>> some = each(4, compute(1));
  for (std::size_t rank = 0; rank < 2; ++rank) some[rank] = {collective_of(1, 1 << 20)};
  const LintedTraces two(some);
  const auto of_two = [&](const char* algorithm) {
    return text_of(two.lint({{1, {0, 1}}}, on({{AstraTopology::kSwitch, 4, 50, 500, algorithm}})));
  };
  EXPECT_EQ(of_two("halvingDoubling"), "");
  EXPECT_THAT(of_two("doubleBinaryTree"), HasSubstr("\"doubleBinaryTree\" of some of the ranks: ASTRA-Sim crashes"));
}

TraceNode in_dimensions(const std::vector<bool>& flags) {
  TraceNode all = collective_of(1, 1 << 20, {}, TraceCollective::kAllReduce, "");
  all.attributes.push_back({"involved_dim", flags});
  return all;
}

// ASTRA-Sim's own list has four values; it reads as many as the network has dimensions.
TEST(Lint, ACollectiveOfAllRanksNeedsAValueForEachDimension) {
  LintOptions five = on(std::vector<AstraDimension>(5, {AstraTopology::kRing, 2, 50, 500, "ring"}));
  const auto of = [&](const TraceNode& node, const CommGroups& groups = {}) {
    return LintedTraces(each(32, node)).lint(groups, five);
  };
  TraceNode all = collective_of(1, 1 << 20, {}, TraceCollective::kAllReduce, "");
  const std::string refused = "rank 0 node 1: ALL_REDUCE of all ranks: the network has 5 dimensions, and involved_dim";
  EXPECT_THAT(text_of(of(all)), HasSubstr(refused + ", where it is missing, has 4: ASTRA-Sim reads beyond the list"));
  EXPECT_THAT(text_of(of(in_dimensions(std::vector<bool>(4, true)))),
              HasSubstr(refused + " has 4: ASTRA-Sim reads beyond the list"));
  EXPECT_EQ(of(in_dimensions(std::vector<bool>(4, true))).problem_count, 1U) << "told once";
  EXPECT_THAT(text_of(of(in_dimensions({true, false}))), HasSubstr(" has 2: "));
  EXPECT_EQ(of(in_dimensions(std::vector<bool>(5, true))).problem_count, 0U);
  CommGroups whole;
  for (Rank rank = 0; rank < 32; ++rank) whole[1].push_back(rank);
  all.attributes[2].value = std::string("1");
  EXPECT_EQ(of(all, whole).problem_count, 0U) << "a group has dimensions of its own";
  // As many as the system json lists algorithms, or as are left behind one of all dimensions.
  all = collective_of(1, 1 << 20, {}, TraceCollective::kAllReduce, "");
  five.system->dimensions[4].algorithm.all_reduce.clear();
  EXPECT_EQ(of(all).problem_count, 0U);
  five.system->dimensions[4].algorithm = five.system->dimensions[0].algorithm = "oneRing";
  EXPECT_EQ(of(all).problem_count, 0U);
}

// Of its values those of the network's dimensions count. ASTRA-Sim runs these; the replay does not know who meets whom.
TEST(Lint, DimensionsMayBeLeftOut) {
  const LintOptions two =
      on({{AstraTopology::kRing, 2, 50, 500, "ring"}, {AstraTopology::kSwitch, 2, 50, 500, "ring"}});
  const auto of = [&](const std::vector<bool>& flags, const LintOptions& options) {
    return LintedTraces(each(4, in_dimensions(flags))).lint({}, options);
  };
  EXPECT_EQ(text_of(of({true, true, false, false}, two)), "");
  EXPECT_TRUE(of({true, true, false, false}, two).ran);
  const LintReport some = of({true, false}, two);
  EXPECT_EQ(text_of(some),
            "note: rank 0, node 1, and 3 more: attribute involved_dim leaves out dimensions of the network: ASTRA-Sim "
            "runs it, `ns-dist replay` does not, and the traces were not run\n");
  EXPECT_FALSE(some.ran);
  EXPECT_EQ(of({true, false}, two).problem_count, 0U);
  EXPECT_THAT(text_of(of({false, false, true}, two)), HasSubstr("names no dimension of the network: the feeder hangs"));
  EXPECT_THAT(text_of(of({false, false}, {})), HasSubstr("names no dimension"));
  EXPECT_THAT(text_of(of({true, true, false, false}, {})),
              HasSubstr("leaves out dimensions, if the network has as many"));
  // Ranks that differ in the dimensions left out need not agree.
  std::vector<std::vector<TraceNode>> lines = each(4, in_dimensions({true, false}));
  lines[2].front().attributes[1].value = lines[3].front().attributes[1].value = std::int64_t{64};
  EXPECT_EQ(LintedTraces(lines).lint({}, two).problem_count, 0U);
  // A group goes before.
  TraceNode grouped = in_dimensions({false, false});
  grouped.attributes[2].value = std::string("1");
  EXPECT_EQ(text_of(LintedTraces(each(4, grouped)).lint({{1, {0, 1, 2, 3}}}, two)), "");
}

// An event without delay at the very beginning is an assertion of ASTRA-Sim.
TEST(Lint, TheFirstNodeTakesSomeTime) {
  LintOptions options = on({{AstraTopology::kRing, 2, 50, 500, "ring"}});
  const LintedTraces first({{collective_of(1, 8)}, {collective_of(1, 8)}}),
      later({{compute(1), collective_of(2, 8, {1})}, {compute(1), collective_of(2, 8, {1})}});
  EXPECT_EQ(text_of(first.lint({{1, {0, 1}}}, options)), "");
  options.system->endpoint_delay_ns = 0;
  EXPECT_THAT(text_of(first.lint({{1, {0, 1}}}, options)),
              HasSubstr("rank 1 node 1: a collective comes first, and \"endpoint-delay\" is 0: ASTRA-Sim stops"));
  EXPECT_EQ(text_of(later.lint({{1, {0, 1}}}, options)), "");
  TraceNode kernel = compute(1);
  kernel.attributes = {{"num_ops", std::int64_t{900}}, {"tensor_size", std::int64_t{1}}};
  options.system->roofline = true;
  options.system->peak_tflops = 1;
  options.system->local_memory_gbs = 1e9;
  EXPECT_THAT(text_of(LintedTraces({{kernel}, {kernel}}).lint({}, options)),
              HasSubstr("rank 0 node 1: the first kernel takes less than 1 ns by the roofline: ASTRA-Sim stops"));
  kernel.attributes[0].value = std::int64_t{1500};
  EXPECT_EQ(text_of(LintedTraces({{kernel}, {kernel}}).lint({}, options)), "");
}

// What ASTRA-Sim runs and a replay does not is no mistake. The same reason is told once.
TEST(Lint, NotesWhatAReplayHasNoTimeOf) {
  LintOptions options = on({{AstraTopology::kRing, 2, 50, 500, "ring"}});
  int asked = 0;
  options.network.collective = [&](CollectiveKind kind, std::int64_t bytes, std::span<const Rank> ranks,
                                   std::span<std::int64_t> times) -> Result<void> {
    ++asked;
    EXPECT_EQ(std::vector<Rank>(ranks.begin(), ranks.end()), (std::vector<Rank>{1, 0}));
    EXPECT_EQ(times.size(), 2U);
    if (kind == CollectiveKind::kAllReduce && bytes != 8) return {};
    return fail({ErrorCode::kInvalidInput, "no form", "s.json#/x", "y"});
  };
  std::vector<TraceNode> nodes = {collective_of(1, 16), collective_of(2, 8, {1}), collective_of(3, 8, {2}),
                                  collective_of(4, 8, {3}, TraceCollective::kAllGather)};
  const LintReport report = LintedTraces({nodes, nodes}).lint({{1, {1, 0}}}, options);
  EXPECT_EQ(text_of(report),
            "note: `ns-dist replay` runs rank 0, node 2 with --recorded alone: s.json#/x: no form; expected y\n");
  EXPECT_TRUE(report.ran);
  EXPECT_EQ(asked, 3);
}

// With "replay-only" nobody waits for a peer.
TEST(Lint, WhatIsReplayedAloneNeedsNoPeer) {
  LintOptions options = on({{AstraTopology::kRing, 2, 50, 500, "ring"}});
  const LintedTraces traces({{message(TraceNodeType::kSend, 1, 1, 64, 5), collective_of(2, 8)}, {compute(1)}});
  EXPECT_EQ(traces.lint({{1, {0, 1}}}, options).problem_count, 2U);
  options.system->replay_only = true;
  const LintReport report = traces.lint({{1, {0, 1}}}, options);
  EXPECT_EQ(text_of(report), "");
  EXPECT_TRUE(report.ran);
}

TEST(Lint, NodesOfMemoryNeedASizeAndAMemory) {
  TraceNode load = node_of(2, TraceNodeType::kMemLoad, {1});
  LintOptions options = on({{AstraTopology::kRing, 2, 50, 500, "ring"}});
  const auto of = [&] { return text_of(LintedTraces({{compute(1), load}, {compute(1)}}).lint({}, options)); };
  EXPECT_THAT(of(), HasSubstr("rank 0 node 2: attribute tensor_size is missing"));
  load.attributes = {{"tensor_size", std::int64_t{64}}};
  const std::string statistics = "note: rank 0 has 1 CPU operators and nodes of memory: ASTRA-Sim's statistics";
  EXPECT_THAT(of(), ::testing::StartsWith(statistics));
  options.no_remote_memory = true;
  EXPECT_THAT(of(), HasSubstr("rank 0 node 2: a node of memory: remote_memory.json says NO_MEMORY_EXPANSION"));
  options.system->replay_only = true;
  EXPECT_THAT(of(), ::testing::StartsWith(statistics));
  load.attributes.clear();
  EXPECT_THAT(of(), ::testing::StartsWith(statistics)) << "its recorded time alone";
}

TEST(Lint, CpuOperatorsAreNoted) {
  TraceNode copy = compute(1);
  copy.attributes = {{"is_cpu_op", true}};
  EXPECT_THAT(
      text_of(LintedTraces({{compute(1)}, {copy}}).lint()),
      HasSubstr("note: rank 1 has 1 CPU operators and nodes of memory: ASTRA-Sim's statistics at the end fail"));
}

TEST(Lint, ARooflineNeedsItsRates) {
  TraceNode kernel = compute(1);
  kernel.attributes = {{"num_ops", std::int64_t{1000}}, {"tensor_size", std::int64_t{1}}};
  const LintedTraces traces({{kernel}, {kernel}});
  LintOptions options;
  options.system.emplace();
  options.system->dimensions = {{AstraTopology::kRing, 2, 50, 500, "ring"}};
  options.system->roofline = true;
  options.system->peak_tflops = 1;
  EXPECT_EQ(text_of(traces.lint({}, options)),
            "rank 0 node 1: a kernel that never ends: the system json has \"roofline-enabled\" and no "
            "\"local-mem-bw\"\n");
  options.system->local_memory_gbs = 1;
  EXPECT_EQ(traces.lint({}, options).problem_count, 0U);
  options.system->peak_tflops = 0;
  EXPECT_THAT(text_of(traces.lint({}, options)), HasSubstr("no \"peak-perf\""));
  options.system->replay_only = true;
  EXPECT_EQ(traces.lint({}, options).problem_count, 0U) << "durations are as recorded";
}

TEST(Lint, AFileThatIsNoTraceDoesNotHideTheOthers) {
  const LintedTraces traces({{compute(1), compute(2, {9})}, {compute(1)}});
  const auto size = std::filesystem::file_size(traces.file(1));
  std::filesystem::resize_file(traces.file(1), size - 2);
  const std::string text = text_of(traces.lint());
  EXPECT_THAT(text, HasSubstr("rank 0 node 2: it waits for node 9"));
  EXPECT_THAT(text, HasSubstr("rank 1 node 0: "));
  EXPECT_THAT(text, HasSubstr("the file ends"));
}

}  // namespace
}  // namespace ns_dist
