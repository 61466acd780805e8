#include "learn/predictor_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "data_sheet.h"
#include "leaf_masks.h"
#include "learn/fit_sums.h"
#include "learn/grow_trees.h"
#include "learn/residuals.h"

namespace ns_dist {
namespace {

// Quantiles of a few GPUs' residuals miss the next GPU's more often than they say; with 5 % a side they held 81-91 % of
// a GPU left out that has a sibling.
constexpr double kTailElsewhere = 0.03;

class Fitter {
 public:
  Fitter(Predictor predictor, KernelSamples& data, double effort,
         std::function<void(double, std::string_view)> progress)
      : predictor_(predictor),
        samples_(data.samples[static_cast<std::size_t>(predictor)]),
        gpus_(data.gpus),
        machines_(data.machines),
        effort_(effort),
        progress_(std::move(progress)),
        shared_(shape_features(predictor).size() + gpu_features(predictor).size()) {
    std::set<std::size_t> present;
    for (const KernelSample& sample : samples_) present.insert(sample.gpu);
    present_.assign(present.begin(), present.end());
    std::sort(present_.begin(), present_.end(),
              [&](std::size_t a, std::size_t b) { return gpus_[a].id < gpus_[b].id; });
  }

  PredictorWeights fit(std::vector<KernelFitScore>& scores) {
    PredictorWeights weights;
    for (const std::size_t g : present_) weights.gpus.push_back(data_sheet_of(gpus_[g]));
    weights.rows.assign(present_.size(), 0);
    weights.kernel_classes.assign(present_.size(), 0);
    for (const KernelSample& sample : samples_) {
      ++weights.rows[index_of(sample.gpu)];
      weights.kernel_classes[index_of(sample.gpu)] |= std::uint32_t{1}
                                                      << kernel_class(predictor_, sample.work, sample.mode);
    }
    const auto seen = [](const KernelSample& sample) { return sample.shape >= kHoldOut; };

    // Measured GPUs: shapes that nothing is fitted on give the intervals and the scores.
    progress_(0.0, "measured GPUs");
    weights.sums = sums_of(seen);
    see(weights.sums);
    weights.on_measured_gpu = measured_corrector(seen);
    ByClass by_class, even, odd;  // shapes with even and odd numbers apart
    weights.measured = intervals(weights.kernel_classes, by_class);
    const std::vector<Correction> blind = forecasts_of_new_shapes(weights);
    judge([&](const KernelSample& sample) { return blind[position_of(sample)].seconds > 0; }, LeftOut::kShape,
          [&](const KernelSample& sample) { return blind[position_of(sample)]; }, scores,
          [&](const KernelSample& sample, const Correction& forecast) {
            const std::pair key{index_of(sample.gpu), kernel_class(predictor_, sample.work, sample.mode)};
            const std::pair residual{forecast.seconds, std::log(sample.seconds / forecast.seconds)};
            by_class[key].push_back(residual);
            (sample.shape % 2 == 0 ? even : odd)[key].push_back(residual);
          });
    weights.measured = intervals(weights.kernel_classes, by_class);
    set_seen_coverage(scores, weights.kernel_classes, even, odd);

    // Other GPUs: each measured GPU, and each generation of several, is left out once.
    struct Trial {
      std::set<std::size_t> out;
      LeftOut kind;
    };
    std::vector<Trial> trials;
    std::map<std::string, std::set<std::size_t>> generations;
    for (const std::size_t g : present_) {
      trials.push_back({{g}, LeftOut::kGpu});
      generations[std::string(generation_of(gpus_[g].architecture))].insert(g);
    }
    if (present_.size() == 1) trials.clear();
    for (const auto& [name, members] : generations) {
      if (members.size() > 1 && members.size() < present_.size()) trials.push_back({members, LeftOut::kGeneration});
    }
    std::map<std::size_t, Residuals> near, far;  // by GPU left out
    for (std::size_t i = 0; i < trials.size(); ++i) {
      progress_(0.3 + 0.6 * static_cast<double>(i) / static_cast<double>(trials.size()), "GPUs left out");
      elsewhere_of(trials[i].out, trials[i].kind, weights, scores, near, far);
    }
    // A GPU left out is judged by the interval that the others give.
    const auto pooled = [](const std::map<std::size_t, Residuals>& all, std::optional<std::size_t> without) {
      Residuals pool;
      for (const auto& [gpu, some] : all) {
        if (gpu != without) pool.insert(pool.end(), some.begin(), some.end());
      }
      return pool;
    };
    for (KernelFitScore& score : scores) {
      if (score.left_out == LeftOut::kShape || !score.part.empty()) continue;
      auto& side = score.left_out == LeftOut::kGpu && near.contains(gpu_named(score.gpu)) ? near : far;
      const std::size_t gpu = gpu_named(score.gpu);
      score.covered = coverage(side[gpu], quantiles_of(pooled(side.size() > 1 ? side : far, gpu), kTailElsewhere));
    }
    progress_(0.9, "other GPUs");
    weights.on_other_gpu = other_corrector(seen);
    weights.other_generation = quantiles_of(pooled(far.empty() ? near : far, std::nullopt), kTailElsewhere);
    weights.same_generation = quantiles_of(pooled(near.empty() ? far : near, std::nullopt), kTailElsewhere);
    widen_elsewhere(weights);
    weights.power = power(scores);
    weights.slowdown = slowdown(scores);
    progress_(1.0, "done");
    return weights;
  }

