#include "ns_dist/compute_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>

#include "calibration.h"
#include "families.h"
#include "ns_dist/catalog.h"
#include "ns_dist/kernel_calibration.h"
#include "weights.h"

namespace ns_dist {

std::string Steps::to_string(double value) {
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.6g", value);
  return buffer.data();
}

namespace {

using namespace units;

constexpr std::array<OperatorFamily, 13> kFamilies = {{
    {"gemm", "matrix products, single or batched, in every layout and with fused epilogues"},
    {"attention", "fused (flash) attention forward and backward; grouped queries, causal, windows"},
    {"softmax", "scaled masked softmax over rows, forward and backward"},
    {"normalization", "LayerNorm and RMSNorm over rows, forward and backward"},
    {"elementwise", "pointwise operators and fused chains of them"},
    {"embedding", "rows gathered from a table, and their gradient"},
    {"cross_entropy", "softmax cross-entropy over a slice of the vocabulary"},
    {"optimizer", "fused Adam with fp32 state"},
    {"grouped_gemm", "matrix products of many experts in one launch"},
    {"moe", "a whole gated mixture-of-experts layer as one call: routing, permutation, both products"},
    {"copy", "device-to-device copies"},
    {"convolution", "2-D convolution as an implicit matrix product"},
    {"unknown", "anything else, by the FLOPs and bytes that the user gives"},
}};

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

bool on_matrix_units(const Operator& op) {
  return std::holds_alternative<Gemm>(op.kind) || std::holds_alternative<Attention>(op.kind) ||
         std::holds_alternative<GroupedGemm>(op.kind) || std::holds_alternative<MixtureOfExperts>(op.kind) ||
         std::holds_alternative<Convolution>(op.kind);
}

class KernelModel final : public ComputeCost {
 public:
  KernelModel(Machine machine, std::shared_ptr<const KernelWeights> weights,
              std::shared_ptr<const KernelCalibration> calibration)
      : machine_(std::move(machine)), weights_(std::move(weights)), calibration_(std::move(calibration)) {
    if (!weights_) return;
    // Measured GPUs are looked up in the catalog by the ids that the weights give, each once; one that is not there
    // says nothing.
    const Catalog catalog = Catalog::standard();
    std::map<std::string, std::optional<Machine>> measured;
    const auto machine_of = [&](const std::string& id) -> const std::optional<Machine>& {
      const auto [entry, fresh] = measured.try_emplace(id);
      if (fresh) {
        const auto gpu = catalog.gpu(id);
        if (!gpu) return entry->second;
        if (auto made = make_machine(*gpu, machine_.mode)) entry->second = *std::move(made);
      }
      return entry->second;
    };
    for (std::size_t p = 0; p < kPredictorCount; ++p) {
      if (weights_->predictors[p]) references_[p] = reference_for(*weights_->predictors[p], machine_of);
    }
  }

  Result<Forecast> forecast(const Operator& op) const override {
    Steps nobody(nullptr);
    return answer(op, nobody);
  }

  Result<Explanation> explain(const Operator& op) const override {
    Explanation explanation;
    explanation.subject = to_text(op) + " on " + machine_.gpu.id;
    Steps steps(&explanation.steps);
    NS_TRY(explanation.forecast, answer(op, steps));
    return explanation;
  }

