#include "ns_dist/kernel_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "ns_dist/catalog.h"
#include "ns_dist/internal/number_from.h"

namespace ns_dist {
namespace {

Error error_at(std::string where, std::string message, std::string expected = "", std::string hint = "") {
  Error error;
  error.message = std::move(message);
  error.where = std::move(where);
  error.expected = std::move(expected);
  error.hint = std::move(hint);
  return error;
}

// Columns that every operator has.
constexpr std::string_view kGpu = "gpu", kOp = "op", kDtype = "dtype", kPass = "pass", kLatency = "latency_ms",
                           kPower = "power_w", kFramework = "framework", kOutlier = "outlier", kOverPeak = "over_peak";

class RowFields final : public OperatorFields {
 public:
  RowFields(const std::vector<std::string>& columns, const std::vector<std::string_view>& values)
      : columns_(columns), values_(values) {}

  std::string_view text(std::string_view name) const override {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (columns_[i] == name) return values_[i];
    }
    return {};
  }
  bool flagged(std::string_view name) const {
    const std::string_view field = text(name);
    return !field.empty() && field != "0" && field != "0.0";
  }
  // In words as people write them. A gradient of experts' products is a forward one of its own.
  Pass pass(bool of_experts) {
    const std::string_view word = text(kPass);
    if (word == "bwd" || word == "backward") return Pass::kBackward;
    const bool is_product = of_experts && (word == "dgrad" || word == "wgrad");
    if (!word.empty() && word != "fwd" && word != "forward" && !is_product) {
      note(fmt::format("pass is \"{}\"", word), "fwd, bwd or nothing; of experts' products fwd, dgrad or wgrad");
    }
    return Pass::kForward;
  }

 private:
  const std::vector<std::string>& columns_;
  const std::vector<std::string_view>& values_;
};

// The operator of a table that has no such column, by a column that only this operator has.
std::string_view operator_of(const CsvTable& table) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kTold = {
      {{"heads", "attention"}, {"groups", "grouped_gemm"}, {"layout", "gemm"}}};
  for (const auto& [column, op] : kTold) {
    if (table.column(column)) return op;
  }
  return "";
}

// What published tables without a library hold: the kernels of inference frameworks.
void set_serving(OperatorKind& kind) {
  if (auto* attention = std::get_if<Attention>(&kind)) attention->library = Library::kServing;
  if (auto* norm = std::get_if<Normalization>(&kind)) norm->library = Library::kServing;
}

// Of a header that nobody wrote as one: what can be shown of it.
std::string shown(const std::vector<std::string>& columns) {
  constexpr std::size_t kLongest = 200;
  std::string text = fmt::format("{}", fmt::join(columns, ", "));
  const bool cut = text.size() > kLongest;
  if (cut) text.resize(kLongest);
  for (char& c : text) {
    if (c < ' ' || c > '~') c = c == '\t' ? ' ' : '?';
  }
  text.erase(std::unique(text.begin(), text.end(), [](char a, char b) { return a == '?' && b == '?'; }), text.end());
  return cut ? text + " ..." : text;
}

}  // namespace

Result<void> check_kernel_columns(const CsvTable& table, std::string_view default_gpu) {
  for (const std::string_view column : {kOp, kGpu}) {
    if (table.column(column) || (column == kGpu && !default_gpu.empty())) continue;
    if (column == kOp && !operator_of(table).empty()) continue;
    std::string hint = fmt::format("the columns are: {}", shown(table.columns()));
    if (table.columns().size() == 1) {
      hint += "; separate them by commas";
    } else if (column == kGpu) {
      hint += "; or name one with --gpu";
    }
    return fail(error_at(table.where() + ":1", fmt::format("no column \"{}\"", column),
                         "columns gpu, op, dtype and the operator's dimensions", std::move(hint)));
  }
  return {};
}

PreferredFrameworks::PreferredFrameworks(const CsvTable& table, const std::vector<std::string>& order) {
  const auto gpu = table.column("gpu"), framework = table.column("framework");
  if (order.empty() || !gpu || !framework) return;
  std::map<std::string, std::size_t, std::less<>> ranks;
  std::vector<std::string_view> fields;
  for (std::size_t i = 0; i < table.row_count(); ++i) {
    if (!table.fields(i, fields) || std::max(*gpu, *framework) >= fields.size()) continue;
    const auto place = std::find(order.begin(), order.end(), fields[*framework]);
    if (place == order.end()) continue;
    const auto rank = static_cast<std::size_t>(place - order.begin());
    const auto [found, added] = ranks.emplace(std::string(fields[*gpu]), rank);
    if (!added) found->second = std::min(found->second, rank);
  }
  for (const auto& [id, rank] : ranks) by_gpu_.emplace(id, order[rank]);
}

