#include <bit>

#include "predictors/predictor.h"

namespace ns_dist {

using namespace units;

// Seconds to move `bytes` when a kernel runs again and again alone: what L2 holds comes from there, at half of an SM's
// 64 bytes a clock (the other half of L2's slices is a hop away since A100). 0.7: L2 is never wholly one kernel's.
double warm_seconds(const Machine& machine, double bytes) {
  const double l2_bandwidth = std::max(machine.bandwidth, machine.sms * 32 * machine.clock_rate);
  const double resident = std::min(1.0, 0.7 * machine.l2 / std::max(bytes, 1.0));
  return bytes * ((1 - resident) / machine.bandwidth + resident / l2_bandwidth);
}

// FLOP a joule of board energy on fp32's vector units at the power limit: 57-58 G on P4 and T4 (16 and 12 nm); carried
// on by TSMC's published power scaling at equal speed: N7 -60 % from 16FF+, N5 -30 % from N7.
double fp32_ceiling(const Machine& machine, double peak) {
  const double watts = machine.gpu.board_power / W;
  const int nm = machine.gpu.process_nm;
  if (!(watts > 0) || nm <= 0) return peak;
  return std::min(peak, watts / machine.gpu.flop_energy * (nm > 10 ? 58e9 : nm > 5 ? 145e9 : 207e9));
}

TileFit tile_fit(double sms, double batch, double m, double n, double tile_m, double tile_n) {
  const double tiles = batch * std::ceil(m / tile_m) * std::ceil(n / tile_n);
  const double exact = tiles / sms, waves = std::ceil(exact);
  return {batch * m * n / (waves * sms * tile_m * tile_n), exact - waves + 1, waves};
}

TileFit best_tile_fit(double sms, double batch, double m, double n, double a, double b) {
  const TileFit one = tile_fit(sms, batch, m, n, a, b), other = tile_fit(sms, batch, m, n, b, a);
  return one.share >= other.share ? one : other;
}

double alignment(double size) {
  constexpr double kWhole = 0x1p62;  // beyond, doubles are multiples of 128
  const int zeros = size < kWhole ? std::countr_zero(static_cast<std::uint64_t>(size)) : 7;
  return static_cast<double>(std::min(zeros, 7)) / 7;
}

void gemm_features(FeatureWriter& w, const Machine& machine, double batch, double m, double n, double k, double ceiling,
                   DType dtype, bool sustained) {
  const double flops = 2 * batch * m * n * k, element = size_of(dtype) / B;
  const ProductBytes matrices = product_bytes(batch, m, n, k, dtype);
  const double bytes = matrices.all();
  const double compute = flops / ceiling, memory = bytes / machine.bandwidth;
  const TileFit wide = best_tile_fit(machine.sms, batch, m, n, 256, 128);
  const TileFit square = tile_fit(machine.sms, batch, m, n, 128, 128);
  const TileFit narrow = best_tile_fit(machine.sms, batch, m, n, 128, 64);
  const TileFit small = tile_fit(machine.sms, batch, m, n, 64, 64);
  const TileFit middle = best_tile_fit(machine.sms, batch, m, n, 192, 128);
  w.add_log("log_m", m);
  w.add_log("log_n", n);
  w.add_log("log_k", k);
  w.add_log("log_batch", batch);
  w.add_log("log_compute_time", compute / kSmallLaunch);
  w.add_log("log_memory_time", memory / kSmallLaunch);
  w.add_log("log_ridge", compute / memory);
  w.add_log("log_waves_128", batch * std::ceil(m / 128) * std::ceil(n / 128) / machine.sms);
  w.add_log("fit_256x128", wide.share);
  w.add_log("fit_128x128", square.share);
  w.add_log("fit_128x64", narrow.share);
  w.add_log("fit_64x64", small.share);
  w.add_log("fit_192x128", middle.share);
  w.add("tail_256x128", wide.waves <= 16 ? wide.tail : 1);
  w.add("tail_128x128", square.waves <= 16 ? square.tail : 1);
  w.add_log("log_bytes_l2", bytes / machine.l2);
  w.add("resident", sustained ? 0 : bytes_found_in_l2(machine, matrices) / bytes);
  w.add_log("log_smaller_l2", batch * std::min(m, n) * k * element / machine.l2);
  w.add("aligned_m", alignment(m));
  w.add("aligned_n", alignment(n));
  w.add("aligned_k", alignment(k));
  w.add_log("log_k_per_sm", k * std::max(1.0, 1 / square.waves) / 64);
  w.add("sustained", sustained ? 1 : 0);
  w.out.waves = square.waves;
}

void gpu_ratios(FeatureWriter& w, const Machine& machine, double peak, double ceiling) {
  w.begin_gpu();
  w.add_log("log_power_share", ceiling / peak);
  w.add_log("log_flops_per_clock_sm", peak / machine.sms / machine.clock_rate);
  w.add_log("log_bytes_per_flop", machine.bandwidth / ceiling * 1e3);
  w.add_log("log_l2_per_sm", machine.l2 / machine.sms / 1e6);
  w.add_log("log_l2_refill", machine.l2 / machine.bandwidth * 1e6);
}

}  // namespace ns_dist
