// Are durations patched, and does everything else stay byte for byte?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <optional>
#include <tuple>

#include "ns_dist/operator_text.h"
#include "pytorch_operators.h"
#include "symbolic_operators.h"
#include "unit/chakra_io/traces.h"
#include "wire.h"

namespace ns_dist {
namespace {

using ::testing::HasSubstr;

TraceNode kernel(std::uint64_t id, std::uint64_t micros) {
  TraceNode node;
  node.id = id;
  node.name = "kernel";
  node.type = TraceNodeType::kCompute;
  node.duration_micros = micros;
  return node;
}

AnnotateModel constant(double ns) {
  return {.forecast = [ns](const Operator&) -> std::optional<double> { return ns; }};
}

std::vector<TraceNode> annotated(const std::vector<TraceNode>& nodes, const AnnotateModel& model,
                                 AnnotateReport* report = nullptr) {
  const ScratchFolder folder;
  EXPECT_TRUE(write_trace(folder.path() / "in.et", nodes));
  const auto done = annotate(folder.path() / "in.et", folder.path() / "out.et", model);
  EXPECT_TRUE(done) << to_text(done.error());
  if (report != nullptr && done) *report = *done;
  return *read_trace(folder.path() / "out.et");
}

TEST(Annotate, OurAttributeIsForecast) {
  TraceNode node = kernel(1, 5);
  node.attributes = {{"ns_dist_duration_ns", 5000.0},
                     {"ns_dist_op", to_spec({Gemm{.m = 8, .n = 8, .k = 8}}) + "|" + to_spec({Copy{8 * units::B}})},
                     {"other", 1.5}};
  AnnotateReport report;
  const auto out = annotated({node, kernel(2, 9)}, constant(3200), &report);
  ASSERT_EQ(out.size(), 2U);
  EXPECT_EQ(out[0].duration_micros, 6U);  // two operators of 3.2 us
  EXPECT_EQ(attribute_as<double>(out[0], "ns_dist_duration_ns"), 6400);
  EXPECT_EQ(attribute_as<double>(out[0], "other"), 1.5);
  EXPECT_EQ(out[1], kernel(2, 9));
  EXPECT_EQ(report.ways[static_cast<std::size_t>(AnnotateWay::kOperator)].kernels, 1U);
  EXPECT_EQ(report.ways[static_cast<std::size_t>(AnnotateWay::kKept)].recorded_ns, 9000);
}

// Of experts, the factor of the trace takes the place of the one in the forecast.
TEST(Annotate, TheFactorOfTheTraceHolds) {
  const std::string copy = to_spec({Copy{8 * units::B}}),
                    experts = to_spec({GroupedGemm{.experts = 2, .rows = 64, .n = 8, .k = 8}});
  AnnotateModel model = constant(13'000);
  model.experts = 1.3;
  const auto micros = [&](const std::string& spec, const TraceValue& factor) {
    TraceNode node = kernel(1, 5);
    node.attributes = {{"ns_dist_op", spec}, {"ns_dist_factor", factor}};
    return annotated({node}, model)[0].duration_micros;
  };
  EXPECT_EQ(micros(copy, "2"), 26U);
  EXPECT_EQ(micros(copy, 2.0), 26U);
  EXPECT_EQ(micros(experts, "1"), 10U);
  EXPECT_EQ(micros(experts, "1.5"), 15U);
  EXPECT_EQ(micros(copy + "|" + experts, "1|2"), 33U);
  EXPECT_EQ(micros(copy + "|" + experts, "2"), 46U);
  EXPECT_EQ(micros(copy, ""), 13U);
  // Of a merged trace, the node that has the operators tells it, too.
  TraceNode first = kernel(1, 5), second = kernel(2, 5);
  first.attributes = {{"ns_dist_op", copy}, {"ns_dist_factor", "2"}};
  second.attributes = {{"ns_dist_as", std::int64_t{1}}};
  EXPECT_EQ(annotated({first, second}, model)[1].duration_micros, 26U);
  // Kernels alone.
  model.experts.reset();
  EXPECT_EQ(micros(copy, "2"), 13U);
}

TEST(Annotate, AFactorThatIsNoneIsAnError) {
  const ScratchFolder folder;
  const std::string copy = to_spec({Copy{8 * units::B}});
  TraceNode node = kernel(3, 5);
  const auto refused = [&](const std::string& spec, const TraceValue& factor) {
    node.attributes = {{"ns_dist_op", spec}, {"ns_dist_factor", factor}};
    EXPECT_TRUE(write_trace(folder.path() / "in.et", std::vector{kernel(1, 5), node}));
    const auto done = annotate(folder.path() / "in.et", folder.path() / "out.et", constant(1000));
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "out.et"));
    const auto work = kernel_work(node);
    EXPECT_EQ(done.has_value(), work.has_value());
    return done ? "" : to_text(done.error()).substr(folder.path().string().size());
  };
  EXPECT_EQ(refused(copy, "-2"),
            "/in.et, node 3: attribute ns_dist_factor is \"-2\"; expected a number above 0, at most 1000000");
  EXPECT_THAT(refused(copy + "|" + copy, "1|2|3"),
              HasSubstr("a number above 0, at most 1000000, or 2 with \"|\" between them"));
  EXPECT_THAT(refused(copy, std::vector<double>{1}), HasSubstr("is \"(a list)\""));
  EXPECT_THAT(refused(copy, -2.0), HasSubstr("is \"-2\""));
  for (const char* none : {"1|2", "x", "nan", "1e9", "1|"}) EXPECT_NE(refused(copy, none), "") << none;
}

// Without operators, a time that num_ops tells is no work.
TEST(Annotate, ATimeIsNoWorkToScaleBy) {
  TraceNode time = kernel(1, 5), work = kernel(2, 5);
  time.attributes = {
      {"ns_dist_duration_ns", 5000.0}, {"num_ops", std::int64_t{5'000'500}}, {"tensor_size", std::int64_t{1}}};
  work.attributes = {
      {"ns_dist_duration_ns", 5000.0}, {"num_ops", std::int64_t{5'000'000}}, {"tensor_size", std::int64_t{7}}};
  AnnotateModel model;
  model.forecast = [](const Operator&) -> std::optional<double> { return std::nullopt; };
  model.ratio = [](double flops, double bytes) -> std::optional<double> { return 1 + flops + bytes; };
  AnnotateReport report;
  const auto out = annotated({time, work}, model, &report);
  EXPECT_EQ(out[0].duration_micros, 5U);
  EXPECT_EQ(out[1].duration_micros, 5U * 5'000'008U);
  EXPECT_EQ(report.by_micros, 1U) << "a roofline has its own time of the second one";
}

TEST(Annotate, TheRooflineEncodingIsToldAgain) {
  TraceNode node = kernel(1, 5);
  node.attributes = {{"ns_dist_duration_ns", 5000.0},
                     {"ns_dist_op", to_spec({Copy{8 * units::B}})},
                     {"num_ops", std::int64_t{5'000'500}},
                     {"tensor_size", std::int64_t{1}}};
  const auto out = annotated({node}, constant(1234));
  EXPECT_EQ(integer_of(out[0], "num_ops"), 1'234'500);
  EXPECT_EQ(integer_of(out[0], "tensor_size"), 1);
}

const std::string kWaitSpec = to_spec({UnknownOperator{"host.launches", {}, {}, {}}});

TraceNode product(std::uint64_t id, std::uint64_t micros, const std::vector<std::uint64_t>& deps = {}) {
  TraceNode node = kernel(id, micros);
  node.data_deps = deps;
  node.attributes = {{"ns_dist_op", to_spec({Gemm{.m = 8, .n = 8, .k = 8}})}};
  return node;
}

TraceNode collective(std::uint64_t id, std::uint64_t micros, const std::vector<std::uint64_t>& deps) {
  TraceNode node = kernel(id, micros);
  node.type = TraceNodeType::kCollective;
  node.data_deps = deps;
  return node;
}

TraceNode wait_for_host(std::uint64_t id, std::uint64_t micros, const std::vector<std::int64_t>& launched,
                        const std::vector<double>& launches_ns, const std::vector<std::int64_t>& deps,
                        const std::vector<std::int64_t>& read_before = {}, double launch_ns = 0) {
  TraceNode node = kernel(id, micros);
  node.attributes = {{"ns_dist_op", kWaitSpec},
                     {"ns_dist_launched", launched},
                     {"ns_dist_launched_deps", deps},
                     {"ns_dist_launches_ns", launches_ns}};
  if (read_before.empty()) return node;
  node.attributes.push_back({"ns_dist_read_before", read_before});
  node.attributes.push_back({"ns_dist_launch_ns", launch_ns});
  return node;
}

// Two kernels and a collective between them, of which the host launches each in 30 us.
TEST(Annotate, AWaitTakesWhatTheNewKernelsDoNotHide) {
  const std::vector<TraceNode> nodes = {product(1, 20), collective(2, 10, {1}), product(3, 20, {2}),
                                        wait_for_host(4, 40, {1, 2, 3}, {90'000}, {0, 1, 0, 1, 1})};
  const auto wait = [&](double kernel_ns) { return annotated(nodes, constant(kernel_ns))[3].duration_micros; };
  EXPECT_EQ(annotated(nodes, constant(20'000)), nodes);  // the same GPU
  EXPECT_EQ(wait(30'000), 20U);                          // 90 - (30 + 10 + 30)
  EXPECT_EQ(wait(50'000), 0U);                           // hidden
  EXPECT_EQ(wait(5'000), 70U);
  AnnotateReport report;
  const auto out = annotated(annotated(nodes, constant(50'000)), constant(20'000), &report);
  EXPECT_EQ(out[3].duration_micros, 40U);  // there and back, for nothing is hidden twice
  const AnnotateShare& share = report.ways[static_cast<std::size_t>(AnnotateWay::kLaunches)];
  EXPECT_EQ(share.kernels, 1U);
  EXPECT_EQ(share.recorded_ns, 0);
  EXPECT_EQ(share.new_ns, 40'000);
  EXPECT_EQ(report.waits_kept, 0U);
}

// Work that runs beside each other hides as much as the longest; what the wait does not tell of hides nothing.
TEST(Annotate, WhatRunsBesideEachOtherHidesLaunchesOnce) {
  const auto out = annotated({product(1, 1), collective(2, 25, {}), product(3, 1, {1}), product(4, 1, {3}),
                              wait_for_host(5, 65, {1, 2, 3}, {90'000}, {0, 0, 1, 0})},
                             constant(20'000));
  EXPECT_EQ(out[4].duration_micros, 50U);  // 90 - max(20 + 20, 25); 90 - 25 before
}

// Something else held up the kernels in the step, so that they hid 8 us more than their durations tell.
TEST(Annotate, AWaitChangesByWhatTheKernelsHideMoreOrLess) {
  const std::vector<TraceNode> nodes = {product(1, 20), wait_for_host(2, 62, {1}, {90'000}, {0})};
  EXPECT_EQ(annotated(nodes, constant(20'000)), nodes);
  EXPECT_EQ(annotated(nodes, constant(30'000))[1].duration_micros, 52U);
  EXPECT_EQ(annotated(nodes, constant(95'000))[1].duration_micros, 0U);
}

// The host reads a result between two kernels of 40 us: each hides the launches of its own part alone, and the second
// part begins with a launch of 5 us that nothing hides.
TEST(Annotate, NothingIsLaunchedAheadOfWhatTheHostReads) {
  const std::vector<TraceNode> nodes = {product(1, 40), product(2, 40, {1}),
                                        wait_for_host(3, 20, {1, 2}, {10'000, 60'000}, {0, 1, 0}, {1}, 5'000)};
  EXPECT_EQ(annotated(nodes, constant(40'000)), nodes);
  EXPECT_EQ(annotated(nodes, constant(70'000))[2].duration_micros, 5U);
  EXPECT_EQ(annotated(nodes, constant(4'000))[2].duration_micros, 6U + 56U);
}

// A collective beside them keeps no host waiting: with the launches behind the read, 60 us, the kernels are over after
// 100 us. Where the collective ends later, nothing waits for them.
TEST(Annotate, WhatRunsBesideALayerKeepsNoHostWaiting) {
  const auto nodes = [](std::uint64_t beside, std::uint64_t wait) {
    return std::vector<TraceNode>{product(1, 40), collective(2, beside, {}), product(3, 40, {1}),
                                  wait_for_host(4, wait, {1, 2, 3}, {20'000, 60'000}, {0, 0, 1, 0}, {2}, 5'000)};
  };
  EXPECT_EQ(annotated(nodes(70, 20), constant(40'000)), nodes(70, 20));
  EXPECT_EQ(annotated(nodes(90, 10), constant(40'000)), nodes(90, 10));
  EXPECT_EQ(annotated(nodes(500, 0), constant(40'000)), nodes(500, 0));
}

// Launches that cannot be, or are those of two waits, tell nothing.
TEST(Annotate, AWaitThatContradictsItselfIsKept) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const TraceNode& wait :
       {wait_for_host(2, 7, {1}, {}, {0}), wait_for_host(2, 7, {1}, {-1}, {0}), wait_for_host(2, 7, {1}, {nan}, {0}),
        wait_for_host(2, 7, {1, 1}, {90'000}, {0, 0}), wait_for_host(2, 7, {-1}, {90'000}, {0}),
        wait_for_host(2, 7, {1}, {90'000, 90'000}, {0}), wait_for_host(2, 7, {1}, {90'000, 90'000}, {0}, {2}),
        wait_for_host(2, 7, {1}, {90'000, 90'000}, {0}, {-1}),
        wait_for_host(2, 7, {1}, {90'000, 90'000}, {0}, {1}, nan),
        // No dependencies, too many, one on itself, one that is not there, more than there are.
        wait_for_host(2, 7, {1}, {90'000}, {}), wait_for_host(2, 7, {1}, {90'000}, {0, 0}),
        wait_for_host(2, 7, {1}, {90'000}, {1, 0}), wait_for_host(2, 7, {1}, {90'000}, {1, 5}),
        wait_for_host(2, 7, {1}, {90'000}, {1})}) {
    AnnotateReport report;
    EXPECT_EQ(annotated({product(1, 20), wait}, constant(20'000), &report)[1].duration_micros, 7U);
    EXPECT_EQ(report.waits_kept, 1U);
  }
  AnnotateReport report;
  const auto out =
      annotated({product(1, 20), wait_for_host(2, 70, {1}, {90'000}, {0}), wait_for_host(3, 8, {1}, {90'000}, {0})},
                constant(30'000), &report);
  EXPECT_EQ(out[1].duration_micros, 60U);
  EXPECT_EQ(out[2].duration_micros, 8U);
  EXPECT_EQ(report.waits_kept, 1U);
}

// Another GPU's kernels take longer or shorter; how long the host holds it up is told by nothing but the duration.
TEST(Annotate, WaitsWithoutLaunchesKeepTheirDuration) {
  TraceNode wait = kernel(1, 5);
  wait.attributes = {{"ns_dist_op", kWaitSpec}};
  AnnotateModel model = constant(3000);
  model.ratio = [](double, double) -> std::optional<double> { return 2; };
  AnnotateReport report;
  EXPECT_EQ(annotated({wait}, model, &report), std::vector{wait});
  EXPECT_EQ(report.ways[static_cast<std::size_t>(AnnotateWay::kKept)].recorded_ns, 5000);
  EXPECT_EQ(report.waits_kept, 1U);
  EXPECT_TRUE(kernel_work(wait)->operators.empty());
  // What the host takes to map memory is the same on any GPU.
  wait.attributes = {{"ns_dist_op", to_spec({UnknownOperator{"host.memory", {}, {}, {}}})}};
  EXPECT_EQ(annotated({wait}, model, &report), std::vector{wait});
  EXPECT_EQ(report.waits_kept, 0U);
}

TEST(KernelWork, IsToldByTheBestAttribute) {
  TraceNode node = kernel(1, 5);
  EXPECT_EQ(kernel_work(node)->told_by, "");
  node.attributes = {{"num_ops", std::int64_t{200}}, {"tensor_size", std::uint64_t{100}}};
  EXPECT_EQ(kernel_work(node)->told_by, "work");
  EXPECT_EQ(work_of(kernel_work(node)->operators.at(0)), (Work{200 * units::FLOP, 100 * units::B, Bytes()}));
  node.name = "aten::mm";
  node.inputs = {"", "[[64, 32], [32, 16]]", "['Tensor(float)', 'Tensor(float)']"};
  EXPECT_EQ(kernel_work(node)->told_by, "PyTorch operator");
  const Operator product{Gemm{.m = 8, .n = 8, .k = 8}}, copy{Copy{8 * units::B}};
  node.attributes.push_back({"ns_dist_op", to_spec(product) + "|" + to_spec(copy)});
  EXPECT_EQ(kernel_work(node)->told_by, "operator attribute");
  EXPECT_EQ(kernel_work(node)->operators, (std::vector{product, copy}));
  EXPECT_TRUE(kernel_work(node)->factors.empty());
  node.attributes.push_back({"ns_dist_factor", "1|1.5"});
  EXPECT_EQ(kernel_work(node)->factors, (std::vector{1, 1.5}));
  node.attributes.pop_back();
  node.attributes.back().value = std::string("no operator");
  EXPECT_EQ(kernel_work(node)->told_by, "PyTorch operator");
}

// STAGE's num_ops are multiply-adds, and its tensor_size is elements: with its tensors alone they tell the work.
TEST(KernelWork, IsNotThatOfStageWithoutItsTensors) {
  TraceNode node = kernel(1, 5);
  node.attributes = {
      {"op_type", "M"}, {"num_ops", std::int64_t{68'719'476'736}}, {"tensor_size", std::int64_t{16'777'216}}};
  EXPECT_EQ(kernel_work(node)->told_by, "");
  node.attributes.erase(node.attributes.begin());
  EXPECT_EQ(kernel_work(node)->told_by, "work");
}

// num_ops is a duration there.
TEST(KernelWork, IsNotTheRooflineEncoding) {
  TraceNode node = kernel(1, 5);
  node.attributes = {{"num_ops", std::int64_t{5'000'500}}, {"tensor_size", std::int64_t{1}}};
  EXPECT_EQ(kernel_work(node)->told_by, "work");
  node.attributes.push_back({"ns_dist_duration_ns", 5000.0});
  EXPECT_EQ(kernel_work(node)->told_by, "");
}

TEST(Annotate, RemaindersAreCarriedAlongAStream) {
  std::vector<TraceNode> nodes;
  for (std::uint64_t id = 1; id <= 1000; ++id) {
    nodes.push_back(kernel(id, 0));
    nodes.back().attributes = {{"ns_dist_op", to_spec({Copy{8 * units::B}})},
                               {"tid", static_cast<std::int64_t>(id % 2)}};
  }
  std::uint64_t total = 0;
  for (const TraceNode& node : annotated(nodes, constant(333))) total += node.duration_micros;
  EXPECT_NEAR(static_cast<double>(total), 333, 1.1);
}

// One call that launched two kernels: forecast once, shared out by recorded time.
TEST(Annotate, KernelsOfOnePytorchCallShareItsForecast) {
  TraceNode call = kernel(1, 50);
  call.name = "aten::mm(0)";
  call.inputs = {"[[1], [2]]", "[[64, 32], [32, 16]]", "['Tensor(float)', 'Tensor(float)']"};
  call.attributes = {{"is_cpu_op", true},
                     {"op_schema", std::string("aten::mm(Tensor self, Tensor mat2) -> Tensor")},
                     {"rf_id", std::int64_t{7}}};
  TraceNode second = call;
  second.id = 2;
  second.name = "aten::mm(1)";
  TraceNode a = kernel(3, 30), b = kernel(4, 10), c = kernel(5, 20);
  a.data_deps = {1};
  b.data_deps = {2};
  AnnotateModel model = constant(8000);
  model.forecast = [](const Operator& op) -> std::optional<double> {
    EXPECT_EQ(op, (Operator{Gemm{.m = 64, .n = 16, .k = 32, .layout = GemmLayout::kNN}, DType::kFp32}));
    return 8000;
  };
  model.ratio = [](double flops, double bytes) -> std::optional<double> {
    EXPECT_EQ(flops, 0);
    EXPECT_EQ(bytes, 0);
    return 0.5;
  };
  AnnotateReport report;
  const auto out = annotated({call, second, a, b, c}, model, &report);
  EXPECT_EQ(out[0], call);  // CPU operators stay
  EXPECT_EQ(out[2].duration_micros, 6U);
  EXPECT_EQ(out[3].duration_micros, 2U);
  EXPECT_EQ(out[4].duration_micros, 10U);
  EXPECT_EQ(report.ways[static_cast<std::size_t>(AnnotateWay::kPytorch)].kernels, 2U);
  EXPECT_EQ(report.ways[static_cast<std::size_t>(AnnotateWay::kPytorch)].new_ns, 8000);
  EXPECT_EQ(report.ways[static_cast<std::size_t>(AnnotateWay::kRatio)].kernels, 1U);
}

// Converters list the kernel before on the stream, or the parent of the call, beside the call that launched a kernel.
TEST(Annotate, ALauncherIsAnyDependencyThatIsOne) {
  TraceNode call = kernel(1, 50), wrapper = call;
  call.name = "aten::mm";
  call.inputs = {"", "[[64, 32], [32, 16]]", "['Tensor(float)', 'Tensor(float)']"};
  call.attributes = {{"is_cpu_op", true}};
  wrapper.id = 2;
  wrapper.name = "aten::linear_backward_of_mine";
  wrapper.attributes = call.attributes;
  TraceNode other = call;
  other.id = 3;
  other.name = "aten::relu";
  TraceNode first = kernel(4, 10), second = kernel(5, 10), both = kernel(6, 10), neither = kernel(7, 10);
  first.data_deps = {2, 1};
  second.data_deps = {4};
  second.ctrl_deps = {2, 1};
  both.data_deps = {5, 3};  // data before control
  both.ctrl_deps = {1};
  neither.data_deps = {6, 2};
  AnnotateModel model = constant(0);
  model.forecast = [](const Operator& op) -> std::optional<double> {
    return std::holds_alternative<Gemm>(op.kind) ? 8000 : 3000;
  };
  const auto out = annotated({call, wrapper, other, first, second, both, neither}, model);
  EXPECT_EQ(out[3].duration_micros, 4U) << "one call, of which each has its half";
  EXPECT_EQ(out[4].duration_micros, 4U);
  EXPECT_EQ(out[5].duration_micros, 3U);
  EXPECT_EQ(out[6].duration_micros, 10U);
}

// What the format does not know yet, odd lengths of numbers, and the metadata.
TEST(Annotate, UnknownFieldsAndMetadataSurvive) {
  const ScratchFolder folder;
  const std::string metadata =
      std::string("\x0a\x03") + "9.9" + "\x52\x02" + "ab";  // version, and a field 10 of tomorrow
  std::string node;
  node += std::string("\x08\x81\x00", 3);      // id 1, in two bytes
  node += "\x18\x04";                          // COMP_NODE
  node += std::string("\x38\x8a\x80\x00", 4);  // duration 10, in three bytes
  node += std::string("\xf8\x06\x2a", 3);      // field 111: 42
  std::string attribute = std::string("\x0a\x0a") + "ns_dist_op";
  const std::string spec = to_spec({Copy{8 * units::B}});
  attribute += std::string("\xea\x01", 2) + static_cast<char>(spec.size()) + spec;  // field 29, string
  node += "\x52" + std::string(1, static_cast<char>(attribute.size())) + attribute;
  const auto framed = [](const std::string& message) {
    std::string out;
    chakra::append_varint(message.size(), &out);
    return out + message;
  };
  std::ofstream(folder.path() / "in.et", std::ios::binary) << framed(metadata) + framed(node);
  ASSERT_TRUE(annotate(folder.path() / "in.et", folder.path() / "same.et", constant(10'000)));
  EXPECT_EQ(read_text(folder.path() / "same.et"), read_text(folder.path() / "in.et"));
  ASSERT_TRUE(annotate(folder.path() / "in.et", folder.path() / "other.et", constant(20'000)));
  std::string expected = node;
  expected.replace(expected.find(std::string("\x38\x8a\x80\x00", 4)), 4, "\x38\x14");
  EXPECT_EQ(read_text(folder.path() / "other.et"), framed(metadata) + framed(expected));
}

TEST(Annotate, GzipsByTheName) {
  const ScratchFolder folder;
  std::vector<TraceNode> nodes(100, kernel(1, 3));
  ASSERT_TRUE(write_trace(folder.path() / "in.et", nodes));
  ASSERT_TRUE(annotate(folder.path() / "in.et", folder.path() / "out.et.gz", constant(1)));
  EXPECT_EQ(read_text(folder.path() / "out.et.gz").substr(0, 2), "\x1f\x8b");
  ASSERT_TRUE(annotate(folder.path() / "out.et.gz", folder.path() / "again.et", constant(1)));
  EXPECT_EQ(read_text(folder.path() / "again.et"), read_text(folder.path() / "in.et"));
  EXPECT_FALSE(annotate(folder.path() / "in.et", folder.path() / "in.et", constant(1)));
  EXPECT_FALSE(annotate(folder.path() / "none.et", folder.path() / "x.et", constant(1)));
  EXPECT_FALSE(annotate(folder.path() / "in.et", folder.path() / "no" / "x.et", constant(1)));
}

TEST(PytorchOperators, ProductsConvolutionsAndPointwise) {
  using chakra::pytorch_operator;
  const auto op = [](const char* name, const char* shapes, const char* types = "['Tensor(c10::BFloat16)']",
                     const char* values = "[]") {
    return pytorch_operator(name, {values, shapes, types});
  };
  EXPECT_EQ(*op("aten::addmm", "[[16], [64, 32], [32, 16], [], []]"),
            (Operator{Gemm{.m = 64, .n = 16, .k = 32}, DType::kBf16}));
  EXPECT_EQ(*op("aten::bmm", "[[8, 64, 32], [8, 32, 16]]"),
            (Operator{Gemm{.batch = 8, .m = 64, .n = 16, .k = 32, .layout = GemmLayout::kNN}, DType::kBf16}));
  EXPECT_EQ(*op("aten::linear", "[[4, 8, 32], [16, 32], [16]]"),
            (Operator{Gemm{.m = 32, .n = 16, .k = 32}, DType::kBf16}));
  EXPECT_EQ(*op("aten::conv2d", "[[2, 3, 224, 224], [64, 3, 7, 7], [], [], [], [], []]", "['Tensor(float)']",
                "[[1, 2, 'cuda:0'], [3], '<None>', [2, 2], [3, 3], [1, 1], 1]"),
            (Operator{Convolution{2, 3, 224, 224, 64, 7, 2, 3}, DType::kFp32}));
  EXPECT_EQ(
      std::get<Convolution>(op("aten::convolution_backward", "[[2, 64, 112, 112], [2, 3, 224, 224], [64, 3, 7, 7]]",
                               "['Tensor(float)']", "[[1], [2], [3], [0], [2, 2], [3, 3]]")
                                ->kind)
          .pass,
      Pass::kBackward);
  // A dilated or a transposed convolution is another one.
  const auto convolved = [&](const std::string& name, const std::string& more) {
    return op(name.c_str(), "[[2, 64, 112, 112], [64, 64, 3, 3], []]", "['Tensor(float)']",
              ("[[1], [2], '<None>', [1, 1], [1, 1], " + more + "]").c_str());
  };
  EXPECT_TRUE(convolved("aten::conv2d", "[1, 1], 1"));
  EXPECT_FALSE(convolved("aten::conv2d", "[2, 2], 1"));
  EXPECT_TRUE(convolved("aten::convolution", "[1, 1], False, [0, 0], 1"));
  EXPECT_FALSE(convolved("aten::convolution", "[1, 1], True, [0, 0], 1"));
  EXPECT_FALSE(convolved("aten::convolution", "[1, 2], False, [0, 0], 1"));
  EXPECT_EQ(*op("aten::add_", "[[64, 64], [64, 64], []]"), (Operator{Elementwise{"add", 4096, 2, 1, 1}, DType::kBf16}));
  EXPECT_EQ(std::get<Normalization>(op("aten::native_layer_norm", "[[2, 8, 32], [], [32], [32], []]")->kind).rows, 16);
  for (const auto& [name, shapes, types] :
       {std::tuple{"aten::mm", "[[64, 32], [31, 16]]", "['Tensor(float)']"},
        {"aten::mm", "[]", "['Tensor(float)']"},
        {"aten::mm", "[[64, 32], [32, 16]]", "['Tensor(long int)']"},
        {"aten::mm", "[[64, -3], [32, 16]]", "['Tensor(float)']"},
        {"aten::mm", "[[0, 32], [32, 16]]", "['Tensor(float)']"},
        {"aten::mm", "[[[[[", "['Tensor(float)']"},
        {"aten::nothing", "[[1]]", "['Tensor(float)']"},
        {"mm", "[[1, 1], [1, 1]]", "['Tensor(float)']"},
        {"aten::add", "[[1099511627776, 1099511627776]]", "['Tensor(float)']"},
        {"aten::conv2d", "[[2, 3, 224, 224], [64, 3, 7, 7]]", "['Tensor(float)']"}}) {
    EXPECT_FALSE(pytorch_operator(name, {"", shapes, types})) << name << shapes << types;
  }
}

// A kernel as STAGE writes it; a tensor is its shape and what is listed for it.
struct Listed {
  const char* shape;
  double elements;
};

TraceNode symbolic(const char* type, std::int64_t operations, std::uint64_t elements, const std::vector<Listed>& inputs,
                   const Listed& output) {
  const auto list = [](const std::vector<Listed>& tensors) {
    std::vector<std::string> out;
    for (const Listed& tensor : tensors) {
      out.push_back(std::string("mb0.transformer.0.x@0") + tensor.shape);
      out.push_back(std::to_string(tensor.elements));
    }
    return out;
  };
  TraceNode node = kernel(1, 0);
  node.attributes = {{"inputs", list(inputs)},
                     {"outputs", list({output})},
                     {"num_ops", operations},
                     {"tensor_size", elements},
                     {"op_type", std::string(type)}};
  return node;
}

OperatorKind kind_of(const TraceNode& node, const std::vector<TraceNode>& others = {}) {
  chakra::SymbolicSizes sizes;
  for (const TraceNode& other : others) sizes.learn(*chakra::symbolic_node(other));
  const auto op = chakra::symbolic_operator(*chakra::symbolic_node(node), sizes);
  return op ? op->kind : UnknownOperator{"none", {}, {}, {}};
}

// 2 x 1,024 tokens, Dmodel 512, Dff 2,048, tp 4: an MLP's first product and its gradients.
TEST(SymbolicOperators, DimensionsOfProducts) {
  constexpr std::int64_t kOperations = 2048LL * 512 * 512;
  const Listed tokens = {"Batch/dp,Seq/(cp*tp),Dmodel", 2048 * 512 / 4},
               hidden = {"Batch/dp,Seq/cp,Dff/tp", 2048 * 512}, weight = {"Dmodel,Dff/tp", 512 * 512};
  const TraceNode forward = symbolic("M", kOperations, 2048 * 512, {tokens, weight}, hidden);
  EXPECT_EQ(kind_of(forward), OperatorKind(Gemm{.m = 2048, .n = 512, .k = 512}));
  // The weight's gradient: the tokens were gathered from two ranks, which only their shape tells.
  const Listed narrow = {"Batch/dp,Seq/cp,Dout/tp", 2048 * 128};
  const Listed half = {tokens.shape, 2048 * 512 / 2};
  const TraceNode gradient =
      symbolic("M", 2048LL * 512 * 128, 512 * 128, {half, narrow}, {"Dmodel,Dout/tp", 512 * 128});
  EXPECT_EQ(kind_of(gradient), OperatorKind(Gemm{.m = 512, .n = 128, .k = 2048, .layout = GemmLayout::kTN}));
  // A weight is listed with its optimizer's states, five times its elements.
  const Listed with_states = {"Dmodel,Dff/tp", 5 * 512 * 512};
  EXPECT_EQ(kind_of(symbolic("M", kOperations, 2048 * 512, {tokens, with_states}, hidden)), kind_of(forward));
  // With sharded weights the sizes of gradients are not listed; what another node writes in the same shape tells them.
  const TraceNode unlisted =
      symbolic("M", kOperations, 2048 * 512, {{tokens.shape, 0}, {weight.shape, 0}}, {hidden.shape, 0});
  EXPECT_TRUE(std::holds_alternative<UnknownOperator>(kind_of(unlisted)));
  const TraceNode other = symbolic("M", kOperations, 512 * 512, {hidden, tokens}, {weight.shape, 0});
  EXPECT_EQ(kind_of(unlisted, {other}), kind_of(forward));
}

// Scores of attention: 2 sequences x 8 heads of 64, 128 x 128 each.
TEST(SymbolicOperators, BatchesOfProducts) {
  const Listed queries = {"Batch/dp,Seq/cp,Dmodel/Head,Head/tp", 2 * 128 * 64 * 8},
               keys = {"Batch/dp,Seq,Dmodel/Head,Head/tp", 2 * 128 * 64 * 8};
  EXPECT_EQ(kind_of(symbolic("M", 2LL * 8 * 128 * 128 * 64, 2 * 8 * 128 * 128, {queries, keys},
                             {"Batch/dp,Seq/cp,Seq,Head/tp", 2 * 8 * 128 * 128})),
            OperatorKind(Gemm{.batch = 16, .m = 128, .n = 128, .k = 64}));
}

TEST(SymbolicOperators, EverythingElse) {
  const Listed x = {"Batch,Seq,Dmodel", 4096};
  EXPECT_EQ(kind_of(symbolic("A", 4096, 4096, {x, x}, x)), OperatorKind(Elementwise{"elementwise", 4096, 2, 1, 1}));
  EXPECT_EQ(kind_of(symbolic("E", 20480, 4096, {x}, x)), OperatorKind(Elementwise{"elementwise", 4096, 1, 1, 5}));
  EXPECT_EQ(kind_of(symbolic("SLICE", 1024, 1024, {x}, {"Batch,Seq,Dmodel/4", 1024})),
            OperatorKind(Copy{2048 * units::B}));
  // Weighted by a number a row, and a dot product of each row: no product of matrices.
  EXPECT_TRUE(std::holds_alternative<Elementwise>(kind_of(symbolic("M", 4096, 4096, {x, {"Batch,Seq", 64}}, x))));
  EXPECT_TRUE(std::holds_alternative<Elementwise>(kind_of(symbolic("M", 4096, 64, {x, x}, {"Batch,Seq", 64}))));
  // Nothing whole: 3 x 4096 multiply-adds with an operand of 1,000.
  EXPECT_EQ(work_of(Operator{kind_of(symbolic("M", 12288, 4096, {{"a", 1000}, {"b", 1000}}, {"c", 4096}))}).flops,
            24576 * units::FLOP);
  const Listed weight = {"Dmodel,Dmodel", 5 * 4096};
  EXPECT_EQ(kind_of(symbolic("A", 4096, 4096, {weight, x}, weight)), OperatorKind(OptimizerStep{4096}));
  TraceNode no_tensors = symbolic("M", 4096, 4096, {}, x);
  EXPECT_FALSE(chakra::symbolic_node(no_tensors));
  EXPECT_FALSE(chakra::symbolic_node(kernel(1, 1)));
}

TEST(Annotate, SymbolicTracesAreForecastByTheirTensors) {
  const Listed tokens = {"Batch,Seq,Dmodel", 64 * 32}, weight = {"Dmodel,Dff", 32 * 16},
               hidden = {"Batch,Seq,Dff", 64 * 16};
  const TraceNode product = symbolic("M", 64 * 32 * 16, 64 * 16, {tokens, weight}, hidden),
                  odd = symbolic("M", 64 * 32 * 16, 64 * 16, {{"a", 77}, {"b", 78}}, {"c", 64 * 16});
  AnnotateModel model;
  model.forecast = [](const Operator& op) -> std::optional<double> {
    EXPECT_EQ(op.dtype, DType::kBf16);
    return std::holds_alternative<Gemm>(op.kind) ? 7000 : 9000;
  };
  AnnotateReport report;
  const auto out = annotated({product, odd}, model, &report);
  EXPECT_EQ(out[0].duration_micros, 7U);
  EXPECT_EQ(out[1].duration_micros, 9U);
  EXPECT_EQ(out[0].attributes, product.attributes);
  EXPECT_EQ(report.ways[static_cast<std::size_t>(AnnotateWay::kSymbols)].new_ns, 7000);
  EXPECT_EQ(report.ways[static_cast<std::size_t>(AnnotateWay::kWork)].new_ns, 9000);
  EXPECT_EQ(kernel_work(product)->told_by, "STAGE symbols");
  EXPECT_EQ(kernel_work(product)->operators, (std::vector{Operator{Gemm{.m = 64, .n = 16, .k = 32}, DType::kBf16}}));
}

// The first of three kernels in a row hides 50 of the 100 ns in which the host launches it and what comes before it
// looks at its result. The other two end 130 ns later: of 100 ns of launches, one of 10 ns is not hidden.
TEST(HostWait, ARowOfKernelsBehindAReadHidesItsLaunches) {
  const HostWait wait{.launched = {1, 2, 3},
                      .dependencies = {0, 1, 0, 1, 1},
                      .read_before = {1},
                      .launches_ns = {100, 100},
                      .launch_ns = 10};
  EXPECT_EQ(wait_ns(wait, std::vector<double>{50, 60, 70}), 50 + 10);
}

}  // namespace
}  // namespace ns_dist
