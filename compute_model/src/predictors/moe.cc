#include "predictors/predictor.h"

namespace ns_dist {
namespace {

using namespace units;

void write_moe(FeatureWriter& w, const Machine& machine, const Operator& whole, Mode) {
  const MixtureOfExperts& op = std::get<MixtureOfExperts>(whole.kind);
  const DType dtype = whole.dtype;
  const double tokens = d(op.tokens), hidden = d(op.hidden), inter = d(op.intermediate), experts = d(op.experts);
  const double pairs = tokens * d(op.top_k), element = size_of(dtype) / B, peak = machine.ceiling(dtype);
  // Experts that get a token at all when each token picks top_k of them evenly.
  const double active = std::max(1.0, experts * (1 - std::pow(1 - d(op.top_k) / experts, tokens)));
  const double rows = pairs / active;
  const double weights = 3 * active * hidden * inter * element;
  const double activations = pairs * (2 * hidden + 3 * inter) * element;
  const double compute = 6 * pairs * hidden * inter / peak, memory = (weights + activations) / machine.bandwidth;
  const TileFit up = tile_fit(machine.sms, active, rows, 2 * inter, 128, 128),
                down = tile_fit(machine.sms, active, rows, hidden, 128, 128);
  const TileFit up64 = tile_fit(machine.sms, active, rows, 2 * inter, 64, 64),
                down64 = tile_fit(machine.sms, active, rows, hidden, 64, 64);
  w.add_log("log_tokens", tokens);
  w.add_log("log_hidden", hidden);
  w.add_log("log_intermediate", inter);
  w.add_log("log_experts", experts);
  w.add_log("log_top_k", d(op.top_k));
  w.add("skew", op.skew);
  w.add_log("log_compute_time", compute / kSmallLaunch);
  w.add_log("log_memory_time", memory / kSmallLaunch);
  w.add_log("log_ridge", compute / memory);
  w.add_log("log_rows_expert", rows);
  w.add_log("log_active", active);
  w.add_log("fit_up_128", up.share);
  w.add_log("fit_down_128", down.share);
  w.add_log("fit_up_64", up64.share);
  w.add_log("fit_down_64", down64.share);
  w.add_log("log_waves_up", active * std::ceil(rows / 128) * std::ceil(2 * inter / 128) / machine.sms);
  w.add_log("log_weights_l2", weights / machine.l2);
  w.add_log("log_activations_l2", activations / machine.l2);
  // Both products as batches of one for each expert that has a token, what passes between them once more, and 44,000
  // clocks of routing and permutation. With that, constants common to all GPUs, published tables of A100, L40S, H100,
  // H200, B200, B300 and GB200 scatter by 17-22 % about the base of each; one roofline of all work by 21-34 %.
  const double between = pairs * (4 * hidden + 3 * inter) * element;
  const auto product = [&](double n, double k) {
    return tensor_launch(machine) + tensor_product(machine, active, rows, n, k, dtype, peak, false).seconds;
  };
  w.out.base = 44e3 / machine.clock_rate + product(2 * inter, hidden) + product(hidden, inter) +
               between / (0.87 * machine.bandwidth);
  w.out.waves = up.waves + down.waves;
  gpu_ratios(w, machine, machine.peak(dtype), machine.ceiling(dtype));
}

}  // namespace

constinit const PredictorKind kMoePredictor = {"moe",
                                               "tiles, waves and clock by board power",
                                               [] {
                                                 return Operator{MixtureOfExperts{}, DType::kBf16};
                                               },
                                               [](const Operator& op, const Gpu& gpu, Mode) {
                                                 return std::holds_alternative<MixtureOfExperts>(op.kind) &&
                                                        on_half_precision_units(op, gpu);
                                               },
                                               write_moe,
                                               {200, 120, 0.15}};

}  // namespace ns_dist
