// Forecasts of collectives a second on one core. Promised: 2 million.
#include <benchmark/benchmark.h>

#include "ns_dist/network_model.h"
#include "support/clusters.h"
#include "support/completion_times.h"

namespace ns_dist {
namespace {

using namespace units;

void forecasts(benchmark::State& state, CollectiveKind kind, const RankGroup& group) {
  const auto model = *make_network_model(test::dgx_h100());
  double bytes = 1e3;
  for (auto _ : state) {
    bytes = bytes < 1e9 ? bytes * 1.01 : 1e3;
    benchmark::DoNotOptimize(model->forecast({kind, bytes * B, group}));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(forecasts, all_reduce_in_node, CollectiveKind::kAllReduce, RankGroup{0, {{8, 1}}});
BENCHMARK_CAPTURE(forecasts, all_gather_in_node, CollectiveKind::kAllGather, RankGroup{0, {{8, 1}}});
BENCHMARK_CAPTURE(forecasts, all_reduce_across_nodes, CollectiveKind::kAllReduce, RankGroup{0, {{8, 1}, {128, 8}}});
BENCHMARK_CAPTURE(forecasts, all_gather_one_rank_a_node, CollectiveKind::kAllGather, RankGroup{0, {{12500, 8}}});
BENCHMARK_CAPTURE(forecasts, all_to_all_across_nodes, CollectiveKind::kAllToAll, RankGroup{0, {{64, 1}}});
BENCHMARK_CAPTURE(forecasts, send_recv, CollectiveKind::kSendRecv, RankGroup{0, {{2, 64}}});

void shared_links(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  std::vector<BytesPerSecond> capacities(count, 10 * GB / s);
  std::vector<test::TimedFlow> flows;
  for (std::size_t f = 0; f < count; ++f) {
    test::TimedFlow flow;
    flow.size = static_cast<double>(f % 7 + 1) * GB;
    flow.start = static_cast<double>(f % 5) * 0.1 * s;
    flow.uses = {{f, 1}, {(f * 7 + 3) % count, 1}};
    flows.push_back(flow);
  }
  for (auto _ : state) benchmark::DoNotOptimize(test::completion_times(capacities, flows));
}
BENCHMARK(shared_links)->Arg(10)->Arg(100);

}  // namespace
}  // namespace ns_dist