 private:
  Result<Forecast> answer(const Operator& op, Steps& steps) const {
    if (auto valid = validate(op); !valid) return fail(std::move(valid).error());
    if (on_matrix_units(op) && !(machine_.peak(op.dtype) > 0)) return fail(no_rate(op.dtype));
    const Work work = work_of(op);
    const Roofline roofline = roofline_of(op, work);
    if (steps.on()) {
      steps.add("flops", work.flops / FLOP);
      steps.add("least_traffic_B", (work.read + work.written) / B, "each input read once, each output written once");
      steps.add("floor_s", roofline.floor(), "both pipes at their nominal peaks");
    }
    std::optional<Estimate> known = learned(op, roofline, steps);
    Estimate estimate = known ? *known : estimate_of(op, work, roofline, steps);
    if (calibration_) calibrate(estimate, op, roofline, steps);
    if (steps.on()) steps.add("method", estimate.method);

    Forecast forecast;
    const double latency = std::max(estimate.seconds, roofline.floor());
    if (latency > estimate.seconds && estimate.seconds > 0) {  // physics lifts the whole interval
      estimate.low *= latency / estimate.seconds, estimate.high *= latency / estimate.seconds;
    }
    forecast.latency = latency * s;
    forecast.floor = roofline.floor() * s;
    const double low = estimate.low > 0 ? estimate.low : latency / estimate.spread;
    const double high = estimate.high > 0 ? estimate.high : latency * estimate.spread;
    forecast.low = std::clamp(low, roofline.floor(), latency) * s;
    forecast.high = std::max(high, latency) * s;
    forecast.bound = estimate.bound;
    forecast.utilization = latency > 0 ? roofline.floor() / latency : 1;
    forecast.waves = estimate.waves;
    forecast.tile = estimate.tile;
    forecast.method = estimate.method;
    forecast.extrapolated = estimate.extrapolated;
    forecast.power = estimate.watts * W;
    return forecast;
  }

  // Moves a forecast by what measurements of this GPU taught.
  void calibrate(Estimate& estimate, const Operator& op, const Roofline& roofline, Steps& steps) const {
    const std::string_view family = family_of(op);
    for (const FamilyCalibration& f : calibration_->families) {
      if (f.family != family || f.dtype != op.dtype) continue;
      const auto [compute, memory] = pipe_seconds(machine_.gpu, op);
      estimate.seconds = std::max(estimate.seconds, roofline.floor());  // as calibrate_kernels saw it
      const double factor = std::exp(correction_at(f, calibration_inputs(estimate.seconds, compute, memory)));
      estimate.seconds *= factor;
      estimate.low = estimate.seconds * std::exp(f.low), estimate.high = estimate.seconds * std::exp(f.high);
      estimate.method = "corrected by measurements of this GPU";
      if (steps.on()) steps.add("calibration", factor, "by measurements of this GPU");
      return;
    }
  }

  Error no_rate(DType dtype) const {
    Error error;
    error.message = machine_.gpu.id + " has no rate for " + std::string(name_of(dtype));
    error.where = machine_.gpu.id;
    error.expected = "one of";
    for (const DType other : kAllDTypes) {
      if (machine_.peak(other) > 0) error.expected += " " + std::string(name_of(other));
    }
    for (const DType other : {DType::kBf16, DType::kFp16, DType::kFp32}) {
      if (error.hint.empty() && machine_.peak(other) > 0) error.hint = fmt::format("choose {}", name_of(other));
    }
    return error;
  }

  Roofline roofline_of(const Operator& op, const Work& work) const {
    double peak = machine_.vector_rate(op.dtype);
    if (on_matrix_units(op)) peak = machine_.peak(op.dtype);
    if (std::holds_alternative<UnknownOperator>(op.kind)) peak = std::max(peak, machine_.peak(op.dtype));
    const double bytes = (work.read + work.written) / B;
    if (machine_.mode == Mode::kSustained) return {work.flops / FLOP / peak, bytes / machine_.bandwidth, bytes};
    // A kernel run again and again alone finds in L2 what fits there; an SM takes 64 bytes a clock from it (Jia et al.
    // 2018, "Dissecting the NVIDIA Volta GPU architecture via microbenchmarking", table 3.1; the same since).
    const double clock = machine_.gpu.boost_clock / Hz;
    const double l2_bandwidth =
        clock > 0 ? std::max(machine_.bandwidth, machine_.sms * 64 * clock) : 4 * machine_.bandwidth;
    return {work.flops / FLOP / peak,
            std::max(bytes / l2_bandwidth, std::max(0.0, bytes - machine_.l2) / machine_.bandwidth), bytes};
  }

