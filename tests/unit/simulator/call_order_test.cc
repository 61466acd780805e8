#include "clocks/call_order.h"

#include <gtest/gtest.h>

#include "clocks/pass_clock.h"
#include "clocks/program_queue.h"
#include "ns_dist/planner.h"
#include "support/simulator_fakes.h"

namespace ns_dist {
namespace {

// Two layouts of one pipeline have the same calls, and other stages that sum the gradients of the embedding's copies.
TEST(CallOrders, AreOfProgramsWithTheSameMeetings) {
  Scenario scenario = small_scenario();
  scenario.model.prediction_layers = 1;
  scenario.model.tied_embeddings = false;
  scenario.plan = {.passes = Passes::kGradients, .pp = 3, .schedule = "1f1b"};
  scenario.training = {
      .global_batch = 8, .micro_batch = 1, .sequence = 128, .precision = Precision::kBf16, .mtp = true};
  PlanCache cache;
  CallOrders orders;
  for (const char* layout : {"Ett|t*5|tmL", "Ett|t*6m|L"}) {
    scenario.plan.pipeline_layout = {layout};
    const auto program = plan_program(scenario.model, scenario.plan, scenario.training, cache);
    ASSERT_TRUE(program) << to_text(program.error());
    EXPECT_EQ(orders.of(*program), nullptr) << layout << ": nobody ran it";
    for (int run = 0; run < 3; ++run) orders.ran_folded(*program, 1'000'000);
    const auto order = orders.of(*program);
    ASSERT_NE(order, nullptr) << layout;
    ProgramCosts costs;
    costs.rows.resize(1);
    costs.rows[0].forecasts.resize(program->works.size());
    for (Forecast& forecast : costs.rows[0].forecasts) forecast.latency = 1 * units::ms;
    costs.row_of_actor.assign(program->actors.size(), 0);
    const double by_messages = PassClock(*program, costs).run();
    EXPECT_EQ(PassClock(*program, costs, true, order.get()).run(), by_messages) << layout;
  }
}

}  // namespace
}  // namespace ns_dist
