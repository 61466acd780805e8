#include "host_waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <string_view>

#include "ns_dist/catalog.h"
#include "ns_dist/session.h"
#include "ns_dist/training_clock.h"

namespace ns_dist {
namespace {

using namespace units;
using ::testing::ElementsAre;

// A fragment of kernels and collectives that follow one another, with what it takes to run and to launch it.
class OneFragment {
 public:
  OneFragment() { program_.fragments.emplace_back(), costs_.rows.emplace_back(); }

  OneFragment& kernel(Seconds time, std::int64_t experts = 0, bool after_read = false) {
    const OperatorKind kind = experts > 0 ? OperatorKind(GroupedGemm{experts, experts, 1, 1}) : OperatorKind(Copy{});
    return add({"kernel", Category::kForward, Operator{kind, DType::kBf16}, {}, after_read}, time);
  }
  OneFragment& of_optimizer(Seconds time) {
    return add({"optimizer", Category::kOptimizer, Operator{Copy{}, DType::kBf16}}, time);
  }
  // A kernel of a module of the layer, for which its host takes time at the launch alone.
  OneFragment& part(LayerModule module, std::int64_t experts = 0, bool after_read = false) {
    kernel({}, experts, after_read);
    WorkItem last = program_.works[program_.works.size() - 1];
    last.module = module;
    program_.fragments[0].nodes.back().work = program_.works.add(std::move(last));
    costs_.rows[0].forecasts.emplace_back();
    return *this;
  }
  OneFragment& collective(Seconds time, std::int64_t ranks) {
    return add({"meets", Category::kTensorParallel,
                Collective{CollectiveKind::kAllGather, 1 * MB, RankGroup{0, {{ranks, 1}}}}},
               time);
  }

  // Weights of the next layer, gathered from the beginning on while all others run.
  OneFragment& beside(Seconds time) {
    const std::int32_t last = std::exchange(last_, kEntry);
    add({"gather", Category::kDataParallel, Operator{Copy{}, DType::kBf16}}, time);
    program_.fragments[0].nodes.back().stream = Stream::kShardedWeights;
    last_ = last;
    return *this;
  }

  // The work of the wait that comes with `every`.
  WorkItem added(const Host& host) const {
    StepProgram program = program_;
    ProgramCosts costs = costs_;
    add_host_waits(host, 0, program, costs, true);
    EXPECT_EQ(program.works.size(), program_.works.size() + 1);
    return program.works[program.works.size() - 1];
  }

  // How long the GPU waits, in us; 0 where nothing was added.
  double wait(const Host& host, double deviation = 0) const {
    StepProgram program = program_;
    ProgramCosts costs = costs_;
    add_host_waits(host, deviation, program, costs);
    const std::size_t works = program_.works.size();
    if (program.works.size() == works) return 0;
    EXPECT_EQ(program.works[works].name, "host.launches");
    return costs.rows[0].forecasts[works].latency / us;
  }

 private:
  OneFragment& add(WorkItem item, Seconds time) {
    Fragment& fragment = program_.fragments[0];
    const auto node = static_cast<std::int32_t>(fragment.nodes.size());
    fragment.dependencies.push_back(std::exchange(last_, node));
    fragment.nodes.push_back(
        {Stream::kCompute, program_.works.add(std::move(item)), static_cast<std::uint32_t>(node), 1});
    fragment.exits.push_back(node);
    Forecast forecast;
    forecast.latency = time;
    costs_.rows[0].forecasts.push_back(forecast);
    return *this;
  }