  // What measured kernels say of `op`, directly or by way of a kernel that is like it; nothing where none is.
  std::optional<Estimate> learned(const Operator& op, const Roofline& roofline, Steps& steps) const {
    if (!weights_) return std::nullopt;
    if (const auto* gemm = std::get_if<Gemm>(&op.kind); gemm != nullptr && on_tensor_units(op)) {
      Gemm plain = *gemm;
      plain.epilogue = Epilogue::kNone;
      // Only products of two matrices were measured: a batch is one with all rows, and the analytic model gives the
      // ratio.
      const double rows = static_cast<double>(gemm->batch) * static_cast<double>(gemm->m);
      if (gemm->batch > 1) plain.batch = 1, plain.m = measured_rows(rows, gemm->m);
      std::optional<Estimate> estimate = corrected({plain, op.dtype}, steps);
      if (!estimate) return std::nullopt;
      if (machine_.mode == Mode::kSustained) slow_down(*estimate, {plain, op.dtype}, steps);
      if (gemm->batch > 1) {
        Gemm batched = *gemm;
        batched.epilogue = Epilogue::kNone;
        scale(*estimate, analytic_seconds({batched, op.dtype}) / analytic_seconds({plain, op.dtype}),
              "measured kernels of one product; the batch by tiles and waves", rows / static_cast<double>(plain.m));
        estimate->bound = bound_of(roofline, estimate->seconds);
      }
      add_epilogue(*estimate, op, roofline, steps);
      return estimate;
    }
    if (const auto* grouped = std::get_if<GroupedGemm>(&op.kind); grouped != nullptr && on_tensor_units(op)) {
      const double rows = static_cast<double>(grouped->rows);
      const Gemm plain{.m = measured_rows(rows, 1), .n = grouped->n, .k = grouped->k};
      std::optional<Estimate> estimate = corrected({plain, op.dtype}, steps);
      if (!estimate) return std::nullopt;
      if (machine_.mode == Mode::kSustained) slow_down(*estimate, {plain, op.dtype}, steps);
      scale(*estimate, analytic_seconds(op) / analytic_seconds({plain, op.dtype}),
            "measured kernels of one product; the experts by tiles and waves", rows / static_cast<double>(plain.m));
      estimate->bound = bound_of(roofline, estimate->seconds);
      return estimate;
    }
    if (const auto* attention = std::get_if<Attention>(&op.kind);
        attention != nullptr && (attention->pass == Pass::kBackward || op.dtype == DType::kFp8)) {
      Operator measured{*attention, op.dtype == DType::kFp8 ? DType::kBf16 : op.dtype};
      std::get<Attention>(measured.kind).pass = Pass::kForward;
      std::optional<Estimate> estimate = corrected(measured, steps);
      if (!estimate) return std::nullopt;
      scale(*estimate, analytic_seconds(op) / analytic_seconds(measured),
            attention->pass == Pass::kForward ? "measured half-precision kernels; products at the rate of FP8"
                                              : "measured forward kernels; backward by published rates");
      return estimate;
    }
    std::optional<Estimate> estimate = corrected(op, steps);
    if (estimate && machine_.mode == Mode::kSustained) slow_down(*estimate, op, steps);
    return estimate;
  }

  // Long runs of BF16 products of at least 1e10 FLOP take 1.1-1.25 times as long as single ones on H200, B200 and
  // GB200.
  static constexpr double kMostSlowdown = 1.3;

  // FP8 products and experts were measured in bursts alone. In long runs they slow down as BF16 products do.
  void slow_down(Estimate& estimate, const Operator& op, Steps& steps) const {
    Gemm like;
    if (const auto* moe = std::get_if<MixtureOfExperts>(&op.kind)) {
      like = {.m = moe->tokens, .n = 2 * moe->intermediate, .k = moe->hidden};
    } else if (const auto* gemm = std::get_if<Gemm>(&op.kind); gemm != nullptr && op.dtype == DType::kFp8) {
      like = {.m = gemm->m, .n = gemm->n, .k = gemm->k};
    } else {
      return;
    }
    Steps nobody(nullptr);
    const auto burst = corrected({like, DType::kBf16}, nobody, Mode::kBurst);
    const auto sustained = corrected({like, DType::kBf16}, nobody);
    if (!burst || !sustained) return;
    const double factor = std::clamp(sustained->seconds / burst->seconds, 1.0, kMostSlowdown);
    estimate.seconds *= factor, estimate.low *= factor, estimate.high *= factor;
    if (steps.on()) steps.add("sustained", factor, "as BF16 products of the size slow down in long runs");
  }