 private:
  using LeftOut = KernelFitScore::LeftOut;
  using ByClass = std::map<std::pair<std::size_t, std::size_t>, Residuals>;  // of each GPU and kernel class

  std::size_t gpu_named(const std::string& id) const {
    for (const std::size_t g : present_) {
      if (gpus_[g].id == id) return g;
    }
    return 0;
  }

  std::size_t index_of(std::size_t gpu) const {
    return static_cast<std::size_t>(std::find(present_.begin(), present_.end(), gpu) - present_.begin());
  }

  std::size_t position_of(const KernelSample& sample) const {
    return static_cast<std::size_t>(&sample - samples_.data());
  }

  // With few rows a tenth of the shapes says little: all rows are judged, and whole GPUs are left out with all of them.
  bool has_few_rows() const { return samples_.size() < 5000; }

  // Of each row of a measured GPU by a fit that did not see its shape; 0 s for rows that are not judged. With few rows
  // each fifth of the shapes is left out in turn, with few shapes each of them.
  std::vector<Correction> forecasts_of_new_shapes(const PredictorWeights& shipped) {
    std::vector<Correction> forecasts(samples_.size());
    const auto forecast = [&](const PredictorWeights& weights, const auto& is_new) {
      for (const KernelSample& sample : samples_) {
        if (!is_new(sample)) continue;
        const auto own_class = kernel_class(predictor_, sample.work, sample.mode);
        forecasts[position_of(sample)] = correct(weights, predictor_, sample.features, index_of(sample.gpu), own_class);
      }
    };
    if (!has_few_rows()) {
      forecast(shipped, [](const KernelSample& sample) { return sample.shape < kHoldOut; });
      return forecasts;
    }
    std::set<std::uint64_t> shapes;
    for (const KernelSample& sample : samples_) shapes.insert(sample.shape);
    const std::uint64_t folds = shapes.size() < 20 ? 1000 : 5;  // of 1000 shapes, see shape_number
    PredictorWeights weights = shipped;
    for (std::uint64_t fold = 0; fold < folds; ++fold) {
      const auto is_new = [&](const KernelSample& sample) { return sample.shape % folds == fold; };
      if (std::none_of(samples_.begin(), samples_.end(), is_new)) continue;
      const auto keep = [&](const KernelSample& sample) { return !is_new(sample); };
      weights.sums = sums_of(keep);
      see(weights.sums);
      weights.on_measured_gpu = measured_corrector(keep);
      forecast(weights, is_new);
    }
    see(shipped.sums);
    return forecasts;
  }

