#include <fmt/format.h>

#include "predictors/predictor.h"

namespace ns_dist {
namespace {

using namespace units;

// Sum over n tiles of queries of the tiles of keys that each visits: the i-th of them `first` + i under a causal mask,
// at most `most` with a window.
double visited(double n, double first, double most) {
  const double rising = std::clamp(most - first, 0.0, n);
  return rising * first + rising * (rising + 1) / 2 + (n - rising) * most;
}

// Flash attention's forward kernels, before anything is learned. A thread block takes a tile of queries and visits the
// tiles of keys that its mask leaves, whole ones. What takes longer: the longest block, or an SM's share of all. The
// times of products and exponentials add up, because they wait for each other. The coefficients are common to all GPUs:
// non-negative least squares of relative errors, reweighted towards least absolute ones, on 1,500 rows of each of A100,
// L40S, H100, H200, B200, B300 and GB200; alone they are 14 to 21 % off, and without a generation 16 to 21 % on it.
double flash_seconds(const Machine& machine, const Attention& op, double peak, double width, double bytes) {
  constexpr double kLaunch = 1.86e4,
                   kAccumulators = 2.0e3;  // clocks; of a block: accumulators in a memory of their own
  constexpr double kProducts = 0.93, kExponentials = 0.73, kMemory = 1.6, kKeys = 128;
  const double queries = machine.tensor_memory || op.query_length > 64 ? 128 : 64;
  const double tiles = std::ceil(d(op.query_length) / queries), keys = std::ceil(d(op.key_length) / kKeys);
  const double most = op.window > 0 ? std::min(keys, std::ceil(d(op.window) / kKeys) + 1) : keys;
  const double sequences = d(op.batch) * d(op.heads), blocks = sequences * tiles / machine.sms;
  const double first = std::max(0.0, keys - std::ceil(tiles * queries / kKeys));
  const double pairs = sequences * (op.causal ? visited(tiles, first, most) : tiles * most) / machine.sms;
  const double longest = tiles > 1 ? most : std::max(1.0, std::min(most, std::ceil(pairs)));  // one tile is split
  const double load = op.causal || blocks >= 8 ? std::max(longest, pairs) : std::ceil(blocks) * longest;
  const double products = load * 4 * queries * kKeys * width / (peak / machine.sms);
  const double exponentials = load * queries * kKeys / (machine.exponential_rate / machine.sms);
  return (kLaunch + (machine.tensor_memory ? kAccumulators * std::max(1.0, blocks) : 0)) / machine.clock_rate +
         kProducts * products + kExponentials * exponentials + kMemory * warm_seconds(machine, bytes);
}

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
  // One exponential for each query and key: FLOP / (4 x head size).
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
  w.add_log("log_exponentials", exponentials / compute);
  if (w.wants_base) w.out.base = flash_seconds(machine, op, peak, width, (work.read + work.written) / B);
  w.out.waves = std::ceil(blocks / machine.sms);
  w.out.tile = "128 queries";
  gpu_ratios(w, machine, machine.peak(whole.dtype), machine.ceiling(whole.dtype));
}

// cuDNN and FlashAttention-2 as training runs them, both passes.
void write_training_attention(FeatureWriter& w, const Machine& machine, const Operator& whole, Mode) {
  const auto& op = std::get<Attention>(whole.kind);
  const double heads = d(op.batch) * d(op.heads), length = d(op.query_length);
  const double waves = heads * std::ceil(length / 256) / machine.sms;
  w.add_log("log_batch_heads", heads);
  w.add_log("log_length", length);
  w.add_log("log_head_dim", d(op.head_dim));
  w.add_log("log_value_dim", d(op.value_dim));
  w.add_log("log_group", d(op.heads) / d(op.kv_heads));
  w.add("causal", op.causal ? 1 : 0);
  w.add_log("log_window_share", op.window > 0 ? std::min(1.0, d(op.window) / d(op.key_length)) : 1);
  w.add("backward", op.pass == Pass::kBackward ? 1 : 0);
  w.add("deterministic", op.deterministic && op.pass == Pass::kBackward ? 1 : 0);
  w.add("eight_bit", whole.dtype == DType::kFp8 ? 1 : 0);
  w.add("block_scaled", op.scaling == Scaling::kBlock ? 1 : 0);
  w.add("flash_2", library_of(op, machine.gpu) == Library::kFlash2 ? 1 : 0);
  Steps nobody(nullptr);
  const Estimate estimate = estimate_attention(machine, op, whole.dtype, Roofline{}, w.sums, nobody);
  const double handled = heads * length * (d(op.head_dim) + d(op.value_dim)) / (machine.sms * machine.clock_rate);
  w.add_log("log_base_time", estimate.seconds / kSmallLaunch);
  w.add_log("log_rows_share", handled / estimate.seconds);
  w.add_log("log_waves", waves);
  w.add("last_wave", waves <= 16 ? waves - std::ceil(waves) + 1 : 1);
  w.out.base = estimate.seconds;
  w.out.waves = static_cast<double>(estimate.waves);
  w.out.tile = estimate.tile;
  w.begin_gpu();
}

}  // namespace

constinit const PredictorKind kAttentionPredictor = {
    "attention",
    "tiles, waves and clock by board power",
    [] {
      return Operator{Attention{}, DType::kBf16};
    },
    [](const Operator& op, const Gpu& gpu, Mode) {
      const auto* attention = std::get_if<Attention>(&op.kind);
      if (attention == nullptr || attention->pass != Pass::kForward || !on_half_precision_units(op, gpu)) return false;
      const Library library = library_of(*attention, gpu);
      return library == Library::kServing || library == Library::kFlash3 ||
             (library == Library::kFlash2 && !has_attention_rates(*attention, gpu));
    },
    write_attention,
    {.known_trees = 200,
     .known_leaves = 250,
     .known_rate = 0.15,
     .elsewhere = Elsewhere::kOperatorAlone,
     .trust = 0.5}};

constinit const PredictorKind kTrainingAttentionPredictor = {
    "training_attention",
    "products, exponentials and waves at the library's rates",
    [] {
      return Operator{Attention{.library = Library::kCudnn}, DType::kBf16};
    },
    [](const Operator& op, const Gpu& gpu, Mode) {
      const auto* attention = std::get_if<Attention>(&op.kind);
      if (attention == nullptr || !has_attention_rates(*attention, gpu)) return false;
      return on_half_precision_units(op, gpu) || (op.dtype == DType::kFp8 && gpu.tensor[op.dtype] > FlopsPerSecond() &&
                                                  library_of(*attention, gpu) == Library::kCudnn);
    },
    write_training_attention,
    {200, 16, 0.06, Elsewhere::kPhysics},
    [](const Operator& op, Mode) -> std::size_t {
      const auto& attention = std::get<Attention>(op.kind);
      return (attention.library == Library::kFlash2 ? 4U : 0U) + (attention.pass == Pass::kBackward ? 2U : 0U) +
             (op.dtype == DType::kFp8 ? 1U : 0U);
    },
    [](std::size_t kernel_class) {
      return fmt::format("{} {}, {} B", name_of((kernel_class & 4) != 0 ? Library::kFlash2 : Library::kCudnn),
                         (kernel_class & 2) != 0 ? "backward" : "forward", (kernel_class & 1) != 0 ? 1 : 2);
    },
    &kAttentionSum};

}  // namespace ns_dist