  std::optional<Estimate> corrected(const Operator& op, Steps& steps) const {
    return corrected(op, steps, machine_.mode);
  }
  std::optional<Estimate> corrected(const Operator& op, Steps& steps, Mode mode) const {
    const auto predictor = predictor_of(op, machine_.gpu, mode);
    if (!predictor || !weights_->predictors[static_cast<std::size_t>(*predictor)]) return std::nullopt;
    const PredictorWeights& weights = *weights_->predictors[static_cast<std::size_t>(*predictor)];
    const Reference& reference = references_[static_cast<std::size_t>(*predictor)];
    const std::size_t sort = sort_of(*predictor, op, mode);
    const std::optional<std::size_t> speaker = reference.measured   ? reference.measured
                                               : reference.neighbor ? std::optional(reference.neighbor->nearest.index)
                                                                    : std::nullopt;
    const bool only_bursts = *predictor == Predictor::kGemm && speaker && !knows(weights, *speaker, sort);
    const Features features = features_of(*predictor, machine_, op, mode);
    Estimate estimate;
    Correction correction;
    if (reference.measured && knows(weights, *reference.measured, sort)) {
      correction = correct(weights, *predictor, features, *reference.measured, sort);
      estimate.method = "trees over measured kernels of this GPU";
    } else {
      std::optional<NeighborFeatures> neighbor;
      if (reference.measured && only_bursts) {
        neighbor = {features, *reference.measured, 1, true, true, {}};
      } else if (reference.neighbor && predictor_of(op, reference.neighbor->machine.gpu, mode) == predictor &&
                 (only_bursts || knows(weights, reference.neighbor->nearest.index, sort))) {
        const Neighbor& nearest = reference.neighbor->nearest;
        neighbor = {features_of(*predictor, reference.neighbor->machine, op, mode),
                    nearest.index,
                    nearest.share,
                    nearest.same_generation,
                    reference.neighbor->machine.gpu.id == machine_.gpu.id,
                    reference.neighbor->pace};
      }
      correction = correct(weights, *predictor, features, neighbor);
      const bool learned_elsewhere = !weights.transfer.network.layers.empty();
      if (neighbor && !neighbor->itself && !learned_elsewhere) neighbor.reset();
      estimate.method = method_of(*predictor, neighbor, learned_elsewhere);
      if (reference.measured && only_bursts) {
        estimate.method = "trees over measured bursts of this GPU, slowed as long runs of others are";
      } else if (neighbor && steps.on()) {
        steps.add("nearest_gpu", reference.neighbor->machine.gpu.id,
                  "its measured kernels are carried over by the ratio of the physical estimates");
        steps.add("nearest_share", neighbor->share, "the network speaks for the rest");
      }
    }
    if (!(correction.seconds > 0) || !std::isfinite(correction.high)) return std::nullopt;  // beyond a double's range
    estimate.seconds = correction.seconds, estimate.low = correction.low, estimate.high = correction.high;
    estimate.extrapolated = correction.extrapolated;
    if (only_bursts && mode == Mode::kSustained) {
      // What the trees learned of long runs elsewhere, within what was seen there: a burst that found its operands in
      // L2 says nothing of one that does not.
      Steps nobody(nullptr);
      if (const auto burst = corrected(op, nobody, Mode::kBurst)) {
        const double factor = std::clamp(estimate.seconds / burst->seconds, 1.0, kMostSlowdown);
        estimate.seconds = burst->seconds * factor;
        estimate.low = burst->low, estimate.high = burst->high * kMostSlowdown;
        if (steps.on()) steps.add("sustained", factor, "as measured GPUs slow down in long runs");
      }
    }
    estimate.watts = watts_of(weights, *predictor, features, machine_);
    if (steps.on() && estimate.watts > 0) steps.add("power_w", estimate.watts, "mean board power, run again and again");
    estimate.waves = static_cast<std::int64_t>(std::min(features.waves, 9e18));
    estimate.tile = features.tile;
    estimate.bound = bound_of(roofline_of(op, work_of(op)), estimate.seconds);
    if (steps.on()) {
      steps.add("predictor", name_of(*predictor));
      if (reference.measured && !knows(weights, *reference.measured, sort)) {
        steps.add("sort", sort_name(*predictor, sort), "none of this sort was measured on this GPU");
      }
      const auto shape = shape_features(*predictor), gpu = gpu_features(*predictor);
      for (std::size_t f = 0; f < shape.size() + gpu.size(); ++f) {
        steps.add(f < shape.size() ? shape[f] : gpu[f - shape.size()], features.values[f], "feature");
      }
      if (*predictor == Predictor::kGemmFp8) steps.add("includes", "quantization of activations", "as it was measured");
      steps.add("base_s", features.base, "physical estimate that the features correct");
      steps.add("correction", correction.seconds / features.base, estimate.method);
      if (correction.extrapolated) steps.add("extrapolated", "yes", "a feature lies outside the fitted range");
    }
    return estimate;
  }