  // Fits without the GPUs of `out`, on half of the shapes, and forecasts theirs from their data sheets alone.
  void elsewhere_of(const std::set<std::size_t>& out, LeftOut kind, const PredictorWeights& names,
                    std::vector<KernelFitScore>& scores, std::map<std::size_t, Residuals>& near,
                    std::map<std::size_t, Residuals>& far) {
    const bool all = has_few_rows();
    const auto keep = [&](const KernelSample& sample) {
      return !out.contains(sample.gpu) && (all || sample.shape % 2 == 0);
    };
    if (std::count_if(samples_.begin(), samples_.end(), keep) < kFewestSamples) return;
    PredictorWeights blind;
    blind.gpus = names.gpus;
    blind.sums = sums_of(keep);
    see(blind.sums);
    blind.on_measured_gpu = measured_corrector(keep);
    blind.on_sibling = trees_for_siblings(blind.on_measured_gpu);
    blind.on_other_gpu = other_corrector(keep);
    std::vector<Machine> machines;
    std::vector<std::size_t> indices;
    for (const std::size_t g : present_) {
      if (out.contains(g) || !teaches_others(names, index_of(g))) continue;
      machines.push_back(machines_[g][0]), indices.push_back(g);
    }
    for (const std::size_t g : out) {
      const auto nearest = neighbor_of(machines_[g][0], machines);
      const bool same_generation = nearest && nearest->same_generation;
      const std::size_t other = nearest ? indices[nearest->index] : g;
      const Pace pace = pace_of(machines_[g][0], machines_[other][0]);
      const auto forecast = [&](const KernelSample& sample) {
        std::optional<ReferenceFeatures> neighbor;
        const std::size_t own_class = kernel_class(predictor_, sample.work, sample.mode);
        if (carries_over(predictor_, false, same_generation) &&
            predictor_of(sample.work, gpus_[other], sample.mode) == predictor_ &&
            was_measured(names, index_of(other), own_class)) {
          const Machine& machine = machines_[other][sample.mode == Mode::kBurst ? 0 : 1];
          neighbor = {
              {features_of(predictor_, machine, sample.work, sample.mode, blind.sums), pace}, index_of(other), false};
        }
        return correct(blind, predictor_, sample.features, neighbor, common_features(sample), same_generation);
      };
      Residuals own;
      judge([&](const KernelSample& sample) { return sample.gpu == g && (all || sample.shape % 4 == 1); }, kind,
            forecast, scores,
            [&](const KernelSample& sample, const Correction& blindly) {
              own.push_back({blindly.seconds, std::log(sample.seconds / blindly.seconds) / blindly.widening});
            });
      (same_generation ? near : far)[g] = std::move(own);
    }
    see(names.sums);
  }

  // Rows that hold more than a kernel have a class of their own as if of another GPU: they are judged by it, and no
  // forecast asks for it.
  Machine machine_of(const KernelSample& sample) const {
    Machine machine = machines_[sample.gpu][sample.mode == Mode::kBurst ? 0 : 1];
    if (sample.holds_more) machine.gpu.id += " through PyTorch";
    return machine;
  }

  // Coefficients of a base that is a sum.
  template <class Keep>
  Sums sums_of(const Keep& keep) const {
    const SumKind* const kind = kind_of(predictor_).sum;
    if (kind == nullptr) return {};
    std::vector<MeasuredSum> rows;
    for (const KernelSample& sample : samples_) {
      if (!keep(sample)) continue;
      const double seconds = kind->sum_of == nullptr ? sample.seconds : kind->sum_of(sample.work, sample.seconds);
      rows.push_back({kind->of(machine_of(sample), sample.work), seconds});
    }
    return fit_sums(*kind, rows);
  }

  // From here on all samples are seen with these coefficients.
  void see(const Sums& sums) {
    if (kind_of(predictor_).sum == nullptr) return;
    for (KernelSample& sample : samples_) {
      sample.see(features_of(predictor_, machine_of(sample), sample.work, sample.mode, sums));
    }
  }

