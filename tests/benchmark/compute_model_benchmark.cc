// Forecasts a second on one core. The goal, which every GPU of the catalog reaches on an idle machine: 200,000 distinct
// rows of a table a second. The slowest are GPUs whose nearest measured one was measured in bursts only. 8 us for one
// product, 100 ns for one that was asked before, 100 us for a model and its first forecast.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "ns_dist/cached_cost.h"
#include "ns_dist/catalog.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/kernel_table.h"
#include "support/gpus.h"

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

// Every GPU of the catalog, in each number format of products and both modes: GPUs that were measured, some of them in
// bursts only, and GPUs that were not.
const bool kTablesOfGemms = [] {
  const Catalog catalog = Catalog::standard();
  for (const CatalogEntry& entry : catalog.list(CatalogKind::kGpu)) {
    const Gpu gpu = *catalog.gpu(entry.id);
    for (const DType dtype : {DType::kFp32, DType::kFp16, DType::kBf16, DType::kFp8}) {
      if (!(gpu.matrix_peak(dtype) > FlopsPerSecond())) continue;
      for (const Mode mode : {Mode::kBurst, Mode::kSustained}) {
        const std::string name = "BM_TableOfGemms/" + gpu.id + "/" + std::string(name_of(dtype)) + "/";
        benchmark::RegisterBenchmark((name + std::string(name_of(mode))).c_str(), table_of_gemms, gpu.id,
                                     std::string(name_of(dtype)), mode);
      }
    }
  }
  return true;
}();

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
