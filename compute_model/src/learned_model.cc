#include "learned_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "weights_file.h"

namespace ns_dist {
namespace {

using namespace units;

// Rows of one product in place of many: at most as many as the tables hold, so that the forecast does not extrapolate,
// and at least as many as one of the many has.
std::int64_t measured_rows(double rows, std::int64_t least) {
  constexpr std::int64_t kMost = 32768;
  return std::max(least, static_cast<std::int64_t>(std::min(rows, static_cast<double>(kMost))));
}

// Rows of all products that `op` consists of.
double rows_of(const Operator& op) {
  if (const auto* gemm = std::get_if<Gemm>(&op.kind)) {
    return static_cast<double>(gemm->batch) * static_cast<double>(gemm->m);
  }
  return static_cast<double>(std::get<GroupedGemm>(op.kind).rows);
}

// Scales by a model's ratio to another kernel that does 1 / `work` of the work. Half of the distance between both
// ratios widens the interval.
void scale(Estimate& estimate, double factor, double work = 1) {
  const double doubt = std::min(std::sqrt(std::max(factor / work, work / factor)), 2.0);
  estimate.seconds *= factor;
  estimate.low *= factor / doubt;
  estimate.high *= factor * doubt;
}

// The errors that set an interval are those of one session on one machine. Inside a model, FP32 kernels of the same
// shape differ from these by 4 % (median; V100 3.7, P100 4.0): 10 % at the ends of a normal distribution's 90 %. Of
// other formats nobody measured both.
void doubt_session(Estimate& estimate) {
  constexpr double kDiffers = 0.04 / 0.6745 * 1.645;
  estimate.low = estimate.seconds * std::exp(-std::hypot(std::log(estimate.seconds / estimate.low), kDiffers));
  estimate.high = estimate.seconds * std::exp(std::hypot(std::log(estimate.high / estimate.seconds), kDiffers));
}

// FP8 products were measured together with the kernels that quantize their activations. What trees learned of both is
// taken for the product alone, with an interval as a ratio has.
void doubt_product_alone(Estimate& estimate, const Features& features, Steps& steps) {
  if (features.measured_share == 1) return;
  scale(estimate, 1, features.measured_share);
  if (steps.on()) steps.add("product_share", features.measured_share, "of what was measured: product and quantization");
}

std::size_t product_feature(std::string_view name) {
  const auto names = shape_features(Predictor::kGemm);
  const auto found = std::ranges::find(names, name);
  NS_EXPECTS(found != names.end());
  return static_cast<std::size_t>(found - names.begin());
}

// A product's features in a burst differ from those in long runs by their mode, by what L2 holds, by their base, which
// trees do not see, and in fp16 by the engine's layers, in which its bursts were timed (predictors/gemm.cc).
Features in_long_runs(Features burst) {
  static const std::size_t mode = product_feature("sustained"), layers = product_feature("variant"),
                           resident = product_feature("resident");
  burst.values[mode] = 1, burst.values[layers] = 0, burst.values[resident] = 0;
  return burst;
}

AnalyticModel in_bursts(Machine machine) {
  machine.mode = Mode::kBurst;
  return AnalyticModel(std::move(machine));
}

}  // namespace

LearnedModel::LearnedModel(const AnalyticModel& analytic, std::shared_ptr<const KernelWeights> weights)
    : analytic_(analytic), bursts_(in_bursts(analytic.machine())), weights_(std::move(weights)) {}

const PredictorWeights* LearnedModel::weights_of(Predictor predictor) const {
  if (!weights_) return standard_weights(predictor);
  const auto& own = weights_->predictors[static_cast<std::size_t>(predictor)];
  return own ? &*own : nullptr;
}

const ReferenceGpu& LearnedModel::reference_of(Predictor predictor, const PredictorWeights& weights) const {
  LazyReference& lazy = references_[static_cast<std::size_t>(predictor)];
  std::call_once(lazy.once, [&] {
    lazy.gpu = reference_gpu(weights, machine());
    const auto scaled_from = [&](const Machine& sold, const Pace& pace) {
      // Of another vendor or architecture it runs other kernels.
      if (sold.gpu.vendor != machine().gpu.vendor || sold.gpu.architecture != machine().gpu.architecture) return;
      lazy.scaled_from.emplace(sold), lazy.scaled_from_bursts.emplace(in_bursts(sold)), lazy.pace = pace;
    };
    if (lazy.gpu.sold) {
      scaled_from(lazy.gpu.sold->machine, lazy.gpu.sold->pace);
    } else if (lazy.gpu.nearest && lazy.gpu.nearest->itself) {
      scaled_from(lazy.gpu.nearest->machine, lazy.gpu.nearest->pace);
    }
  });
  return lazy.gpu;
}

double LearnedModel::ratio_by_physics(const Operator& op, const Operator& measured, const Query& query) const {
  const LazyReference& reference = references_[static_cast<std::size_t>(query.predictor)];
  const AnalyticModel& physics = physics_of(query);
  // Within the bounds of the scaling, as the estimate of `measured` is: otherwise a larger L2, which makes `measured`
  // faster by physics and not by measurements, makes `op` slower.
  const auto seconds = [&](const Operator& one) {
    const double here = physics.seconds(one);
    const auto& other = query.only_bursts ? reference.scaled_from_bursts : reference.scaled_from;
    if (!other || !(other->machine().gpu.matrix_peak(one.dtype) > FlopsPerSecond())) return here;
    const double there = other->seconds(one);
    return std::clamp(here, there * reference.pace.least, there * reference.pace.most);
  };
  return seconds(op) / seconds(measured);
}

Operator LearnedModel::measured_like(const Operator& op) const {
  if (const auto* gemm = std::get_if<Gemm>(&op.kind); gemm != nullptr && measured_alone(op)) {
    // Only products of two matrices were measured: a batch is one product with all rows.
    Gemm plain = *gemm;
    plain.epilogue = Epilogue::kNone;
    if (gemm->batch > 1) {
      plain.batch = 1;
      plain.m = measured_rows(rows_of(op), gemm->m);
    }
    return {plain, op.dtype};
  }
  if (const auto* grouped = std::get_if<GroupedGemm>(&op.kind); grouped != nullptr && measured_alone(op)) {
    return {Gemm{.m = measured_rows(rows_of(op), 1), .n = grouped->n, .k = grouped->k, .scaling = grouped->scaling},
            op.dtype};
  }
  if (const auto* attention = std::get_if<Attention>(&op.kind)) {
    Attention like = *attention;
    like.library = library_of(*attention, machine().gpu);
    if (like.library == Library::kEager || like.library == Library::kCompiled) return {like, op.dtype};
    if (predictor_of({like, op.dtype}, machine().gpu, machine().mode)) return {like, op.dtype};
    const DType half = op.dtype == DType::kFp8 ? DType::kBf16 : op.dtype;
    if (half != op.dtype && predictor_of({like, half}, machine().gpu, machine().mode)) return {like, half};
    like.pass = Pass::kForward;
    return {like, half};
  }
  return op;
}

std::optional<Estimate> LearnedModel::answer(const Operator& op, const Operator& measured, const Query& query,
                                             const Roofline& roofline, Steps& steps) const {
  std::optional<Estimate> estimate = this->estimate(measured, query, steps);
  if (!estimate) return std::nullopt;
  const auto* gemm = std::get_if<Gemm>(&op.kind);
  const auto* attention = std::get_if<Attention>(&op.kind);
  // From one kernel to another one; the source of the forecast stays the first one's.
  const auto derive = [&](const Operator& from, const Operator& like, double work, std::string_view how) {
    double ratio = ratio_by_physics(like, from, query);
    if (std::holds_alternative<GroupedGemm>(like.kind) && ratio > 1) {
      // Few rows for each expert: weights bound the experts, not products, and what was learned of the product holds
      // for the product's share of the time. Otherwise more rows would take less time.
      ratio *= std::pow(physics_of(query).seconds(from) / estimate->seconds, 1 - 1 / ratio);
    } else if (like.dtype != from.dtype) {
      // 8 bits change how long products take, nothing else; these take twice their time at peak at most. Where half
      // precision is faster, operands are cast to it.
      const double products = 2 * analytic_.roofline_of(from, work_of(from)).compute;
      ratio = 1 - std::max(0.0, 1 - ratio) * std::min(1.0, products / estimate->seconds);
    }
    scale(*estimate, ratio, work);
    if (steps.on()) steps.add("derived", ratio, how);
  };
  if (gemm != nullptr && measured_alone(op)) {
    if (gemm->batch > 1) {
      Gemm batched = *gemm;
      batched.epilogue = Epilogue::kNone;
      derive(measured, {batched, op.dtype}, rows_of(op) / static_cast<double>(std::get<Gemm>(measured.kind).m),
             "from one product to the batch by tiles and waves");
      estimate->bound = analytic_.bound_of(roofline, estimate->seconds);
    }
    doubt_product_alone(*estimate, query.features, steps);
    const double all = streamed_product(machine(), d(gemm->batch), d(gemm->m), d(gemm->n), d(gemm->k), op.dtype);
    const bool in_bursts = query.only_bursts || op.dtype == DType::kFp8;
    if (machine().mode == Mode::kSustained && in_bursts && all > estimate->seconds) {
      estimate->high *= all / estimate->seconds, estimate->seconds = all;
      if (steps.on()) steps.add("streamed_s", all, "long runs find nothing in L2, as the measured bursts do");
    }
    add_epilogue(*estimate, op, roofline, steps);
  } else if (std::holds_alternative<GroupedGemm>(op.kind) && measured_alone(op)) {
    doubt_product_alone(*estimate, query.features, steps);
    derive(measured, op, rows_of(op) / static_cast<double>(std::get<Gemm>(measured.kind).m),
           "from one product to the experts by tiles and waves");
    estimate->bound = analytic_.bound_of(roofline, estimate->seconds);
  } else if (const auto* norm = std::get_if<Normalization>(&op.kind);
             norm != nullptr && query.predictor == Predictor::kNormalization) {
    const double copied = roofline.bytes / machine().achieved_bandwidth;
    if (copied > estimate->seconds) {
      estimate->seconds = copied, estimate->high = std::max(estimate->high, copied);
      if (steps.on()) steps.add("copied_s", copied, "no faster than a copy of as many bytes");
    }
  } else if (attention != nullptr &&
             (attention->pass != std::get<Attention>(measured.kind).pass || op.dtype != measured.dtype)) {
    // The pass first, then the format.
    if (attention->pass != std::get<Attention>(measured.kind).pass)
      derive(measured, {*attention, measured.dtype}, 1, "from the forward kernel to backward by published rates");
    if (op.dtype != measured.dtype)
      derive({*attention, measured.dtype}, op, 1, "from half precision to products at the rate of FP8");
  }
  return estimate;
}

// FP8 products and experts were measured in bursts alone, half-precision products on some GPUs. In long runs they slow
// down as BF16 products of their size do on the GPUs that were measured in both modes. Asked of the reference GPU, or
// of no GPU in particular, so that what a better data sheet saves stays saved.
void LearnedModel::ask_slowdown(const Operator& op, Query& query) const {
  Gemm like;
  if (const auto* moe = std::get_if<MixtureOfExperts>(&op.kind)) {
    like = {.m = moe->tokens, .n = 2 * moe->intermediate, .k = moe->hidden};
  } else if (const auto* gemm = std::get_if<Gemm>(&op.kind);
             gemm != nullptr && (op.dtype == DType::kFp8 || query.only_bursts)) {
    like = {.m = gemm->m, .n = gemm->n, .k = gemm->k};
  } else {
    return;
  }
  const PredictorWeights* const weights = weights_of(Predictor::kGemm);
  if (weights == nullptr) return;
  const ReferenceGpu& reference = reference_of(Predictor::kGemm, *weights);
  const auto& nearest = reference.nearest;
  const Machine& one = !nearest                            ? reference.known
                       : nearest->neighbor.same_generation ? nearest->machine
                                                           : common_machine(Mode::kSustained);
  const Operator product{like, one.gpu.tensor[DType::kBf16] > FlopsPerSecond() ? DType::kBf16 : DType::kFp16};
  query.slowdown_of_others =
      query.only_bursts ||
      only_in_bursts(*weights, Predictor::kGemm, reference, kernel_class(Predictor::kGemm, product, Mode::kSustained));
  const bool same = query.only_bursts && reference.measured && one.peak(op.dtype) == one.peak(product.dtype);
  prepare_slowdown(query.pending, *weights, Predictor::kGemm,
                   same ? in_long_runs(query.features)
                        : features_of(Predictor::kGemm, one, product, Mode::kSustained, weights->sums));
}

bool LearnedModel::ask(const Operator& op, Query& query) const {
  const Mode mode = machine().mode;
  const auto predictor = predictor_of(op, machine().gpu, mode);
  if (!predictor) return false;
  query.weights = weights_of(*predictor);
  if (query.weights == nullptr) return false;
  query.predictor = *predictor;
  query.reference = &reference_of(*predictor, *query.weights);
  query.kernel_class = kernel_class(*predictor, op, mode);
  query.only_bursts = only_in_bursts(*query.weights, *predictor, *query.reference, query.kernel_class);
  query.features =
      features_of(*predictor, query.reference->known, op, query.only_bursts ? Mode::kBurst : mode, query.weights->sums);
  const Case one{*query.weights,     *predictor,       op, mode, query.features, *query.reference,
                 query.kernel_class, query.only_bursts};
  query.source = &source_for(one);
  query.method = query.source->method(one);
  query.pending = {};
  query.source->prepare(one, query.pending);
  const auto& nearest = query.reference->nearest;
  if (nearest && nearest->machine.gpu.vendor != machine().gpu.vendor) {
    query.pending.widening = widened(query.pending.widening, kOtherVendor);
    query.pending.outside = true;
  }
  if (!query.reference->measured && on_tensor_units(op)) query.pending.doubt = machine().ceiling_doubt;
  const double limit = machine().gpu.board_power / W;
  if (machine().mode == Mode::kSustained && limit > 0) {
    prepare_power(query.pending, *query.weights, *predictor,
                  query.only_bursts ? in_long_runs(query.features) : query.features);
  }
  if (machine().mode == Mode::kSustained) ask_slowdown(op, query);
  return true;
}

std::optional<Estimate> LearnedModel::estimate(const Operator& op, const Query& query, Steps& steps) const {
  const PredictorWeights& weights = *query.weights;
  const ReferenceGpu& reference = *query.reference;
  const Correction correction = query.pending.finish();
  Estimate estimate;
  estimate.method = query.method;
  if (query.pending.measured.trees != nullptr && !reference.measured && steps.on()) {
    steps.add("nearest_gpu", reference.nearest->machine.gpu.id,
              "its measured kernels are carried over by the ratio of the physical estimates");
    steps.add("nearest_share", query.pending.share, "all measured GPUs have the rest");
  }
  if (steps.on() && reference.known.gpu.id != machine().gpu.id) {
    steps.add("measured_as", reference.known.gpu.id,
              "measured GPU that runs kernels alike: links or the size of memory differ");
  }
  if (!(correction.seconds > 0) || !std::isfinite(correction.high)) return std::nullopt;
  estimate.seconds = correction.seconds;
  estimate.low = correction.low;
  estimate.high = correction.high;
  estimate.extrapolated = correction.extrapolated;
  if (query.pending.slowdown.trees != nullptr) {
    const double factor = query.pending.slowdown_factor();
    estimate.seconds *= factor;
    // Then nothing says that this GPU slows down, nor that it does not slow down by more.
    estimate.low *= query.slowdown_of_others ? 1 : factor;
    estimate.high *= query.slowdown_of_others ? kMostSlowdown : factor;
    if (steps.on()) steps.add("sustained", factor, "as BF16 products of the size slow down in long runs");
  }
  if (op.dtype == DType::kFp32 && reference.measured) doubt_session(estimate);
  estimate.watts = query.pending.watts(machine().gpu.board_power / W);
  if (steps.on() && estimate.watts > 0) steps.add("power_w", estimate.watts, "mean board power, run again and again");
  estimate.waves = static_cast<std::int64_t>(std::min(query.features.waves, 9e18));
  estimate.tile = query.features.tile;
  estimate.bound = analytic_.bound_of(analytic_.roofline_of(op, work_of(op)), estimate.seconds);
  if (steps.on()) {
    steps.add("predictor", name_of(query.predictor));
    if (reference.measured && !was_measured(weights, *reference.measured, query.kernel_class)) {
      steps.add("kernel_class", kernel_class_name(query.predictor, query.kernel_class),
                "none of this class was measured on this GPU");
    }
    const auto shape = shape_features(query.predictor), gpu = gpu_features(query.predictor);
    for (std::size_t f = 0; f < shape.size() + gpu.size(); ++f) {
      const double value = query.features.values[f];
      steps.add(f < shape.size() ? shape[f] : gpu[f - shape.size()], value,
                f < query.pending.compared && is_outside(*query.pending.fitted, f, value)
                    ? fmt::format("feature; outside the fitted {:.4g} to {:.4g}", query.pending.fitted->low[f],
                                  query.pending.fitted->high[f])
                    : "feature");
    }
    steps.add("base_s", query.features.base, "physical estimate that the features correct");
    steps.add("correction", correction.seconds / query.features.base, estimate.method);
    if (correction.extrapolated) steps.add("extrapolated", "yes", "a feature lies outside the fitted range");
  }
  return estimate;
}

// Adds the epilogue's traffic beyond the plain product's. Tiles finish at different times, so about half of it hides
// behind other tiles' products.
void LearnedModel::add_epilogue(Estimate& estimate, const Operator& op, const Roofline& roofline, Steps& steps) const {
  const auto& gemm = std::get<Gemm>(op.kind);
  if (gemm.epilogue == Epilogue::kNone) return;
  Gemm plain = gemm;
  plain.epilogue = Epilogue::kNone;
  const Operator plain_op{plain, op.dtype};
  const double plain_bytes = analytic_.roofline_of(plain_op, work_of(plain_op)).bytes;
  const double excess = std::max(0.0, roofline.bytes - plain_bytes) / machine().achieved_bandwidth;
  estimate.seconds += kExposedEpilogue * excess;
  estimate.low += 0.2 * excess;
  estimate.high += excess;
  if (steps.on())
    steps.add("epilogue_s", kExposedEpilogue * excess, "traffic beyond the plain product, half of it hidden");
}

}  // namespace ns_dist