  static std::string_view method_of(Predictor predictor, const std::optional<NeighborFeatures>& neighbor,
                                    bool learned_elsewhere) {
    if (neighbor && neighbor->share == 1) return "measured kernels of the nearest GPU, scaled";
    if (neighbor) return "measured kernels of the nearest GPU scaled, and a network over others";
    if (learned_elsewhere) return "network over measured kernels of other GPUs";
    if (predictor == Predictor::kVector) return "traffic over achieved bandwidth, and the launch floor";
    return "tiles, waves and clock by board power";
  }

  Bound bound_of(const Roofline& roofline, double seconds) const {
    if (roofline.floor() < 0.25 * seconds && seconds < 5 * machine_.launch) return Bound::kLaunch;
    return roofline.compute >= roofline.memory ? Bound::kCompute : Bound::kMemory;
  }

  bool on_tensor_units(const Operator& op) const { return machine_.gpu.tensor[op.dtype] > FlopsPerSecond(); }

  double analytic_seconds(const Operator& op) const {
    Steps nobody(nullptr);
    const Work work = work_of(op);
    return estimate_of(op, work, roofline_of(op, work), nobody).seconds;
  }

  // Rows of one product that stands for many: no more than the tables hold, so that what was learned speaks of it, and
  // no fewer than one of the many has.
  static std::int64_t measured_rows(double rows, std::int64_t least) {
    constexpr std::int64_t kMost = 32768;
    return std::max(least, static_cast<std::int64_t>(std::min(rows, static_cast<double>(kMost))));
  }

  // By a model's ratio to another kernel, of which it is `work` times as much: half of the distance between both widens
  // the interval.
  static void scale(Estimate& estimate, double factor, std::string_view method, double work = 1) {
    const double doubt = std::sqrt(std::max(factor / work, work / factor));
    estimate.seconds *= factor, estimate.low *= factor / std::min(doubt, 2.0),
        estimate.high *= factor * std::min(doubt, 2.0);
    estimate.method = method;
  }

  // The epilogue's traffic beyond the plain product's. Tiles finish at different times, so about half of it hides
  // behind other tiles' products.
  void add_epilogue(Estimate& estimate, const Operator& op, const Roofline& roofline, Steps& steps) const {
    const auto& gemm = std::get<Gemm>(op.kind);
    if (gemm.epilogue == Epilogue::kNone) return;
    Gemm plain = gemm;
    plain.epilogue = Epilogue::kNone;
    const double excess =
        std::max(0.0, roofline.bytes - roofline_of({plain, op.dtype}, work_of({plain, op.dtype})).bytes) /
        machine_.achieved_bandwidth;
    constexpr double kExposed = 0.5;
    estimate.seconds += kExposed * excess, estimate.low += 0.2 * excess, estimate.high += excess;
    if (steps.on()) steps.add("epilogue_s", kExposed * excess, "traffic beyond the plain product, half of it hidden");
  }

  Estimate streaming(const Operator& op, const Work& work, double passes, std::string_view method, Steps& steps) const {
    const double traffic = passes * ((work.read + work.written) / B);
    return estimate_streaming(machine_, traffic, work.flops / FLOP, op.dtype, method, steps);
  }

