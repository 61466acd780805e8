// Tables of kernels: CSV files, plain or gzipped, with a header. The columns `gpu, op, dtype` and the operator's
// dimensions say what ran; `latency_ms`, where present, is what was measured.
//
// Which operators there are, and their dimensions, kernel_shapes() says. `pass` (fwd, bwd) is read for operators that
// have a backward form of their own; pointwise names that end in u are of a tensor and a scalar.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/compute_model.h"
#include "ns_dist/error_figures.h"
#include "ns_dist/operator.h"
#include "ns_dist/result.h"

namespace ns_dist {

// A CSV text with its rows found. Quoted fields may hold commas; a field may not hold a line break.
class CsvTable {
 public:
  // Reads a file, plain or gzipped. Errors: cannot be read, no header, a column twice.
  static Result<CsvTable> read(const std::filesystem::path& path);
  static Result<CsvTable> parse(std::string text, std::string where);

  const std::string& where() const { return where_; }
  const std::vector<std::string>& columns() const { return columns_; }
  std::optional<std::size_t> column(std::string_view name) const;
  std::size_t row_count() const { return rows_.size(); }
  std::int64_t line(std::size_t row) const { return rows_[row].line; }
  std::string_view text(std::size_t row) const {
    return std::string_view(text_).substr(rows_[row].begin, rows_[row].size);
  }
  // The fields of a row, at most as many as there are columns, without blanks and quotes around them. Returns how many
  // the row has.
  std::size_t fields(std::size_t row, std::vector<std::string_view>& out) const;
  // The same as they stand in the text.
  void raw_fields(std::size_t row, std::vector<std::string_view>& out) const;

 private:
  friend class CsvStream;
  struct Row {
    std::size_t begin = 0, size = 0;
    std::int64_t line = 0;
  };
  void find_rows(std::int64_t lines_before);
  std::string text_, where_;
  std::vector<std::string> columns_;
  std::vector<Row> rows_;
};

// Reads a CSV file piece by piece: any number of rows in constant memory.
class CsvStream {
 public:
  // Reads the header. Errors: as CsvTable::read.
  static Result<CsvStream> open(const std::filesystem::path& path);
  CsvStream(CsvStream&&) noexcept;
  ~CsvStream();

  const CsvTable& header() const { return header_; }  // a table without rows
  // The next rows, a few megabytes of text; no rows at the end. Errors: cannot be unpacked or is cut short; a line of
  // more than 64 MiB.
  Result<CsvTable> next();
  // How much of the file was read, from 0 to 1.
  double share() const;

 private:
  struct File;
  CsvStream();
  Result<void> fill(std::size_t size);

  std::unique_ptr<File> file_;
  CsvTable header_;
  std::string rest_;        // read, but not handed over
  std::int64_t lines_ = 1;  // handed over, with the header
};

// Operators of one form: names with blanks between them, and the columns of their dimensions, those that may be left
// out in brackets.
struct KernelShape {
  std::string_view names, dimensions;
};
std::span<const KernelShape> kernel_shapes();

// Makes an operator the pass that is asked for. Error: it has no backward form; what to write instead.
Result<void> set_pass(OperatorKind& kind, Pass pass);

// Error: a table without a column op, or without a column gpu where `default_gpu` is empty.
Result<void> check_kernel_columns(const CsvTable& table, std::string_view default_gpu);

struct KernelRow {
  std::string_view gpu, op;  // into the table
  Operator work;
  std::optional<double> latency_ms;
  std::optional<double> power_w;  // mean board power while it ran
  std::string_view framework;     // whose kernels ran, of the column of that name; into the table
  bool doubtful = false;          // flagged by the columns outlier or over_peak
  friend bool operator==(const KernelRow&, const KernelRow&) = default;
};

// Reads rows of a table as kernels.
class KernelReader {
 public:
  // Keeps a reference to `table`. `default_gpu` stands where the table has no gpu.
  explicit KernelReader(const CsvTable& table, std::string default_gpu = "");
  // Errors, with the row's line: an unknown operator or dtype, a missing, unreadable or non-positive dimension, a pass
  // that the operator does not have, more fields than columns.
  Result<KernelRow> row(std::size_t index) const;

 private:
  const CsvTable* table_;
  std::string default_gpu_;
  std::string_view operator_;  // of every row, where the table has no column for it
  std::vector<std::optional<std::size_t>> columns_;
};

// Of each GPU in a table, the first framework of `order` that measured it. Two frameworks' rows of one GPU need not be
// of one kind: one may have left its weights uninitialized.
class PreferredFrameworks {
 public:
  PreferredFrameworks(const CsvTable& table, const std::vector<std::string>& order);
  // Whether another framework than the row's is preferred for its GPU; never where none of `order` measured it.
  bool passes_over(const KernelRow& row) const;

 private:
  std::map<std::string, std::string, std::less<>> by_gpu_;
};

// Errors of forecasts against the measured latencies of one operator on one GPU, relative to the measured.
struct KernelErrors : ErrorFigures {
  std::string gpu, op;
  double inside = 0;  // share of measurements inside the 90 % interval
};

struct KernelForecasts {
  std::vector<Forecast> forecasts;  // by row; latency 0 where the row is in `errors`
  std::vector<Error> errors;        // in the order of the rows, each with its line
};

struct KernelTableOptions {
  std::string default_gpu{};
  ComputeModelOptions model{.mode = Mode::kBurst, .weights = {}, .analytic = false};
  unsigned threads = 1;
};

// Forecasts the rows of one table, or of the pieces of one, and keeps the models and the sums of their errors.
class KernelForecaster {
 public:
  KernelForecaster(KernelTableOptions options, std::function<Result<Gpu>(std::string_view id)> gpu_of);
  ~KernelForecaster();

  // Forecasts every row, on any number of threads with the same result. Errors: weights that cannot be read. A bad row
  // or an unknown GPU is an entry of `errors`.
  Result<KernelForecasts> forecast(const CsvTable& piece);
  // Of all rows so far that gave latency_ms: by GPU and operator, then one line for all: "", "". Quantiles of more than
  // 4,096 rows are within 0.01 percentage points below 200 %, and within 0.1 % of themselves above.
  std::vector<KernelErrors> errors() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A whole table at once.
Result<KernelForecasts> forecast_kernels(const CsvTable& table, const KernelTableOptions& options,
                                         const std::function<Result<Gpu>(std::string_view id)>& gpu_of);

// The table with forecast_ms, low_ms, high_ms, utilization, bound, tile, waves, method, extrapolated and
// forecast_power_w added to each row; empty where there is no forecast. Columns of these names, of an earlier answer,
// are replaced.
std::string to_csv(const CsvTable& table, const KernelForecasts& forecasts);
// Its header and its rows alone, for tables in pieces.
std::string csv_header(const CsvTable& table);
std::string csv_rows(const CsvTable& table, const KernelForecasts& forecasts);

// The columns that to_csv replaces.
std::vector<std::string> replaced_columns(const CsvTable& table);

}  // namespace ns_dist
