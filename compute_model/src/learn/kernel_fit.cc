#include "ns_dist/kernel_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <mutex>
#include <numeric>
#include <set>
#include <tuple>

#include "data_sheet.h"
#include "leaf_masks.h"
#include "learn/fit_sums.h"
#include "learn/grow_trees.h"
#include "ns_dist/internal/threads.h"
#include "ns_dist/kernel_table.h"
#include "predictors/predictor.h"
#include "weights_file.h"

namespace ns_dist {
namespace {

struct Table {
  std::string_view name;
  bool burst, sustained;
  // Rows that tell something else than how long the kernel takes on such a GPU; null: none.
  bool (*is_unfit)(const KernelRow&) = nullptr;
  // Rows that hold what a framework does around the kernel, too; null: none.
  bool (*holds_more)(const KernelRow&) = nullptr;
  // Of several rows of one kernel the fastest is fitted: the newest version, and not one that fell back to another
  // number format.
  bool fastest = false;
};

// Through PyTorch: what a step with another framework does not do is a part of the time.
bool ran_through_pytorch(const KernelRow& row) {
  return row.framework.starts_with("torch-") || row.framework == "flash2" || row.gpu == "b200-sxm";
}

// Transformer Engine's rows on B200 are of a machine that reaches two thirds of what others do. Below 1.5 ms PyTorch's
// host is part of what was timed, and on B200 all rows ran so.
bool is_unfit_attention(const KernelRow& row) {
  if (row.framework.ends_with("strided")) return true;
  if (row.framework.starts_with("te-")) {  // its forward kernels on A100 are those of another table
    const auto* attention = std::get_if<Attention>(&row.work.kind);
    return row.gpu != "a100-pcie-80gb" || *row.latency_ms < 1.5 || attention == nullptr ||
           attention->pass == Pass::kForward;
  }
  return ran_through_pytorch(row) && *row.latency_ms < 1.5;
}

// Transformer Engine's rows on B200 are of the same machine. Sums in fp32 that a weight gradient is added to are an
// epilogue, which is forecast beside the product.
bool is_unfit_product(const KernelRow& row) {
  const auto* gemm = std::get_if<Gemm>(&row.work.kind);
  return row.gpu == "b200-sxm" || gemm == nullptr || gemm->epilogue != Epilogue::kNone;
}

// Burst: single launches at full clocks. fp16_layer_ops were timed inside running layers; they count as both.
constexpr std::array<Table, 28> kTables = {{
    {"bf16_gemm", true, false},
    {"bf16_gemm_sustained", false, true},
    {"fp8_gemm", true, false},
    {"bf16_attention", true, false},
    {"bf16_moe", true, false},
    {"fp16_layer_ops", true, true},
    {"fp32_train_linear", true, false},
    {"fp32_train_bmm", true, false},
    {"fp32_train_elementwise", true, false},
    {"fp32_train_softmax", true, false},
    {"fp32_train_layernorm", true, false},
    {"fp32_train_conv", true, false},
    {"fp32_train_elementwise_amd", true, false},
    {"fp32_train_softmax_amd", true, false},
    {"fp32_train_layernorm_amd", true, false},
    {"fp32_test_linear", true, false},
    {"fp32_test_bmm", true, false},
    {"fp32_test_elementwise", true, false},
    {"fp32_test_softmax", true, false},
    {"fp32_test_layernorm", true, false},
    {"fp32_test_linear_amd", true, false},
    {"fp32_test_bmm_amd", true, false},
    {"fp32_test_conv", true, false},
    {"fp32_train_linear_amd", true, false},
    {"attention", true, true, is_unfit_attention, ran_through_pytorch, true},
    {"norms", true, true},
    {"gemm_layouts", true, true, is_unfit_product},
    {"products_burst", true, false},
}};

// What `fit` looks through for a table, below the folder that it is given.
constexpr std::array<std::string_view, 3> kFolders = {"", "kernels", "kernels_training"};

// The library that the row's `default` stands for.
void resolve_library(Operator& op, const Gpu& gpu) {
  if (auto* attention = std::get_if<Attention>(&op.kind)) attention->library = library_of(*attention, gpu);
  if (auto* norm = std::get_if<Normalization>(&op.kind)) norm->library = library_of(*norm);
}

struct Sample {
  Operator work;
  Mode mode = Mode::kBurst;
  Features features;
  std::size_t gpu = 0;
  float target = 0, weight = 1;
  std::optional<float> power;  // ln(board power / limit)
  double seconds = 0, floor = 0;
  std::uint64_t shape = 0;
  bool holds_more = false;  // what a framework does around the kernel