  StepProgram program_;
  ProgramCosts costs_;
  std::int32_t last_ = kEntry;  // of the kernels
};

constexpr Host kHost{.launch_cost = 50 * us, .expert_launch_cost = 10 * us};

TEST(HostWaits, TheGpuWaitsForWhatKernelsDoNotHide) {
  EXPECT_NEAR(OneFragment().kernel(10 * us).kernel(20 * us).wait(kHost), 100 - 30, 1e-9);
  EXPECT_EQ(OneFragment().kernel(10 * us).kernel(100 * us).wait(kHost), 0);
  EXPECT_NEAR(OneFragment().kernel(10 * us, 8).wait(kHost), 50 + 7 * 10 - 10, 1e-9);
  EXPECT_EQ(OneFragment().kernel(10 * us).wait({.cuda_graphs = {.step = true}}), 0);
}

// One operation of PyTorch each, 20 us, whatever a framework's modules take; and no more than a launch.
TEST(HostWaits, TheOptimizerIsLaunchedWithoutModules) {
  const auto wait = [](const Host& host) {
    return OneFragment().of_optimizer(1 * us).of_optimizer(1 * us).of_optimizer(1 * us).wait(host);
  };
  EXPECT_NEAR(wait({.launch_cost = 105 * us}), 60 - 3, 1e-9);
  EXPECT_NEAR(wait({.launch_cost = 5 * us}), 15 - 3, 1e-9);
  EXPECT_NEAR(wait({.launch_cost = 105 * us, .blocking_launches = true}), 60 * kBlockingLaunch, 1e-9);
  EXPECT_NEAR(wait(Host{.launch_cost = 105 * us}.with_launches(2)), 120 - 3, 1e-9);
}

// 300 us of kernels hide no launch behind the read: 50 + 3 x 10 us are launched beside 20 us of kernels. Where kernels
// take longer than their launches, the first launch is not hidden.
TEST(HostWaits, NothingIsLaunchedAheadOfWhatTheHostReads) {
  const auto wait = [](Seconds before, std::int64_t experts, Seconds behind, const Host& host) {
    return OneFragment().kernel(before).kernel(behind, experts, true).wait(host);
  };
  EXPECT_NEAR(wait(300 * us, 4, 20 * us, kHost), 80 - 20, 1e-9);
  EXPECT_NEAR(wait(300 * us, 1, 200 * us, kHost), 50, 1e-9);
  EXPECT_NEAR(wait(10 * us, 1, 200 * us, kHost), 40 + 50, 1e-9);
  // A launch that blocks has waited already.
  Host blocking = kHost;
  blocking.blocking_launches = true;
  EXPECT_NEAR(wait(300 * us, 1, 200 * us, blocking), 2 * blocking.launch() / us, 1e-9);
}

// The host reads what the kernels before have made. A gather beside them keeps no host waiting: with their launches the
// kernels are over after 100 + 80 us, and where the gather ends later, nothing waits for them.
TEST(HostWaits, WhatRunsBesideALayerKeepsNoHostWaiting) {
  const auto wait = [](Seconds gather) {
    return OneFragment().kernel(100 * us).beside(gather).kernel(20 * us, 4, true).wait(kHost);
  };
  EXPECT_NEAR(wait(0 * us), 80 - 20, 1e-9);
  EXPECT_NEAR(wait(110 * us), 80 - 20, 1e-9);
  EXPECT_NEAR(wait(150 * us), 100 + 80 - 150, 1e-9);
  EXPECT_NEAR(wait(1000 * us), 0, 1e-9);
}

// Two kernels of attention and one of the router are one launch, and so are three products of an expert layer. A read
// lies behind the graph that launches its kernel: 50 us before it, 50 + 3 x 10 us behind.
TEST(HostWaits, AGraphOfModulesIsOneLaunch) {
  const auto wait = [](std::initializer_list<LayerModule> recorded, bool reads) {
    Host host = kHost;
    for (const LayerModule module : recorded) host.cuda_graphs.modules |= set_of(module);
    OneFragment layer;
    layer.part(LayerModule::kAttention).part(LayerModule::kAttention).part(LayerModule::kMoeRouter);
    layer.part(LayerModule::kMoePreprocess, 0, reads).part(LayerModule::kMoe, 4);
    return layer.wait(host);
  };
  using enum LayerModule;
  EXPECT_NEAR(wait({}, false), 5 * 50 + 30, 1e-9);
  EXPECT_NEAR(wait({kMlp}, false), 5 * 50 + 30, 1e-9);
  EXPECT_NEAR(wait({kAttention}, false), 4 * 50 + 30, 1e-9);
  EXPECT_NEAR(wait({kAttention, kMoeRouter}, false), 3 * 50 + 30, 1e-9);
  EXPECT_NEAR(wait({kMoeRouter, kMoePreprocess}, true), 4 * 50 + 30, 1e-9);
  EXPECT_NEAR(wait({kAttention, kMoeRouter, kMoePreprocess}, true), 2 * 50 + 30, 1e-9);
  EXPECT_NEAR(wait({kAttention, kMoe}, false), 50, 1e-9);
}

// Eight hosts that launch a collective and three kernels: sqrt(1 / 4) of a launch's deviation, times the expected
// largest of eight standard normal values, 1.42360 (Harter 1961).
TEST(HostWaits, RanksThatMeetWaitForTheSlowestHost) {
  constexpr double kNear = 250 * 0.2 * 0.65 * 1e-5;  // us; sqrt(2 / 5) is 0.63
  const auto layer = [](std::int64_t ranks) {
    OneFragment fragment;
    fragment.kernel({}).kernel({}).kernel({}).collective({}, ranks);
    return fragment;
  };
  EXPECT_NEAR(layer(8).wait(kHost), 200, 1e-9);
  EXPECT_NEAR(layer(8).wait(kHost, 0.2), 200 * (1 + 0.2 * std::sqrt(1.0 / 4) * 1.42360), kNear);
  EXPECT_NEAR(layer(2).wait(kHost, 0.2), 200 * (1 + 0.2 * std::sqrt(1.0 / 4) * 0.56419), kNear);
  // Who meets nobody waits for nobody; who meets twice as often waits for more of the deviation.
  EXPECT_NEAR(OneFragment().kernel({}).kernel({}).wait(kHost, 0.2), 100, 1e-9);
  const double twice = layer(8).collective({}, 8).wait(kHost, 0.2);
  EXPECT_NEAR(twice, 250 * (1 + 0.2 * std::sqrt(2.0 / 5) * 1.42360), kNear);
  // A further expert's product takes 10 us, and deviates by as much less.
  EXPECT_NEAR(OneFragment().kernel({}, 16).collective({}, 8).wait(kHost, 0.2),
              250 + 0.2 * std::sqrt(2 * 50 * 50 + 15 * 10 * 10) * 1.42360, kNear);
  // Cheaper launches of experts make no wait longer.
  Host cheaper = kHost;
  cheaper.expert_launch_cost = 1 * us;
  EXPECT_LT(OneFragment().kernel({}, 16).collective({}, 8).wait(cheaper, 0.2),
            OneFragment().kernel({}, 16).collective({}, 8).wait(kHost, 0.2));
}

// Kernels that lose SMs or memory bandwidth to collectives beside them take longer, and hide as many launches more: the
// step is what the host takes, as it is without sharing. Where no launch takes time, the kernels are what takes longer.
TEST(HostWaits, KernelsThatAreSlowedDownHideMoreLaunches) {
  const auto slowdown = [](std::string_view field, std::string_view text) {
    const auto step = [&](bool shares) {
      ScenarioSpec spec;
      spec.set("model", "gpt3-13b").set("plan/tp", 8).set("plan/overlap_tp", true).set("training/global_batch", 4);
      spec.set("network/contention", shares).set("network/compute_slowdown", shares).set(field, text);
      const Scenario scenario = *resolve(spec, Catalog::standard());
      return *step_time(scenario, *Session::make(scenario));
    };
    return step(true) / step(false) - 1;
  };
  EXPECT_GT(slowdown("host/cuda_graphs", "on"), 0.03);
  EXPECT_NEAR(slowdown("host/launch_cost", "500 us"), 0, 1e-6);
}

// A wait tells from which node on the host launches, and how long that takes it; also where kernels hide all of it.
TEST(HostWaits, TellWhatTheHostLaunches) {
  OneFragment layer;
  layer.kernel(500 * us).kernel(500 * us).kernel(500 * us, 4, true);
  EXPECT_EQ(OneFragment().kernel(500 * us).wait(kHost), 0);
  EXPECT_THAT(OneFragment().kernel(500 * us).added(kHost).launches, ElementsAre(HostLaunches{1, 50 * us, 50 * us}));
  EXPECT_THAT(layer.added(kHost).launches,
              ElementsAre(HostLaunches{3, 100 * us, 50 * us}, HostLaunches{1, 80 * us, 50 * us}));
  Host blocking = kHost;
  blocking.blocking_launches = true;
  EXPECT_THAT(OneFragment().kernel(500 * us).added(blocking).launches,
              ElementsAre(HostLaunches{0, blocking.launch(), blocking.launch()}));
}

}  // namespace
}  // namespace ns_dist
