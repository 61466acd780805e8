// Tables of kernels: any text is either refused with a place, or each row is an operator that can be forecast or an
// error with its line.
#include <cstddef>
#include <cstdint>
#include <string>

#include "ns_dist/kernel_table.h"
#include "tests/support/gpus.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ns_dist;
  const auto table = CsvTable::parse(std::string(reinterpret_cast<const char*>(data), size), "table");
  if (!table) {
    NS_EXPECTS(!table.error().where.empty());
    return 0;
  }
  KernelTableOptions options;
  options.model.analytic = true;
  const auto result = forecast_kernels(*table, options, [](std::string_view) -> Result<Gpu> { return a100(); });
  NS_EXPECTS(result.has_value());
  NS_EXPECTS(result->forecasts.size() == table->row_count() && result->errors.size() <= table->row_count());
  for (const Error& error : result->errors) NS_EXPECTS(error.where.find("table:") == 0);
  NS_EXPECTS(!(csv_header(*table) + csv_rows(*table, *result)).empty());
  return 0;
}
