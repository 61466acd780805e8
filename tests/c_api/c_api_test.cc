// Does the C library say what the C++ libraries say, and does every mistake come back as a text?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "ns_dist/network_model.h"
#include "ns_dist/operator_text.h"
#include "ns_dist/simulator.h"
#include "ns_dist/training_clock.h"
#include "ns_dist/version.h"
#include "ns_dist_c.h"

namespace {

using namespace ns_dist;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Close {
  void operator()(ns_dist_session* session) const { ns_dist_close(session); }
};
using Handle = std::unique_ptr<ns_dist_session, Close>;

Handle open(std::vector<const char*> fields, int expected = NS_DIST_OK, std::uint32_t abi = NS_DIST_ABI) {
  fields.push_back(nullptr);
  ns_dist_session* session = nullptr;
  EXPECT_EQ(ns_dist_open(abi, fields.data(), &session), expected) << ns_dist_error(session);
  EXPECT_NE(session, nullptr);
  return Handle(session);
}

template <class T>
T sized() {
  T out{};
  out.struct_size = sizeof(T);
  return out;
}

ns_dist_forecast kernel_of(ns_dist_session* session, const std::string& op, std::int64_t ranks = 0, int burst = 0) {
  auto kernel = sized<ns_dist_kernel>();
  kernel.op = op.c_str();
  kernel.ranks = ranks;
  kernel.burst = burst;
  auto out = sized<ns_dist_forecast>();
  EXPECT_EQ(ns_dist_forecast_kernel(session, &kernel, &out), NS_DIST_OK) << ns_dist_error(session);
  return out;
}

constexpr const char* kProduct = "gemm dtype=bf16 m=4096 n=8192 k=1024";

Scenario scenario_of(std::vector<Assignment> assignments) {
  ScenarioSpec spec;
  spec.assignments = std::move(assignments);
  return *resolve(spec, Catalog::standard());
}

TEST(CApi, VersionsAreTheLibrarys) {
  EXPECT_EQ(ns_dist_abi(), static_cast<std::uint32_t>(NS_DIST_ABI));
  EXPECT_EQ(ns_dist_version(), version());
}

TEST(CApi, KernelsTakeWhatTheyTakeInAStep) {
  const Handle session = open({"machine/gpu=h100"});
  const Scenario scenario = scenario_of({{"machine/gpu", "h100"}});
  const auto models = Session::make(scenario);
  const Operator op = *operator_from_spec(kProduct);
  const Forecast alone = *models->compute().forecast(op);
  const ns_dist_forecast one = kernel_of(session.get(), kProduct);
  EXPECT_DOUBLE_EQ(one.ns, alone.latency / units::ns * training_slowdown(scenario.cluster.gpu) * slowest_of(1));
  EXPECT_DOUBLE_EQ(one.floor_ns, alone.floor / units::ns);
  EXPECT_EQ(one.method, alone.method);
  EXPECT_LE(one.low_ns, one.ns);
  EXPECT_LE(one.ns, one.high_ns);
  const ns_dist_forecast many = kernel_of(session.get(), kProduct, 1024);
  EXPECT_DOUBLE_EQ(many.ns / one.ns, slowest_of(1024) / slowest_of(1));
  EXPECT_LT(kernel_of(session.get(), kProduct, 0, 1).ns, one.ns);  // full clocks
  const ns_dist_forecast two = kernel_of(session.get(), std::string(kProduct) + "|" + kProduct);
  EXPECT_DOUBLE_EQ(two.ns, 2 * one.ns);
  EXPECT_DOUBLE_EQ(two.high_ns, 2 * one.high_ns);
}

// Where a step runs products in fp16 as those in bf16, so does a kernel that is asked for alone.
TEST(CApi, ProductsInFp16AreThoseOfAStep) {
  const Handle session = open({"machine/gpu=l40s"});
  const std::string sizes = " m=2048 n=1920 k=5120 epilogue=bias";
  EXPECT_EQ(kernel_of(session.get(), "gemm dtype=fp16" + sizes, 8).ns,
            kernel_of(session.get(), "gemm dtype=bf16" + sizes, 8).ns);
}

// Products of experts take what the session's plan makes of them, and a node what its trace tells.
TEST(CApi, ExpertsHaveTheFactorOfTheirPlanOrTrace) {
  const std::string op = "grouped_gemm dtype=bf16 experts=2 rows=6144 n=14336 k=4096";
  const Handle alone = open({"machine/gpu=h100"}), divided = open({"machine/gpu=h100", "plan/ep=4", "plan/dp=4"});
  const TrainingConstants constants;
  const double even = kernel_of(alone.get(), op, 8).ns / constants.experts_alone;
  EXPECT_DOUBLE_EQ(kernel_of(divided.get(), op, 8).ns, even * constants.experts);
  const std::string told = "ns_dist_op=" + op;
  const char* attributes[] = {told.c_str(), "ns_dist_factor=1.25", nullptr};
  auto node = sized<ns_dist_node>();
  node.attributes = attributes;
  node.ranks = 8;
  auto out = sized<ns_dist_forecast>();
  for (ns_dist_session* session : {alone.get(), divided.get()}) {
    ASSERT_EQ(ns_dist_forecast_node(session, &node, &out), NS_DIST_OK);
    EXPECT_DOUBLE_EQ(out.ns, 1.25 * even);
  }
  // No time is below its floor, also of a stage that the trace says is faster.
  attributes[1] = "ns_dist_factor=0.25";
  ASSERT_EQ(ns_dist_forecast_node(alone.get(), &node, &out), NS_DIST_OK);
  EXPECT_DOUBLE_EQ(out.ns, 0.25 * even);
  EXPECT_LE(out.floor_ns, out.low_ns);
  attributes[1] = "ns_dist_factor=-2";
  EXPECT_EQ(ns_dist_forecast_node(alone.get(), &node, &out), NS_DIST_BAD_INPUT);
  EXPECT_STREQ(ns_dist_error(alone.get()),
               "attribute ns_dist_factor is \"-2\"; expected a number above 0, at most 1000000");
}

// The second node runs behind the first one. Together they hid 50 of 90 us, and hide 70 us now.
TEST(CApi, AWaitForTheHostChangesByWhatHidesIt) {
  const Handle session = open({"machine/gpu=h100"});
  std::vector<const char*> attributes = {"ns_dist_launches_ns=90000", "ns_dist_launched=5,8",
                                         "ns_dist_launched_deps=0,1,0", "ns_dist_duration_ns=43000.5", nullptr};
  const double recorded[] = {20'000, 30'000}, now[] = {40'000, 30'000};
  auto node = sized<ns_dist_node>();
  node.attributes = attributes.data();
  node.launched_ns = recorded, node.launched_now_ns = now;
  auto out = sized<ns_dist_forecast>();
  ASSERT_EQ(ns_dist_forecast_node(session.get(), &node, &out), NS_DIST_OK) << ns_dist_error(session.get());
  EXPECT_NEAR(out.ns, 23'000.5, 1e-6);
  EXPECT_EQ(out.low_ns, out.ns);
  EXPECT_STREQ(out.method, "host's launches");
  // Of the same attributes, other durations.
  node.launched_now_ns = recorded;
  ASSERT_EQ(ns_dist_forecast_node(session.get(), &node, &out), NS_DIST_OK);
  EXPECT_NEAR(out.ns, 43'000.5, 1e-6);
  node.launched_now_ns = nullptr;
  EXPECT_EQ(ns_dist_forecast_node(session.get(), &node, &out), NS_DIST_UNKNOWN);
  node.launched_now_ns = now;
  for (const char* torn : {"ns_dist_launched_deps=0,1,1", "ns_dist_launched_deps=0", "ns_dist_launched_deps=a"}) {
    attributes[2] = torn;
    EXPECT_EQ(ns_dist_forecast_node(session.get(), &node, &out), NS_DIST_UNKNOWN) << torn;
  }
}

// Where ns_dist_op tells no operator, name and shapes do: of two nodes that differ in these the answers differ.
TEST(CApi, ANodeWhoseOperatorIsEmptyIsToldByItsShapes) {
  const Handle session = open({"machine/gpu=h100"});
  const char* attributes[] = {"ns_dist_op=", "op_schema=aten::mm(Tensor self, Tensor mat2) -> Tensor", nullptr};
  const auto answer = [&](const char* shapes) {
    auto node = sized<ns_dist_node>();
    node.name = "aten::mm";
    node.input_shapes = shapes;
    node.input_types = "['Tensor(c10::BFloat16)', 'Tensor(c10::BFloat16)']";
    node.attributes = attributes;
    node.ranks = 8;
    auto out = sized<ns_dist_forecast>();
    EXPECT_EQ(ns_dist_forecast_node(session.get(), &node, &out), NS_DIST_OK) << ns_dist_error(session.get());
    return out.ns;
  };
  const double small = answer("[[64,64],[64,64]]");
  EXPECT_GT(answer("[[8192,8192],[8192,8192]]"), 10 * small);
}

// At the clock of the products beside them.
TEST(CApi, CollectivesAreThoseOfTheNetworkModel) {
  const Handle session = open({"machine/gpu=h100", "machine/nodes=2"});
  auto asked = sized<ns_dist_collective>();
  asked.kind = "all_gather";
  asked.bytes = 1 << 26;
  asked.ranks = 16;
  asked.ranks_per_node = 8;
  auto out = sized<ns_dist_forecast>();
  ASSERT_EQ(ns_dist_forecast_collective(session.get(), &asked, &out), NS_DIST_OK) << ns_dist_error(session.get());
  Scenario scenario = scenario_of({{"machine/gpu", "h100"}, {"machine/nodes", "2"}});
  scenario.cluster.gpu.boost_clock /= training_slowdown(scenario.cluster.gpu);
  const auto network = *make_network_model(scenario.cluster, network_options(scenario.network));
  const Forecast expected =
      *network->forecast({CollectiveKind::kAllGather, 64 * units::MiB, RankGroup{0, {{8, 1}, {2, 8}}}});
  EXPECT_DOUBLE_EQ(out.ns, expected.latency / units::ns);
  EXPECT_EQ(out.method, expected.method);
}

// As the columns dtype and imbalance of `ns-dist collectives`. Programs of before have a shorter struct.
TEST(CApi, CollectivesOfIntegersAndUnevenOnes) {
  const Handle session = open({"machine/gpu=h100"});
  Scenario scenario = scenario_of({{"machine/gpu", "h100"}});
  scenario.cluster.gpu.boost_clock /= training_slowdown(scenario.cluster.gpu);
  const auto network = *make_network_model(scenario.cluster, network_options(scenario.network));
  const auto ns = [&](const ns_dist_collective& asked) {
    auto out = sized<ns_dist_forecast>();
    EXPECT_EQ(ns_dist_forecast_collective(session.get(), &asked, &out), NS_DIST_OK) << ns_dist_error(session.get());
    return out.ns;
  };
  auto asked = sized<ns_dist_collective>();
  asked.kind = "all_reduce";
  asked.bytes = 1 << 26;
  asked.ranks = 8;
  const Collective sum{CollectiveKind::kAllReduce, 64 * units::MiB, RankGroup{0, {{8, 1}}}};
  Collective integers = sum;
  integers.integer = true;
  EXPECT_DOUBLE_EQ(ns(asked), network->forecast(sum)->latency / units::ns);
  asked.integer = 1;
  EXPECT_DOUBLE_EQ(ns(asked), network->forecast(integers)->latency / units::ns);
  EXPECT_GT(network->forecast(integers)->latency, network->forecast(sum)->latency) << "not in the switch";
  asked.struct_size = offsetof(ns_dist_collective, imbalance);
  EXPECT_DOUBLE_EQ(ns(asked), network->forecast(sum)->latency / units::ns);

  asked = sized<ns_dist_collective>();
  asked.kind = "all_to_all";
  asked.bytes = 1 << 26;
  asked.ranks = 8;
  Collective exchange = sum;
  exchange.kind = CollectiveKind::kAllToAll;
  const double even = ns(asked);
  asked.imbalance = 1;
  EXPECT_EQ(ns(asked), even);
  exchange.imbalance = asked.imbalance = 1.5;
  EXPECT_DOUBLE_EQ(ns(asked), network->forecast(exchange)->latency / units::ns);
  EXPECT_GT(ns(asked), 1.3 * even);
  auto out = sized<ns_dist_forecast>();
  for (const double wrong : {0.5, -1.0, 8.5, std::numeric_limits<double>::quiet_NaN()}) {
    asked.imbalance = wrong;
    EXPECT_EQ(ns_dist_forecast_collective(session.get(), &asked, &out), NS_DIST_BAD_INPUT) << wrong;
    EXPECT_THAT(ns_dist_error(session.get()), HasSubstr("an all_to_all with an imbalance of")) << wrong;
  }
  asked.kind = "all_reduce", asked.imbalance = 1.5;
  EXPECT_EQ(ns_dist_forecast_collective(session.get(), &asked, &out), NS_DIST_BAD_INPUT);
}

TEST(CApi, AStepIsTheReportOfTheCommandLine) {
  const Handle session = open({"machine/gpu=h100", "model=gpt3-1.3b"});
  const std::vector<Assignment> fields = {{"machine/gpu", "h100"}, {"model", "gpt3-1.3b"}};
  // The session's machine, and another one.
  for (const char* more : {"plan/tp=2", "machine/gpu=a100"}) {
    const char* list[] = {more, nullptr};
    char* text = nullptr;
    ASSERT_EQ(ns_dist_simulate(session.get(), list, &text), NS_DIST_OK) << ns_dist_error(session.get());
    std::vector<Assignment> all = fields;
    const std::string assignment = more;
    all.push_back({assignment.substr(0, assignment.find('=')), assignment.substr(assignment.find('=') + 1)});
    const auto expected = simulate(scenario_of(all));
    EXPECT_EQ(nlohmann::json::parse(text)["step_time_s"].get<double>(),
              nlohmann::json::parse(to_json(*expected))["step_time_s"].get<double>())
        << more;
    ns_dist_free(text);
  }
}

// Without the JSON, for programs that compare many plans; a plan that cannot be is told from a typing mistake.
TEST(CApi, AStepIsForecastWithoutAdviceToo) {
  const Handle session = open({"machine/gpu=h100", "model=gpt3-1.3b"});
  for (const char* more : {"plan/tp=2", "machine/gpu=a100", "training/micro_batch=64"}) {
    const char* list[] = {more, nullptr};
    char* text = nullptr;
    ASSERT_EQ(ns_dist_simulate(session.get(), list, &text), NS_DIST_OK) << ns_dist_error(session.get());
    const auto report = nlohmann::json::parse(text);
    ns_dist_free(text);
    auto step = sized<ns_dist_step>();
    ASSERT_EQ(ns_dist_forecast_step(session.get(), list, &step), NS_DIST_OK) << ns_dist_error(session.get());
    EXPECT_DOUBLE_EQ(step.ns, 1e9 * report["step_time_s"].get<double>()) << more;
    EXPECT_DOUBLE_EQ(step.low_ns, 1e9 * report["step_time_low_s"].get<double>());
    EXPECT_DOUBLE_EQ(step.high_ns, 1e9 * report["step_time_high_s"].get<double>());
    EXPECT_DOUBLE_EQ(step.tokens_per_second, report["tokens_per_s"].get<double>());
    EXPECT_DOUBLE_EQ(step.peak_bytes, report["memory"]["peak_bytes"].get<double>());
    EXPECT_DOUBLE_EQ(step.device_bytes, report["memory"]["device_bytes"].get<double>());
    EXPECT_DOUBLE_EQ(step.capacity_bytes, report["memory"]["capacity_bytes"].get<double>());
    EXPECT_EQ(step.gpus, report["ranks"].get<std::int64_t>());
    EXPECT_EQ(step.fits != 0, report["memory"]["fits"].get<bool>());
  }
  auto step = sized<ns_dist_step>();
  const auto status = [&](const char* field) {
    const char* list[] = {field, nullptr};
    return ns_dist_forecast_step(session.get(), list, &step);
  };
  EXPECT_EQ(status("plan/tp=7"), NS_DIST_INFEASIBLE);
  EXPECT_THAT(ns_dist_error(session.get()), HasSubstr("plan/tp"));
  EXPECT_EQ(status("plan/tp=x"), NS_DIST_BAD_INPUT);
  EXPECT_EQ(status("tp=2"), NS_DIST_BAD_INPUT);
  EXPECT_THAT(ns_dist_error(session.get()), HasSubstr("did you mean \"plan/tp\"?"));
  EXPECT_EQ(ns_dist_forecast_step(session.get(), nullptr, nullptr), NS_DIST_BAD_INPUT);
}

TEST(CApi, NodesTellTheirOperatorInThreeWays) {
  const Handle session = open({"machine/gpu=h100"});
  auto node = sized<ns_dist_node>();
  node.name = "layer 1 forward";
  const std::string product = "ns_dist_op=" + std::string(kProduct);
  const char* ours[] = {product.c_str(), nullptr};
  node.attributes = ours;
  auto out = sized<ns_dist_forecast>();
  ASSERT_EQ(ns_dist_forecast_node(session.get(), &node, &out), NS_DIST_OK);
  EXPECT_DOUBLE_EQ(out.ns, kernel_of(session.get(), kProduct).ns);
  EXPECT_STREQ(out.method, "operator attribute");

  const char* schema[] = {"op_schema=aten::mm(Tensor self, Tensor mat2) -> Tensor", nullptr};
  node.attributes = schema;
  node.input_shapes = "[[4096, 1024], [1024, 8192]]";
  node.input_types = "['Tensor(c10::BFloat16)', 'Tensor(c10::BFloat16)']";
  ASSERT_EQ(ns_dist_forecast_node(session.get(), &node, &out), NS_DIST_OK);
  EXPECT_STREQ(out.method, "PyTorch operator");
  EXPECT_DOUBLE_EQ(out.ns, kernel_of(session.get(), std::string(kProduct) + " layout=nn").ns);

  // 3.35 TB/s move 3.35 GB in a millisecond at the very best.
  const char* work[] = {"num_ops=1000", "tensor_size=3350000000", nullptr};
  node.attributes = work;
  node.input_shapes = node.input_types = nullptr;
  ASSERT_EQ(ns_dist_forecast_node(session.get(), &node, &out), NS_DIST_OK);
  EXPECT_STREQ(out.method, "work");
  EXPECT_GE(out.ns, 1e6);
  EXPECT_LE(out.ns, 2e6);

  // A duration in the roofline encoding is no work, nor are STAGE's multiply-adds and elements; and nothing at all.
  const char* duration[] = {"num_ops=5000500", "tensor_size=1", "ns_dist_duration_ns=5000", nullptr};
  const char* symbolic[] = {"op_type=M", "num_ops=68719476736", "tensor_size=16777216", nullptr};
  for (const char* const* attributes :
       {static_cast<const char* const*>(duration), static_cast<const char* const*>(symbolic),
        static_cast<const char* const*>(nullptr)}) {
    node.attributes = attributes;
    EXPECT_EQ(ns_dist_forecast_node(session.get(), &node, &out), NS_DIST_UNKNOWN);
    EXPECT_THAT(ns_dist_error(session.get()), HasSubstr("does not tell what it computes"));
  }
  // An operator that this GPU cannot run keeps its time, too; the text says why.
  const char* fp8[] = {"ns_dist_op=gemm dtype=fp8 m=4096 n=4096 k=4096", nullptr};
  node.attributes = fp8;
  const Handle old = open({"machine/gpu=v100"});
  EXPECT_EQ(ns_dist_forecast_node(old.get(), &node, &out), NS_DIST_UNKNOWN);
  EXPECT_THAT(ns_dist_error(old.get()), HasSubstr("fp8"));
}

TEST(CApi, CallersOfOtherAgesAreUnderstood) {
  const Handle session = open({"machine/gpu=h100"});
  // An older program has a shorter answer, and what lies behind it stays.
  struct {
    std::size_t struct_size = 2 * sizeof(double);
    double ns = 0, behind = -1;
  } older;
  auto kernel = sized<ns_dist_kernel>();
  kernel.op = kProduct;
  ASSERT_EQ(ns_dist_forecast_kernel(session.get(), &kernel, reinterpret_cast<ns_dist_forecast*>(&older)), NS_DIST_OK);
  EXPECT_DOUBLE_EQ(older.ns, kernel_of(session.get(), kProduct).ns);
  EXPECT_EQ(older.behind, -1);
  EXPECT_EQ(older.struct_size, 2 * sizeof(double));
  // No member ends in the middle of another one.
  auto odd = kernel;
  for (odd.struct_size = sizeof(std::size_t) + 1; odd.struct_size < 2 * sizeof(std::size_t); ++odd.struct_size) {
    auto answer = sized<ns_dist_forecast>();
    EXPECT_EQ(ns_dist_forecast_kernel(session.get(), &odd, &answer), NS_DIST_BAD_INPUT) << odd.struct_size;
    EXPECT_THAT(ns_dist_error(session.get()), HasSubstr("struct_size is"));
  }
  // A newer program has a member more: zero is its default, anything else cannot be done.
  struct {
    ns_dist_kernel kernel{};
    std::int64_t added = 0;
  } newer;
  newer.kernel = kernel;
  newer.kernel.struct_size = sizeof(newer);
  auto out = sized<ns_dist_forecast>();
  EXPECT_EQ(ns_dist_forecast_kernel(session.get(), &newer.kernel, &out), NS_DIST_OK);
  newer.kernel.reserved = 1;
  EXPECT_EQ(ns_dist_forecast_kernel(session.get(), &newer.kernel, &out), NS_DIST_BAD_INPUT);
  newer.kernel.reserved = 0;
  newer.added = 1;
  EXPECT_EQ(ns_dist_forecast_kernel(session.get(), &newer.kernel, &out), NS_DIST_BAD_INPUT);
  EXPECT_THAT(ns_dist_error(session.get()), HasSubstr("a member is set that this library does not know"));

  const Handle other = open({}, NS_DIST_BAD_INPUT, NS_DIST_ABI + 1);
  EXPECT_THAT(ns_dist_error(other.get()), AllOf(HasSubstr("version 2 of the C interface"),
                                                HasSubstr("version 1, which"), HasSubstr(std::string(version()))));
  EXPECT_EQ(ns_dist_forecast_kernel(other.get(), &kernel, &out), NS_DIST_BAD_INPUT);
}

// What other calls read before is no input of this one.
TEST(CApi, AReportTellsItsOwnFilesAlone) {
  const Handle session = open({"machine/gpu=h100"});
  const auto report_of = [&](const char* model, const char* gpu) {
    char* text = nullptr;
    const char* fields[] = {model, gpu, "training/global_batch=8", nullptr};
    EXPECT_EQ(ns_dist_simulate(session.get(), fields, &text), NS_DIST_OK) << ns_dist_error(session.get());
    const std::string report = text == nullptr ? "" : text;
    ns_dist_free(text);
    return report;
  };
  const std::string first = report_of("model=gpt2", "machine/gpu=h100");
  EXPECT_THAT(report_of("model=gpt2-xl", "machine/gpu=l4"), HasSubstr("l4.json"));
  EXPECT_EQ(report_of("model=gpt2", "machine/gpu=h100"), first);
}

TEST(CApi, MistakesAreTexts) {
  EXPECT_EQ(ns_dist_open(NS_DIST_ABI, nullptr, nullptr), NS_DIST_BAD_INPUT);
  EXPECT_EQ(ns_dist_forecast_kernel(nullptr, nullptr, nullptr), NS_DIST_BAD_INPUT);
  ns_dist_close(nullptr);
  ns_dist_free(nullptr);
  EXPECT_THAT(ns_dist_error(open({"machine/gpu=h1000"}, NS_DIST_BAD_INPUT).get()), HasSubstr("h1000"));
  EXPECT_THAT(ns_dist_error(open({"plan/tp"}, NS_DIST_BAD_INPUT).get()), HasSubstr("no \"=\""));
  EXPECT_THAT(ns_dist_error(open({"plan/no_such=1"}, NS_DIST_BAD_INPUT).get()), HasSubstr("plan/no_such"));

  const Handle session = open({"machine/gpu=h100"});
  EXPECT_STREQ(ns_dist_error(session.get()), "");
  auto out = sized<ns_dist_forecast>();
  auto kernel = sized<ns_dist_kernel>();
  const auto refused = [&](const char* op, const char* text) {
    kernel.op = op;
    EXPECT_EQ(ns_dist_forecast_kernel(session.get(), &kernel, &out), NS_DIST_BAD_INPUT);
    EXPECT_THAT(ns_dist_error(session.get()), HasSubstr(text));
  };
  refused(nullptr, "");
  refused("gem dtype=bf16", "gem");
  refused("gemm dtype=bf16 m=0 n=1 k=1", "m");
  refused("gemm dtype=bf16 m=8 m=9", "\"m\" twice");
  refused("gemm dtype=bf16 rows=8", "batch, m, n, k, layout");
  refused("gemm dtype=nvfp4 m=8", "fp64, fp32");
  refused("attention causal=true", "1 or 0");
  kernel.ranks = -1;
  refused(kProduct, "-1 ranks");
  EXPECT_EQ(ns_dist_forecast_kernel(session.get(), nullptr, &out), NS_DIST_BAD_INPUT);
  kernel = sized<ns_dist_kernel>();
  kernel.op = kProduct;
  EXPECT_EQ(ns_dist_forecast_kernel(session.get(), &kernel, nullptr), NS_DIST_BAD_INPUT);
  out.struct_size = 0;
  EXPECT_EQ(ns_dist_forecast_kernel(session.get(), &kernel, &out), NS_DIST_BAD_INPUT);
  EXPECT_THAT(ns_dist_error(session.get()), HasSubstr("struct_size is 0"));

  out = sized<ns_dist_forecast>();
  auto collective = sized<ns_dist_collective>();
  const auto no_collective = [&](const char* kind, double bytes, std::int64_t ranks, std::int64_t in_node,
                                 const char* text, int status = NS_DIST_BAD_INPUT) {
    collective.kind = kind, collective.bytes = bytes, collective.ranks = ranks, collective.ranks_per_node = in_node;
    EXPECT_EQ(ns_dist_forecast_collective(session.get(), &collective, &out), status) << text;
    EXPECT_THAT(ns_dist_error(session.get()), HasSubstr(text));
  };
  no_collective(nullptr, 8, 2, 0, "all_reduce, all_gather");
  no_collective("all_redvce", 8, 2, 0, "did you mean \"all_reduce\"?");
  no_collective("all_reduce", 0, 2, 0, "0 bytes");
  no_collective("all_reduce", std::numeric_limits<double>::quiet_NaN(), 2, 0, "nan bytes");
  no_collective("all_reduce", 8, 1, 0, "1 ranks");
  no_collective("all_reduce", 8, 6, 4, "6 ranks, 4 in each node");
  no_collective("all_reduce", 8, 16, 16, "16 ranks in a node", NS_DIST_INFEASIBLE);
  no_collective("all_reduce", 8, 16, 0, "write fewer ranks of a node", NS_DIST_INFEASIBLE);
  auto node = sized<ns_dist_node>();  // not NS_DIST_UNKNOWN, after which callers go on
  node.ranks = -1;
  EXPECT_EQ(ns_dist_forecast_node(session.get(), &node, &out), NS_DIST_BAD_INPUT);
  EXPECT_THAT(ns_dist_error(session.get()), HasSubstr("-1 ranks"));

  char* report = nullptr;
  const char* plan[] = {"plan/tp=7", nullptr};
  EXPECT_EQ(ns_dist_simulate(session.get(), plan, &report), NS_DIST_INFEASIBLE);
  EXPECT_EQ(report, nullptr);
  EXPECT_THAT(ns_dist_error(session.get()), HasSubstr("plan/tp"));
}

TEST(CApi, ThreadsShareASessionAndKeepTheirErrors) {
  const Handle session = open({"machine/gpu=h100"});
  const double expected = kernel_of(session.get(), kProduct).ns;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string bad = "no_operator_" + std::to_string(t);
      auto kernel = sized<ns_dist_kernel>();
      auto out = sized<ns_dist_forecast>();
      for (int i = 0; i < 50; ++i) {
        kernel.op = kProduct;
        if (ns_dist_forecast_kernel(session.get(), &kernel, &out) != NS_DIST_OK || out.ns != expected) ++wrong;
        kernel.op = bad.c_str();
        if (ns_dist_forecast_kernel(session.get(), &kernel, &out) != NS_DIST_BAD_INPUT) ++wrong;
        if (std::string(ns_dist_error(session.get())).find(bad) == std::string::npos) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// The system gives the id of a thread that has ended to the next one.
TEST(CApi, AThreadDoesNotSeeTheErrorOfOneThatHasEnded) {
  const Handle session = open({"machine/gpu=h100"});
  for (int t = 0; t < 8; ++t) {
    std::string before = "unread";
    std::thread([&] {
      before = ns_dist_error(session.get());
      auto kernel = sized<ns_dist_kernel>();
      auto out = sized<ns_dist_forecast>();
      kernel.op = "no_operator";
      EXPECT_EQ(ns_dist_forecast_kernel(session.get(), &kernel, &out), NS_DIST_BAD_INPUT);
      EXPECT_STRNE(ns_dist_error(session.get()), "");
    }).join();
    EXPECT_EQ(before, "");
  }
}

}  // namespace
