#include "predictors/predictor.h"

namespace ns_dist {
namespace {

using namespace units;

double d(std::int64_t value) { return static_cast<double>(value); }

void write_attention(FeatureWriter& w, const Machine& machine, const Operator& whole, Mode) {
  const Attention& op = std::get<Attention>(whole.kind);
  const Work work = work_of(whole);
  const double peak = machine.ceiling(whole.dtype), element = size_of(whole.dtype) / B;
  const double compute = work.flops / FLOP / peak, memory = (work.read + work.written) / B / machine.bandwidth;
  const double length = d(op.query_length), heads = d(op.batch) * d(op.heads),
               width = (d(op.head_dim) + d(op.value_dim)) / 2;
  const auto rows = [&](double block) {
    const double blocks = heads * std::ceil(length / block), exact = blocks / machine.sms;
    return length / (std::ceil(length / block) * block) * exact / std::ceil(exact);
  };
  // One exponential for each query and key: FLOP / (4 x head size). They wait for the products and the products for
  // them, so the times add up (B200 1.0, H200 and A100 0.9 of the sum, head size 128, long sequences).
  const double exponentials = work.flops / FLOP / (4 * width) / machine.exponential_rate;
  const double blocks = heads * std::ceil(length / 128);
  w.add_log("log_batch_heads", heads);
  w.add_log("log_length", length);
  w.add_log("log_head_dim", width);
  w.add_log("log_group", d(op.heads) / d(op.kv_heads));
  w.add("causal", op.causal ? 1 : 0);
  w.add_log("log_window_share", op.window > 0 ? std::min(1.0, d(op.window) / d(op.key_length)) : 1);
  w.add_log("log_compute_time", compute / kSmallLaunch);
  w.add_log("log_memory_time", memory / kSmallLaunch);
  w.add_log("log_ridge", compute / memory);
  w.add_log("log_waves_128", blocks / machine.sms);
  w.add_log("fit_128", rows(128));
  w.add_log("fit_64", rows(64));
  w.add_log("fit_256", rows(256));
  w.add_log("log_kv_l2", d(op.batch) * d(op.kv_heads) * d(op.key_length) * 2 * width * element / machine.l2);
  w.add_log("log_kv_heads", d(op.batch) * d(op.kv_heads));
  w.add("aligned_head_dim", alignment(d(op.head_dim)));
  w.add_log("log_key_share", d(op.key_length) / length);
  w.add("sustained", 0);
  w.add_log("log_exponentials", exponentials / compute);
  w.out.base = 2 * kSmallLaunch + overlap((compute + exponentials) / std::max(rows(128), 0.25),
                                          1.2 * (warm_seconds(machine, (work.read + work.written) / B)));
  w.out.waves = std::ceil(blocks / machine.sms);
  w.out.tile = "128 queries";
  gpu_ratios(w, machine, machine.peak(whole.dtype), machine.ceiling(whole.dtype));
}

}  // namespace

constinit const PredictorKind kAttentionPredictor = {
    "attention",
    [] {
      return Operator{Attention{}, DType::kBf16};
    },
    [](const Operator& op, const Gpu& gpu, Mode) {
      const auto* attention = std::get_if<Attention>(&op.kind);
      return attention != nullptr && attention->pass == Pass::kForward && on_half_precision_units(op, gpu);
    },
    write_attention,
    {200, 250, 0.15, 100, 48, 6000}};

}  // namespace ns_dist
