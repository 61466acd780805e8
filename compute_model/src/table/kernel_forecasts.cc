#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <thread>

#include "ns_dist/kernel_table.h"

namespace ns_dist {
namespace {

struct Model {
  std::unique_ptr<ComputeCost> cost;
  std::optional<Error> error;
};

KernelErrors errors_of(std::string gpu, std::string op, std::vector<double> errors, std::size_t inside) {
  KernelErrors row{figures_of(std::move(errors)), std::move(gpu), std::move(op)};
  row.inside = static_cast<double>(inside) / static_cast<double>(row.rows);
  return row;
}

constexpr std::array<std::string_view, 10> kAnswerColumns = {
    "forecast_ms", "low_ms", "high_ms", "utilization",  "bound",
    "tile",        "waves",  "method",  "extrapolated", "forecast_power_w"};

bool is_answer(std::string_view column) {
  return std::find(kAnswerColumns.begin(), kAnswerColumns.end(), column) != kAnswerColumns.end();
}

}  // namespace

Result<KernelForecasts> forecast_kernels(const CsvTable& table, const KernelTableOptions& options,
                                         const std::function<Result<Gpu>(std::string_view)>& gpu_of,
                                         const std::function<void(double)>& progress) {
  const KernelReader reader(table, options.default_gpu);
  const std::size_t count = table.row_count();
  KernelForecasts result;
  result.forecasts.resize(count);
  std::vector<std::optional<Error>> errors(count);
  std::vector<float> measured(count, 0.0F);
  std::vector<std::uint32_t> group(count, 0);

  // Models and groups are made as GPUs are met; a reader's lookup is cheap beside a forecast.
  std::mutex mutex;
  std::map<std::string, Model, std::less<>> models;
  std::map<std::pair<std::string, std::string>, std::uint32_t> groups;
  std::optional<Error> fatal;
  const auto model_of = [&](std::string_view id) -> const Model& {
    const std::scoped_lock lock(mutex);
    const auto found = models.find(id);
    if (found != models.end()) return found->second;
    Model model;
    if (auto gpu = gpu_of(id); !gpu) {
      model.error = std::move(gpu).error();
    } else if (auto cost = make_compute_model(*gpu, options.model); !cost) {
      model.error = std::move(cost).error();
      if (model.error->where == "weights") fatal = model.error;
    } else {
      model.cost = *std::move(cost);
    }
    return models.emplace(std::string(id), std::move(model)).first->second;
  };
  const auto group_of = [&](std::string_view gpu, std::string_view op) {
    const std::scoped_lock lock(mutex);
    return groups.emplace(std::pair{std::string(gpu), std::string(op)}, static_cast<std::uint32_t>(groups.size()))
        .first->second;
  };

  constexpr std::size_t kChunk = 1024;
  std::atomic<std::size_t> next = 0, finished = 0;
  const auto work = [&] {
    std::string last_gpu, last_op;  // rows of one GPU and operator stand together
    const Model* model = nullptr;
    std::uint32_t last_group = 0;
    for (std::size_t begin = next.fetch_add(kChunk); begin < count; begin = next.fetch_add(kChunk)) {
      const std::size_t end = std::min(count, begin + kChunk);
      for (std::size_t i = begin; i < end; ++i) {
        auto row = reader.row(i);
        if (!row) {
          errors[i] = std::move(row).error();
          continue;
        }
        if (model == nullptr || row->gpu != last_gpu || row->op != last_op) {
          model = &model_of(row->gpu);
          last_gpu = row->gpu, last_op = row->op;
          last_group = group_of(row->gpu, row->op);
        }
        const auto here = [&](Error error) {
          error.where = fmt::format("{}:{}", table.where(), table.line(i));
          return error;
        };
        if (model->error) {
          errors[i] = here(*model->error);
          continue;
        }
        auto forecast = model->cost->forecast(row->work);
        if (!forecast) {
          errors[i] = here(std::move(forecast).error());
          continue;
        }
        result.forecasts[i] = *forecast;
        if (row->latency_ms) measured[i] = static_cast<float>(*row->latency_ms);
        group[i] = last_group;
      }
      finished += end - begin;
      if (progress) {
        const std::scoped_lock lock(mutex);
        progress(static_cast<double>(finished) / static_cast<double>(count));
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 1; t < std::max(1U, options.threads); ++t) threads.emplace_back(work);
    work();
  }
  if (fatal) return fail(*fatal);

  std::vector<std::vector<double>> by_group(groups.size());
  std::vector<std::size_t> inside(groups.size(), 0);
  std::vector<double> all;
  std::size_t all_inside = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (errors[i]) result.errors.push_back(std::move(*errors[i]));
    if (!(measured[i] > 0) || !(result.forecasts[i].latency > Seconds())) continue;
    const double truth = static_cast<double>(measured[i]);
    const double error = result.forecasts[i].latency / units::ms / truth - 1;
    by_group[group[i]].push_back(error), all.push_back(error);
    const bool held = result.forecasts[i].low / units::ms <= truth * (1 + 1e-6) &&
                      truth * (1 - 1e-6) <= result.forecasts[i].high / units::ms;
    if (held) ++inside[group[i]], ++all_inside;
  }
  for (const auto& [key, index] : groups) {
    if (!by_group[index].empty())
      result.table.push_back(errors_of(key.first, key.second, std::move(by_group[index]), inside[index]));
  }
  if (!all.empty()) result.table.push_back(errors_of("", "", std::move(all), all_inside));
  return result;
}

std::vector<std::string> replaced_columns(const CsvTable& table) {
  std::vector<std::string> replaced;
  std::copy_if(table.columns().begin(), table.columns().end(), std::back_inserter(replaced), is_answer);
  return replaced;
}

std::string to_csv(const CsvTable& table, const KernelForecasts& forecasts) {
  const std::vector<std::string>& columns = table.columns();
  std::vector<std::size_t> kept;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (!is_answer(columns[c])) kept.push_back(c);
  }
  std::string out;
  for (const std::size_t c : kept) {
    const bool quoted = columns[c].find(',') != std::string::npos;
    out += fmt::format("{}{}", c == kept.front() ? "" : ",", quoted ? '"' + columns[c] + '"' : columns[c]);
  }
  out += fmt::format(",{}\n", fmt::join(kAnswerColumns, ","));
  auto back = std::back_inserter(out);
  std::vector<std::string_view> fields;
  for (std::size_t i = 0; i < table.row_count(); ++i) {
    table.raw_fields(i, fields);
    fields.resize(columns.size());
    for (const std::size_t c : kept) {
      if (c != kept.front()) out += ',';
      out += fields[c];
    }
    const Forecast& f = forecasts.forecasts[i];
    if (f.latency > Seconds()) {
      fmt::format_to(back, ",{:.6g},{:.6g},{:.6g},{:.4f},{},{},{},\"{}\",{},{}\n", f.latency / units::ms,
                     f.low / units::ms, f.high / units::ms, f.utilization, name_of(f.bound), f.tile, f.waves, f.method,
                     f.extrapolated ? 1 : 0, f.power > Watts() ? fmt::format("{:.4g}", f.power / units::W) : "");
    } else {
      out += ",,,,,,,,,,\n";
    }
  }
  return out;
}

}  // namespace ns_dist
