#include "csv_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "ns_dist/internal/number_from.h"

namespace ns_dist {

Result<CsvRows> CsvRows::open(const std::filesystem::path& path, std::vector<std::string_view> required) {
  NS_TRY(CsvTable table, CsvTable::read(path));
  for (const std::string_view column : required) {
    if (table.column(column)) continue;
    Error error;
    error.message = fmt::format("no column \"{}\"", column);
    error.where = path.string() + ":1";
    error.expected = fmt::format("columns {}", fmt::join(required, ", "));
    return fail(error);
  }
  return CsvRows(std::move(table));
}

void CsvRows::go_to(std::size_t row) {
  row_ = row;
  mistake_.reset();
  if (auto read = table_.fields(row, fields_); !read) mistake_ = std::move(read).error();
}

std::string CsvRows::where() const { return fmt::format("{}:{}", table_.where(), table_.line(row_)); }

std::string_view CsvRows::text(std::string_view column) const {
  const auto index = table_.column(column);
  return index && *index < fields_.size() ? fields_[*index] : std::string_view();
}

std::optional<double> CsvRows::number(std::string_view column) {
  const std::string_view field = text(column);
  if (field.empty()) return std::nullopt;
  if (const auto value = number_from<double>(field)) return value;
  if (!mistake_) {
    Error error;
    error.message = fmt::format("{} is \"{}\"", column, field);
    error.where = where();
    error.expected = "a finite number or nothing";
    mistake_ = error;
  }
  return std::nullopt;
}

std::optional<double> CsvRows::positive(std::string_view column) {
  const std::optional<double> value = number(column);
  return value && *value > 0 ? value : std::nullopt;
}

std::int64_t CsvRows::whole(std::string_view column, std::int64_t fallback) {
  const std::optional<double> value = number(column);
  if (!value) return fallback;
  if (*value == std::floor(*value) && std::abs(*value) < 9e15) return static_cast<std::int64_t>(*value);
  if (!mistake_) {
    Error error;
    error.message = fmt::format("{} is \"{}\"", column, text(column));
    error.where = where();
    error.expected = "a whole number";
    mistake_ = error;
  }
  return fallback;
}

std::optional<Error> CsvRows::mistake() { return std::exchange(mistake_, std::nullopt); }

}  // namespace ns_dist
