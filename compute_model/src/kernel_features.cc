#include "kernel_features.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "families.h"

namespace ns_dist {
namespace {

using namespace units;

double d(std::int64_t value) { return static_cast<double>(value); }

constexpr double kLaunch = 2e-6;  // a small kernel; the networks learn the rest
// What every FP32 product measured alone carries: launches one by one, each awaited. Medians of the smallest products
// (below 2e7 FLOP) of NeuSight's training tables.
constexpr double kAloneFloor = 40e-6;
// The same of FP32 streams below 2e5 elements: pointwise ones, softmax, normalization; on AMD about half. Half
// precision was timed inside running layers and has no such floor.
constexpr double kAlonePointwise = 30e-6, kAloneSoftmax = 35e-6, kAloneNormalization = 49e-6, kAloneAmd = 0.55;

// Names of features; those of the GPU follow those of the shape.
struct FeatureNames {
  std::vector<std::string_view> names;
  std::size_t shape = 0;
};

// Writes features in order, each with its name: the one list of a predictor's features. `names` collects them where it
// is given.
struct Writer {
  Features& out;
  FeatureNames* names = nullptr;
  std::size_t next = 0;

  void add(std::string_view name, double value) {
    out.values[next++] = value;
    if (names != nullptr) names->names.push_back(name);
  }
  void add_log(std::string_view name, double value) { add(name, std::log2(std::max(value, 1e-12))); }
  void begin_gpu() {
    if (names != nullptr) names->shape = next;
  }
};

// Seconds to move `bytes` when a kernel runs again and again alone: what L2 holds comes from there, at half of an SM's
// 64 bytes a clock (the other half of L2's slices is a hop away since A100). 0.7: L2 is never wholly one kernel's.
double warm_seconds(const Machine& machine, double bytes) {
  const double clock = machine.gpu.boost_clock / Hz > 0 ? machine.gpu.boost_clock / Hz : 1.5e9;
  const double l2_bandwidth = std::max(machine.bandwidth, machine.sms * 32 * clock);
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

struct TileFit {
  double share;  // of the padded, quantized work that is asked for: 1 is a perfect fit
  double tail;   // filled share of the last wave
  double waves;
};

TileFit fit(double sms, double batch, double m, double n, double tile_m, double tile_n) {
  const double tiles = batch * std::ceil(m / tile_m) * std::ceil(n / tile_n);
  const double exact = tiles / sms, waves = std::ceil(exact);
  return {batch * m * n / (waves * sms * tile_m * tile_n), exact - waves + 1, waves};
}

// The better of both orientations of a tile.
TileFit best_fit(double sms, double batch, double m, double n, double a, double b) {
  const TileFit one = fit(sms, batch, m, n, a, b), other = fit(sms, batch, m, n, b, a);
  return one.share >= other.share ? one : other;
}

// How many of the divisors 2, 4, 8, ..., 128 divide `size`, as a share.
double alignment(double size) {
  double count = 0;
  for (double divisor = 2; divisor <= 128 && std::fmod(size, divisor) == 0; divisor *= 2) ++count;
  return count / 7;
}

void gemm_features(Writer& w, const Machine& machine, double batch, double m, double n, double k, double ceiling,
                   double element, bool sustained) {
  const double flops = 2 * batch * m * n * k;
  const double bytes = batch * (m * k + n * k + m * n) * element;
  const double compute = flops / ceiling, memory = bytes / machine.bandwidth;
  const TileFit wide = best_fit(machine.sms, batch, m, n, 256, 128);
  const TileFit square = fit(machine.sms, batch, m, n, 128, 128);
  const TileFit narrow = best_fit(machine.sms, batch, m, n, 128, 64);
  const TileFit small = fit(machine.sms, batch, m, n, 64, 64);
  const TileFit middle = best_fit(machine.sms, batch, m, n, 192, 128);
  w.add_log("log_m", m);
  w.add_log("log_n", n);
  w.add_log("log_k", k);
  w.add_log("log_batch", batch);
  w.add_log("log_compute_time", compute / kLaunch);
  w.add_log("log_memory_time", memory / kLaunch);
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
  w.add_log("log_smaller_l2", batch * std::min(m, n) * k * element / machine.l2);
  w.add("aligned_m", alignment(m));
  w.add("aligned_n", alignment(n));
  w.add("aligned_k", alignment(k));
  w.add_log("log_k_per_sm", k * std::max(1.0, 1 / square.waves) / 64);
  w.add("sustained", sustained ? 1 : 0);
  // Waves by fraction: libraries choose tiles, and split k, so that the last wave is rarely idle. On m, n, k >= 512
  // this with two constants a GPU is 7.6 % off, whole waves of one tile 30 %, with or without NeuSight's alpha - beta /
  // waves.
  w.out.base = kLaunch + 1.15 * overlap(flops / ceiling, sustained ? memory : warm_seconds(machine, bytes));
  w.out.waves = square.waves;
}

// Ratios of data-sheet numbers: what power allows, how wide an SM is, how fast memory is beside it.
void gpu_ratios(Writer& w, const Machine& machine, double peak, double ceiling) {
  const Gpu& gpu = machine.gpu;
  const double clock = gpu.boost_clock / Hz > 0 ? gpu.boost_clock / Hz : 1.5e9;
  w.begin_gpu();
  w.add_log("log_power_share", ceiling / peak);
  w.add_log("log_flops_per_clock_sm", peak / machine.sms / clock);
  w.add_log("log_bytes_per_flop", machine.bandwidth / ceiling * 1e3);
  w.add_log("log_l2_per_sm", machine.l2 / machine.sms / 1e6);
}

}  // namespace

std::span<const std::string_view> predictor_names() {
  static constexpr std::array<std::string_view, kPredictorCount> kNames = {
      "gemm", "gemm_fp8", "gemm_fp32", "attention", "moe", "vector", "convolution"};
  return kNames;
}

std::string_view name_of(Predictor predictor) { return predictor_names()[static_cast<std::size_t>(predictor)]; }

std::optional<Predictor> predictor_of(const Operator& op, const Gpu& gpu, Mode mode) {
  const bool burst = mode == Mode::kBurst;
  const bool tensor = gpu.tensor[op.dtype] > FlopsPerSecond();
  if (std::holds_alternative<Gemm>(op.kind)) {
    if (op.dtype == DType::kFp8) return Predictor::kGemmFp8;
    if (op.dtype == DType::kFp32) return burst ? std::optional(Predictor::kGemmFp32) : std::nullopt;
    if (!tensor) return std::nullopt;
    if (op.dtype == DType::kFp16 || op.dtype == DType::kBf16) return Predictor::kGemm;
    return std::nullopt;
  }
  if (const auto* attention = std::get_if<Attention>(&op.kind)) {
    if (tensor && (op.dtype == DType::kFp16 || op.dtype == DType::kBf16) && attention->pass == Pass::kForward) {
      return Predictor::kAttention;
    }
    return std::nullopt;
  }
  if (std::holds_alternative<MixtureOfExperts>(op.kind)) {
    return tensor && (op.dtype == DType::kFp16 || op.dtype == DType::kBf16) ? std::optional(Predictor::kMoe)
                                                                            : std::nullopt;
  }
  if (!burst) return std::nullopt;
  if (const auto* softmax = std::get_if<Softmax>(&op.kind)) {
    return softmax->pass == Pass::kForward ? std::optional(Predictor::kVector) : std::nullopt;
  }
  if (const auto* norm = std::get_if<Normalization>(&op.kind)) {
    return norm->pass == Pass::kForward ? std::optional(Predictor::kVector) : std::nullopt;
  }
  if (std::holds_alternative<Elementwise>(op.kind)) return Predictor::kVector;
  if (const auto* embedding = std::get_if<Embedding>(&op.kind)) {
    return embedding->pass == Pass::kForward ? std::optional(Predictor::kVector) : std::nullopt;
  }
  if (const auto* convolution = std::get_if<Convolution>(&op.kind)) {
    return convolution->pass == Pass::kForward && op.dtype == DType::kFp32 ? std::optional(Predictor::kConvolution)
                                                                           : std::nullopt;
  }
  return std::nullopt;
}

namespace {

void attention_features(Writer& w, const Machine& machine, const Attention& op, const Operator& whole, bool sustained) {
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
  w.add_log("log_compute_time", compute / kLaunch);
  w.add_log("log_memory_time", memory / kLaunch);
  w.add_log("log_ridge", compute / memory);
  w.add_log("log_waves_128", blocks / machine.sms);
  w.add_log("fit_128", rows(128));
  w.add_log("fit_64", rows(64));
  w.add_log("fit_256", rows(256));
  w.add_log("log_kv_l2", d(op.batch) * d(op.kv_heads) * d(op.key_length) * 2 * width * element / machine.l2);
  w.add_log("log_kv_heads", d(op.batch) * d(op.kv_heads));
  w.add("aligned_head_dim", alignment(d(op.head_dim)));
  w.add_log("log_key_share", d(op.key_length) / length);
  w.add("sustained", sustained ? 1 : 0);
  w.add_log("log_exponentials", exponentials / compute);
  w.out.base =
      2 * kLaunch + overlap((compute + exponentials) / std::max(rows(128), 0.25),
                            1.2 * (sustained ? memory : warm_seconds(machine, (work.read + work.written) / B)));
  w.out.waves = std::ceil(blocks / machine.sms);
  w.out.tile = "128 queries";
}

void moe_features(Writer& w, const Machine& machine, const MixtureOfExperts& op, DType dtype) {
  const double tokens = d(op.tokens), hidden = d(op.hidden), inter = d(op.intermediate), experts = d(op.experts);
  const double pairs = tokens * d(op.top_k), element = size_of(dtype) / B, peak = machine.ceiling(dtype);
  // Experts that get a token at all when each token picks top_k of them evenly.
  const double active = std::max(1.0, experts * (1 - std::pow(1 - d(op.top_k) / experts, tokens)));
  const double rows = pairs / active;
  const double weights = 3 * active * hidden * inter * element;
  const double activations = pairs * (2 * hidden + 3 * inter) * element;
  const double compute = 6 * pairs * hidden * inter / peak, memory = (weights + activations) / machine.bandwidth;
  const TileFit up = fit(machine.sms, active, rows, 2 * inter, 128, 128),
                down = fit(machine.sms, active, rows, hidden, 128, 128);
  const TileFit up64 = fit(machine.sms, active, rows, 2 * inter, 64, 64),
                down64 = fit(machine.sms, active, rows, hidden, 64, 64);
  w.add_log("log_tokens", tokens);
  w.add_log("log_hidden", hidden);
  w.add_log("log_intermediate", inter);
  w.add_log("log_experts", experts);
  w.add_log("log_top_k", d(op.top_k));
  w.add("skew", op.skew);
  w.add_log("log_compute_time", compute / kLaunch);
  w.add_log("log_memory_time", memory / kLaunch);
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
  w.out.base = 8 * kLaunch + 1.5 * overlap(compute, memory);
  w.out.waves = up.waves + down.waves;
}

struct Stream {
  double rows = 1, columns = 1, inputs = 1, outputs = 1, flops = 1;
  bool softmax = false, norm = false, rms = false, embedding = false;
};

Stream stream_of(const Operator& op) {
  if (const auto* o = std::get_if<Softmax>(&op.kind)) return {d(o->rows), d(o->columns), 1, 1, 5, true};
  if (const auto* o = std::get_if<Normalization>(&op.kind)) {
    return {d(o->rows), d(o->columns), 1, 1, 7, false, true, o->kind == NormalizationKind::kRmsNorm};
  }
  if (const auto* o = std::get_if<Embedding>(&op.kind))
    return {d(o->tokens), d(o->hidden), 1, 1, 0, false, false, false, true};
  const auto& o = std::get<Elementwise>(op.kind);
  return {1, d(o.elements), o.inputs, o.outputs, o.flops_per_element};
}

void vector_features(Writer& w, const Machine& machine, const Operator& op) {
  const Stream s = stream_of(op);
  const double element = size_of(op.dtype) / B, elements = s.rows * s.columns;
  const double bytes = elements * (s.inputs + s.outputs) * element;
  const double memory = bytes / machine.bandwidth;
  w.add_log("log_rows", s.rows);
  w.add_log("log_columns", s.columns);
  w.add_log("log_elements", elements);
  w.add_log("log_memory_time", memory / kLaunch);
  w.add_log("log_bytes_l2", bytes / machine.l2);
  w.add_log("log_rows_per_sm", s.rows / machine.sms);
  w.add("inputs", s.inputs);
  w.add("outputs", s.outputs);
  w.add("flops_element", std::log2(1 + s.flops));
  w.add("is_softmax", s.softmax ? 1 : 0);
  w.add("is_normalization", s.norm ? 1 : 0);
  w.add("is_rms", s.rms ? 1 : 0);
  w.add("is_embedding", s.embedding ? 1 : 0);
  w.add("aligned", alignment(s.columns));
  w.add_log("log_element_size", element);
  w.add_log("row_bytes_shared", s.columns * element / std::max(1.0, machine.gpu.shared_memory_per_sm / B));
  double passes = 1;
  if (const auto* o = std::get_if<Softmax>(&op.kind)) passes = softmax_passes(machine, d(o->columns), o->pass);
  if (const auto* o = std::get_if<Normalization>(&op.kind)) passes = normalization_passes(machine, o->pass);
  if (std::holds_alternative<Embedding>(op.kind)) passes = 1.2;
  double floor = s.softmax ? kAloneSoftmax : s.norm ? kAloneNormalization : kAlonePointwise;
  if (machine.gpu.vendor == "amd") floor *= kAloneAmd;
  if (op.dtype != DType::kFp32) floor = 2 * kLaunch;
  w.out.base = floor + machine.memory_seconds(passes * bytes);
  const double peak = machine.vector_peak;
  w.begin_gpu();
  w.add_log("log_bandwidth_sm", machine.bandwidth / machine.sms / 1e9);
  w.add_log("log_flops_per_byte", peak / machine.bandwidth);
  w.add("gddr", machine.gddr ? 1 : 0);
  w.add_log("log_l2_per_sm", machine.l2 / machine.sms / 1e6);
}

}  // namespace

namespace {

constexpr std::array<std::string_view, 7> kStreams = {"one input", "two inputs", "softmax", "layernorm",
                                                      "rmsnorm",   "embedding",  "rope"};
constexpr std::size_t kWidths = kKernelClasses / kStreams.size();  // elements of 1, 2, 4 and 8 B

std::size_t stream_index(const Operator& op) {
  if (std::holds_alternative<Softmax>(op.kind)) return 2;
  if (const auto* norm = std::get_if<Normalization>(&op.kind)) {
    return norm->kind == NormalizationKind::kLayerNorm ? 3 : 4;
  }
  if (std::holds_alternative<Embedding>(op.kind)) return 5;
  const auto& pointwise = std::get<Elementwise>(op.kind);
  if (pointwise.name == "rope") return 6;
  return pointwise.inputs < 1.5 ? 0 : 1;
}

}  // namespace

std::size_t kernel_class(Predictor predictor, const Operator& op, Mode mode) {
  if (predictor == Predictor::kGemm) return mode == Mode::kSustained ? 1 : 0;
  if (predictor != Predictor::kVector) return 0;
  const double width = std::log2(std::max(1.0, size_of(op.dtype) / B));
  return stream_index(op) * kWidths + std::min(kWidths - 1, static_cast<std::size_t>(width));
}

std::string kernel_class_name(Predictor predictor, std::size_t kernel_class) {
  if (predictor == Predictor::kGemm) return std::string(name_of(kernel_class == 1 ? Mode::kSustained : Mode::kBurst));
  return fmt::format("{}, {} B", kStreams[kernel_class / kWidths % kStreams.size()], 1 << kernel_class % kWidths);
}

std::string_view generation_of(const Gpu& gpu) {
  return std::string_view(gpu.architecture).substr(0, gpu.architecture.find('-'));
}

std::optional<Neighbor> neighbor_of(const Machine& machine, std::span<const Machine> measured) {
  const auto ratios = [](const Machine& m) {
    DType dtype = DType::kBf16;
    if (!(m.peak(dtype) > 0)) dtype = DType::kFp16;
    if (!(m.peak(dtype) > 0)) dtype = DType::kFp32;
    const double peak = std::max(m.peak(dtype), 1.0), ceiling = std::max(m.ceiling(dtype), 1.0);
    const double clock = std::max(m.gpu.boost_clock / Hz, 1.0);
    return std::array<double, 4>{std::log2(ceiling / peak), std::log2(peak / m.sms / clock),
                                 std::log2(m.bandwidth / ceiling), std::log2(std::max(m.l2, 1.0) / m.sms)};
  };
  const auto generation = [](const Machine& m) { return std::strtod(m.gpu.compute_capability.c_str(), nullptr); };
  const std::array<double, 4> mine = ratios(machine);
  std::optional<Neighbor> nearest;
  double least = 0;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    const Machine& other = measured[i];
    const std::array<double, 4> theirs = ratios(other);
    double distance = 0;
    for (std::size_t r = 0; r < mine.size(); ++r) distance += std::abs(mine[r] - theirs[r]);
    // The same compute capability runs the same kernels.
    const double apart = std::abs(generation(machine) - generation(other));
    const double far =
        distance + (machine.gpu.vendor != other.gpu.vendor ? 40 : 0) + (apart > 0 ? 20 : 0) + 2 * std::min(5.0, apart);
    if (nearest && far >= least) continue;
    least = far;
    const bool same = machine.gpu.vendor == other.gpu.vendor && generation_of(machine.gpu) == generation_of(other.gpu);
    nearest = Neighbor{i, !same ? 0.5 : generation(machine) == generation(other) ? 1.0 : 0.75, same};
  }
  return nearest;
}

Pace pace_of(const Machine& machine, const Machine& other) {
  Pace pace{1, 1};  // launches take the same time
  const auto add = [&](double mine, double theirs) {
    if (!(mine > 0) || !(theirs > 0)) return;
    pace.least = std::min(pace.least, theirs / mine), pace.most = std::max(pace.most, theirs / mine);
  };
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp8}) {
    const double mine = machine.ceiling(dtype), theirs = other.ceiling(dtype);
    add(mine, theirs), add(mine / machine.sms, theirs / other.sms);
  }
  add(machine.bandwidth, other.bandwidth), add(machine.bandwidth / machine.sms, other.bandwidth / other.sms);
  add(machine.l2_bandwidth, other.l2_bandwidth), add(machine.exponential_rate, other.exponential_rate);
  return pace;
}