  Estimate estimate_of(const Operator& op, const Work& work, const Roofline& roofline, Steps& steps) const {
    constexpr std::string_view kStreamed = "traffic over achieved bandwidth";
    const auto d = [](std::int64_t value) { return static_cast<double>(value); };
    return std::visit(
        Overloaded{
            [&](const Gemm& o) {
              return estimate_gemm(machine_, d(o.batch), d(o.m), d(o.n), d(o.k), o.layout, o.epilogue, op.dtype,
                                   roofline, steps);
            },
            [&](const GroupedGemm& o) {
              const double rows = std::ceil(d(o.rows) / d(o.experts));
              if (o.layout == GemmLayout::kTN) {
                return estimate_gemm(machine_, d(o.experts), d(o.n), d(o.k), rows, o.layout, o.epilogue, op.dtype,
                                     roofline, steps);
              }
              return estimate_gemm(machine_, d(o.experts), rows, d(o.n), d(o.k), o.layout, o.epilogue, op.dtype,
                                   roofline, steps);
            },
            [&](const MixtureOfExperts& o) {
              const double chosen = std::min(d(o.experts), d(o.tokens) * d(o.top_k));
              const double rows = std::ceil(d(o.tokens) * d(o.top_k) / chosen);
              Estimate up = estimate_gemm(machine_, chosen, rows, 2 * d(o.intermediate), d(o.hidden), GemmLayout::kNT,
                                          Epilogue::kNone, op.dtype, Roofline{}, steps);
              const Estimate down = estimate_gemm(machine_, chosen, rows, d(o.hidden), d(o.intermediate),
                                                  GemmLayout::kNT, Epilogue::kNone, op.dtype, Roofline{}, steps);
              // Permuted rows in, gated rows between the products, weighted sum out.
              const double moved = d(o.tokens) * d(o.top_k) * (3 * d(o.hidden) + 3 * d(o.intermediate));
              up.seconds +=
                  down.seconds + 3 * machine_.launch + moved * (size_of(op.dtype) / B) / machine_.achieved_bandwidth;
              up.method = "two grouped products and their permutations";
              up.spread = 1.8;
              return up;
            },
            [&](const Attention& o) { return estimate_attention(machine_, o, op.dtype, roofline, steps); },
            [&](const Softmax& o) {
              return streaming(op, work, softmax_passes(machine_, d(o.columns), o.pass), kStreamed, steps);
            },
            [&](const Normalization& o) {
              return streaming(op, work, normalization_passes(machine_, o.pass), kStreamed, steps);
            },
            [&](const Elementwise&) { return streaming(op, work, 1, kStreamed, steps); },
            // Scattered rows and, backward, atomics.
            [&](const Embedding& o) {
              return streaming(op, work, o.pass == Pass::kForward ? 1.2 : 2, kStreamed, steps);
            },
            // Maximum, exponentials and sum are passes of their own over fp32 logits in Megatron's
            // vocab_parallel_cross_entropy; its fused variant needs about half.
            [&](const CrossEntropy& o) {
              return streaming(op, work, o.pass == Pass::kForward ? 6 : 2, kStreamed, steps);
            },
            [&](const OptimizerStep&) { return streaming(op, work, 1, kStreamed, steps); },
            [&](const Copy&) { return streaming(op, work, 1, kStreamed, steps); },
            [&](const Convolution& o) {
              const double height = std::floor((d(o.in_height) + 2 * d(o.padding) - d(o.kernel)) / d(o.stride)) + 1;
              const double width = std::floor((d(o.in_width) + 2 * d(o.padding) - d(o.kernel)) / d(o.stride)) + 1;
              const double rows = d(o.batch) * height * width, depth = d(o.in_channels) * d(o.kernel) * d(o.kernel);
              Estimate e = estimate_gemm(machine_, 1, rows, d(o.out_channels), depth, GemmLayout::kNN, Epilogue::kNone,
                                         op.dtype, Roofline{}, steps);
              if (o.pass == Pass::kBackward) e.seconds *= 2;  // data and weight gradients, as many products each
              e.method = "implicit matrix product";
              e.spread = 1.6;
              return e;
            },
            [&](const UnknownOperator&) {
              // Neither tile nor kernel is known: the roofline at achieved rates, and a wide interval.
              const double memory = roofline.memory * machine_.bandwidth / machine_.achieved_bandwidth;
              const double compute = roofline.compute / 0.6;
              Estimate e;
              e.seconds = machine_.launch + overlap(compute, memory);
              e.bound = machine_.launch > std::max(compute, memory) ? Bound::kLaunch
                        : compute > memory                          ? Bound::kCompute
                                                                    : Bound::kMemory;
              e.method = "roofline of an unknown operator";
              e.spread = 2.5;
              e.extrapolated = true;
              return e;
            },
        },
        op.kind);
  }

