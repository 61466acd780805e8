#include <fmt/compile.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>

#include "batch_cost.h"
#include "ns_dist/internal/threads.h"
#include "ns_dist/kernel_table.h"

namespace ns_dist {
namespace {

struct GpuModel {
  std::string id;  // of the GPU
  std::unique_ptr<BatchCost> cost;
  std::optional<Error> error;
};

// Relative errors in bounded memory: as they are up to kExact rows, then counted in bins of their magnitude.
class ErrorSums {
 public:
  void add(double error, bool inside) {
    ++rows_;
    sum_ += error;
    const double magnitude = std::abs(error);
    absolute_sum_ += magnitude;
    largest_ = std::max(largest_, magnitude);
    if (inside) ++inside_;
    if (bins_.empty()) {
      exact_.push_back(error);
      if (exact_.size() <= kExact) return;
      bins_.assign(kLinear + kLogarithmic, 0);
      for (const double one : exact_) ++bins_[bin_of(std::abs(one))];
      exact_ = {};
    } else {
      ++bins_[bin_of(magnitude)];
    }
  }
  bool empty() const { return rows_ == 0; }

  KernelErrors figures(std::string gpu, std::string op) const {
    ErrorFigures figures;
    if (bins_.empty()) {
      figures = figures_of(exact_);
    } else {
      const double count = static_cast<double>(rows_);
      figures.rows = rows_;
      figures.bias = sum_ / count;
      figures.mean = absolute_sum_ / count;
      figures.median = (magnitude_at((rows_ - 1) / 2) + magnitude_at(rows_ / 2)) / 2;
      figures.p90 = magnitude_at(rows_ * 9 / 10);
      figures.largest = largest_;
    }
    KernelErrors row{figures, std::move(gpu), std::move(op)};
    row.inside = static_cast<double>(inside_) / static_cast<double>(rows_);
    return row;
  }

 private:
  static constexpr std::size_t kExact = 4096, kLinear = 20'000, kLogarithmic = 16'384;
  static constexpr double kStep = 1e-4, kBorder = kStep * kLinear, kRatio = 1.001;

  static std::size_t bin_of(double magnitude) {
    if (magnitude < kBorder) return static_cast<std::size_t>(magnitude / kStep);
    const double bin = std::log(magnitude / kBorder) / std::log(kRatio);
    return kLinear + static_cast<std::size_t>(std::clamp(bin, 0.0, static_cast<double>(kLogarithmic - 1)));
  }
  // Of the row with `before` rows below it: the middle of its bin.
  double magnitude_at(std::size_t before) const {
    std::size_t bin = 0;
    for (std::size_t below = bins_[0]; below <= before; below += bins_[bin]) ++bin;
    if (bin < kLinear) return (static_cast<double>(bin) + 0.5) * kStep;
    return kBorder * std::pow(kRatio, static_cast<double>(bin - kLinear) + 0.5);
  }

  std::size_t rows_ = 0, inside_ = 0;
  double sum_ = 0, absolute_sum_ = 0, largest_ = 0;
  std::vector<double> exact_;
  std::vector<std::size_t> bins_;
};

// What is known of the rows of a table, by row.
struct Answers {
  explicit Answers(std::size_t rows)
      : forecasts(rows), errors(rows), measured_ms(rows, 0.0F), bad_latencies(rows), groups(rows) {}

  std::vector<Forecast> forecasts;
  std::vector<std::optional<Error>> errors;
  std::vector<float> measured_ms;  // 0: not measured
  std::vector<std::string_view> bad_latencies;
  std::vector<std::pair<std::string_view, std::string_view>> groups;  // the GPU's id and the operator
};

std::string place_of(const CsvTable& table, std::size_t row) {
  return fmt::format("{}:{}", table.where(), table.line(row));
}
Error at_row(Error error, const CsvTable& table, std::size_t row) {
  error.where = place_of(table, row);
  return error;
}

// Rows of one GPU, which are asked together.
class Batch {
 public:
  Batch(const CsvTable& table, Answers& answers) : table_(table), answers_(answers) {}
  void add(std::size_t row, Operator work) {
    rows_.push_back(row);
    operators_.push_back(std::move(work));
  }
  void forecast(const GpuModel& model) {
    forecasts_.resize(rows_.size());
    model.cost->forecast_all(operators_, forecasts_);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (forecasts_[i]) {
        answers_.forecasts[rows_[i]] = *forecasts_[i];
      } else {
        answers_.errors[rows_[i]] = at_row(std::move(forecasts_[i]).error(), table_, rows_[i]);
      }
    }
    rows_.clear();
    operators_.clear();
  }
  bool empty() const { return rows_.empty(); }

 private:
  const CsvTable& table_;
  Answers& answers_;
  std::vector<std::size_t> rows_;
  std::vector<Operator> operators_;
  std::vector<Result<Forecast>> forecasts_;
};

constexpr std::array<std::string_view, 10> kAnswerColumns = {
    "forecast_ms", "low_ms", "high_ms", "utilization",  "bound",
    "tile",        "waves",  "method",  "extrapolated", "forecast_power_w"};

}  // namespace

struct KernelForecaster::State {
  KernelTableOptions options;
  std::function<Result<Gpu>(std::string_view)> gpu_of;
  std::mutex mutex;
  std::map<std::string, GpuModel, std::less<>> models;  // by the tables' names of GPUs, made as they are met
  std::map<std::pair<std::string, std::string>, ErrorSums> sums;
  ErrorSums all;

