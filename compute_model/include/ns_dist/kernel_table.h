// Tables of kernels: CSV files, plain or gzipped, with a header. The columns `gpu, op, dtype` and the operator's
// dimensions describe what ran; `latency_ms`, where present, is what was measured.
//
// operator_forms.h lists the operators and their dimensions. `pass` (fwd, bwd) is read for operators that have a
// backward form. Pointwise names that end in u (addu) have one tensor and one scalar as inputs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/compute_model.h"
#include "ns_dist/csv_table.h"
#include "ns_dist/error_figures.h"
#include "ns_dist/operator_forms.h"
#include "ns_dist/result.h"

namespace ns_dist {

// Error: a table without a column op, or without a column gpu where `default_gpu` is empty.
Result<void> check_kernel_columns(const CsvTable& table, std::string_view default_gpu);

struct KernelRow {
  std::string_view gpu, op;  // into the table
  Operator work;
  std::optional<double> latency_ms;
  std::string_view bad_latency;   // latency_ms as it stands there, where it is no time ("OOM", 0); into the table
  std::optional<double> power_w;  // mean board power while it ran
  std::string_view framework;     // whose kernels ran, of the column of that name; into the table
  std::string_view mode;          // in which it was measured, of the column of that name; into the table
  bool doubtful = false;          // the column outlier or over_peak is set
  friend bool operator==(const KernelRow&, const KernelRow&) = default;
};

// Reads rows of a table as kernels.
class KernelReader {
 public:
  // Keeps a reference to `table`. `default_gpu` stands where the table has no gpu.
  // In a table that has no column `library` or `backend`, forward attention and normalization are those of inference
  // frameworks (Library::kServing), as in published tables.
  explicit KernelReader(const CsvTable& table, std::string default_gpu = "");
  // Errors, with the row's line: those of CsvTable::fields, an unknown operator or dtype, a missing, unreadable or
  // non-positive dimension, a pass that the operator does not have.
  Result<KernelRow> row(std::size_t index) const;

 private:
  const CsvTable* table_;
  std::string default_gpu_;
  std::string_view operator_;  // of every row, where the table has no column for it
  bool names_library_ = false;
};

// For each GPU in a table, the first framework of `order` that measured it. Frameworks can measure the same kernel
// differently: one of them left its weights uninitialized, so the GPU drew less power.
class PreferredFrameworks {
 public:
  PreferredFrameworks(const CsvTable& table, const std::vector<std::string>& order);
  // Whether the row is left out, because another framework is preferred for its GPU. False if no framework of `order`
  // measured this GPU.
  bool passes_over(const KernelRow& row) const;

 private:
  std::map<std::string, std::string, std::less<>> by_gpu_;
};

// Errors of forecasts against the measured latencies of one operator on one GPU, relative to the measured.
struct KernelErrors : ErrorFigures {
  std::string gpu, op;  // the GPU's id, however the table spells it
  double inside = 0;    // share of measurements inside the 90 % interval
};

struct KernelForecasts {
  std::vector<Forecast> forecasts;  // by row; latency 0 where the row is in `errors`
  std::vector<Error> errors;        // in the order of the rows, each with its line
  std::vector<Error> unmeasured;    // likewise: rows that are forecast, whose latency_ms is no time
};

struct KernelTableOptions {
  std::string default_gpu{};
  ComputeModelOptions model{.mode = Mode::kBurst, .weights = {}, .analytic = false};
  unsigned threads = 1;
};

// Forecasts the rows of a table, at once or in pieces. It keeps the models and the errors between the calls.
class KernelForecaster {
 public:
  KernelForecaster(KernelTableOptions options, std::function<Result<Gpu>(std::string_view id)> gpu_of);
  ~KernelForecaster();

  // Forecasts every row, on any number of threads with the same result. Errors: weights that cannot be read. A bad row
  // or an unknown GPU is an entry of `errors`.
  Result<KernelForecasts> forecast(const CsvTable& piece);
  // Errors of all rows so far that have latency_ms: one line for each GPU and operator, then one line for all (gpu and
  // op empty). Quantiles of more than 4,096 rows are within 0.01 percentage points below 200 %, and within 0.1 % of
  // themselves above.
  std::vector<KernelErrors> errors() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A whole table at once.
Result<KernelForecasts> forecast_kernels(const CsvTable& table, const KernelTableOptions& options,
                                         const std::function<Result<Gpu>(std::string_view id)>& gpu_of);

// forecast_ms, low_ms, high_ms, utilization, bound, tile, waves, method, extrapolated and forecast_power_w.
std::span<const std::string_view> kernel_answer_columns();

// A table, or a piece of one, with these columns behind each row (AnsweredCsv); empty where there is no forecast.
std::string csv_header(const CsvTable& table);
std::string csv_rows(const CsvTable& table, const KernelForecasts& forecasts);

// A table of these operators on one GPU, which KernelReader reads: gpu, op, dtype, pass, library, and the columns of
// their dimensions.
std::string kernel_rows(std::string_view gpu, std::span<const Operator> ops);

}  // namespace ns_dist
