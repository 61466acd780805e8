#include "clocks/flow_table.h"

#include <gtest/gtest.h>

#include <array>

namespace ns_dist {
namespace {

// Lanes of a stage: 0 to 5 of its fragments, 6 to 8 beside them.
constexpr std::uint32_t kBeside = 6;
constexpr std::uint32_t kOwn = 1, kFirst = 6, kSecond = 7;

FlowDemand flow(double port, double sms, double memory) {
  FlowDemand demand;
  demand.flow = true;
  demand.ports = {{0, port}};
  demand.sms = sms;
  demand.memory = memory;
  return demand;
}

TEST(Company, IsTheSumOfWhatRunsBeside) {
  FlowTable flows;
  flows.reset(2);
  const FlowDemand own = flow(0.25, 0.5, 0.5), first = flow(0.25, 0.125, 0.25), message = flow(0.5, 0.0625, 0.125);
  flows.add(kOwn, 0, 0, &own);
  flows.add(kFirst, 0, 0, &first);
  flows.add(kStreamCount + kSecond, 1, 0, &message);  // sent by the other stage
  const std::array<double, 1> ports = {0.25};
  EXPECT_EQ(flows.company(0, kBeside, ports), (Company{0.1875, 0.375}));
  EXPECT_EQ(flows.company(1, kBeside, ports), (Company{0.0625, 0.125}));
  EXPECT_TRUE(flows.calm());
}

TEST(Company, IsNoneWhereAPortWouldBeShared) {
  FlowTable flows;
  flows.reset(2);
  const FlowDemand message = flow(0.75, 0, 0);
  flows.add(kFirst, 0, 1, &message);  // out of the first stage, into the second
  const std::array<double, 1> fits = {0.25}, shares = {0.5};
  EXPECT_TRUE(flows.company(0, kBeside, fits));
  EXPECT_TRUE(flows.company(1, kBeside, fits));
  EXPECT_FALSE(flows.company(0, kBeside, shares));
  EXPECT_FALSE(flows.company(1, kBeside, shares));
  EXPECT_TRUE(flows.company(0, kBeside, {}));  // a fragment without collectives
}

// The collective that runs is not counted twice: it is one of those that `ports` stands for.
TEST(Company, DoesNotCountTheFragmentItself) {
  FlowTable flows;
  flows.reset(1);
  const FlowDemand own = flow(1, 0.25, 0.25), beside = flow(0, 0.125, 0.25);
  flows.add(kOwn, 0, 0, &own);
  flows.add(kFirst, 0, 0, &beside);
  const std::array<double, 1> ports = {1};
  EXPECT_EQ(flows.company(0, kBeside, ports), (Company{0.125, 0.25}));
}

TEST(Company, SlowsTheKernelsOfItsStage) {
  FlowTable flows;
  flows.reset(1);
  flows.add_company(0, {0.25, 0.5});
  flows.settle([](std::uint32_t, double) { FAIL() << "there is no flow"; }, [](std::uint32_t, const KernelRates&) {});
  EXPECT_EQ(flows.kernels(0).by[kFeelsNothing], 1);
  EXPECT_EQ(flows.kernels(0).by[kFeelsSms], 0.75);
  EXPECT_EQ(flows.kernels(0).by[kFeelsMemory], 0.5);
}

TEST(FlowTable, IsNotCalmWhileAPortIsShared) {
  FlowTable flows;
  flows.reset(1);
  const FlowDemand large = flow(0.75, 0, 0);
  flows.add(kFirst, 0, 0, &large);
  EXPECT_TRUE(flows.calm());
  flows.add(kSecond, 0, 0, &large);
  EXPECT_FALSE(flows.calm());
  const auto ignore = [](std::uint32_t, auto) {};
  flows.settle(ignore, ignore);
  flows.remove(kSecond);
  EXPECT_FALSE(flows.calm());  // the first is still slowed
  flows.settle(ignore, ignore);
  EXPECT_TRUE(flows.calm());
}

}  // namespace
}  // namespace ns_dist
