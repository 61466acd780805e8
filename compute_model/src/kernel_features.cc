#include "kernel_features.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "predictors/predictor.h"

namespace ns_dist {
namespace {

using namespace units;

// In the order of `Predictor`.
constexpr std::array<const PredictorKind*, kPredictorCount> kKinds = {&kGemmPredictor,
                                                                      &kGemmFp8Predictor,
                                                                      &kGemmFp32Predictor,
                                                                      &kAttentionPredictor,
                                                                      &kTrainingAttentionPredictor,
                                                                      &kNormalizationPredictor,
                                                                      &kMoePredictor,
                                                                      &kVectorPredictor,
                                                                      &kConvolutionPredictor};

}  // namespace

const PredictorKind& kind_of(Predictor predictor) { return *kKinds[static_cast<std::size_t>(predictor)]; }

std::span<const std::string_view> predictor_names() {
  static const std::array<std::string_view, kPredictorCount> names = [] {
    std::array<std::string_view, kPredictorCount> all;
    std::transform(kKinds.begin(), kKinds.end(), all.begin(), [](const PredictorKind* kind) { return kind->name; });
    return all;
  }();
  return names;
}

std::string_view name_of(Predictor predictor) { return kind_of(predictor).name; }

std::optional<Predictor> predictor_of(const Operator& op, const Gpu& gpu, Mode mode) {
  for (std::size_t p = 0; p < kPredictorCount; ++p) {
    if (kKinds[p]->serves(op, gpu, mode)) return static_cast<Predictor>(p);
  }
  return std::nullopt;
}

std::size_t kernel_class(Predictor predictor, const Operator& op, Mode mode) {
  const PredictorKind& kind = kind_of(predictor);
  return kind.class_of == nullptr ? 0 : kind.class_of(op, mode);
}

std::string kernel_class_name(Predictor predictor, std::size_t kernel_class) {
  const PredictorKind& kind = kind_of(predictor);
  return kind.class_name == nullptr ? std::string(kind.name) : kind.class_name(kernel_class);
}

// FLOP a clock of an SM's tensor units in 16 bits; 0 without them.
static double units_of_sm(const Machine& m) {
  const DType dtype = m.peak(DType::kBf16) > 0 ? DType::kBf16 : DType::kFp16;
  return m.peak(dtype) / m.rated_share(dtype) / m.sms / m.clock_rate;
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
  const auto generation = [](const Machine& m) { return capability_of(m.gpu); };
  const std::array<double, 4> mine = ratios(machine);
  std::optional<Neighbor> nearest;
  double least = 0;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    const Machine& other = measured[i];
    const std::array<double, 4> theirs = ratios(other);
    double distance = 0;
    for (std::size_t r = 0; r < mine.size(); ++r) distance += std::abs(mine[r] - theirs[r]);
    // The same compute capability runs the same kernels; how tensor units are fed comes next.
    const double apart = std::abs(generation(machine) - generation(other));
    const bool fed_alike =
        machine.persistent_kernels == other.persistent_kernels && machine.tensor_memory == other.tensor_memory;
    const double far = distance + (machine.gpu.vendor != other.gpu.vendor ? 40 : 0) + (apart > 0 ? 20 : 0) +
                       (fed_alike ? 0 : 10) + 2 * std::min(5.0, apart);
    if (nearest && far >= least) continue;
    least = far;
    // Kernels are tuned for an SM's units: of Ampere 8.0 has twice those of 8.6.
    const double units = std::abs(std::log2(units_of_sm(machine) / units_of_sm(other)));
    const bool same = machine.gpu.vendor == other.gpu.vendor && !(units > 0.5) &&
                      generation_of(machine.gpu.architecture) == generation_of(other.gpu.architecture);
    nearest = Neighbor{i, same};
  }
  return nearest;
}

const Machine& common_machine(Mode mode) {
  static const std::array<Machine, 2> machines = [] {
    Gpu gpu;
    gpu.id = "common", gpu.vendor = "nvidia", gpu.architecture = "hopper", gpu.process_nm = 4;
    gpu.sm_count = 132, gpu.boost_clock = 1830 * MHz, gpu.l2_cache = 50 * MB, gpu.board_power = 700 * W;
    gpu.memory_type = "HBM3", gpu.memory = 80 * GB, gpu.memory_bandwidth = 3.35 * TB / units::s;
    for (const DType dtype : kAllDTypes) gpu.tensor[dtype] = 989 * TFLOP / units::s;
    for (const DType dtype : kAllDTypes) gpu.vector[dtype] = 67 * TFLOP / units::s;
    auto burst = make_machine(gpu, Mode::kBurst), sustained = make_machine(gpu, Mode::kSustained);
    NS_EXPECTS(burst.has_value() && sustained.has_value());
    return std::array{*std::move(burst), *std::move(sustained)};
  }();
  return machines[mode == Mode::kBurst ? 0 : 1];
}

Pace pace_of(const Machine& machine, const Machine& other) {
  Pace pace{1, 1};  // launches take the same time
  const auto add = [&](double mine, double theirs) {
    if (!(mine > 0) || !(theirs > 0)) return;
    pace.least = std::min(pace.least, theirs / mine), pace.most = std::max(pace.most, theirs / mine);
  };
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp8}) {
    for (const auto& [mine, theirs] :
         {std::pair{machine.ceiling(dtype), other.ceiling(dtype)}, std::pair{machine.peak(dtype), other.peak(dtype)}}) {
      add(mine, theirs), add(mine / machine.sms, theirs / other.sms);
    }
  }
  add(machine.bandwidth, other.bandwidth), add(machine.bandwidth / machine.sms, other.bandwidth / other.sms);
  add(machine.l2_bandwidth, other.l2_bandwidth), add(machine.exponential_rate, other.exponential_rate);
  return pace;
}

namespace {

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
    const Sums none;
    for (std::size_t p = 0; p < kPredictorCount; ++p) {
      Features features;
      FeatureWriter writer{features, none, &names[p]};
      kKinds[p]->write(writer, *machine, kKinds[p]->example(), Mode::kBurst);
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

Features features_of(Predictor predictor, const Machine& machine, const Operator& op, Mode mode, const Sums& sums) {
  Features features;
  FeatureWriter writer{features, sums};
  kind_of(predictor).write(writer, machine, op, mode);
  return features;
}

Features features_alone(Predictor predictor, const Operator& op, Mode mode) {
  Features features;
  const Sums none;
  FeatureWriter writer{features, none, nullptr, false};
  kind_of(predictor).write(writer, common_machine(mode), op, mode);
  return features;
}

}  // namespace ns_dist