  // Each kernel class of a GPU has an interval of its own; a class with few residuals takes its GPU's.
  static std::vector<Quantiles> intervals(const std::vector<std::uint32_t>& classes, const ByClass& residuals) {
    constexpr std::size_t kEnough = 100;
    std::vector<Quantiles> all;
    for (std::size_t g = 0; g < classes.size(); ++g) {
      Residuals pool;
      for (const auto& [key, some] : residuals) {
        if (key.first == g) pool.insert(pool.end(), some.begin(), some.end());
      }
      for (std::size_t c = 0; c < kKernelClasses; ++c) {
        if ((classes[g] >> c & 1U) == 0) continue;
        const auto own = residuals.find({g, c});
        all.push_back(quantiles_of(own != residuals.end() && own->second.size() >= kEnough ? own->second : pool));
      }
    }
    return all;
  }

  // One half of the held-out shapes sets intervals, the other half says how often they hold.
  void set_seen_coverage(std::vector<KernelFitScore>& scores, const std::vector<std::uint32_t>& classes,
                         const ByClass& first, ByClass& second) const {
    const std::vector<Quantiles> all = intervals(classes, first);
    for (std::size_t g = 0, next = 0; g < classes.size(); ++g) {
      double inside = 0, rows = 0;
      for (std::size_t c = 0; c < kKernelClasses; ++c) {
        if ((classes[g] >> c & 1U) == 0) continue;
        const Residuals& judged = second[{g, c}];
        inside += coverage(judged, all[next++]) * static_cast<double>(judged.size());
        rows += static_cast<double>(judged.size());
      }
      for (KernelFitScore& score : scores) {
        if (score.gpu == gpus_[present_[g]].id && score.part.empty()) score.covered = inside / std::max(1.0, rows);
      }
    }
  }

  std::vector<float> input(const KernelSample& sample, bool with_gpu) const {
    std::vector<float> values;
    for (std::size_t f = 0; f < shared_; ++f) values.push_back(static_cast<float>(sample.features.values[f]));
    if (with_gpu) {
      for (const std::size_t g : present_) values.push_back(g == sample.gpu ? 1.0F : 0.0F);
    }
    return values;
  }

  template <class Keep>
  TrainingRows rows(const Keep& keep, bool with_gpu) const {
    TrainingRows out;
    out.width = shared_ + (with_gpu ? present_.size() : 0);
    for (const KernelSample& sample : samples_) {
      if (!keep(sample)) continue;
      const std::vector<float> values = input(sample, with_gpu);
      out.features.insert(out.features.end(), values.begin(), values.end());
      out.targets.push_back(sample.target), out.weights.push_back(sample.weight);
    }
    return out;
  }

  static void set_range(Corrector& corrector, const TrainingRows& rows) {
    corrector.low.assign(rows.width, 0), corrector.high.assign(rows.width, 0);
    for (std::size_t f = 0; f < rows.width; ++f) {
      float low = rows.features[f], high = low;
      for (std::size_t r = 1; r < rows.size(); ++r) {
        low = std::min(low, rows.features[r * rows.width + f]),
        high = std::max(high, rows.features[r * rows.width + f]);
      }
      corrector.low[f] = low, corrector.high[f] = high;
    }
  }

  std::size_t scaled(std::size_t count) const {
    return std::max<std::size_t>(4, static_cast<std::size_t>(static_cast<double>(count) * effort_));
  }

  template <class Keep>
  Corrector measured_corrector(const Keep& keep) const {
    const Capacity capacity = kind_of(predictor_).capacity;
    const TrainingRows training = rows(keep, true);
    Corrector corrector;
    set_range(corrector, training);
    TreeOptions options;
    options.trees = scaled(capacity.known_trees), options.leaves = capacity.known_leaves,
    options.rate = capacity.known_rate;
    options.ridge = 1, options.huber = 0.05;
    corrector.trees = grow_trees(training, options);
    return corrector;
  }

  // Board power of sustained kernels.
  Corrector power(std::vector<KernelFitScore>& scores) const {
    return of_all_gpus(
        "power", [](const KernelSample& sample) { return sample.power; }, 0.0, scores);
  }