  // Where a predictor's measurements stand to this GPU.
  struct Reference {
    struct Near {
      Machine machine;
      Neighbor nearest;
      Pace pace;
    };
    std::optional<std::size_t> measured;
    std::optional<Near> neighbor;
  };

  template <class MachineOf>
  Reference reference_for(const PredictorWeights& weights, const MachineOf& machine_of) const {
    Reference reference;
    // A GPU of a measured one's name with another data sheet is that one scaled.
    if (const auto index = measured_index(weights, machine_.gpu.id)) {
      const std::optional<Machine>& machine = machine_of(machine_.gpu.id);
      if (machine && !(machine->gpu == machine_.gpu)) {
        reference.neighbor = Reference::Near{*machine, {*index, 1, true}, pace_of(machine_, *machine)};
      } else {
        reference.measured = index;
      }
      return reference;
    }
    std::vector<Machine> machines;
    std::vector<std::size_t> indices;
    for (std::size_t i = 0; i < weights.gpus.size(); ++i) {
      if (const std::optional<Machine>& machine = machine_of(weights.gpus[i])) {
        machines.push_back(*machine), indices.push_back(i);
      }
    }
    if (auto nearest = neighbor_of(machine_, machines)) {
      Machine near = machines[nearest->index];
      nearest->index = indices[nearest->index];
      const Pace pace = pace_of(machine_, near);
      reference.neighbor = Reference::Near{std::move(near), *nearest, pace};
    }
    return reference;
  }

  Machine machine_;
  std::shared_ptr<const KernelWeights> weights_;
  std::shared_ptr<const KernelCalibration> calibration_;
  std::array<Reference, kPredictorCount> references_;
};

}  // namespace

Result<std::unique_ptr<ComputeCost>> make_compute_model(const Gpu& gpu, const ComputeModelOptions& options) {
  NS_TRY(Machine machine, make_machine(gpu, options.mode));
  if (options.calibration && (options.calibration->gpu != gpu.id || options.calibration->mode != options.mode)) {
    return fail(
        {ErrorCode::kInvalidInput,
         fmt::format("a calibration of {} kernels on {}", name_of(options.calibration->mode), options.calibration->gpu),
         "calibration",
         fmt::format("one of {} kernels on {}", name_of(options.mode), gpu.id),
         "measure that one, or leave the calibration out",
         {}});
  }
  std::shared_ptr<const KernelWeights> weights;
  if (!options.weights.empty()) {
    NS_TRY(KernelWeights read, read_kernel_weights(options.weights, "weights"));
    weights = std::make_shared<const KernelWeights>(std::move(read));
  } else if (!options.analytic) {
    weights = std::shared_ptr<const KernelWeights>(std::shared_ptr<void>(), standard_weights());
  }
  if (options.analytic) weights.reset();
  return std::unique_ptr<ComputeCost>(
      std::make_unique<KernelModel>(std::move(machine), std::move(weights), options.calibration));
}

std::string_view name_of(Mode mode) { return mode == Mode::kBurst ? "burst" : "sustained"; }

std::optional<Mode> mode_from_name(std::string_view name) {
  for (const Mode mode : {Mode::kBurst, Mode::kSustained}) {
    if (name == name_of(mode)) return mode;
  }
  return std::nullopt;
}

std::span<const OperatorFamily> operator_families() { return kFamilies; }

}  // namespace ns_dist