bool PreferredFrameworks::passes_over(const KernelRow& row) const {
  const auto preferred = by_gpu_.find(row.gpu);
  return preferred != by_gpu_.end() && preferred->second != row.framework;
}

KernelReader::KernelReader(const CsvTable& table, std::string default_gpu)
    : table_(&table),
      default_gpu_(std::move(default_gpu)),
      operator_(operator_of(table)),
      names_library_(table.column("library") || table.column("backend")) {}

std::string kernel_rows(std::string_view gpu, std::span<const Operator> ops) {
  std::vector<std::string_view> columns = {kGpu, kOp, kDtype, kPass, "library"};
  std::vector<ColumnTexts> rows;
  for (const Operator& op : ops) {
    rows.push_back(columns_of(op));
    for (const auto& [column, text] : rows.back()) {
      if (std::find(columns.begin(), columns.end(), column) == columns.end()) columns.push_back(column);
    }
  }
  std::string out = fmt::format("{}\n", fmt::join(columns, ","));
  for (const ColumnTexts& row : rows) {
    out += csv_cell(std::string(gpu));
    for (std::size_t c = 1; c < columns.size(); ++c) {
      const auto field = std::find_if(row.begin(), row.end(), [&](const auto& one) { return one.first == columns[c]; });
      out += ',';
      if (field != row.end()) out += field->second;
    }
    out += '\n';
  }
  return out;
}

Result<KernelRow> KernelReader::row(std::size_t index) const {
  thread_local std::vector<std::string_view> values;
  NS_TRY_VOID(table_->fields(index, values));
  const auto where = [&] { return fmt::format("{}:{}", table_->where(), table_->line(index)); };
  RowFields f(table_->columns(), values);
  KernelRow row;
  row.gpu = f.has(kGpu) ? f.text(kGpu) : std::string_view(default_gpu_);
  row.op = f.has(kOp) ? f.text(kOp) : operator_;
  if (row.gpu.empty()) return fail(error_at(where(), "no GPU", "a gpu column", "name one with --gpu"));
  const std::string_view dtype = f.has(kDtype) ? f.text(kDtype) : std::string_view("bf16");
  const auto known = read_format(dtype);
  if (!known) {
    return fail(
        error_at(where(), fmt::format("dtype \"{}\" is unknown", dtype), fmt::format("one of {}", format_words())));
  }
  row.work.dtype = known->dtype;
  const OperatorForm* form = find_operator_form(row.op);
  if (form == nullptr) {
    const auto names = operator_names();
    return fail(error_at(where(), fmt::format("operator \"{}\" is unknown", row.op),
                         fmt::format("one of {}", fmt::join(names, ", ")), did_you_mean(nearest_name(row.op, names))));
  }
  row.work.kind = form->make(f, row.op);
  const Pass pass = f.pass(std::holds_alternative<GroupedGemm>(row.work.kind));
  if (!f.problem().empty()) {
    return fail(error_at(where(), f.problem(), std::string(f.expected()),
                         fmt::format("{} has columns {}", row.op, form->columns)));
  }
  if (auto passed = set_pass(row.work.kind, pass); !passed) {
    passed.error().where = where();
    return fail(passed.error());
  }
  if (!names_library_ && pass == Pass::kForward) set_serving(row.work.kind);
  if (auto valid = validate(row.work); !valid) {
    Error error = std::move(valid).error();
    error.where = where();
    return fail(error);
  }
  if (f.has(kLatency) && f.text(kLatency) != "inf") {  // out of memory
    row.latency_ms = usable_latency(f.text(kLatency));
    if (!row.latency_ms) row.bad_latency = f.text(kLatency);
  }
  if (f.has(kPower)) {
    const double power = f.real(kPower);
    if (!f.problem().empty() || !(power > 0)) {
      return fail(error_at(where(), fmt::format("power_w is \"{}\"", f.text(kPower)), "a positive number of W"));
    }
    row.power_w = power;
  }
  row.framework = f.text(f.has(kFramework) ? kFramework : "backend");
  row.mode = f.text("mode");
  row.doubtful = f.flagged(kOutlier) || f.flagged(kOverPeak);
  return row;
}

}  // namespace ns_dist