  // Long runs over bursts of the same product and GPU. Rows with a power reading are long runs; those timed inside
  // running layers stand for both modes and say nothing.
  Corrector slowdown(std::vector<KernelFitScore>& scores) const {
    if (predictor_ != Predictor::kGemm) return {};
    const auto product_of = [](const KernelSample& sample) {
      const Gemm& gemm = std::get<Gemm>(sample.work.kind);
      return std::tuple{sample.gpu, sample.work.dtype, gemm.m, gemm.n, gemm.k};
    };
    std::map<std::tuple<std::size_t, DType, std::int64_t, std::int64_t, std::int64_t>, double> bursts;
    for (const KernelSample& sample : samples_) {
      if (sample.mode == Mode::kBurst) bursts[product_of(sample)] = sample.seconds;
    }
    const auto slower = [&](const KernelSample& sample) -> std::optional<float> {
      if (!sample.power) return std::nullopt;
      const auto burst = bursts.find(product_of(sample));
      if (burst == bursts.end()) return std::nullopt;
      return static_cast<float>(std::log(sample.seconds / burst->second));
    };
    return of_all_gpus("slowdown", slower, std::numeric_limits<double>::infinity(), scores);
  }

  // Of the same features without the GPU's name, the logarithm that `target_of` knows of some rows, at most `highest`.
  template <class Target>
  Corrector of_all_gpus(std::string_view what, const Target& target_of, double highest,
                        std::vector<KernelFitScore>& scores) const {
    Corrector corrector;
    TrainingRows training =
        rows([&](const KernelSample& sample) { return sample.shape >= kHoldOut && target_of(sample); }, false);
    if (training.size() < 1000) return corrector;
    training.targets.clear();
    for (const KernelSample& sample : samples_) {
      const std::optional<float> target = sample.shape >= kHoldOut ? target_of(sample) : std::nullopt;
      if (target) training.targets.push_back(*target);
    }
    set_range(corrector, training);
    TreeOptions options;
    options.trees = scaled(80), options.leaves = 64, options.rate = 0.15, options.ridge = 1, options.huber = 0.05;
    corrector.trees = grow_trees(training, options);
    for (const std::size_t g : present_) {
      std::vector<double> errors;
      for (const KernelSample& sample : samples_) {
        const auto target = sample.gpu == g && sample.shape < kHoldOut ? target_of(sample) : std::nullopt;
        if (!target) continue;
        const std::vector<float> values = input(sample, false);
        const std::vector<double> x(values.begin(), values.end());
        errors.push_back(
            std::exp(std::min(highest, corrector.trees.evaluate(x.data())) - static_cast<double>(*target)) - 1);
      }
      if (errors.empty()) continue;
      KernelFitScore score;
      score.predictor = fmt::format("{} {}", name_of(predictor_), what), score.gpu = gpus_[g].id;
      score.errors = figures_of(std::move(errors));
      scores.push_back(score);
    }
    return corrector;
  }

  // What trees over all GPUs see.
  Features common_features(const KernelSample& sample) const {
    if (kind_of(predictor_).capacity.elsewhere != Elsewhere::kOperatorAlone) return sample.features;
    return features_alone(predictor_, sample.work, sample.mode);
  }

  // What all GPUs have in common: few small trees with many rows in a leaf, that see the shape alone and count each GPU
  // alike. They carry over better than a network that sees ratios of the data sheets, too, and than trees that see
  // these or how tensor units are fed (docs/models/kernels.md).
  template <class Keep>
  Corrector other_corrector(const Keep& keep) const {
    TrainingRows training = rows(keep, false);
    Corrector corrector;
    set_range(corrector, training);
    const Elsewhere elsewhere = kind_of(predictor_).capacity.elsewhere;
    if (elsewhere == Elsewhere::kSibling || elsewhere == Elsewhere::kPhysics) return corrector;
    std::map<std::size_t, double> of_gpu;
    auto next = training.features.begin();
    for (const KernelSample& sample : samples_) {
      if (!keep(sample)) continue;
      ++of_gpu[sample.gpu];
      const Features common = common_features(sample);
      next = std::transform(common.values.begin(), common.values.begin() + static_cast<std::ptrdiff_t>(training.width),
                            next, [](double value) { return static_cast<float>(value); });
    }
    std::size_t row = 0;
    for (const KernelSample& sample : samples_) {
      if (!keep(sample)) continue;
      const double even = static_cast<double>(training.size()) / static_cast<double>(of_gpu.size());
      training.weights[row++] *= static_cast<float>(even / of_gpu[sample.gpu]);
    }
    TreeOptions options;
    options.trees = scaled(80), options.leaves = LeafMasks::kMostLeaves, options.rate = 0.2;
    options.ridge = 1, options.huber = 0.05, options.smallest = 300;
    options.inputs = shape_features(predictor_).size();
    corrector.trees = grow_trees(training, options);
    return corrector;
  }

