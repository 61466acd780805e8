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
};

KernelForecaster::KernelForecaster(KernelTableOptions options, std::function<Result<Gpu>(std::string_view id)> gpu_of)
    : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
  state_->gpu_of = std::move(gpu_of);
}
KernelForecaster::~KernelForecaster() = default;

Result<KernelForecasts> KernelForecaster::forecast(const CsvTable& piece) {
  const KernelReader reader(piece, state_->options.default_gpu);
  const std::size_t count = piece.row_count();
  KernelForecasts result;
  result.forecasts.resize(count);
  std::vector<std::optional<Error>> errors(count);
  std::vector<float> measured(count, 0.0F);
  std::vector<std::string_view> bad_latencies(count);
  std::vector<std::pair<std::string_view, std::string_view>> groups(count);
  std::optional<Error> fatal;

  constexpr std::size_t kChunk = 1024;
  std::atomic<std::size_t> next = 0;
  const auto work = [&](unsigned) {
    // Rows of one GPU that follow each other are asked together.
    std::string last_gpu;
    const GpuModel* model = nullptr;
    std::vector<std::size_t> rows;
    std::vector<Operator> operators;
    std::vector<Result<Forecast>> forecasts;
    const auto here = [&](Error error, std::size_t row) {
      error.where = fmt::format("{}:{}", piece.where(), piece.line(row));
      return error;
    };
    const auto flush = [&] {
      forecasts.resize(rows.size());
      if (!rows.empty()) model->cost->forecast_all(operators, forecasts);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (forecasts[i]) {
          result.forecasts[rows[i]] = *forecasts[i];
        } else {
          errors[rows[i]] = here(std::move(forecasts[i]).error(), rows[i]);
        }
      }
      rows.clear();
      operators.clear();
    };
    for (std::size_t begin = next.fetch_add(kChunk); begin < count; begin = next.fetch_add(kChunk)) {
      for (std::size_t i = begin; i < std::min(count, begin + kChunk); ++i) {
        auto row = reader.row(i);
        if (!row) {
          errors[i] = std::move(row).error();
          continue;
        }
        if (model == nullptr || row->gpu != last_gpu) {
          flush();
          model = &state_->model_of(row->gpu, fatal);
          last_gpu = row->gpu;
        }
        if (model->error) {
          errors[i] = here(*model->error, i);
          continue;
        }
        if (row->latency_ms) measured[i] = static_cast<float>(*row->latency_ms);
        bad_latencies[i] = row->bad_latency;
        groups[i] = {model->id, row->op};
        rows.push_back(i);
        operators.push_back(std::move(row->work));
      }
      flush();
    }
  };
  on_threads(state_->options.threads, work);
  if (fatal) return fail(*fatal);

  std::pair<std::string_view, std::string_view> last_group;
  ErrorSums* sums = nullptr;
  for (std::size_t i = 0; i < count; ++i) {
    if (errors[i]) {
      result.errors.push_back(std::move(*errors[i]));
    } else if (!bad_latencies[i].empty()) {
      result.unmeasured.push_back(bad_latency(bad_latencies[i], fmt::format("{}:{}", piece.where(), piece.line(i))));
    }
    const Forecast& forecast = result.forecasts[i];
    if (!(measured[i] > 0) || !(forecast.latency > Seconds())) continue;
    if (sums == nullptr || groups[i] != last_group) {
      sums = &state_->sums[{std::string(groups[i].first), std::string(groups[i].second)}];
      last_group = groups[i];
    }
    const double truth = static_cast<double>(measured[i]);
    const double error = forecast.latency / units::ms / truth - 1;
    const bool inside =
        forecast.low / units::ms <= truth * (1 + 1e-6) && truth * (1 - 1e-6) <= forecast.high / units::ms;
    sums->add(error, inside);
    state_->all.add(error, inside);
  }
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
      fmt::format_to(back, FMT_COMPILE("{:.6g},{:.6g},{:.6g},{:.4f},{},{},{},\"{}\",{},{}\n"), f.latency / units::ms,
                     f.low / units::ms, f.high / units::ms, f.utilization, name_of(f.bound), f.tile, f.waves, f.method,
                     f.extrapolated ? 1 : 0, f.power > Watts() ? fmt::format("{:.4g}", f.power / units::W) : "");
    } else {
      out += empty;
    }
  }
  return out;
}

}  // namespace ns_dist
