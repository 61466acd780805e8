// Is a step told to every rank as ASTRA-Sim's feeder reads it?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>

#include "ns_dist/operator_text.h"
#include "unit/chakra_io/traces.h"

namespace ns_dist {
namespace {

using namespace units;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Mesh mesh_of(std::int64_t tp, std::int64_t dp, std::int64_t pp) {
  return Mesh::innermost_first({"tp", "dp", "pp"}, {tp, dp, pp});
}

const TraceNode* find(const std::vector<TraceNode>& trace, const std::string& name) {
  for (const TraceNode& node : trace) {
    if (node.name == std::string(name_of(node.type)) + " " + name) return &node;
  }
  return nullptr;
}

TEST(Writer, KernelsCarryWorkDurationAndOrder) {
  const ScratchFolder folder;
  StepBuilder step(mesh_of(1, 1, 1));
  const NodeId first = step.kernel(0, "first", {}, 2000);
  step.add(0, Stream::kCompute, {"second", Category::kForward, Operator{Gemm{1, 4, 8, 16}, DType::kFp32}}, {first},
           3000, {.microbatch = 5, .layer = 11});
  const auto written = write_and_read(std::move(step), folder.path());
  ASSERT_TRUE(written) << to_text(written.error());
  ASSERT_EQ(written->traces.size(), 1U);
  ASSERT_EQ(written->traces[0].size(), 2U);
  const TraceNode& a = written->traces[0][0];
  const TraceNode& b = written->traces[0][1];
  EXPECT_EQ(a.type, TraceNodeType::kCompute);
  EXPECT_EQ(a.duration_micros, 2U);
  EXPECT_EQ(integer_of(a, "num_ops"), 2 * 4 * 8 * 16);
  EXPECT_EQ(integer_of(a, "tensor_size"), 4 * (4 * 16 + 16 * 8 + 4 * 8));
  EXPECT_FALSE(attribute_as<bool>(a, "is_cpu_op"));
  EXPECT_THAT(b.data_deps, ElementsAre(a.id));
  EXPECT_THAT(b.ctrl_deps, IsEmpty());
  EXPECT_EQ(b.name, "COMP_NODE second layer 11 microbatch 5");
  EXPECT_EQ(attribute_as<double>(b, "ns_dist_duration_ns"), 3000);
  EXPECT_THAT(written->replayed.finish_ns, ElementsAre(5000U));
}

// A copy to the host is work of the CPU's slot: the feeder runs it beside kernels, in both encodings.
TEST(Writer, TheHostsWorkRunsBesideKernels) {
  for (const TraceEncoding encoding : {TraceEncoding::kDurations, TraceEncoding::kRoofline}) {
    const ScratchFolder folder;
    StepBuilder step(mesh_of(1, 1, 1));
    step.kernel(0, "first", {}, 2000);
    const Operator none{UnknownOperator{"copy", {}, {}, {}}, DType::kBf16};
    const NodeId copy = step.add(0, Stream::kHost, {"copy", Category::kOther, none, {1 * MB, {}}}, {}, 6000);
    step.kernel(0, "second", {}, 3000);
    step.kernel(0, "third", {copy}, 1000);
    const auto written = write_and_read(std::move(step), folder.path(), encoding);
    ASSERT_TRUE(written) << to_text(written.error());
    EXPECT_TRUE(attribute_as<bool>(*find(written->traces[0], "copy"), "is_cpu_op"));
    EXPECT_FALSE(attribute_as<bool>(*find(written->traces[0], "third"), "is_cpu_op"));
    EXPECT_THAT(written->replayed.finish_ns, ElementsAre(7000U));
  }
}

// The format holds whole microseconds, and the feeder takes 0 for 1 ns: at no point may a lane's total, as the feeder
// reads it, be further from the exact one than half a microsecond.
TEST(Writer, TheRoundingRemainderIsCarriedAlongTheLane) {
  for (const double each : {40.0, 333.3, 499.9, 500.1, 1234.56, 7499.9}) {
    const ScratchFolder folder;
    StepBuilder step(mesh_of(1, 1, 1));
    constexpr int kKernels = 3000;
    for (int i = 0; i < kKernels; ++i) step.kernel(0, "k", {}, each);
    const auto written = write_and_read(std::move(step), folder.path());
    ASSERT_TRUE(written) << to_text(written.error());
    double told = 0;
    for (int i = 0; i < kKernels; ++i) {
      const auto micros = static_cast<double>(written->traces[0][static_cast<std::size_t>(i)].duration_micros);
      told += micros == 0 ? 1 : 1000 * micros;
      ASSERT_NEAR(told, (i + 1) * each, 500 + 1e-6 * each * kKernels) << each << " ns, kernel " << i;
    }
    EXPECT_NEAR(static_cast<double>(written->replayed.finish_ns[0]), kKernels * each, 501);
  }
}

TEST(Writer, RooflineEncodingIsExactToTheNanosecond) {
  const ScratchFolder folder;
  StepBuilder step(mesh_of(1, 1, 1));
  std::uint64_t total = 0;
  for (const std::uint64_t ns : {1U, 7U, 999U, 123457U, 4000000001U}) {
    step.kernel(0, "k", {}, static_cast<double>(ns));
    total += ns;
  }
  const auto written = write_and_read(std::move(step), folder.path(), TraceEncoding::kRoofline);
  ASSERT_TRUE(written) << to_text(written.error());
  EXPECT_EQ(integer_of(written->traces[0][2], "num_ops"), 999 * 1000 + 500);
  EXPECT_EQ(integer_of(written->traces[0][2], "tensor_size"), 1);
  EXPECT_EQ(written->replayed.finish_ns[0], total);
}

// comm_size: all-reduce, reduce-scatter and all-to-all count what a rank puts in, and so does all-gather, whose size
// with us is what comes out.
TEST(Writer, CollectiveSizesFollowTheFeedersConvention) {
  const ScratchFolder folder;
  StepBuilder step(mesh_of(4, 1, 1));
  const std::vector<std::pair<CollectiveKind, std::int64_t>> expected = {{CollectiveKind::kAllReduce, 4096},
                                                                         {CollectiveKind::kAllGather, 1024},
                                                                         {CollectiveKind::kReduceScatter, 4096},
                                                                         {CollectiveKind::kAllToAll, 4096}};
  step.kernel(0, "k");
  for (const auto& [kind, size] : expected) step.collective(0, Stream::kTensorParallel, kind, 4 * KiB, {"tp"});
  const auto written = write_and_read(std::move(step), folder.path());
  ASSERT_TRUE(written) << to_text(written.error());
  const std::vector<std::int64_t> types = {0, 2, 7, 6};
  for (const auto& trace : written->traces) {
    ASSERT_EQ(trace.size(), 1 + expected.size());
    std::vector<std::int64_t> sizes, told;
    for (const TraceNode& node : trace) {
      if (node.type != TraceNodeType::kCollective) continue;
      sizes.push_back(integer_of(node, "comm_size"));
      told.push_back(integer_of(node, "comm_type"));
      EXPECT_EQ(attribute_as<std::string>(node, "pg_name"), "1");
    }
    EXPECT_THAT(sizes, ElementsAre(4096, 1024, 4096, 4096));
    EXPECT_EQ(told, types);
  }
  EXPECT_TRUE(written->replayed.ok()) << text_of(written->replayed);
}

TEST(Writer, GroupsAreNumberedFromOneAndSharedWhereTheyAreEqual) {
  const ScratchFolder folder;
  StepBuilder step(mesh_of(2, 2, 2));
  const auto ar = CollectiveKind::kAllReduce;
  for (std::int64_t stage = 0; stage < 2; ++stage) {
    step.kernel(stage, "k");
    step.collective(stage, Stream::kTensorParallel, ar, 64 * B, {"tp"});
    step.collective(stage, Stream::kDataParallel, ar, 64 * B, {"dp"});
    step.collective(stage, Stream::kExpertParallel, ar, 32 * B, {"tp"});  // the same ranks on another stream
    step.collective(stage, Stream::kDataParallel, ar, 16 * B, {"tp", "dp", "pp"});
  }
  const auto written = write_and_read(std::move(step), folder.path());
  ASSERT_TRUE(written) << to_text(written.error());
  // Ranks are tp + 2 dp + 4 pp. In the order of ranks: rank 0's tp, dp and world groups, rank 1's dp, rank 2's tp, ...
  const CommGroups expected = {{1, {0, 1}}, {2, {0, 2}}, {3, {0, 1, 2, 3, 4, 5, 6, 7}},
                               {4, {1, 3}}, {5, {2, 3}}, {6, {4, 5}},
                               {7, {4, 6}}, {8, {5, 7}}, {9, {6, 7}}};
  EXPECT_EQ(written->groups, expected);
  EXPECT_EQ(written->summary.groups, 9);
  EXPECT_TRUE(written->replayed.ok()) << text_of(written->replayed);
}

TEST(Writer, EveryRankOfAStageTalksToItsOwnPeer) {
  const ScratchFolder folder;
  StepBuilder step(mesh_of(2, 1, 2));
  const NodeId a = step.kernel(0, "a");
  const NodeId m = step.message(0, 1, Stream::kPipelineForward, {a}, 100 * B);
  const NodeId b = step.kernel(1, "b", {m});
  const NodeId back = step.message(1, 0, Stream::kPipelineBackward, {b}, 50 * B);
  step.kernel(0, "c", {back});
  const auto written = write_and_read(std::move(step), folder.path());
  ASSERT_TRUE(written) << to_text(written.error());
  for (Rank rank = 0; rank < 4; ++rank) {
    const Rank peer = (rank + 2) % 4;
    int sends = 0, receives = 0;
    for (const TraceNode& node : written->traces[static_cast<std::size_t>(rank)]) {
      if (node.type == TraceNodeType::kSend) {
        ++sends;
        EXPECT_EQ(integer_of(node, "comm_src"), rank);
        EXPECT_EQ(integer_of(node, "comm_dst"), peer);
        EXPECT_EQ(integer_of(node, "comm_size"), rank < 2 ? 100 : 50);
      } else if (node.type == TraceNodeType::kReceive) {
        ++receives;
        EXPECT_EQ(integer_of(node, "comm_src"), peer);
        EXPECT_EQ(integer_of(node, "comm_dst"), rank);
        EXPECT_EQ(integer_of(node, "comm_size"), rank < 2 ? 50 : 100);
      }
    }
    EXPECT_EQ(sends, 1);
    EXPECT_EQ(receives, 1);
  }
  const TraceNode* receiving = find(written->traces[2], "send");
  ASSERT_NE(receiving, nullptr);
  EXPECT_THAT(find(written->traces[2], "b")->data_deps, ElementsAre(receiving->id));
  EXPECT_TRUE(written->replayed.ok()) << text_of(written->replayed);
  // 1 us each: a, message, b, message, c.
  EXPECT_THAT(written->replayed.finish_ns, ElementsAre(5000U, 5000U, 4000U, 4000U));
}

// Four ranks in a ring, beside which four others form another one. Each sends to the next and receives from the one
// before; whoever waits for the exchange waits for both.
TEST(Writer, ARingOfMessagesIsASendAndAReceiveOnEachRank) {
  const ScratchFolder folder;
  StepBuilder step(Mesh::innermost_first({"tp", "cp", "pp"}, {2, 4, 2}));
  for (std::int64_t stage = 0; stage < 2; ++stage) {
    const WorkItem ring = {
        "ring", Category::kContextParallel,
        Collective{.kind = CollectiveKind::kSendRecv, .size = 100 * B, .group = {8 * stage, {{2, 4}}}, .ring = {4, 2}}};
    NodeId last = step.kernel(stage, "first");
    for (int i = 0; i < 3; ++i) last = step.add(stage, Stream::kContextParallel, ring, {last});
    step.kernel(stage, "last", {last});
  }
  const auto written = write_and_read(std::move(step), folder.path());
  ASSERT_TRUE(written) << to_text(written.error());
  EXPECT_EQ(written->summary.sends, 3 * 16U);
  EXPECT_EQ(written->summary.receives, 3 * 16U);
  EXPECT_EQ(written->summary.groups, 0);
  for (Rank rank = 0; rank < 16; ++rank) {
    const Rank stage = rank / 8 * 8, tp = rank % 2, cp = rank % 8 / 2;
    const Rank next = stage + tp + 2 * ((cp + 1) % 4), before = stage + tp + 2 * ((cp + 3) % 4);
    const auto& trace = written->traces[static_cast<std::size_t>(rank)];
    std::uint64_t sent = 0, received = 0;  // the last of each
    for (const TraceNode& node : trace) {
      if (node.type == TraceNodeType::kCompute) continue;
      EXPECT_EQ(integer_of(node, "comm_size"), 100);
      if (node.type == TraceNodeType::kSend) {
        EXPECT_EQ(integer_of(node, "comm_dst"), next);
        if (sent != 0) {
          EXPECT_THAT(node.data_deps, ElementsAre(sent, received));
        }
        sent = node.id;
      } else {
        ASSERT_EQ(node.type, TraceNodeType::kReceive);
        EXPECT_EQ(integer_of(node, "comm_src"), before);
        received = node.id;
      }
    }
    EXPECT_THAT(find(trace, "last")->data_deps, ElementsAre(trace[0].id, sent, received));
  }
  EXPECT_TRUE(written->replayed.ok()) << text_of(written->replayed);
  EXPECT_THAT(written->replayed.finish_ns, Each(5000U));  // 1 us each: a kernel, three exchanges, a kernel
}

// 8 experts, 2 of them for a token. It goes to 2 (1 - C(4, 2) / C(8, 2)) = 44/28 of two nodes and to
// 4 (1 - C(6, 2) / C(8, 2)) = 52/28 of four ranks.
TEST(Writer, AnAllToAllWithOneCopyForEachNodeIsTwo) {
  const Collective routed{.kind = CollectiveKind::kAllToAll,
                          .size = 1300 * B,
                          .group = {0, {{4, 1}}},
                          .routing = {.experts = 8, .top_k = 2}};
  for (const std::int64_t node_gpus : {0, 2, 4}) {
    const ScratchFolder folder;
    StepBuilder step(mesh_of(4, 1, 1));
    const NodeId a = step.kernel(0, "a");
    const NodeId exchange =
        step.add(0, Stream::kExpertParallel, {"dispatch", Category::kExpertParallel, routed}, {a}, 24'000);
    step.kernel(0, "b", {exchange});
    const auto written = write_and_read(std::move(step), folder.path(), TraceEncoding::kDurations, node_gpus);
    ASSERT_TRUE(written) << to_text(written.error());
    EXPECT_TRUE(written->replayed.ok()) << text_of(written->replayed);
    EXPECT_THAT(written->replayed.finish_ns, Each(26'000U));
    const auto& trace = written->traces[2];
    if (node_gpus != 2) {  // unknown, or all in one
      ASSERT_EQ(trace.size(), 3U);
      EXPECT_EQ(integer_of(trace[1], "comm_size"), 1300);
      continue;
    }
    ASSERT_EQ(trace.size(), 4U);
    EXPECT_EQ(integer_of(trace[1], "comm_size"), 1100);
    EXPECT_EQ(integer_of(trace[2], "comm_size"), 1300);
    EXPECT_THAT(trace[2].data_deps, ElementsAre(trace[1].id));
    EXPECT_THAT(trace[3].data_deps, ElementsAre(trace[0].id, trace[2].id));
    EXPECT_EQ(trace[1].duration_micros, 11U);
    EXPECT_EQ(trace[2].duration_micros, 13U);
    const auto group_of = [&](const TraceNode& node) {
      return written->groups.at(std::stoll(attribute_as<std::string>(node, "pg_name")));
    };
    EXPECT_THAT(group_of(trace[1]), ElementsAre(0, 2));
    EXPECT_THAT(group_of(trace[2]), ElementsAre(2, 3));
  }
}

TEST(Writer, WhatARankWouldSayToItselfIsLeftOutAndBridged) {
  const ScratchFolder folder;
  StepBuilder step(mesh_of(1, 2, 1));
  const NodeId a = step.kernel(0, "a");
  const NodeId alone = step.collective(0, Stream::kTensorParallel, CollectiveKind::kAllReduce, 64 * B, {"tp"}, {a});
  const NodeId self = step.message(0, 0, Stream::kPipelineForward, {alone});
  const NodeId real = step.collective(0, Stream::kDataParallel, CollectiveKind::kAllReduce, 64 * B, {"dp"}, {self});
  step.kernel(0, "b", {real});
  const auto written = write_and_read(std::move(step), folder.path());
  ASSERT_TRUE(written) << to_text(written.error());
  ASSERT_EQ(written->traces[0].size(), 3U);
  EXPECT_THAT(find(written->traces[0], "collective")->data_deps, ElementsAre(find(written->traces[0], "a")->id));
  EXPECT_TRUE(written->replayed.ok()) << text_of(written->replayed);
}

// The gradient norm: every stage adds its own node, all of one group. Each stage meets it where its timeline says, and
// messages around it would deadlock if the stages disagreed about the order.
TEST(Writer, CollectivesOfSeveralStagesMeet) {
  const ScratchFolder folder;
  StepBuilder step(mesh_of(2, 1, 2));
  std::vector<NodeId> ends;
  for (std::int64_t stage = 0; stage < 2; ++stage) {
    const NodeId last = step.kernel(stage, "work", {}, stage == 0 ? 1000 : 9000);
    ends.push_back(
        step.collective(stage, Stream::kDataParallel, CollectiveKind::kAllReduce, 4 * B, {"tp", "pp"}, {last}));
  }
  // Stage 0 believes that its norm is over long before this message leaves stage 1.
  const NodeId early = step.kernel(1, "early");
  const NodeId message = step.message(1, 0, Stream::kPipelineBackward, {early});
  step.kernel(0, "after", {message, ends[0]});
  const auto written = write_and_read(std::move(step), folder.path());
  ASSERT_TRUE(written) << to_text(written.error());
  EXPECT_EQ(written->groups, (CommGroups{{1, {0, 1, 2, 3}}}));
  EXPECT_TRUE(written->replayed.ok()) << text_of(written->replayed);
}

TEST(Writer, CollectivesAndSendsOfARankAreOneChain) {
  const ScratchFolder folder;
  StepBuilder step(mesh_of(2, 2, 2));
  const NodeId a = step.kernel(0, "a");
  step.collective(0, Stream::kTensorParallel, CollectiveKind::kAllReduce, 64 * B, {"tp"}, {a});
  step.collective(0, Stream::kDataParallel, CollectiveKind::kAllReduce, 64 * B, {"dp"}, {a});
  const NodeId m = step.message(0, 1, Stream::kPipelineForward, {a});
  step.kernel(1, "b", {m});
  const auto written = write_and_read(std::move(step), folder.path());
  ASSERT_TRUE(written) << to_text(written.error());
  std::uint64_t last = 0;
  for (const TraceNode& node : written->traces[0]) {
    if (node.type != TraceNodeType::kCollective && node.type != TraceNodeType::kSend) continue;
    if (last != 0) {
      EXPECT_THAT(node.ctrl_deps, ElementsAre(last));
    }
    last = node.id;
  }
}

// A collective that has to wait must not hold up one that does not, whichever was launched first.
TEST(Writer, TheChainFollowsTheTimeline) {
  const ScratchFolder folder;
  StepBuilder step(mesh_of(2, 2, 1));
  const NodeId slow = step.kernel(0, "slow", {}, 9000);
  step.collective(0, Stream::kTensorParallel, CollectiveKind::kAllReduce, 64 * B, {"tp"}, {slow});
  step.collective(0, Stream::kDataParallel, CollectiveKind::kAllReduce, 32 * B, {"dp"});
  const auto written = write_and_read(std::move(step), folder.path());
  ASSERT_TRUE(written) << to_text(written.error());
  std::vector<std::int64_t> sizes;
  for (const TraceNode& node : written->traces[0]) {
    if (node.type == TraceNodeType::kCollective) sizes.push_back(integer_of(node, "comm_size"));
  }
  EXPECT_THAT(sizes, ElementsAre(32, 64));
  EXPECT_THAT(written->replayed.finish_ns, ElementsAre(10000U, 10000U, 10000U, 10000U));
}

TEST(Writer, SaysWhatTheFormatCannotSay) {
  const ScratchFolder folder;
  {
    StepBuilder step(mesh_of(1, 1, 2));
    const NodeId a = step.kernel(0, "a");
    step.kernel(1, "b", {a});
    const auto written = write_and_read(std::move(step), folder.path());
    ASSERT_FALSE(written);
    EXPECT_THAT(written.error().message, HasSubstr("no message joins them"));
  }
  for (const CollectiveKind kind : {CollectiveKind::kReduce, CollectiveKind::kGather, CollectiveKind::kScatter,
                                    CollectiveKind::kBarrier, CollectiveKind::kSendRecv}) {
    StepBuilder step(mesh_of(2, 1, 1));
    step.collective(0, Stream::kTensorParallel, kind, 64 * B, {"tp"});
    const auto written = write_and_read(std::move(step), folder.path());
    ASSERT_FALSE(written);
    EXPECT_THAT(written.error().message, HasSubstr(std::string(name_of(kind))));
  }
  {
    StepBuilder step(mesh_of(1, 1, 2));
    step.kernel(0, "a");
    EXPECT_THAT(write_and_read(std::move(step), folder.path()).error().message, HasSubstr("stage 1 has no work"));
  }
  {
    StepBuilder step(mesh_of(1, 1, 3));
    for (std::int64_t stage = 0; stage < 3; ++stage) step.kernel(stage, "k");
    for (std::int64_t stage = 0; stage < 2; ++stage) {
      step.collective(stage, Stream::kDataParallel, CollectiveKind::kAllReduce, 4 * B, {"pp"});
    }
    EXPECT_THAT(write_and_read(std::move(step), folder.path()).error().message, HasSubstr("joins 3 stages; 2 of them"));
  }
  {
    StepBuilder step(mesh_of(1, 1, 1));
    step.kernel(0, "a", {NodeId{1}});
    step.kernel(0, "b");
    EXPECT_THAT(write_and_read(std::move(step), folder.path()).error().message, HasSubstr("depends on itself"));
  }
}

TEST(Writer, APlaceThatIsNoFolderIsAnError) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  StepBuilder step(mesh_of(1, 1, 1));
  step.kernel(0, "a");
  const auto written = write_and_read(std::move(step), folder.path() / "file");
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().where, HasSubstr("file"));
}

TEST(Writer, TheSameStepGivesTheSameBytes) {
  const ScratchFolder folder;
  std::vector<std::string> bytes;
  for (const char* name : {"one", "two"}) {
    StepBuilder step(mesh_of(2, 2, 1));
    const NodeId a = step.kernel(0, "a", {}, 1234.5);
    step.collective(0, Stream::kTensorParallel, CollectiveKind::kAllReduce, 64 * B, {"tp"}, {a});
    ASSERT_TRUE(write_and_read(std::move(step), folder.path() / name));
    std::string all;
    for (const char* file : {"trace.0.et", "trace.3.et", "comm_groups.json"})
      all += read_text(folder.path() / name / file);
    bytes.push_back(all);
  }
  EXPECT_EQ(bytes[0], bytes[1]);
}

// Splits the frames here, by the format's facts alone, and gives each to the format's own decoder.
TEST(Writer, ProtocDecodesEveryFrame) {
  const ScratchFolder folder;
  StepBuilder step(mesh_of(2, 1, 2));
  const NodeId a = step.kernel(0, "a");
  const NodeId c = step.collective(0, Stream::kTensorParallel, CollectiveKind::kAllReduce, 64 * B, {"tp"}, {a});
  const NodeId m = step.message(0, 1, Stream::kPipelineForward, {c});
  step.kernel(1, "b", {m});
  const auto written = write_and_read(std::move(step), folder.path());
  ASSERT_TRUE(written) << to_text(written.error());
  for (Rank rank = 0; rank < 4; ++rank) {
    const std::string bytes = read_text(folder.path() / ("trace." + std::to_string(rank) + ".et"));
    std::size_t at = 0, frames = 0;
    while (at < bytes.size()) {
      std::size_t length = 0;
      for (int shift = 0;; shift += 7) {
        const auto byte = static_cast<unsigned char>(bytes.at(at++));
        length |= static_cast<std::size_t>(byte & 0x7f) << shift;
        if (byte < 0x80) break;
      }
      ASSERT_LE(at + length, bytes.size());
      std::ofstream(folder.path() / "frame", std::ios::binary) << bytes.substr(at, length);
      at += length;
      const std::string type = frames == 0 ? "GlobalMetadata" : "Node";
      const std::string command = "protoc --decode=ChakraProtoMsg." + type +
                                  " -I '" NS_DIST_SOURCE_DIR "/chakra_io/proto' et_def.proto < '" +
                                  (folder.path() / "frame").string() + "'";
      std::FILE* pipe = ::popen(command.c_str(), "r");
      ASSERT_NE(pipe, nullptr);
      std::string text;
      for (int ch = std::fgetc(pipe); ch != EOF; ch = std::fgetc(pipe)) text.push_back(static_cast<char>(ch));
      ASSERT_EQ(::pclose(pipe), 0) << command;
      if (frames > 0) {
        const TraceNode& node = written->traces[static_cast<std::size_t>(rank)][frames - 1];
        EXPECT_THAT(text, HasSubstr("id: " + std::to_string(node.id) + "\n"));
        EXPECT_THAT(text, HasSubstr("name: \"" + node.name + "\""));
        EXPECT_THAT(text, HasSubstr("type: " + std::string(name_of(node.type))));
        EXPECT_EQ(text.find("\n1: "), std::string::npos) << "a field without a name:\n" << text;
      }
      ++frames;
    }
    EXPECT_EQ(frames, 1 + written->traces[static_cast<std::size_t>(rank)].size());
  }
}

TEST(Writer, KernelsCarryTheirOperatorAndPass) {
  const ScratchFolder folder;
  StepBuilder step(mesh_of(1, 1, 1));
  const Operator gemm{Gemm{1, 4, 8, 16}, DType::kFp32}, copy{Copy{64 * B}, DType::kBf16};
  step.add(0, Stream::kCompute, {"gemm", Category::kBackward, gemm});
  step.add(0, Stream::kCompute, {"copy", Category::kOptimizer, copy});
  const auto written = write_and_read(std::move(step), folder.path());
  ASSERT_TRUE(written) << to_text(written.error());
  EXPECT_EQ(*operator_from_spec(attribute_as<std::string>(written->traces[0][0], "ns_dist_op")), gemm);
  EXPECT_EQ(attribute_as<std::string>(written->traces[0][0], "ns_dist_pass"), "backward");
  EXPECT_EQ(*operator_from_spec(attribute_as<std::string>(written->traces[0][1], "ns_dist_op")), copy);
}

// Two kernels, one that a collective waits for too, and two after the collective.
TEST(Writer, MergesKernelsWithNothingBetweenThem) {
  const ScratchFolder folder;
  StepBuilder step(mesh_of(2, 1, 1));
  step.kernel(0, "a", {}, 1000);
  step.kernel(0, "b", {}, 2000);
  const NodeId c = step.kernel(0, "c", {}, 3000);
  const NodeId reduce = step.collective(0, Stream::kTensorParallel, CollectiveKind::kAllReduce, 64 * B, {"tp"}, {c});
  step.kernel(0, "d", {}, 4000);
  step.kernel(0, "e", {reduce}, 5000);
  step.kernel(0, "f", {}, 6000);
  const ExecutionGraph graph = std::move(step.builder).build();
  const Timeline timeline = timeline_of(graph, [&](NodeId node) { return step.durations[index(node)]; });
  ExportOptions options;
  options.directory = folder.path();
  options.merge_kernels = true;
  options.encoding = TraceEncoding::kDurations;
  auto traces = TraceExport::prepare(graph, timeline, options);
  ASSERT_TRUE(traces) << to_text(traces.error());
  const auto written = traces->write(folder.path());
  ASSERT_TRUE(written) << to_text(written.error());
  EXPECT_EQ(written->bytes, traces->expected().bytes);
  EXPECT_EQ(written->nodes, traces->expected().nodes);
  const std::vector<TraceNode> nodes = *read_trace(folder.path() / "trace.0.et");
  std::map<std::string, std::uint64_t> micros;
  for (const TraceNode& node : nodes) micros[node.name] = node.duration_micros;
  // c has two successors, the collective and d; e waits for two.
  EXPECT_EQ(micros,
            (std::map<std::string, std::uint64_t>{
                {"COMP_NODE a +2", 6}, {"COMM_COLL_NODE collective", 1}, {"COMP_NODE d", 4}, {"COMP_NODE e +1", 11}}));
  const TraceNode* chain = find(nodes, "a +2");
  ASSERT_NE(chain, nullptr);
  EXPECT_EQ(integer_of(*chain, "num_ops"), 3 * 2 * 4 * 8 * 16);
  const std::string one = to_spec({Gemm{1, 4, 8, 16}, DType::kFp32});
  EXPECT_EQ(attribute_as<std::string>(*chain, "ns_dist_op"), one + "|" + one + "|" + one);
}

// A reader multiplies experts' products by a factor of its own; the plan's goes before it. Kernels take 1 us each.
TEST(Writer, KernelsCarryTheFactorOfTheirPlan) {
  for (const bool merge : {false, true}) {
    const ScratchFolder folder;
    StepBuilder step(mesh_of(1, 1, 1));
    const WorkItem experts{"experts", Category::kForward,
                           Operator{GroupedGemm{.experts = 2, .rows = 64, .n = 8, .k = 8}, DType::kBf16}};
    step.kernel(0, "a");
    step.add(0, Stream::kCompute, experts);
    step.add(0, Stream::kCompute, {"slow", Category::kForward, Operator{Copy{64 * B}, DType::kBf16}});
    const ExecutionGraph graph = std::move(step.builder).build();
    const Timeline timeline = timeline_of(graph, [&](NodeId node) { return step.durations[index(node)]; });
    const auto told = [&](const std::vector<double>& factors) {
      ExportOptions options{.directory = folder.path(), .merge_kernels = merge};
      for (std::size_t w = 0; w < factors.size(); ++w) {
        const Span& span = timeline.spans[w];  // one kernel of each work
        options.alone.push_back((span.end - span.start) / factors[w]);
      }
      EXPECT_TRUE(write_traces(graph, timeline, options));
      std::vector<std::string> out;
      const std::vector<TraceNode> nodes = *read_trace(folder.path() / "trace.0.et");
      for (const TraceNode& node : nodes) {
        out.push_back(node.attribute("ns_dist_factor") == nullptr ? ""
                                                                  : attribute_as<std::string>(node, "ns_dist_factor"));
      }
      return out;
    };
    if (merge) {
      EXPECT_THAT(told({}), ElementsAre(""));
      EXPECT_THAT(told({1, 1.08, 1.25}), ElementsAre("1|1.08|1.25"));
      EXPECT_THAT(told({1.5, 1.5, 1.5}), ElementsAre("1.5"));
    } else {
      EXPECT_THAT(told({}), ElementsAre("", "", ""));
      EXPECT_THAT(told({1, 1, 1.25}), ElementsAre("", "1", "1.25"));
    }
  }
}

// The wait for the host is told with what the host launched, by the ids of this trace: an all-to-all that became two
// has both, a chain its own. No chain reaches across the result that the host reads before "d".
TEST(Writer, WaitsTellWhatTheHostLaunched) {
  for (const bool merge : {false, true}) {
    const ScratchFolder folder;
    StepBuilder step(mesh_of(4, 1, 1));
    WorkItem wait{"host.launches", Category::kOther, Operator{UnknownOperator{"host.launches", {}, {}, {}}}};
    wait.launches = {{0, 9 * us, 9 * us}};  // hidden by nothing
    step.add(0, Stream::kCompute, wait, {}, 9000);
    const NodeId a = step.kernel(0, "a");
    const Collective routed{.kind = CollectiveKind::kAllToAll,
                            .size = 1300 * B,
                            .group = {0, {{4, 1}}},
                            .routing = {.experts = 8, .top_k = 2}};
    const NodeId exchange = step.add(0, Stream::kExpertParallel, {"exchange", Category::kExpertParallel, routed}, {a});
    step.kernel(0, "b", {exchange});
    step.kernel(0, "c");
    step.kernel(0, "d");
    wait.launches = {{5, 70 * us, 20 * us}, {1, 30 * us, 20 * us}};
    step.add(0, Stream::kCompute, wait, {}, 5000);
    const ExecutionGraph graph = std::move(step.builder).build();
    const Timeline timeline = timeline_of(graph, [&](NodeId node) { return step.durations[index(node)]; });
    ExportOptions options{.directory = folder.path(), .merge_kernels = merge, .node_gpus = 2};
    ASSERT_TRUE(write_traces(graph, timeline, options));
    const std::vector<TraceNode> nodes = *read_trace(folder.path() / "trace.0.et");
    const auto id = [&](const std::string& name) { return static_cast<std::int64_t>(find(nodes, name)->id); };
    std::vector<std::int64_t> launched = {id("a"), id("exchange between nodes"), id("exchange in each node")};
    launched.push_back(merge ? id("b +1") : id("b"));
    if (!merge) launched.push_back(id("c"));
    const auto before_read = static_cast<std::int64_t>(launched.size());
    launched.push_back(id("d"));
    const TraceNode &first = nodes.front(), &last = nodes.back();
    EXPECT_THAT(attribute_as<std::vector<std::int64_t>>(first, "ns_dist_launched"), IsEmpty());
    EXPECT_THAT(attribute_as<std::vector<double>>(first, "ns_dist_launches_ns"), ElementsAre(DoubleNear(9000, 1e-6)));
    EXPECT_EQ(first.attribute("ns_dist_read_before"), nullptr);
    EXPECT_EQ(attribute_as<std::vector<std::int64_t>>(last, "ns_dist_launched"), launched);
    EXPECT_THAT(attribute_as<std::vector<double>>(last, "ns_dist_launches_ns"),
                ElementsAre(DoubleNear(70'000, 1e-6), DoubleNear(30'000, 1e-6)));
    EXPECT_THAT(attribute_as<std::vector<std::int64_t>>(last, "ns_dist_read_before"), ElementsAre(before_read));
    EXPECT_NEAR(attribute_as<double>(last, "ns_dist_launch_ns"), 20'000, 1e-6);
    options.operators = false;
    ASSERT_TRUE(write_traces(graph, timeline, options));
    const std::vector<TraceNode> plain = *read_trace(folder.path() / "trace.0.et");
    EXPECT_EQ(plain.back().attribute("ns_dist_launches_ns"), nullptr);
    for (const TraceNode& node : plain) {  // no other GPU makes a wait shorter
      const bool is_wait = node.name.find("host.launches") != std::string::npos;
      EXPECT_EQ(node.attribute("ns_dist_op") != nullptr || node.attribute("ns_dist_as") != nullptr, is_wait)
          << node.name;
    }
  }
}

TEST(ExportFolders, AreWholeOrNotThere) {
  const ScratchFolder scratch;
  const std::filesystem::path target = scratch.path() / "out";
  const auto entries = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(scratch.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  };
  {
    auto folder = ExportFolder::open(target, "trace", 2, false);
    ASSERT_TRUE(folder) << to_text(folder.error());
    EXPECT_GT(folder->free_bytes(), 0U);
    std::ofstream(folder->staging() / "trace.0.et") << "x";
    EXPECT_FALSE(std::filesystem::exists(target));
  }
  EXPECT_THAT(entries(), IsEmpty());  // given up: nothing is left
  {
    auto folder = ExportFolder::open(target, "trace", 2, false);
    std::ofstream(folder->staging() / "trace.0.et") << "x";
    std::ofstream(folder->staging() / "trace.1.et") << "x";
    ASSERT_TRUE(folder->commit("{}"));
  }
  EXPECT_THAT(entries(), ElementsAre("out"));
  const std::string manifest = " \"schema\": \"ns-dist/traces/1\",\n \"files\": []\n}\n";
  EXPECT_EQ(*read_text(target / "manifest.json", kMebibyte), "{\n" + manifest);
  // Again, with fewer ranks.
  const auto fewer = ExportFolder::open(target, "trace", 1, false);
  ASSERT_FALSE(fewer);
  EXPECT_THAT(fewer.error().message, HasSubstr("traces up to rank 1"));
  std::ofstream(target / "notes.txt") << "mine";
  const auto foreign = ExportFolder::open(target, "trace", 2, false);
  ASSERT_FALSE(foreign);
  EXPECT_THAT(foreign.error().message, HasSubstr("notes.txt"));
  {
    auto forced = ExportFolder::open(target, "trace", 1, true);
    ASSERT_TRUE(forced) << to_text(forced.error());
    std::ofstream(forced->staging() / "trace.0.et") << "new";
    ASSERT_TRUE(forced->commit("{}"));
  }
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(target))
    names.push_back(entry.path().filename().string());
  EXPECT_THAT(names, testing::UnorderedElementsAre("manifest.json", "notes.txt", "trace.0.et"));
  EXPECT_EQ(ExportFolder::open(target / "notes.txt", "trace", 1, true).error().code, ErrorCode::kInvalidInput);
}

// Names of an export are an export's where its manifest says so.
TEST(ExportFolders, KeepWhatNoExportWrote) {
  const ScratchFolder scratch;
  const auto make = [&](const char* name) { std::ofstream(scratch.path() / name) << "mine"; };
  const auto open = [&](bool force) { return ExportFolder::open(scratch.path(), "trace", 1, force); };
  const auto write = [&](bool force, const std::vector<const char*>& names) {
    auto folder = open(force);
    ASSERT_TRUE(folder) << to_text(folder.error());
    for (const char* name : names) std::ofstream(folder->staging() / name) << "ours";
    ASSERT_TRUE(folder->commit(R"({"ranks": 1})"));
  };
  for (const char* name : {"README.md", "network.yml", "manifest.json", "trace.0.et"}) {
    make(name);
    ASSERT_FALSE(open(false)) << name;
    EXPECT_EQ(open(false).error().message, std::string("holds files that are no export's: ") + name);
    std::filesystem::remove(scratch.path() / name);
  }
  make("README.md");
  make("network.yml");
  write(true, {"trace.0.et", "network.yml"});
  EXPECT_EQ(*read_text(scratch.path() / "README.md", kMebibyte), "mine");
  EXPECT_EQ(*read_text(scratch.path() / "network.yml", kMebibyte), "ours");
  EXPECT_EQ(open(false).error().message, "holds files that are no export's: README.md");
  write(true, {"trace.0.et"});
  EXPECT_EQ(*read_text(scratch.path() / "README.md", kMebibyte), "mine");
  EXPECT_FALSE(std::filesystem::exists(scratch.path() / "network.yml")) << "that of the export before";
  std::filesystem::remove(scratch.path() / "README.md");
  // An export that was killed has no manifest, and one of an older version does not name its files.
  make("network.yml");
  std::filesystem::remove(scratch.path() / "manifest.json");
  std::filesystem::create_directory(scratch.path() / ".ns-dist-export");
  write(false, {"trace.0.et"});
  EXPECT_FALSE(std::filesystem::exists(scratch.path() / "network.yml"));
  make("network.yml");
  std::ofstream(scratch.path() / "manifest.json") << R"({"schema": "ns-dist/traces/1"})";
  write(false, {"trace.0.et"});
  EXPECT_FALSE(std::filesystem::exists(scratch.path() / "network.yml"));
}

TEST(Writer, RefusesPrefixesThatLeaveTheFolder) {
  StepBuilder step(mesh_of(1, 1, 1));
  step.kernel(0, "a");
  const ExecutionGraph graph = std::move(step.builder).build();
  const Timeline timeline = timeline_of(graph, [](NodeId) { return 1 * units::us; });
  for (const char* prefix : {"", "../x", "a/b", ".", ".."}) {
    ExportOptions options;
    options.prefix = prefix;
    EXPECT_FALSE(TraceExport::prepare(graph, timeline, options)) << prefix;
  }
}

}  // namespace
}  // namespace ns_dist