  // A GPU that was not measured is forecast with no more certainty, to neither side, than the most certain measured
  // one: the few GPUs of a library may all err to one side. Widens what is narrower.
  static void widen_elsewhere(PredictorWeights& weights) {
    for (std::size_t side = 0; side < 2 * kErrorGroups; ++side) {
      float least = 4;
      for (const Quantiles& measured : weights.measured) least = std::min(least, std::abs(measured[side]));
      for (Quantiles* quantiles : {&weights.same_generation, &weights.other_generation}) {
        float& bound = (*quantiles)[side];
        if (std::abs(bound) < least) bound = std::copysign(least, bound);
      }
    }
  }

  // `tell` hears each row's forecast.
  template <class Keep, class Forecast, class Tell>
  void judge(const Keep& keep, LeftOut kind, const Forecast& forecast_of, std::vector<KernelFitScore>& scores,
             const Tell& tell) const {
    for (const std::size_t g : present_) {
      Errors all, large, in_layers;
      std::map<std::size_t, Errors> of_class;  // where a predictor has so few rows that the card can tell each
      for (const KernelSample& sample : samples_) {
        if (sample.gpu != g || !keep(sample)) continue;
        const Correction correction = forecast_of(sample);
        const double forecast = correction.seconds;
        tell(sample, correction);
        all.add(forecast, sample);
        if (has_few_rows()) of_class[kernel_class(predictor_, sample.work, sample.mode)].add(forecast, sample);
        const auto* gemm = std::get_if<Gemm>(&sample.work.kind);
        const bool is_large = gemm != nullptr && std::min({gemm->m, gemm->n, gemm->k}) >= 512;
        if (!is_large || sample.mode != Mode::kBurst) continue;
        (sample.work.dtype == DType::kFp16 ? in_layers : large).add(forecast, sample);
      }
      KernelFitScore score;
      score.predictor = name_of(predictor_), score.gpu = gpus_[g].id, score.left_out = kind;
      all.report(score, scores);
      score.part = "m, n, k >= 512, burst";
      large.report(score, scores);
      score.part = "m, n, k >= 512, fp16, in layers of an inference engine";
      in_layers.report(score, scores);
      if (of_class.size() < 2) continue;
      for (const auto& [number, errors] : of_class) {
        score.part = kernel_class_name(predictor_, number);
        errors.report(score, scores);
      }
    }
  }

  // Of forecasts, and what a constant share of the roofline would have made of the same rows.
  struct Errors {
    std::vector<double> errors, shares;

    void add(double forecast, const KernelSample& sample) {
      errors.push_back(forecast / sample.seconds - 1), shares.push_back(sample.floor / sample.seconds);
    }
    void report(KernelFitScore score, std::vector<KernelFitScore>& scores) const {
      if (errors.empty()) return;
      score.errors = figures_of(errors);
      std::vector<double> ordered = shares;
      std::sort(ordered.begin(), ordered.end());
      const double constant = ordered[ordered.size() / 2];
      for (const double share : shares) {
        score.roofline += std::abs(share / constant - 1) / static_cast<double>(shares.size());
      }
      scores.push_back(std::move(score));
    }
  };

  Predictor predictor_;
  std::vector<KernelSample>& samples_;
  const std::vector<Gpu>& gpus_;
  const std::vector<std::array<Machine, 2>>& machines_;
  double effort_;
  std::function<void(double, std::string_view)> progress_;
  std::size_t shared_;
  std::vector<std::size_t> present_;
};

}  // namespace

PredictorWeights fit_predictor(Predictor predictor, KernelSamples& samples, double effort,
                               const std::function<void(double, std::string_view)>& progress,
                               std::vector<KernelFitScore>& scores) {
  return Fitter(predictor, samples, effort, progress).fit(scores);
}

}  // namespace ns_dist
