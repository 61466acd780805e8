// Kernel weights: any bytes are either refused with a place, or give forecasts that are finite and not under their
// floor.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "ns_dist/compute_model.h"
#include "tests/support/gpus.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ns_dist;
  if (size == 0) return 0;  // no bytes stand for the weights compiled in
  ComputeModelOptions options;
  options.mode = Mode::kBurst;
  options.weights.assign(reinterpret_cast<const char*>(data), size);
  const auto model = make_compute_model(a100(), options);
  if (!model) {
    NS_EXPECTS(!model.error().where.empty());
    return 0;
  }
  const Operator ops[] = {
      {Gemm{.m = 4096, .n = 4096, .k = 4096}, DType::kBf16},
      {Gemm{.m = 1, .n = std::int64_t{1} << 31, .k = 7}, DType::kFp32},
      {MixtureOfExperts{.tokens = 100, .hidden = 1024, .intermediate = 512, .experts = 8, .top_k = 2}, DType::kBf16},
      {Attention{.batch = 1,
                 .heads = 8,
                 .kv_heads = 8,
                 .query_length = 512,
                 .key_length = 512,
                 .head_dim = 64,
                 .value_dim = 64}},
      {Softmax{.rows = 1024, .columns = 1024}, DType::kFp32},
  };
  for (const Operator& op : ops) {
    const auto forecast = (*model)->forecast(op);
    NS_EXPECTS(forecast.has_value());
    NS_EXPECTS(std::isfinite(forecast->high / units::s) && forecast->latency >= forecast->floor);
    NS_EXPECTS(forecast->low <= forecast->latency && forecast->latency <= forecast->high);
  }
  return 0;
}
