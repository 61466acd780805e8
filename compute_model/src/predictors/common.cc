#include <bit>
#include <limits>

#include "predictors/predictor.h"

namespace ns_dist {

using namespace units;

namespace {

// Both orientations of each are tried.
constexpr std::array<Tile, 8> kFeatureTiles = {{{256, 128, 1.00},
                                                {128, 128, 0.90},
                                                {256, 64, 0.78},
                                                {128, 64, 0.75},
                                                {64, 64, 0.51},
                                                {128, 32, 0.36},
                                                {64, 32, 0.30},
                                                {64, 16, 0.19}}};

// Of data that a kernel uses again after `distance` bytes of other data went through L2: all of it is still there up to
// L2's size and 2 %, nothing beyond 7 % (L40S: products whose copies take 101 MB of its 100.7 MB run at L2's bandwidth,
// those that take 110 MB at memory's).
double found_in_l2(const Machine& machine, double distance) {
  return std::clamp((1.07 - distance / machine.l2) / 0.05, 0.0, 1.0);
}

}  // namespace

double bytes_found_in_l2(const Machine& machine, double a, double b, double c) {
  // Benchmarks walk through as many copies of the weights as L2 holds, and one more unless the last one ends with it.
  const double copies = std::ceil(machine.l2 / std::max(b, 1.0));
  return found_in_l2(machine, copies * b + a + c) * b + found_in_l2(machine, a + b + c) * (a + c);
}

double tensor_seconds(const Machine& machine, double batch, double m, double n, double k, DType dtype, double ceiling,
                      bool sustained) {
  // Where the constants of this function come from: predictor.h.
  constexpr double kLaunchAndDrain = 4250;           // clocks
  constexpr double kSplitDepth = 512;                // least k that a part of a split product keeps
  constexpr double kSplitSum = 5700;                 // clocks, to add up the parts
  constexpr double kL2BytesPerClock = 9;             // of an SM: it keeps few bytes in flight
  constexpr double kGddrShare = 0.78, kShare = 0.8;  // of memory's bandwidth
  // Of the rate that power allows. Long runs heat the board: H100, H200, B200 and GB200 lose 12 %, A40 and A100 4 %.
  const double powered_share = !sustained ? 1.07 : machine.persistent_kernels ? 0.95 : 1.03;
  const double element = size_of(dtype) / units::B;
  // k steps' worth of first loads and last stores around a tile's products.
  const double ramp = (machine.tensor_memory ? 128 : 192) * 2 / element;
  const double hidden = machine.persistent_kernels ? 1 : 0;  // of the last wave's idle part
  const double per_sm = machine.peak(dtype) / machine.sms;
  double tiles_alone = std::numeric_limits<double>::infinity();
  const auto consider = [&](double tile_m, double tile_n, double efficiency) {
    const double exact = batch * std::ceil(m / tile_m) * std::ceil(n / tile_n) / machine.sms;
    const double split = exact < 0.5 ? std::max(1.0, std::min(std::floor(1 / exact), std::floor(k / kSplitDepth))) : 1;
    const double sum = split > 1 ? kSplitSum / machine.clock_rate : 0;
    tiles_alone =
        std::min(tiles_alone,
                 timed_waves(exact, hidden) * 2 * tile_m * tile_n * (k / split + ramp) / (per_sm * efficiency) + sum);
  };
  // Tiles below 64 x 64 lose more than they fill where those take four waves.
  const bool large = batch * m * n >= 4 * 64 * 64 * machine.sms;
  for (const Tile& tile : kFeatureTiles) {
    if (large && tile.n < 64) break;
    consider(tile.m, tile.n, tile.efficiency);
    if (tile.m != tile.n) consider(tile.n, tile.m, tile.efficiency);
  }
  const double powered = 2 * batch * m * n * k / (powered_share * ceiling);
  const double larger = std::max(tiles_alone, powered), ratio = std::min(tiles_alone, powered) / larger;
  const double square = ratio * ratio;
  const double compute = larger * std::cbrt(std::sqrt(1 + square * square * square));  // a norm of order 6
  const double bandwidth = machine.bandwidth * (machine.gddr ? kGddrShare : kShare);
  const double bytes = batch * (m * k + n * k + m * n) * element;
  const double resident =
      sustained ? 0
                : bytes_found_in_l2(machine, batch * m * k * element, batch * n * k * element, batch * m * n * element);
  const double memory = (bytes - resident) / bandwidth +
                        resident / std::max(bandwidth, machine.sms * kL2BytesPerClock * machine.clock_rate);
  const double slower = std::max(compute, memory), share = std::min(compute, memory) / slower;
  // A norm of order 2.5.
  return kLaunchAndDrain / machine.clock_rate + slower * std::pow(1 + share * share * std::sqrt(share), 0.4);
}

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
  return std::min(peak, watts * (nm > 10 ? 58e9 : nm > 5 ? 145e9 : 207e9));
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
                   double element, bool sustained) {
  const double flops = 2 * batch * m * n * k;
  const double bytes = batch * (m * k + n * k + m * n) * element;
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
  w.add("resident", sustained ? 0
                              : bytes_found_in_l2(machine, batch * m * k * element, batch * n * k * element,
                                                  batch * m * n * element) /
                                    bytes);
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
