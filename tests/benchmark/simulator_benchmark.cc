// Plans a second: GPT-3 175B on 1,024 GPUs, one thread. `--benchmark_filter=StepTime` for the figures of docs.
#include <benchmark/benchmark.h>

#include <utility>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/memory.h"
#include "ns_dist/search.h"
#include "ns_dist/simulator.h"

namespace ns_dist {
namespace {

Scenario gpt3(std::int64_t tp, std::int64_t pp, std::int64_t dp) {
  ScenarioSpec spec;
  spec.set("plan/tp", tp).set("plan/pp", pp).set("plan/dp", dp);
  return *resolve(spec, Catalog::standard());
}

// Distinct plans of 1,024 ranks that the model and the schedule allow.
std::vector<Scenario> plans(bool shares) {
  std::vector<Scenario> found;
  const Scenario base = gpt3(8, 16, 8);
  for (const std::int64_t tp : {1, 2, 4, 8}) {
    for (const std::int64_t pp : {1, 2, 4, 8, 16, 32}) {
      const std::int64_t dp = 1024 / (tp * pp);
      for (const std::int64_t vpp : {1, 2, 3}) {
        for (const std::int64_t micro_batch : {1, 2, 4}) {
          for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
            Scenario scenario = base;
            scenario.plan.tp = tp;
            scenario.plan.pp = pp;
            scenario.plan.dp = dp;
            scenario.plan.vpp = vpp;
            scenario.plan.schedule = vpp > 1 ? "interleaved" : "1f1b";
            scenario.plan.overlap_p2p = vpp > 1;
            scenario.plan.sequence_parallel = tp > 1;
            scenario.plan.recompute = recompute;
            scenario.training.micro_batch = micro_batch;
            scenario.network.contention = scenario.network.compute_slowdown = shares;
            if (vpp > 1 && (pp == 1 || 96 % (pp * vpp) != 0)) continue;
            if (!memory_budget(scenario.model, scenario.plan, scenario.training)) continue;
            found.push_back(std::move(scenario));
          }
        }
      }
    }
  }
  return found;
}

void step_times(benchmark::State& state, bool shares) {
  const std::vector<Scenario> all = plans(shares);
  const auto session = Session::make(all.front());
  std::size_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(step_time(all[at], *session));
    at = (at + 1) % all.size();
  }
  state.counters["plans"] = static_cast<double>(all.size());
  state.counters["plans/s"] = benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void StepTimeAlone(benchmark::State& state) { step_times(state, false); }
BENCHMARK(StepTimeAlone)->Unit(benchmark::kMicrosecond);

void StepTimeShared(benchmark::State& state) { step_times(state, true); }
BENCHMARK(StepTimeShared)->Unit(benchmark::kMicrosecond);

void PredictDefault(benchmark::State& state) {
  const Scenario scenario = gpt3(8, 16, state.range(0));
  const auto session = Session::make(scenario);
  for (auto _ : state) benchmark::DoNotOptimize(predict(scenario, *session));
}
BENCHMARK(PredictDefault)->Arg(1)->Arg(8)->Arg(64)->Unit(benchmark::kMillisecond);

void ReportDefault(benchmark::State& state) {
  const Scenario scenario = gpt3(8, 16, 8);
  const auto session = Session::make(scenario);
  for (auto _ : state) benchmark::DoNotOptimize(simulate(scenario, *session));
}
BENCHMARK(ReportDefault)->Unit(benchmark::kMillisecond);

void time_search(benchmark::State& state, SearchRequest request) {
  const auto space = SearchSpace::make(std::move(request), Catalog::standard());
  const auto session = Session::make(space->base());
  for (auto _ : state) benchmark::DoNotOptimize(search(*space, *session));
  const double plans = static_cast<double>(space->size()) * static_cast<double>(state.iterations());
  state.counters["plans/s"] = benchmark::Counter(plans, benchmark::Counter::kIsRate);
}

// 788,400 plans of experts, of which most do not fit or are slow.
void SearchExperts(benchmark::State& state) {
  SearchRequest request;
  request.fixed.set("model", "mixtral-8x7b").set("training/global_batch", 256);
  request.gpus = 64;
  time_search(state, std::move(request));
}
BENCHMARK(SearchExperts)->Unit(benchmark::kMillisecond);

// On racks of 72 GPUs, where the stages of most plans lie in several ways.
void SearchRacks(benchmark::State& state) {
  SearchRequest request;
  request.fixed.set("model", "qwen3-30b-a3b").set("machine/gpu", "gb200").set("training/global_batch", 288);
  request.gpus = 144;
  time_search(state, std::move(request));
}
BENCHMARK(SearchRacks)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ns_dist
