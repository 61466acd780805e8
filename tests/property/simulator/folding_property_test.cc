// Is a folded step the unfolded one, bit by bit? The referee is the event queue over the expanded graph.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <map>
#include <random>
#include <utility>

#include "clocks/pass_clock.h"
#include "clocks/program_queue.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"
#include "ns_dist/simulator.h"
#include "step_analysis.h"
#include "support/random_plans.h"

namespace ns_dist {
namespace {

using namespace units;

Question a_small_question() {
  Question q;
  q.model.id = q.model.name = "any";
  q.model.layers = 1;
  q.model.hidden = 256;
  q.model.heads = q.model.kv_heads = 8;
  q.model.head_dim = 32;
  q.model.ffn = 1024;
  q.model.vocabulary = 1024;
  q.model.sequence = 128;
  q.plan.zero = ZeroStage::kNone;
  q.training.micro_batch = 1;
  q.training.sequence = 128;
  return q;
}

// Durations and demands that have nothing to do with each other.
ProgramCosts any_costs(const StepProgram& program, std::uint32_t seed, bool shares) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> share(0, 1), log_seconds(std::log(2e-6), std::log(3e-3));
  const double most = random() % 2 == 0 ? 1 : 0.3;  // of a port: flows share some, or next to none
  ProgramCosts costs;
  costs.rows.resize(1);
  costs.row_of_actor.assign(program.actors.size(), 0);
  for (std::size_t w = 0; w < program.works.size(); ++w) {
    const WorkItem& item = program.works[w];
    Forecast& forecast = costs.rows[0].forecasts.emplace_back();
    forecast.latency = forecast.low = forecast.high = std::exp(log_seconds(random)) * s;
    if (random() % 40 == 0) forecast.latency = Seconds();
    if (!shares) continue;
    Demand& demand = costs.rows[0].demands.emplace_back();
    if (std::holds_alternative<Operator>(item.work)) {
      demand.bound = random() % 2 == 0 ? Bound::kCompute : Bound::kMemory;
    } else {
      demand.ports = {most * share(random), random() % 2 == 0 ? most * share(random) : 0};
      demand.sms = 0.3 * share(random);
      demand.memory = 0.4 * share(random);
    }
  }
  return costs;
}

struct Referee {
  ExecutionGraph graph;
  std::vector<Seconds> durations;
  std::vector<Demand> demands;
};

Referee unfolded(const StepProgram& program, const ProgramCosts& costs) {
  Expansion expansion = expand(program);
  Referee referee{std::move(expansion.graph), {}, {}};
  for (const Expansion::Origin& origin : expansion.origins) {
    referee.durations.push_back(costs.rows[0].forecasts[index(origin.work)].latency);
    if (!costs.rows[0].demands.empty()) referee.demands.push_back(costs.rows[0].demands[index(origin.work)]);
  }
  return referee;
}

struct Count {
  int plans = 0, folded = 0, analyzed_unfolded = 0;
};
std::map<std::string, Count>& counts() {
  static std::map<std::string, Count> all;
  return all;
}

// After all tests: how many of the plans fold, by schedule, and whether the folded history tells where their time goes.
class FoldsPlansOfEverySchedule : public ::testing::Environment {
  void TearDown() override {
    for (const auto& [name, count] : counts()) {
      std::cout << name << ": " << count.folded << " of " << count.plans << " plans fold, " << count.analyzed_unfolded
                << " analyzed unfolded\n";
      if (count.plans >= 20) {
        EXPECT_GT(count.folded, 0) << name;
        EXPECT_LE(count.analyzed_unfolded, count.plans / 50) << name;
      }
    }
  }
};
const auto* const kCounted = ::testing::AddGlobalTestEnvironment(new FoldsPlansOfEverySchedule);

// Waits for pipeline messages and bubbles count together: a pair of passes waits for two messages at once, and the
// graph and the program may follow different ones back. So do sums of gradients, and of their norm for the optimizer,
// where both holders of a part meet.
void expect_equal(Breakdown a, Breakdown b, Seconds step, bool mirrored) {
  for (Breakdown* parts : {&a, &b}) {
    parts->bubble += std::exchange(parts->pp_exposed, Seconds());
    if (!mirrored) continue;
    parts->bubble += std::exchange(parts->dp_exposed, Seconds());
    parts->bubble += std::exchange(parts->optimizer, Seconds());
  }
  for (std::uint32_t c = 0; c < kCategoryCount; ++c) {
    const auto category = static_cast<Category>(c);
    RC_ASSERT(std::abs(a.*part_of(category) / step - b.*part_of(category) / step) < 1e-7);
  }
  RC_ASSERT(std::abs(a.bubble / step - b.bubble / step) < 1e-7);
}

// Whether it folded.
bool compare(const Question& q, std::uint32_t seed, bool shares) {
  const auto program = plan_program(q.model, q.plan, q.training);
  if (!program) return false;  // a shape that the schedule cannot run
  const ProgramCosts costs = any_costs(*program, seed, shares);
  const Referee referee = unfolded(*program, costs);
  const Timeline timeline = schedule(referee.graph, referee.durations, referee.demands);
  RC_ASSERT(referee.graph.node_count() == program->node_count());

  bool folded = false;
  for (const bool fold : {false, true}) {
    for (const bool close : {false, true}) {
      const auto answer = run_and_analyze(*program, costs, {.fold = fold, .close = close});
      RC_ASSERT(answer->step == timeline.step);
      RC_ASSERT(*ProgramQueue(*program, costs, {.fold = fold, .close = close}).run() * s == timeline.step);
      RC_ASSERT(std::abs(answer->analysis.path_length / timeline.step - 1) < 1e-9);
      // A round's reductions may end when a message comes, too.
      if (!reduces_each_round(q.plan)) {
        expect_equal(answer->analysis.breakdown, breakdown(referee.graph, timeline), timeline.step,
                     (*pipeline_schedule(q.plan.schedule))->seats == mirrored_seats);
      }
      folded = fold && close && answer->folding.copies > 0;
      if (answer->analyzed_unfolded) ++counts()[q.plan.schedule].analyzed_unfolded;
    }
    if (!shares) RC_ASSERT(PassClock(*program, costs, fold).run() * s == timeline.step);
  }
  if (!shares) {
    CallOrders orders;
    RC_ASSERT(orders.of(*program) == nullptr);
    for (int run = 0; run < 3; ++run) orders.ran_folded(*program, 1'000'000);
    const auto order = orders.of(*program);
    RC_ASSERT(order != nullptr);
    RC_ASSERT(PassClock(*program, costs, true, order.get()).run() * s == timeline.step);
  }
  if (shares) {
    ProgramCosts alone = costs;
    alone.rows[0].demands.clear();
    RC_ASSERT(PassClock(*program, alone).run() * s <= timeline.step);
  }
  return folded;
}

std::uint32_t any_seed() { return static_cast<std::uint32_t>(below(std::int64_t{1} << 32)); }

// A thousand plans each, with RapidCheck's hundred cases.
void compare_any(bool shares) {
  constexpr int kPlansOfACase = 10;
  for (int plan = 0; plan < kPlansOfACase; ++plan) {
    Question q = any_possible_question(32);
    // With sharing, the event queue and the clock of programs may time the rounds' reductions otherwise: "E|||tL" of
    // 2 stages under zb-v, ZeRO-2.
    if (shares) q.plan.reduce_each = ReduceEach::kMicrobatch;
    q.training.global_batch = q.plan.dp * q.training.micro_batch * (1 + below(80));
    const std::uint32_t seed = any_seed();
    RC_LOG() << "batch " << q.training.global_batch << ", seed " << seed << "\n";
    Count& count = counts()[q.plan.schedule];
    ++count.plans;
    if (compare(q, seed, shares)) ++count.folded;
  }
}

RC_GTEST_PROP(Folding, IsTheUnfoldedStepWhereOverlappingWorkShares, ()) { compare_any(true); }
RC_GTEST_PROP(Folding, IsTheUnfoldedStepWhereNothingShares, ()) { compare_any(false); }

// A run under way at the end of a folded period goes on, in the copies, as the one that was under way when the period
// began; what sharing made of its first kernels is its own.
Question a_joined_question(std::int64_t batch) {
  Question q = a_small_question();
  q.model.layers = 11;
  q.model.delta_net = DeltaNet{4, 8, 32, 32};
  q.model.full_attention_layers.every = 3;
  q.model.prediction_layers = 1;
  q.training.mtp = true;
  q.plan.schedule = "zb-h1";
  q.plan.optimizer = OptimizerKind::kMuon;
  q.plan.bf16_first_layers = 2;
  q.plan.tp = 2;
  q.plan.pp = 3;
  q.plan.dp = 4;
  q.plan.recompute = Recompute::kFull;
  q.plan.recompute_layers = 2;
  q.plan.offload_activations = 1;
  q.plan.blocking_tp = TensorBlocking::kOn;
  q.plan.overlap_grad_reduce = q.plan.overlap_tp = true;
  q.training.global_batch = batch;
  return q;
}
RC_GTEST_PROP(Folding, JoinsRunsAtTheBordersOfAPeriod, ()) {
  // One in some hundred seeds has kernels of such a run that took different times.
  compare(a_joined_question(32), 962, true);
  compare(a_joined_question(40), 1284108, true);
}

// A stage without layers sums its gradients when the last message has come: it has no kernel that waits for it.
RC_GTEST_PROP(Folding, MeetsBehindAMessage, ()) {
  Question q = a_small_question();
  q.plan.schedule = "dualpipe";
  q.plan.pp = 6;
  q.plan.vpp = 2;
  q.plan.pipeline_layout = PipelineLayout{"E|||t||L"};
  q.plan.overlap_p2p = true;
  q.training.global_batch = 12;
  compare(q, any_seed(), true);
}

}  // namespace
}  // namespace ns_dist
