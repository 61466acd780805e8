// Forecasts a second on one core. To hold: 180,000 distinct rows of a table a second, 130,000 of FP8 in long runs (one
// corrector more) and 75,000 on GPUs that were not measured (a network, and the nearest GPU's features), 8 us for one
// product, 100 ns for one that was asked before, 100 us for a model and its first forecast.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "compute_model_gpus.h"
#include "ns_dist/cached_cost.h"
#include "ns_dist/catalog.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/kernel_table.h"

namespace ns_dist {
namespace {

std::vector<Operator> distinct_gemms() {
  std::vector<Operator> ops;
  for (std::int64_t m = 64; m <= 8192; m += 192) {
    for (std::int64_t n = 256; n <= 16384; n += 640)
      ops.push_back({Gemm{.m = m, .n = n, .k = m / 2 + n / 4}, DType::kBf16});
  }
  return ops;
}

void forecast_all(benchmark::State& state, const std::string& id, const std::vector<Operator>& ops) {
  const auto gpu = Catalog::standard().gpu(id);
  const auto model = make_compute_model(*gpu, {.mode = Mode::kBurst, .weights = {}, .analytic = false});
  std::size_t next = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize((*model)->forecast(ops[next]));
    if (++next == ops.size()) next = 0;
  }
  state.SetItemsProcessed(state.iterations());
}

void BM_GemmOnMeasuredGpu(benchmark::State& state) { forecast_all(state, "h200-sxm", distinct_gemms()); }
BENCHMARK(BM_GemmOnMeasuredGpu);

void BM_GemmOnOtherGpu(benchmark::State& state) { forecast_all(state, "h800-sxm-80gb", distinct_gemms()); }
BENCHMARK(BM_GemmOnOtherGpu);

// FP8 products in long runs are slowed down as BF16 products are.
void BM_Fp8GemmInLongRuns(benchmark::State& state) {
  const auto gpu = Catalog::standard().gpu("h100-sxm-80gb");
  const auto model = make_compute_model(*gpu, {.mode = Mode::kSustained, .weights = {}, .analytic = false});
  std::vector<Operator> ops = distinct_gemms();
  for (Operator& op : ops) op.dtype = DType::kFp8;
  std::size_t next = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize((*model)->forecast(ops[next]));
    if (++next == ops.size()) next = 0;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_Fp8GemmInLongRuns);

// What `ns-dist kernels` does, without its CSV.
void table_of_gemms(benchmark::State& state, const std::string& gpu, const std::string& dtype, Mode mode) {
  std::string text = "gpu,op,dtype,m,n,k\n";
  for (const Operator& op : distinct_gemms()) {
    const Gemm& gemm = std::get<Gemm>(op.kind);
    text += gpu + ",gemm," + dtype + "," + std::to_string(gemm.m) + "," + std::to_string(gemm.n) + "," +
            std::to_string(gemm.k) + "\n";
  }
  const auto table = CsvTable::parse(text, "table");
  const Catalog catalog = Catalog::standard();
  KernelForecaster forecaster({.model = {.mode = mode, .weights = {}, .analytic = false}},
                              [&](std::string_view id) { return catalog.gpu(id); });
  for (auto _ : state) benchmark::DoNotOptimize(forecaster.forecast(*table));
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(table->row_count()));
}

void BM_TableOfGemms(benchmark::State& state) { table_of_gemms(state, "h100-sxm-80gb", "bf16", Mode::kBurst); }
BENCHMARK(BM_TableOfGemms);
// Of a GPU that was measured, one whose long runs were not, and one that was not.
void BM_TableOfLongFp8Gemms(benchmark::State& state) { table_of_gemms(state, "h200-sxm", "fp8", Mode::kSustained); }
BENCHMARK(BM_TableOfLongFp8Gemms);
void BM_TableOfLongFp8GemmsSlowed(benchmark::State& state) { table_of_gemms(state, "l40s", "fp8", Mode::kSustained); }
BENCHMARK(BM_TableOfLongFp8GemmsSlowed);
void BM_TableOfLongFp8GemmsElsewhere(benchmark::State& state) {
  table_of_gemms(state, "rtx-pro-6000", "fp8", Mode::kSustained);
}
BENCHMARK(BM_TableOfLongFp8GemmsElsewhere);

// A model and its first forecast: the weights are used in place.
void BM_ModelAndFirstForecast(benchmark::State& state) {
  const auto gpu = Catalog::standard().gpu("h100-sxm-80gb");
  const Operator op{Gemm{.m = 4096, .n = 4096, .k = 4096}, DType::kBf16};
  for (auto _ : state) {
    const auto model = make_compute_model(*gpu);
    benchmark::DoNotOptimize((*model)->forecast(op));
  }
}
BENCHMARK(BM_ModelAndFirstForecast);

void BM_GemmAskedBefore(benchmark::State& state) {
  const auto gpu = Catalog::standard().gpu("h200-sxm");
  const auto model = make_cached_cost(*make_compute_model(*gpu));
  const std::vector<Operator> ops = distinct_gemms();
  for (const Operator& op : ops) benchmark::DoNotOptimize(model->forecast(op));
  std::size_t next = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(model->forecast(ops[next]));
    if (++next == ops.size()) next = 0;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_GemmAskedBefore);

void BM_Attention(benchmark::State& state) {
  std::vector<Operator> ops;
  for (std::int64_t s = 128; s <= 16384; s += 128) {
    ops.push_back({Attention{.batch = 2,
                             .heads = 32,
                             .kv_heads = 8,
                             .query_length = s,
                             .key_length = s,
                             .head_dim = 128,
                             .value_dim = 128}});
  }
  forecast_all(state, "h200-sxm", ops);
}
BENCHMARK(BM_Attention);

}  // namespace
}  // namespace ns_dist
