#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "ns_dist/scenario.h"
#include "ns_dist/simulator.h"
#include "support/random_plans.h"
#include "support/simulator_fakes.h"

namespace ns_dist {
namespace {

using namespace units;

// Times are on a grid of 2^-40 s; the longest chain of these graphs has 60 nodes.
constexpr double kGridMicros = 60 * 0x1p-40 * 1e6;

// Any graph: up to four stages, any stream, dependencies on any earlier node.
GraphSketch any_sketch() {
  const auto stages = *rc::gen::inRange<std::int64_t>(1, 5);
  const auto count = *rc::gen::inRange<std::uint32_t>(1, 60);
  GraphSketch sketch(stages);
  for (std::uint32_t n = 0; n < count; ++n) {
    std::vector<NodeId> after;
    const auto dependencies = *rc::gen::inRange(0, 3);
    for (int d = 0; n > 0 && d < dependencies; ++d) after.push_back(NodeId{*rc::gen::inRange<std::uint32_t>(0, n)});
    const auto stage = *rc::gen::inRange<std::int64_t>(0, stages);
    const Seconds seconds = *rc::gen::inRange(0, 1000) * 1.7 * us;
    switch (*rc::gen::inRange(0, 5)) {
      case 0:
        sketch.collective(stage, Stream::kTensorParallel, Category::kTensorParallel, seconds, after);
        break;
      case 1:
        sketch.collective(stage, Stream::kDataParallel, Category::kDataParallel, seconds, after);
        break;
      case 2:
        sketch.message(stage, (stage + 1) % stages, seconds, after);
        break;
      default:
        sketch.compute(stage, seconds, after, *rc::gen::element(Category::kForward, Category::kRecompute));
    }
  }
  return sketch;
}

// Plans that fit the small model, on as many ranks as they need.
Scenario any_scenario() {
  Scenario scenario = small_scenario();
  scenario.plan.tp = *rc::gen::element(1, 2, 4);
  scenario.plan.pp = *rc::gen::element(1, 2, 4);
  scenario.plan.dp = *rc::gen::element(1, 2);
  scenario.plan.vpp = scenario.plan.pp > 1 ? *rc::gen::element(1, 2) : 1;
  scenario.plan.schedule = scenario.plan.vpp > 1 ? "interleaved" : *rc::gen::element<std::string>("1f1b", "gpipe");
  scenario.plan.sequence_parallel = scenario.plan.tp > 1 && *rc::gen::arbitrary<bool>();
  scenario.plan.flash_attention = *rc::gen::arbitrary<bool>();
  scenario.plan.recompute = any_enum<Recompute>();
  scenario.plan.recompute_early_stop = *rc::gen::arbitrary<bool>();
  scenario.plan.zero = *rc::gen::element(ZeroStage::kNone, ZeroStage::kOptimizer);
  scenario.plan.overlap_grad_reduce = *rc::gen::arbitrary<bool>();
  scenario.plan.overlap_param_gather =
      scenario.plan.zero == ZeroStage::kOptimizer && scenario.plan.overlap_grad_reduce && *rc::gen::arbitrary<bool>();
  scenario.plan.overlap_p2p = *rc::gen::arbitrary<bool>();
  scenario.plan.blocking_tp = any_enum<TensorBlocking>();
  scenario.plan.grad_accumulation = any_enum<GradAccumulation>();
  scenario.training.micro_batch = *rc::gen::element(1, 2);
  return scenario;
}

void expect_sums(const ExecutionGraph& graph, const Timeline& timeline) {
  const Breakdown parts = breakdown(graph, timeline);
  RC_ASSERT(std::abs(parts.total() / us - timeline.step / us) <= 1e-9 * (timeline.step / us));
  for (const Seconds part :
       {parts.compute, parts.recompute, parts.tp_exposed, parts.cp_exposed, parts.ep_exposed, parts.pp_exposed,
        parts.dp_exposed, parts.bubble, parts.optimizer, parts.launches, parts.other}) {
    RC_ASSERT(part >= Seconds() - 1e-9 * timeline.step);
  }
}

RC_GTEST_PROP(Graph, CriticalPathIsAsLongAsTheStep, ()) {
  GraphSketch sketch = any_sketch();
  const ExecutionGraph graph = sketch.build();
  const Timeline timeline = schedule(graph, sketch.durations());
  const CriticalPath path = critical_path(graph, sketch.durations());
  RC_ASSERT(std::abs(path.length / us - timeline.step / us) <= 1e-9 * (timeline.step / us) + kGridMicros);
  // Each node starts when the one before it ends; the first at the start of the step.
  Seconds now;
  for (const NodeId id : path.nodes) {
    RC_ASSERT(std::abs((timeline.spans[index(id)].start - now) / us) <= 1e-9 * (timeline.step / us) + kGridMicros);
    now = timeline.spans[index(id)].end;
  }
}

RC_GTEST_PROP(Graph, SharingOnlyDelays, ()) {
  GraphSketch sketch = any_sketch();
  const ExecutionGraph graph = sketch.build();
  const Timeline plain = schedule(graph, sketch.durations());
  std::vector<Demand> demands;
  for (std::size_t i = 0; i < sketch.durations().size(); ++i) {
    const auto share = [] { return *rc::gen::inRange(0, 11) * 0.1; };
    demands.push_back({{share(), share()},
                       share() / 3,
                       share() / 3,
                       *rc::gen::element(Bound::kCompute, Bound::kMemory, Bound::kLaunch)});
  }
  const Timeline shared = schedule(graph, sketch.durations(), demands);
  const double slack = 1e-9 * (shared.step / us) + kGridMicros;
  RC_ASSERT(shared.step / us >= plain.step / us - slack);
  Seconds latest;
  for (std::uint32_t n = 0; n < graph.node_count(); ++n) {
    const Span& span = shared.spans[n];
    RC_ASSERT((span.end - span.start) / us >= sketch.durations()[index(graph.node(NodeId{n}).work)] / us - slack);
    RC_ASSERT(span.start / us >= plain.spans[n].start / us - slack);
    const NodeId previous = graph.previous_on_lane(NodeId{n});
    Seconds ready = previous == kNoNode ? Seconds() : shared.spans[index(previous)].end;
    for (const NodeId on : graph.dependencies(NodeId{n})) ready = max(ready, shared.spans[index(on)].end);
    RC_ASSERT(std::abs((span.start - ready) / us) <= slack);  // nobody waits for nothing
    latest = max(latest, span.end);
  }
  RC_ASSERT(latest == shared.step);
  RC_ASSERT(std::abs((critical_path(graph, shared).length - shared.step) / us) <= slack);
  expect_sums(graph, shared);
}

RC_GTEST_PROP(Graph, NodesWaitForWhatTheyDependOn, ()) {
  GraphSketch sketch = any_sketch();
  const ExecutionGraph graph = sketch.build();
  const Timeline timeline = schedule(graph, sketch.durations());
  for (std::uint32_t n = 0; n < graph.node_count(); ++n) {
    Seconds ready;
    for (const NodeId on : graph.dependencies(NodeId{n})) ready = max(ready, timeline.spans[index(on)].end);
    if (const NodeId previous = graph.previous_on_lane(NodeId{n}); previous != kNoNode) {
      ready = max(ready, timeline.spans[index(previous)].end);
    }
    RC_ASSERT(timeline.spans[n].start == ready);
  }
}

RC_GTEST_PROP(Graph, BreakdownSumsToTheStep, ()) {
  GraphSketch sketch = any_sketch();
  const ExecutionGraph graph = sketch.build();
  expect_sums(graph, schedule(graph, sketch.durations()));
}

RC_GTEST_PROP(Graph, ShorterWorkIsNeverLater, ()) {
  GraphSketch sketch = any_sketch();
  const ExecutionGraph graph = sketch.build();
  std::vector<Seconds> shorter = sketch.durations();
  for (Seconds& duration : shorter) duration *= *rc::gen::inRange(0, 11) / 10.0;
  RC_ASSERT(schedule(graph, shorter).step <= schedule(graph, sketch.durations()).step);
}

RC_GTEST_PROP(Plan, CriticalPathAndBreakdownExplainTheStep, ()) {
  const Scenario scenario = any_scenario();
  const auto answer = simulate(scenario);
  if (!answer) RC_FAIL(to_text(answer.error()));
  const Report& report = *answer;
  RC_ASSERT(std::abs(report.breakdown.total() / report.step - 1) <= 1e-9);
  const auto session = Session::make(scenario);
  const auto unfolded = unfold(scenario, *session);
  RC_ASSERT(unfolded->timeline.step == report.step);
  expect_sums(unfolded->graph, unfolded->timeline);
  RC_ASSERT(report.step_low <= report.step && report.step <= report.step_high);
  RC_ASSERT(report.step_low > Seconds());
  RC_ASSERT(report.mfu > 0 && report.mfu < 1 && report.hfu >= report.mfu * (1 - 1e-12) && report.hfu < 1);
  Seconds on_path;
  for (const Hotspot& hotspot : report.critical_path) on_path += hotspot.seconds;
  RC_ASSERT(std::abs(on_path / report.step - 1) <= 1e-9);
}

// Where nothing shares anything, a faster link never makes a step slower. Where work shares ports and SMs, what ends
// earlier may let something else run beside work that it slows down (Graham 1969, scheduling anomalies): by little.
void expect_no_slower(Scenario scenario, Scenario faster) {
  constexpr double kAnomaly = 0.02;
  for (const bool shares : {false, true}) {
    scenario.network.contention = scenario.network.compute_slowdown = shares;
    faster.network.contention = faster.network.compute_slowdown = shares;
    const auto before = simulate(scenario);
    const auto after = simulate(faster);
    RC_ASSERT(before && after);
    RC_ASSERT(after->step <= before->step * (1 + (shares ? kAnomaly : 1e-12)));
  }
}

RC_GTEST_PROP(Plan, MoreBandwidthIsNotSlower, ()) {
  const Scenario scenario = any_scenario();
  Scenario faster = scenario;
  faster.cluster.levels[*rc::gen::inRange<std::size_t>(0, 2)].fabric.bandwidth *= *rc::gen::inRange(10, 40) / 10.0;
  expect_no_slower(scenario, faster);
}

RC_GTEST_PROP(Plan, LessLatencyIsNotSlower, ()) {
  const Scenario scenario = any_scenario();
  Scenario faster = scenario;
  faster.cluster.levels[*rc::gen::inRange<std::size_t>(0, 2)].fabric.latency *= *rc::gen::inRange(0, 10) / 10.0;
  expect_no_slower(scenario, faster);
}

RC_GTEST_PROP(Plan, ARemedyFits, ()) {
  Scenario scenario = any_scenario();
  scenario.cluster.gpu.memory = *rc::gen::inRange(2500, 9000) * MiB;
  const auto simulation = simulate(scenario);
  RC_ASSERT(bool(simulation));
  const Report& report = *simulation;
  RC_ASSERT(report.fits == (report.memory.needed() <= scenario.cluster.gpu.memory));
  if (report.remedy) RC_ASSERT(!report.fits && report.remedy->peak <= scenario.cluster.gpu.memory);
}

// What a remedy says can be typed, beside what was typed before, and gives the plan that it promises.
RC_GTEST_PROP(Plan, ARemedyRuns, ()) {
  static const Catalog catalog = Catalog::built_in();
  ScenarioSpec spec;
  spec.set("model", *rc::gen::element("llama3-8b", "mixtral-8x7b"));
  spec.set("machine/gpu", *rc::gen::element("h100", "gb200"));
  const auto tp = *rc::gen::element<std::int64_t>(1, 2), pp = *rc::gen::element<std::int64_t>(1, 2, 4);
  const auto dp = *rc::gen::element<std::int64_t>(1, 3, 4, 9, 16, 64);
  spec.set("plan/tp", tp).set("plan/pp", pp).set("plan/dp", dp);
  spec.set("training/global_batch", 2 * dp).set("training/sequence", 1024);
  if (*rc::gen::inRange(0, 3) == 0) {  // so many GPUs, where they fill nodes
    const ScenarioSpec sized = ScenarioSpec(spec).set("machine/gpus", tp * pp * dp);
    if (resolve(sized, catalog)) spec = sized;
  } else if (*rc::gen::inRange(0, 2) == 0) {  // a machine of a given size, where the plan fills one
    for (const std::int64_t node : {36, 8, 4, 3}) {
      if (tp * pp * dp % node != 0) continue;
      spec.set("machine/nodes", tp * pp * dp / node).set("machine/gpus_per_node", node);
      break;
    }
  }
  const Bytes memory = *rc::gen::inRange(4, 40) * GiB;
  const auto simulated = [&] {
    auto scenario = resolve(spec, catalog);
    if (!scenario) RC_FAIL(to_text(scenario.error()));
    scenario->cluster.gpu.memory = memory;
    auto report = simulate(*scenario);
    if (!report) RC_FAIL(to_text(report.error()));
    return *std::move(report);
  };
  const Report before = simulated();
  if (!before.remedy) return;
  for (const Assignment& each : before.remedy->set) spec.set(each.field, std::string_view(each.text));
  const Report after = simulated();
  RC_ASSERT(after.fits);
  RC_ASSERT(after.ranks == before.remedy->ranks);
  RC_ASSERT(after.memory.peak() == before.remedy->peak);
  RC_ASSERT(std::abs(after.step / before.remedy->step - 1) <= 1e-9);
}

// So does advice: whoever types it has what it saves, whatever follows from the schedule and the framework.
RC_GTEST_PROP(Plan, AdviceRuns, ()) {
  static const Catalog catalog = Catalog::built_in();
  ScenarioSpec spec;
  spec.set("model", *rc::gen::element("llama3.2-1b", "qwen3-30b-a3b")).set("training/layers", 16);
  spec.set("framework", *rc::gen::element("megatron-core", "nemo", "torchtitan", "fsdp"));
  spec.set("plan/schedule", *rc::gen::element("1f1b", "interleaved", "zb-h1", "v-half", "v-min", "dualpipe-v"));
  spec.set("plan/tp", *rc::gen::element(1, 2)).set("plan/pp", *rc::gen::element(2, 4)).set("plan/dp", 4);
  spec.set("plan/ep", *rc::gen::element(1, 4)).set("training/micro_batch", *rc::gen::element(1, 2));
  spec.set("training/global_batch", 64).set("training/sequence", 1024);
  const auto simulated = [&](const ScenarioSpec& asked) -> std::optional<Report> {
    const auto scenario = resolve(asked, catalog);
    auto report = scenario ? simulate(*scenario) : tl::unexpected(scenario.error());
    return report ? std::optional(*std::move(report)) : std::nullopt;
  };
  const std::optional<Report> before = simulated(spec);
  if (!before) return;  // a dense model has no experts, and FSDP no such schedule
  for (const Improvement& improvement : before->improvements) {
    if (improvement.at_most) continue;
    ScenarioSpec changed = spec;
    for (const Assignment& each : improvement.set) changed.set(each.field, std::string_view(each.text));
    const std::optional<Report> after = simulated(changed);
    RC_ASSERT(after.has_value());
    RC_ASSERT(after->fits || !before->fits);
    RC_ASSERT(std::abs((before->step - improvement.saves) / after->step - 1) <= 1e-9);
  }
}

RC_GTEST_PROP(Scenario, IsReadBackAsItWasWritten, ()) {
  Scenario scenario = any_scenario();
  scenario.model.name = *rc::gen::container<std::string>(rc::gen::inRange<char>(' ', '~'));
  scenario.cluster.levels[1].fabric.bandwidth = *rc::gen::inRange(1, 1'000'000'000) * 1.1 * MB / s;
  scenario.cluster.levels[1].oversubscription = 1 + *rc::gen::inRange(0, 1000) / 7.0;
  if (*rc::gen::arbitrary<bool>()) {
    scenario.model.moe = Experts{.experts = 8, .top_k = 2, .expert_ffn = 512};
    scenario.model.mla =
        LatentAttention{.q_rank = 0, .kv_rank = 64, .nope_head_dim = 32, .rope_head_dim = 16, .v_head_dim = 32};
  }
  scenario.files = {{"a.json", "00ff"}};
  scenario.named = {{"plan/dp", "plan/tp"}, {"plan/dp"}};
  const auto read = read_scenario(write_scenario(scenario), "report.json");
  if (!read) RC_FAIL(to_text(read.error()));
  RC_ASSERT(*read == scenario);
  RC_ASSERT(read->named.names == scenario.named.names && read->named.chosen == scenario.named.chosen);
}

// Every model, GPU and machine of the catalog, so that a field that the writer or the reader forgets is noticed.
TEST(Scenario, CatalogEntriesAreReadBackAsTheyWereWritten) {
  const Catalog catalog = Catalog::built_in();
  for (const auto& [kind, field] :
       {std::pair(CatalogKind::kModel, "model"), std::pair(CatalogKind::kGpu, "machine/gpu"),
        std::pair(CatalogKind::kCluster, "machine/cluster")}) {
    for (const auto& entry : catalog.list(kind)) {
      const auto scenario = resolve(ScenarioSpec().set(field, std::string_view(entry.id)), catalog);
      if (!scenario) continue;  // a machine of GPUs that run no bf16
      const auto read = read_scenario(write_scenario(*scenario), "report.json");
      ASSERT_TRUE(read) << entry.id << ": " << to_text(read.error());
      EXPECT_TRUE(*read == *scenario) << entry.id;
    }
  }
}

}  // namespace
}  // namespace ns_dist
