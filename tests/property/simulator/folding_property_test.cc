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
#include "support/random_layouts.h"

namespace ns_dist {
namespace {

using namespace units;

struct Question {
  Model model;
  ParallelPlan plan;
  Training training;
  std::uint32_t seed = 0;
};

std::int64_t one_of(const std::vector<std::int64_t>& values) { return *rc::gen::elementOf(values); }
// Of any size from the first case on.
std::int64_t below(std::int64_t end) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::int64_t>(0, end));
}

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

Question any_question() {
  Question q = a_small_question();
  Model& model = q.model;
  model.layers = 1 + below(32);
  model.tied_embeddings = *rc::gen::arbitrary<bool>();
  model.dropout = *rc::gen::arbitrary<bool>();
  if (*rc::gen::inRange(0, 4) == 0) {
    model.moe = Experts{.experts = 8, .top_k = 2, .expert_ffn = 512, .first_dense_layers = model.layers / 4};
  }
  // Layers of several kinds: windows or the delta rule, experts in some layers, Mamba-2, layers for multi-token
  // prediction.
  if (*rc::gen::inRange(0, 2) == 0) {
    if (*rc::gen::arbitrary<bool>()) {
      model.sliding_window = 32;
    } else {
      model.delta_net = DeltaNet{4, 8, 32, 32};
    }
    model.full_attention_layers.every = one_of({0, 2, 3});
    if (model.moe) model.moe->layers.every = one_of({1, 2});
    model.prediction_layers = one_of({0, 1, 2});
    q.training.mtp = model.prediction_layers > 0;
  } else if (*rc::gen::inRange(0, 4) == 0) {
    model.state_space = StateSpace{8, 32, 4, 16, 4};
    for (std::int64_t layer = 0; layer < model.layers; ++layer) {
      model.layer_pattern += (model.moe ? "M-*E" : "M-*-")[below(4)];
    }
  }
  ParallelPlan& plan = q.plan;
  const auto schedules = pipeline_schedules();
  const PipelineSchedule& schedule = *schedules[static_cast<std::size_t>(below(std::ssize(schedules)))];
  plan.schedule = schedule.name;
  plan.pp = one_of({1, 2, 3, 4, 6, 8});
  plan.vpp = schedule.most_chunks == 0 ? one_of({1, 2, 3}) : schedule.least_chunks;
  plan.tp = one_of({1, 2, 4});
  plan.dp = one_of({1, 2, 4});
  if (model.moe && plan.dp > 1) plan.ep = one_of({1, plan.dp});
  plan.sequence_parallel = plan.tp > 1 && *rc::gen::arbitrary<bool>();
  plan.cp = model.layer_pattern.empty() ? one_of({1, 1, 2, 4}) : 1;
  plan.cp_comm = static_cast<ContextExchange>(*rc::gen::inRange(0, 4));
  if (plan.tp == 1) plan.expert_dispatch = static_cast<ExpertDispatch>(*rc::gen::inRange(0, 2));
  plan.zero = static_cast<ZeroStage>(*rc::gen::inRange(0, 4));
  if (plan.zero == ZeroStage::kParameters) plan.zero_library = static_cast<ZeroLibrary>(*rc::gen::inRange(0, 3));
  if (plan.zero != ZeroStage::kNone && *rc::gen::inRange(0, 3) == 0) plan.shard = plan.dp;
  plan.reshard = *rc::gen::arbitrary<bool>();
  plan.prefetch = *rc::gen::inRange(0, 2);
  plan.recompute_layers = *rc::gen::inRange(0, 3);
  plan.recompute_modules = static_cast<ModuleSet>(*rc::gen::inRange(1, 128));
  plan.offload_optimizer = {0.5 * static_cast<double>(*rc::gen::inRange(0, 3))};
  if (*rc::gen::inRange(0, 3) == 0) {
    plan.optimizer = OptimizerKind::kMuon;
    if (plan.zero == ZeroStage::kParameters) plan.zero_library = ZeroLibrary::kFsdp2;
    plan.offload_optimizer = {};
    plan.muon_tp = static_cast<MuonSplit>(*rc::gen::inRange(0, 3));
    plan.muon_buffers = static_cast<MuonBuffers>(*rc::gen::inRange(0, 2));
  }
  plan.offload_activations = one_of({0, 0, 1, 3});
  plan.lora_rank = one_of({0, 0, 8});
  if (plan.lora_rank == 0) plan.frozen_layers = one_of({0, 0, 2, 5, model.layers});
  plan.bf16_first_layers = one_of({0, 0, 2});
  plan.bf16_last_layers = one_of({0, 0, 1});
  plan.overlap_tp = *rc::gen::inRange(0, 3) == 0;
  plan.overlap_ep = *rc::gen::arbitrary<bool>();
  q.training.precision = *rc::gen::inRange(0, 3) == 0 ? Precision::kFp8 : Precision::kBf16;
  plan.recompute = static_cast<Recompute>(*rc::gen::inRange(0, 3));
  plan.blocking_tp = static_cast<TensorBlocking>(*rc::gen::element(0, 0, 1, 2));
  plan.overlap_grad_reduce = *rc::gen::arbitrary<bool>();
  plan.overlap_param_gather = *rc::gen::arbitrary<bool>();
  plan.overlap_p2p = *rc::gen::arbitrary<bool>();
  q.training.global_batch = plan.dp * (1 + below(80));
  if (*rc::gen::inRange(0, 3) == 0) plan.pipeline_layout = any_layout(model, plan, q.training.mtp, below);
  q.seed = *rc::gen::arbitrary<std::uint32_t>();
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
bool compare(const Question& q, bool shares) {
  for (const Assignment& field : differences(ParallelPlan(), q.plan))
    RC_LOG() << field.field << "=" << field.text << " ";
  RC_LOG() << q.model.layers << " layers " << q.model.layer_pattern << ", experts " << q.model.moe.has_value()
           << ", full attention every " << q.model.full_attention_layers.every << ", MTP " << q.training.mtp
           << ", batch " << q.training.global_batch << ", " << name_of(q.training.precision) << "\n";
  const auto program = plan_program(q.model, q.plan, q.training);
  if (!program) return false;  // a shape that the schedule cannot run
  const ProgramCosts costs = any_costs(*program, q.seed, shares);
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
      expect_equal(answer->analysis.breakdown, breakdown(referee.graph, timeline), timeline.step,
                   (*pipeline_schedule(q.plan.schedule))->seats == mirrored_seats);
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

// A thousand plans each, with RapidCheck's hundred cases.
void compare_any(bool shares) {
  constexpr int kPlansOfACase = 10;
  for (int plan = 0; plan < kPlansOfACase; ++plan) {
    const Question q = any_question();
    Count& count = counts()[q.plan.schedule];
    ++count.plans;
    if (compare(q, shares)) ++count.folded;
  }
}

RC_GTEST_PROP(Folding, IsTheUnfoldedStepWhereOverlappingWorkShares, ()) { compare_any(true); }
RC_GTEST_PROP(Folding, IsTheUnfoldedStepWhereNothingShares, ()) { compare_any(false); }

// A run under way at the end of a folded period goes on, in the copies, as the one that was under way when the period
// began; what sharing made of its first kernels is its own.
Question a_joined_question(std::int64_t batch, std::uint32_t seed) {
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
  q.seed = seed;
  return q;
}
RC_GTEST_PROP(Folding, JoinsRunsAtTheBordersOfAPeriod, ()) {
  // One in some hundred seeds has kernels of such a run that took different times.
  compare(a_joined_question(32, 962), true);
  compare(a_joined_question(40, 1284108), true);
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
  q.seed = *rc::gen::arbitrary<std::uint32_t>();
  compare(q, true);
}

}  // namespace
}  // namespace ns_dist