namespace {

void write_features(Writer& w, Predictor predictor, const Machine& machine, const Operator& op, Mode mode) {
  const bool sustained = mode == Mode::kSustained && predictor == Predictor::kGemm;  // others were measured in bursts
  const double element = size_of(op.dtype) / B;
  switch (predictor) {
    case Predictor::kGemm:
    case Predictor::kGemmFp8:
    case Predictor::kGemmFp32: {
      const Gemm& gemm = std::get<Gemm>(op.kind);
      const double peak = machine.peak(op.dtype);
      const double ceiling =
          predictor == Predictor::kGemmFp32 ? fp32_ceiling(machine, peak) : machine.ceiling(op.dtype);
      gemm_features(w, machine, d(gemm.batch), d(gemm.m), d(gemm.n), d(gemm.k), ceiling, element, sustained);
      w.add("variant", predictor == Predictor::kGemmFp8 ? (gemm.scaling == Scaling::kBlock ? 1 : 0)
                       : predictor == Predictor::kGemm  ? (op.dtype == DType::kFp16 ? 1 : 0)
                                                        : (gemm.layout == GemmLayout::kNN ? 1 : 0));
      if (predictor == Predictor::kGemmFp32) {
        // Tiles, issue and power as the analytic model knows them: what is left to learn carries over between GPUs.
        Steps nobody(nullptr);
        w.out.base = kAloneFloor + estimate_vector_gemm(machine, d(gemm.batch), d(gemm.m), d(gemm.n), d(gemm.k),
                                                        gemm.layout, op.dtype, Roofline{}, nobody)
                                       .seconds;
      }
      gpu_ratios(w, machine, peak, ceiling);
      break;
    }
    case Predictor::kAttention:
      attention_features(w, machine, std::get<Attention>(op.kind), op, sustained);
      gpu_ratios(w, machine, machine.peak(op.dtype), machine.ceiling(op.dtype));
      break;
    case Predictor::kMoe:
      moe_features(w, machine, std::get<MixtureOfExperts>(op.kind), op.dtype);
      gpu_ratios(w, machine, machine.peak(op.dtype), machine.ceiling(op.dtype));
      break;
    case Predictor::kVector:
      vector_features(w, machine, op);
      break;
    case Predictor::kConvolution: {
      const auto& conv = std::get<Convolution>(op.kind);
      const double extent = std::floor((d(conv.in_height) + 2 * d(conv.padding) - d(conv.kernel)) / d(conv.stride)) + 1;
      const double across = std::floor((d(conv.in_width) + 2 * d(conv.padding) - d(conv.kernel)) / d(conv.stride)) + 1;
      const double peak = machine.peak(op.dtype);
      gemm_features(w, machine, 1, d(conv.batch) * extent * across, d(conv.out_channels),
                    d(conv.in_channels) * d(conv.kernel) * d(conv.kernel), fp32_ceiling(machine, peak), element,
                    sustained);
      w.add("variant", 0);
      w.add("kernel", d(conv.kernel));
      w.add("stride", d(conv.stride));
      w.add_log("log_input", d(conv.in_height) * d(conv.in_width));
      gpu_ratios(w, machine, peak, fp32_ceiling(machine, peak));
      break;
    }
  }
}

// Any operator that the predictor serves.
Operator example_of(Predictor predictor) {
  switch (predictor) {
    case Predictor::kGemm:
      return {Gemm{}, DType::kBf16};
    case Predictor::kGemmFp8:
      return {Gemm{}, DType::kFp8};
    case Predictor::kGemmFp32:
      return {Gemm{}, DType::kFp32};
    case Predictor::kAttention:
      return {Attention{}, DType::kBf16};
    case Predictor::kMoe:
      return {MixtureOfExperts{}, DType::kBf16};
    case Predictor::kVector:
      return {Softmax{}, DType::kFp32};
    case Predictor::kConvolution:
      return {Convolution{}, DType::kFp32};
  }
  return {};
}

// The names do not depend on the operator and the machine, so those of any are taken.
const FeatureNames& names_of(Predictor predictor) {
  static const std::array<FeatureNames, kPredictorCount> all = [] {
    Gpu gpu;
    gpu.sm_count = 1;
    gpu.memory_bandwidth = 1 * GB / units::s;
    gpu.l2_cache = 1 * MB;
    for (const DType dtype : kAllDTypes) gpu.tensor[dtype] = gpu.vector[dtype] = 1 * TFLOP / units::s;
    const auto machine = make_machine(gpu, Mode::kBurst);
    NS_EXPECTS(machine.has_value());
    std::array<FeatureNames, kPredictorCount> names;
    for (std::size_t p = 0; p < kPredictorCount; ++p) {
      const auto one = static_cast<Predictor>(p);
      Features features;
      Writer writer{features, &names[p]};
      write_features(writer, one, *machine, example_of(one), Mode::kBurst);
    }
    return names;
  }();
  return all[static_cast<std::size_t>(predictor)];
}

}  // namespace

std::span<const std::string_view> shape_features(Predictor predictor) {
  const FeatureNames& names = names_of(predictor);
  return std::span(names.names).first(names.shape);
}

std::span<const std::string_view> gpu_features(Predictor predictor) {
  const FeatureNames& names = names_of(predictor);
  return std::span(names.names).subspan(names.shape);
}

Features features_of(Predictor predictor, const Machine& machine, const Operator& op, Mode mode) {
  Features features;
  Writer writer{features};
  write_features(writer, predictor, machine, op, mode);
  return features;
}

}  // namespace ns_dist