  const GpuModel& model_of(std::string_view id, std::optional<Error>& fatal) {
    const std::scoped_lock lock(mutex);
    const auto found = models.find(id);
    if (found != models.end()) return found->second;
    GpuModel made;
    if (auto gpu = gpu_of(id); !gpu) {
      made.error = std::move(gpu).error();
    } else if (auto cost = make_batch_model(*gpu, options.model); !cost) {
      made.error = std::move(cost).error();
      if (made.error->where == "weights") fatal = made.error;
    } else {
      made.id = gpu->id, made.cost = *std::move(cost);
    }
    return models.emplace(std::string(id), std::move(made)).first->second;
  }

  // Every row, on as many threads as the options say. Errors: weights that cannot be read.
  Result<Answers> answer(const CsvTable& table);
  void add_errors(const Answers& answers);
};

KernelForecaster::KernelForecaster(KernelTableOptions options, std::function<Result<Gpu>(std::string_view id)> gpu_of)
    : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
  state_->gpu_of = std::move(gpu_of);
}
KernelForecaster::~KernelForecaster() = default;

Result<Answers> KernelForecaster::State::answer(const CsvTable& table) {
  const KernelReader reader(table, options.default_gpu);
  const std::size_t count = table.row_count();
  Answers answers(count);
  std::optional<Error> fatal;
  constexpr std::size_t kChunk = 1024;
  std::atomic<std::size_t> next = 0;
  on_threads(options.threads, [&](unsigned) {
    std::string last_gpu;
    const GpuModel* model = nullptr;
    Batch batch(table, answers);
    for (std::size_t begin = next.fetch_add(kChunk); begin < count; begin = next.fetch_add(kChunk)) {
      for (std::size_t i = begin; i < std::min(count, begin + kChunk); ++i) {
        auto row = reader.row(i);
        if (!row) {
          answers.errors[i] = std::move(row).error();
          continue;
        }
        if (model == nullptr || row->gpu != last_gpu) {
          if (!batch.empty()) batch.forecast(*model);
          model = &model_of(row->gpu, fatal);
          last_gpu = row->gpu;
        }
        if (model->error) {
          answers.errors[i] = at_row(*model->error, table, i);
          continue;
        }
        if (row->latency_ms) answers.measured_ms[i] = static_cast<float>(*row->latency_ms);
        answers.bad_latencies[i] = row->bad_latency;
        answers.groups[i] = {model->id, row->op};
        batch.add(i, std::move(row->work));
      }
      if (!batch.empty()) batch.forecast(*model);
    }
  });
  if (fatal) return fail(*fatal);
  return answers;
}

void KernelForecaster::State::add_errors(const Answers& answers) {
  std::pair<std::string_view, std::string_view> last_group;
  ErrorSums* group_sums = nullptr;
  for (std::size_t i = 0; i < answers.forecasts.size(); ++i) {
    const Forecast& forecast = answers.forecasts[i];
    if (!(answers.measured_ms[i] > 0) || !(forecast.latency > Seconds())) continue;
    if (group_sums == nullptr || answers.groups[i] != last_group) {
      last_group = answers.groups[i];
      group_sums = &sums[{std::string(last_group.first), std::string(last_group.second)}];
    }
    const double truth = static_cast<double>(answers.measured_ms[i]);
    const double error = forecast.latency / units::ms / truth - 1;
    const bool inside =
        forecast.low / units::ms <= truth * (1 + 1e-6) && truth * (1 - 1e-6) <= forecast.high / units::ms;
    group_sums->add(error, inside);
    all.add(error, inside);
  }
}

Result<KernelForecasts> KernelForecaster::forecast(const CsvTable& piece) {
  NS_TRY(Answers answers, state_->answer(piece));
  state_->add_errors(answers);
  KernelForecasts result;
  for (std::size_t i = 0; i < piece.row_count(); ++i) {
    if (answers.errors[i]) {
      result.errors.push_back(*std::move(answers.errors[i]));
    } else if (!answers.bad_latencies[i].empty()) {
      result.unmeasured.push_back(bad_latency(answers.bad_latencies[i], place_of(piece, i)));
    }
  }
  result.forecasts = std::move(answers.forecasts);
  return result;
}

std::vector<KernelErrors> KernelForecaster::errors() const {
  std::vector<KernelErrors> table;
  for (const auto& [key, sums] : state_->sums) table.push_back(sums.figures(key.first, key.second));
  if (!state_->all.empty()) table.push_back(state_->all.figures("", ""));
  return table;
}

Result<KernelForecasts> forecast_kernels(const CsvTable& table, const KernelTableOptions& options,
                                         const std::function<Result<Gpu>(std::string_view)>& gpu_of) {
  return KernelForecaster(options, gpu_of).forecast(table);
}

std::span<const std::string_view> kernel_answer_columns() { return kAnswerColumns; }

std::string csv_header(const CsvTable& table) { return AnsweredCsv(table, kAnswerColumns).header(); }

std::string csv_rows(const CsvTable& table, const KernelForecasts& forecasts) {
  const AnsweredCsv answered(table, kAnswerColumns);
  const std::string empty = std::string(kAnswerColumns.size() - 1, ',') + "\n";
  std::string out;
  auto back = std::back_inserter(out);
  for (std::size_t i = 0; i < table.row_count(); ++i) {
    answered.append_row(table, i, out);
    const Forecast& f = forecasts.forecasts[i];
    if (f.latency > Seconds()) {
      fmt::format_to(back, FMT_COMPILE("{:.6g},{:.6g},{:.6g},{:.4g},{},{},{},\"{}\",{},{}\n"), f.latency / units::ms,
                     f.low / units::ms, f.high / units::ms, f.utilization, name_of(f.bound), f.tile, f.waves, f.method,
                     f.extrapolated ? 1 : 0, f.power > Watts() ? fmt::format("{:.4g}", f.power / units::W) : "");
    } else {
      out += empty;
    }
  }
  return out;
}

}  // namespace ns_dist