  void see(const Features& now) {
    features = now;
    target = static_cast<float>(std::log(seconds / features.base));
  }
};

// Of 1000 shapes: never fitted on, so that errors on them are honest with the shipped weights, too.
constexpr std::uint64_t kHoldOut = 100;

constexpr std::ptrdiff_t kFewestSamples = 100;  // rows that a predictor is fitted on

// Quantiles of a few GPUs' residuals miss the next GPU's more often than they say; with 5 % a side they held 81-91 % of
// a GPU left out that has a sibling.
constexpr double kTailElsewhere = 0.03;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15U + (hash << 6) + (hash >> 2);
  hash ^= hash >> 33, hash *= 0xff51afd7ed558ccdU, hash ^= hash >> 33;
  return hash;
}

// The same shape on every GPU, in every mode and in every number format has the same number, whatever is done with it:
// `add` and `mul` of as many elements are one kernel to the features. So held-out shapes were seen nowhere.
std::uint64_t shape_of(const Operator& op) {
  Operator shape = op;
  shape.dtype = DType::kBf16;
  if (auto* gemm = std::get_if<Gemm>(&shape.kind)) {
    *gemm = Gemm{.batch = gemm->batch, .m = gemm->m, .n = gemm->n, .k = gemm->k};
  } else if (auto* pointwise = std::get_if<Elementwise>(&shape.kind)) {
    *pointwise = Elementwise{.elements = pointwise->elements};
  } else if (auto* norm = std::get_if<Normalization>(&shape.kind)) {
    *norm = Normalization{.rows = norm->rows, .columns = norm->columns};
  } else if (auto* attention = std::get_if<Attention>(&shape.kind)) {
    attention->pass = Pass::kForward, attention->library = Library::kDefault;
    attention->deterministic = false, attention->scaling = Scaling::kTensor;
  }
  std::uint64_t hash = shape.kind.index();
  for (const char c : to_text(shape)) hash = mix(hash, static_cast<unsigned char>(c));
  return hash % 1000;
}

struct Data {
  std::vector<Gpu> gpus;
  std::vector<std::array<Machine, 2>> machines;  // burst, sustained
  std::array<std::vector<Sample>, kPredictorCount> samples;
  std::vector<std::string> tables;
  std::uint64_t hash = 14695981039346656037U;        // FNV-1a
  std::size_t flagged = 0, of_other_frameworks = 0;  // rows left out
};

bool contains(const std::vector<std::string>& list, std::string_view text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

Error excluded_nothing(std::string flag, const std::string& name, const Data& data) {
  std::set<std::string> there;
  for (const Gpu& gpu : data.gpus) there.insert(gpu.id), there.insert(gpu.architecture);
  Error error;
  error.message = "no row of " + name + " in these tables";
  error.where = std::move(flag);
  error.expected = fmt::format("one of {}", fmt::join(there, ", "));
  error.hint = "leave the flag out, or check its spelling";
  return error;
}

std::string places_of(const KernelFitOptions& options) {
  std::vector<std::string> places;
  for (const std::filesystem::path& folder : options.data) places.push_back(folder.string());
  return fmt::format("{}", fmt::join(places, ", "));
}

Error too_few_rows(const KernelFitOptions& options, std::string_view predictor) {
  return {ErrorCode::kInvalidInput,
          fmt::format("too few rows to fit {}", predictor),
          places_of(options),
          fmt::format("at least {} measured kernels", 2 * kFewestSamples),
          "measure more, or correct the shipped weights with ns-dist calibrate",
          {}};
}

Result<Data> read_data(const KernelFitOptions& options, const std::function<Result<Gpu>(std::string_view)>& gpu_of,
                       const std::function<void(double, std::string_view)>& progress) {
  Data data;
  std::vector<std::array<Machine, 2>>& machines = data.machines;
  std::map<std::string, std::size_t, std::less<>> ids;  // as tables write them
  std::set<std::string, std::less<>> excluded;          // ids
  for (const std::string& name : options.exclude_gpus) {
    NS_TRY(const Gpu gpu, gpu_of(name));
    excluded.insert(gpu.id);
  }
  std::set<std::string, std::less<>> left_out;  // GPUs and generations that rows were left out of
  for (const Table& entry : kTables) {
    const auto named = [&](const std::string& prefix) { return entry.name.starts_with(prefix); };
    if (std::any_of(options.exclude_tables.begin(), options.exclude_tables.end(), named)) continue;
    if (!options.tables.empty() && std::none_of(options.tables.begin(), options.tables.end(), named)) continue;
    std::filesystem::path path;
    for (const std::filesystem::path& data_folder : options.data) {
      for (const std::string_view folder : kFolders) {
        if (path.empty()) path = table_path(data_folder / folder, entry.name);
      }
    }
    if (path.empty()) continue;
    NS_TRY(const CsvTable table, CsvTable::read(path));
    if (progress) progress(0, "reading " + std::string(entry.name));
    // Tables without a row for the wanted predictors leave no trace.
    bool used = false;
    std::size_t flagged = 0, others = 0;
    std::uint64_t hash = data.hash;
    const KernelReader reader(table);
    const PreferredFrameworks preferred(table, options.prefer_frameworks);
    for (std::size_t i = 0; i < table.row_count(); ++i) {
      for (const char c : table.text(i)) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
      NS_TRY(KernelRow row, reader.row(i));
      if (!row.latency_ms) continue;
      if (entry.is_unfit != nullptr && entry.is_unfit(row)) row.doubtful = true;
      if (row.doubtful) ++flagged;
      const bool other = preferred.passes_over(row);
      if (other) ++others;
      if (row.doubtful || other) continue;
      auto found = ids.find(row.gpu);
      if (found == ids.end()) {
        NS_TRY(Gpu gpu, gpu_of(row.gpu));
        const auto known =
            std::find_if(data.gpus.begin(), data.gpus.end(), [&](const Gpu& one) { return one.id == gpu.id; });
        found = ids.emplace(std::string(row.gpu), static_cast<std::size_t>(known - data.gpus.begin())).first;
        if (known == data.gpus.end()) {
          NS_TRY(Machine burst, make_machine(gpu, Mode::kBurst));
          NS_TRY(Machine sustained, make_machine(gpu, Mode::kSustained));
          data.gpus.push_back(std::move(gpu));
          machines.push_back({std::move(burst), std::move(sustained)});
        }
      }
      const std::size_t g = found->second;
      const Gpu& gpu = data.gpus[g];
      if (excluded.contains(gpu.id)) {
        left_out.insert(gpu.id);
        continue;
      }
      const auto generation = std::find_if(
          options.exclude_generations.begin(), options.exclude_generations.end(),
          [&](const std::string& name) { return name == gpu.architecture || name == generation_of(gpu.architecture); });
      if (generation != options.exclude_generations.end()) {
        left_out.insert(*generation);
        continue;
      }
      for (const Mode mode : {Mode::kBurst, Mode::kSustained}) {
        if (mode == Mode::kBurst ? !entry.burst : !entry.sustained) continue;
        const auto predictor = predictor_of(row.work, data.gpus[g], mode);
        if (!predictor) continue;
        if (!options.predictors.empty() && !contains(options.predictors, name_of(*predictor))) continue;
        const Machine& machine = machines[g][mode == Mode::kBurst ? 0 : 1];
        Sample sample;
        sample.work = row.work, sample.mode = mode;
        resolve_library(sample.work, data.gpus[g]);
        sample.gpu = g;
        sample.seconds = *row.latency_ms * 1e-3;
        sample.see(features_of(*predictor, machine, sample.work, mode, {}));
        // Kernels on the launch floor say little; large ones carry the time of a step.
        sample.weight = static_cast<float>(std::clamp(std::cbrt(sample.seconds / 50e-6), 0.5, 2.0));
        sample.shape = shape_of(row.work);
        sample.holds_more = entry.holds_more != nullptr && entry.holds_more(row);
        const double limit = data.gpus[g].board_power / units::W;
        if (row.power_w && mode == Mode::kSustained && limit > 0) {
          sample.power = static_cast<float>(std::log(*row.power_w / limit));
        }
        const Work work = work_of(row.work);
        const double peak = machine.peak(row.work.dtype);
        sample.floor = std::max(peak > 0 ? work.flops / units::FLOP / peak : 0,
                                (work.read + work.written) / units::B / machine.bandwidth);
        std::vector<Sample>& samples = data.samples[static_cast<std::size_t>(*predictor)];
        used = true;
        if (entry.fastest) {
          const auto same = std::find_if(samples.begin(), samples.end(), [&](const Sample& known) {
            return known.gpu == g && known.mode == mode && known.work == sample.work;
          });
          if (same != samples.end()) {
            if (sample.seconds < same->seconds) *same = sample;
            continue;
          }
        }
        samples.push_back(std::move(sample));
      }
    }
    if (used) {
      data.tables.emplace_back(entry.name), data.hash = hash;
      data.flagged += flagged, data.of_other_frameworks += others;
    }
  }
  for (const std::string& name : excluded) {
    if (!left_out.contains(name)) return fail(excluded_nothing("--exclude-gpu", name, data));
  }
  for (const std::string& name : options.exclude_generations) {
    if (!left_out.contains(name)) return fail(excluded_nothing("--exclude-generation", name, data));
  }
  if (data.tables.empty()) {
    Error error;
    error.code = ErrorCode::kNotFound;
    error.message = "no table of measured kernels for what is to be fitted";
    error.where = places_of(options);
    error.expected = "files such as bf16_gemm.csv.gz";
    return fail(error);
  }
  return data;
}

class Fitter {
 public:
  Fitter(Predictor predictor, Data& data, double effort, std::function<void(double, std::string_view)> progress)
      : predictor_(predictor),
        samples_(data.samples[static_cast<std::size_t>(predictor)]),
        gpus_(data.gpus),
        machines_(data.machines),
        effort_(effort),
        progress_(std::move(progress)),
        shared_(shape_features(predictor).size() + gpu_features(predictor).size()) {
    std::set<std::size_t> present;
    for (const Sample& sample : samples_) present.insert(sample.gpu);
    present_.assign(present.begin(), present.end());
    std::sort(present_.begin(), present_.end(),
              [&](std::size_t a, std::size_t b) { return gpus_[a].id < gpus_[b].id; });
  }

  PredictorWeights fit(std::vector<KernelFitScore>& scores) {
    PredictorWeights weights;
    for (const std::size_t g : present_) weights.gpus.push_back(data_sheet_of(gpus_[g]));
    weights.rows.assign(present_.size(), 0);
    weights.kernel_classes.assign(present_.size(), 0);
    for (const Sample& sample : samples_) {
      ++weights.rows[index_of(sample.gpu)];
      weights.kernel_classes[index_of(sample.gpu)] |= std::uint32_t{1}
                                                      << kernel_class(predictor_, sample.work, sample.mode);
    }
    const auto seen = [](const Sample& sample) { return sample.shape >= kHoldOut; };

    // Measured GPUs: shapes that nothing is fitted on give the intervals and the scores.
    progress_(0.0, "measured GPUs");
    weights.sums = sums_of(seen);
    see(weights.sums);
    weights.on_measured_gpu = measured_corrector(seen);
    ByClass by_class, even, odd;  // shapes with even and odd numbers apart
    weights.measured = intervals(weights.kernel_classes, by_class);
    const std::vector<Correction> blind = forecasts_of_new_shapes(weights);
    judge([&](const Sample& sample) { return blind[position_of(sample)].seconds > 0; }, LeftOut::kShape,
          [&](const Sample& sample) { return blind[position_of(sample)]; }, scores,
          [&](const Sample& sample, const Correction& forecast) {
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
  using Residuals = std::vector<std::pair<double, double>>;  // forecast in s, ln(measured / forecast) over widening
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

  std::size_t position_of(const Sample& sample) const { return static_cast<std::size_t>(&sample - samples_.data()); }

  // With few rows a tenth of the shapes says little: all rows are judged, and whole GPUs are left out with all of them.
  bool has_few_rows() const { return samples_.size() < 5000; }

  // Of each row of a measured GPU by a fit that did not see its shape; 0 s for rows that are not judged. With few rows
  // each fifth of the shapes is left out in turn, with few shapes each of them.
  std::vector<Correction> forecasts_of_new_shapes(const PredictorWeights& shipped) {
    std::vector<Correction> forecasts(samples_.size());
    const auto forecast = [&](const PredictorWeights& weights, const auto& is_new) {
      for (const Sample& sample : samples_) {
        if (!is_new(sample)) continue;
        const auto own_class = kernel_class(predictor_, sample.work, sample.mode);
        forecasts[position_of(sample)] = correct(weights, predictor_, sample.features, index_of(sample.gpu), own_class);
      }
    };
    if (!has_few_rows()) {
      forecast(shipped, [](const Sample& sample) { return sample.shape < kHoldOut; });
      return forecasts;
    }
    std::set<std::uint64_t> shapes;
    for (const Sample& sample : samples_) shapes.insert(sample.shape);
    const std::uint64_t folds = shapes.size() < 20 ? 1000 : 5;  // of 1000 shapes, see shape_of
    PredictorWeights weights = shipped;
    for (std::uint64_t fold = 0; fold < folds; ++fold) {
      const auto is_new = [&](const Sample& sample) { return sample.shape % folds == fold; };
      if (std::none_of(samples_.begin(), samples_.end(), is_new)) continue;
      const auto keep = [&](const Sample& sample) { return !is_new(sample); };
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
    const auto keep = [&](const Sample& sample) { return !out.contains(sample.gpu) && (all || sample.shape % 2 == 0); };
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
      const auto forecast = [&](const Sample& sample) {
        std::optional<ReferenceFeatures> neighbor;
        const std::size_t own_class = kernel_class(predictor_, sample.work, sample.mode);
        if (carries_over(predictor_, false, same_generation) &&
            predictor_of(sample.work, gpus_[other], sample.mode) == predictor_ &&
            was_measured(names, index_of(other), own_class)) {
          const Machine& machine = machines_[other][sample.mode == Mode::kBurst ? 0 : 1];
          neighbor = {
              {features_of(predictor_, machine, sample.work, sample.mode, blind.sums), pace}, index_of(other), false};
        }
        return correct(blind, predictor_, sample.features, neighbor, same_generation);
      };
      Residuals own;
      judge([&](const Sample& sample) { return sample.gpu == g && (all || sample.shape % 4 == 1); }, kind, forecast,
            scores,
            [&](const Sample& sample, const Correction& blindly) {
              own.push_back({blindly.seconds, std::log(sample.seconds / blindly.seconds) / blindly.widening});
            });
      (same_generation ? near : far)[g] = std::move(own);
    }
    see(names.sums);
  }

  // Rows that hold more than a kernel have a class of their own as if of another GPU: they are judged by it, and no
  // forecast asks for it.
  Machine machine_of(const Sample& sample) const {
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
    for (const Sample& sample : samples_) {
      if (!keep(sample)) continue;
      const double seconds = kind->sum_of == nullptr ? sample.seconds : kind->sum_of(sample.work, sample.seconds);
      rows.push_back({kind->of(machine_of(sample), sample.work), seconds});
    }
    return fit_sums(*kind, rows);
  }

  // From here on all samples are seen with these coefficients.
  void see(const Sums& sums) {
    if (kind_of(predictor_).sum == nullptr) return;
    for (Sample& sample : samples_) {
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

  std::vector<float> input(const Sample& sample, bool with_gpu) const {
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
    for (const Sample& sample : samples_) {
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

  // Board power of sustained kernels, by the same features without the GPU's name.
  Corrector power(std::vector<KernelFitScore>& scores) const {
    Corrector corrector;
    const auto seen = [](const Sample& sample) { return sample.power && sample.shape >= kHoldOut; };
    TrainingRows training = rows(seen, false);
    if (training.size() < 1000) return corrector;
    training.targets.clear();
    for (const Sample& sample : samples_) {
      if (seen(sample)) training.targets.push_back(*sample.power);
    }
    set_range(corrector, training);
    TreeOptions options;
    options.trees = scaled(80), options.leaves = 64, options.rate = 0.15, options.ridge = 1, options.huber = 0.05;
    corrector.trees = grow_trees(training, options);
    for (const std::size_t g : present_) {
      std::vector<double> errors;
      KernelFitScore score;
      for (const Sample& sample : samples_) {
        if (sample.gpu != g || !sample.power || seen(sample)) continue;
        const std::vector<float> values = input(sample, false);
        const std::vector<double> x(values.begin(), values.end());
        const double error =
            std::exp(std::min(0.0, corrector.trees.evaluate(x.data())) - static_cast<double>(*sample.power)) - 1;
        errors.push_back(error);
      }
      if (errors.empty()) continue;
      score.predictor = std::string(name_of(predictor_)) + " power", score.gpu = gpus_[g].id;
      score.errors = figures_of(std::move(errors));
      scores.push_back(score);
    }
    return corrector;
  }

  // Long runs over bursts of the same product and GPU, by the same features without the GPU's name. Rows with a power
  // reading are long runs; those timed inside running layers stand for both modes and say nothing.
  Corrector slowdown(std::vector<KernelFitScore>& scores) const {
    Corrector corrector;
    if (predictor_ != Predictor::kGemm) return corrector;
    const auto product_of = [](const Sample& sample) {
      const Gemm& gemm = std::get<Gemm>(sample.work.kind);
      return std::tuple{sample.gpu, sample.work.dtype, gemm.m, gemm.n, gemm.k};
    };
    std::map<std::tuple<std::size_t, DType, std::int64_t, std::int64_t, std::int64_t>, double> bursts;
    for (const Sample& sample : samples_) {
      if (sample.mode == Mode::kBurst) bursts[product_of(sample)] = sample.seconds;
    }
    const auto target_of = [&](const Sample& sample) -> std::optional<float> {
      if (!sample.power) return std::nullopt;
      const auto burst = bursts.find(product_of(sample));
      if (burst == bursts.end()) return std::nullopt;
      return static_cast<float>(std::log(sample.seconds / burst->second));
    };
    TrainingRows training;
    training.width = shared_;
    for (const Sample& sample : samples_) {
      const auto target = target_of(sample);
      if (!target || sample.shape < kHoldOut) continue;
      const std::vector<float> values = input(sample, false);
      training.features.insert(training.features.end(), values.begin(), values.end());
      training.targets.push_back(*target), training.weights.push_back(sample.weight);
    }
    if (training.size() < 1000) return corrector;
    set_range(corrector, training);
    TreeOptions options;
    options.trees = scaled(80), options.leaves = 64, options.rate = 0.15, options.ridge = 1, options.huber = 0.05;
    corrector.trees = grow_trees(training, options);
    for (const std::size_t g : present_) {
      std::vector<double> errors;
      for (const Sample& sample : samples_) {
        const auto target = sample.gpu == g && sample.shape < kHoldOut ? target_of(sample) : std::nullopt;
        if (!target) continue;
        const std::vector<float> values = input(sample, false);
        const std::vector<double> x(values.begin(), values.end());
        errors.push_back(std::exp(corrector.trees.evaluate(x.data()) - static_cast<double>(*target)) - 1);
      }
      if (errors.empty()) continue;
      KernelFitScore score;
      score.predictor = "gemm slowdown", score.gpu = gpus_[g].id, score.errors = figures_of(std::move(errors));
      scores.push_back(score);
    }
    return corrector;
  }

  // What all GPUs have in common: few small trees with many rows in a leaf, that see the shape alone and count each GPU
  // alike. They carry over better than a network that sees ratios of the data sheets, too, and than trees that see
  // these or how tensor units are fed (docs/models/kernels.md).
  template <class Keep>
  Corrector other_corrector(const Keep& keep) const {
    TrainingRows training = rows(keep, false);
    Corrector corrector;
    set_range(corrector, training);
    if (kind_of(predictor_).capacity.elsewhere != Elsewhere::kAllGpus) return corrector;
    std::map<std::size_t, double> of_gpu;
    for (const Sample& sample : samples_) {
      if (keep(sample)) ++of_gpu[sample.gpu];
    }
    std::size_t row = 0;
    for (const Sample& sample : samples_) {
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

  static Quantiles quantiles_of(const Residuals& residuals, double tail = 0.05) {
    Quantiles quantiles{};
    for (std::size_t group = 0; group < kErrorGroups; ++group) {
      std::vector<double> logs;
      for (const auto& [forecast, residual] : residuals) {
        if (error_group(forecast) == group) logs.push_back(residual);
      }
      if (logs.size() < 50) {  // too few of this duration: all of them
        logs.clear();
        for (const auto& [forecast, residual] : residuals) logs.push_back(residual);
      }
      if (logs.size() < 20) {
        quantiles[2 * group] = -0.7F, quantiles[2 * group + 1] = 0.7F;
        continue;
      }
      std::sort(logs.begin(), logs.end());
      // Split conformal prediction (Lei et al. 2018): the ceil((n + 1) q)-th of n residuals.
      const double n = static_cast<double>(logs.size());
      const auto low = static_cast<std::size_t>(std::max(0.0, std::floor((n + 1) * tail) - 1));
      const auto high = static_cast<std::size_t>(std::min(n - 1, std::ceil((n + 1) * (1 - tail)) - 1));
      quantiles[2 * group] = static_cast<float>(std::clamp(logs[low], -4.0, -1e-3));
      quantiles[2 * group + 1] = static_cast<float>(std::clamp(logs[high], 1e-3, 4.0));
    }
    return quantiles;
  }

  static double coverage(const Residuals& residuals, const Quantiles& quantiles) {
    std::size_t inside = 0;
    for (const auto& [forecast, residual] : residuals) {
      const std::size_t group = error_group(forecast);
      if (residual >= static_cast<double>(quantiles[2 * group]) &&
          residual <= static_cast<double>(quantiles[2 * group + 1])) {
        ++inside;
      }
    }
    return residuals.empty() ? 0 : static_cast<double>(inside) / static_cast<double>(residuals.size());
  }

  // `tell` hears each row's forecast.
  template <class Keep, class Forecast, class Tell>
  void judge(const Keep& keep, LeftOut kind, const Forecast& forecast_of, std::vector<KernelFitScore>& scores,
             const Tell& tell) const {
    for (const std::size_t g : present_) {
      Errors all, large, in_layers;
      std::map<std::size_t, Errors> of_class;  // where a predictor has so few rows that the card can tell each
      for (const Sample& sample : samples_) {
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

    void add(double forecast, const Sample& sample) {
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
  std::vector<Sample>& samples_;
  const std::vector<Gpu>& gpus_;
  const std::vector<std::array<Machine, 2>>& machines_;
  double effort_;
  std::function<void(double, std::string_view)> progress_;
  std::size_t shared_;
  std::vector<std::size_t> present_;
};

std::vector<std::string> ids_of(const std::vector<Gpu>& gpus) {
  std::vector<std::string> ids;
  for (const Gpu& gpu : gpus) ids.push_back(gpu.id);
  return ids;
}

// What the errors of a card are honest about.
std::string what_was_left_out(const KernelWeights& weights) {
  std::vector<std::string_view> sums, others;
  for (std::size_t p = 0; p < kPredictorCount; ++p) {
    if (!weights.predictors[p]) continue;
    const auto predictor = static_cast<Predictor>(p);
    (kind_of(predictor).sum != nullptr ? sums : others).push_back(name_of(predictor));
  }
  const auto of = [&](const std::vector<std::string_view>& names) {
    return sums.empty() || others.empty() ? std::string() : fmt::format("{}: ", fmt::join(names, ", "));
  };
  std::string text;
  if (!sums.empty()) {
    text += of(sums) +
            "The coefficients of the bases and the trees were fitted without what was left out; the terms, their "
            "coefficients before any row and what it costs to leave those were chosen with all rows in view.";
  }
  if (!others.empty()) {
    text += (text.empty() ? "" : " ") + of(others) +
            "The trees were fitted without what was left out; the constants of the bases were not.";
  }
  return text;
}

std::string card_of(const KernelFitOptions& options, const Data& data, const KernelWeights& weights,
                    const std::vector<KernelFitScore>& scores) {
  std::string card = "# Kernel weights";
  if (!options.predictors.empty()) card += fmt::format(": {}", fmt::join(options.predictors, ", "));
  card += "\n\n";
  card += "Written by `ns-dist fit --data DIR";
  for (std::size_t i = 1; i < options.data.size(); ++i) card += " --data " + options.data[i].string();
  for (const std::string& predictor : options.predictors) card += " --predictor " + predictor;
  for (const std::string& gpu : options.exclude_gpus) card += " --exclude-gpu " + gpu;
  for (const std::string& generation : options.exclude_generations) card += " --exclude-generation " + generation;
  for (const std::string& table : options.tables) card += " --table " + table;
  for (const std::string& table : options.exclude_tables) card += " --exclude-table " + table;
  for (const std::string& framework : options.prefer_frameworks) card += " --prefer-framework " + framework;
  card += "`.\n\n";
  card += fmt::format(
      "Tables: {}. FNV-1a of their rows: {:016x}. Flagged rows left out: {}; rows of other frameworks: {}.\n\n",
      fmt::join(data.tables, ", "), data.hash, data.flagged, data.of_other_frameworks);
  card += "| predictor | GPUs fitted on | rows |\n| --- | --- | ---: |\n";
  for (std::size_t p = 0; p < kPredictorCount; ++p) {
    if (!weights.predictors[p]) continue;
    card += fmt::format("| {} | {} | {} |\n", name_of(static_cast<Predictor>(p)),
                        fmt::join(ids_of(weights.predictors[p]->gpus), ", "), data.samples[p].size());
  }
  for (std::size_t p = 0; p < kPredictorCount; ++p) {
    if (!weights.predictors[p]) continue;
    const PredictorWeights& part = *weights.predictors[p];
    if (std::all_of(part.kernel_classes.begin(), part.kernel_classes.end(),
                    [](std::uint32_t bits) { return bits == 1; }))
      continue;
    card += "\nClasses of kernels that were measured; others are forecast by physics or from another mode:\n\n";
    for (std::size_t g = 0; g < part.gpus.size(); ++g) {
      std::vector<std::string> names;
      for (std::size_t c = 0; c < kKernelClasses; ++c) {
        if ((part.kernel_classes[g] >> c & 1U) != 0) names.push_back(kernel_class_name(static_cast<Predictor>(p), c));
      }
      card += fmt::format("- {}: {}\n", part.gpus[g].id, fmt::join(names, "; "));
    }
  }
  card +=
      "\nErrors of forecasts (%). " + what_was_left_out(weights) +
      " Left out: a tenth of the shapes (with few rows each fifth in turn, with few shapes each shape), a GPU, a "
      "generation of several GPUs (where a GPU is the only one of its generation, it stands for it). `constant`: the "
      "best constant share of the roofline for that GPU. `inside`: share of the rows in the 90 % interval, which other "
      "rows or GPUs have set.\n\n";
  card += "| predictor | GPU | left out | rows | mean | median | p90 | max | bias | inside | constant |\n";
  card += "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  for (const KernelFitScore& s : scores) {
    card += fmt::format("| {} | {} | {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.0f} | {:+.1f} |",
                        s.predictor + (s.part.empty() ? "" : ": " + s.part), s.gpu,
                        s.left_out == KernelFitScore::LeftOut::kShape ? "shapes"
                        : s.left_out == KernelFitScore::LeftOut::kGpu ? "GPU"
                                                                      : "generation",
                        s.errors.rows, 100 * s.errors.mean, 100 * s.errors.median, 100 * s.errors.p90,
                        100 * s.errors.largest, 100 * s.errors.bias);
    card += s.covered > 0 ? fmt::format(" {:.0f} |", 100 * s.covered) : " |";
    card += s.roofline > 0 ? fmt::format(" {:.0f} |\n", 100 * s.roofline) : " |\n";
  }
  return card;
}

}  // namespace

std::span<const std::string_view> kernel_predictors() { return predictor_names(); }

bool is_held_out(const Operator& op) { return shape_of(op) < kHoldOut; }

Result<KernelFit> fit_kernels(const KernelFitOptions& options,
                              const std::function<Result<Gpu>(std::string_view)>& gpu_of,
                              const std::function<void(double, std::string_view)>& progress) {
  NS_TRY(Data data, read_data(options, gpu_of, progress));
  KernelWeights weights;
  std::array<std::vector<KernelFitScore>, kPredictorCount> scores;

  // Largest first, so that threads end together; each predictor is fitted by one thread.
  std::vector<std::size_t> order;
  double total = 0;
  for (std::size_t p = 0; p < kPredictorCount; ++p) {
    if (std::ssize(data.samples[p]) < 2 * kFewestSamples) continue;
    order.push_back(p), total += static_cast<double>(data.samples[p].size());
  }
  // Weights of nothing, or without what was asked for by name, are no answer.
  std::vector<std::string> fitted;
  for (const std::size_t p : order) fitted.emplace_back(name_of(static_cast<Predictor>(p)));
  for (const std::string& name : options.predictors) {
    if (!contains(fitted, name)) return fail(too_few_rows(options, name));
  }
  if (fitted.empty()) return fail(too_few_rows(options, "any predictor"));
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return data.samples[a].size() > data.samples[b].size(); });
  std::mutex mutex;
  std::array<double, kPredictorCount> done{};
  std::atomic<std::size_t> next = 0;
  const auto work = [&](unsigned) {
    for (std::size_t i = next++; i < order.size(); i = next++) {
      const std::size_t p = order[i];
      const auto tell = [&, p](double share, std::string_view stage) {
        const std::scoped_lock lock(mutex);
        done[p] = share * static_cast<double>(data.samples[p].size());
        if (progress) {
          progress(std::accumulate(done.begin(), done.end(), 0.0) / total,
                   fmt::format("{}: {}", name_of(static_cast<Predictor>(p)), stage));
        }
      };
      Fitter fitter(static_cast<Predictor>(p), data, options.effort, tell);
      weights.predictors[p] = fitter.fit(scores[p]);
    }
  };
  on_threads(options.threads, work);

  KernelFit fit;
  for (const auto& part : scores) fit.scores.insert(fit.scores.end(), part.begin(), part.end());
  weights.metadata["training_set"] = fmt::format("{:016x}", data.hash);
  fit.weights = to_safetensors(weights);
  fit.card = card_of(options, data, weights, fit.scores);
  return fit;
}

}  // namespace ns_dist
