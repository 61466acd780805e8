// Tables as files, plain or gzipped: what is read whole and what is read in pieces agree; rows of collectives are
// forecast with finite numbers or refused with their line.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "ns_dist/catalog.h"
#include "ns_dist/collective_table.h"
#include "ns_dist/csv_table.h"

namespace {

using namespace ns_dist;

void forecast_rows(const CsvTable& table) {
  const auto reader = CollectiveReader::of(table, "h100-sxm-80gb");
  if (!reader) {
    NS_EXPECTS(!reader.error().message.empty());
    return;
  }
  const Catalog catalog = Catalog::built_in();
  CollectiveForecaster forecaster([&](std::string_view, std::string_view) { return catalog.cluster("dgx-h100"); });
  for (std::size_t i = 0; i < std::min<std::size_t>(table.row_count(), 100); ++i) {
    const auto row = reader->row(i);
    if (!row) {
      NS_EXPECTS(!row.error().where.empty());
      continue;
    }
    const auto answer = forecaster.forecast(*row);
    if (!answer) continue;
    NS_EXPECTS(std::isfinite(answer->forecast.latency / units::s) && answer->forecast.latency > Seconds());
    NS_EXPECTS(std::isfinite(answer->busbw_gbs));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("ns_dist_tables_fuzz_" + std::to_string(::getpid()));
  std::ofstream(path, std::ios::binary) << std::string(reinterpret_cast<const char*>(data), size);
  const auto whole = CsvTable::read(path);
  std::size_t rows = 0;
  auto stream = CsvStream::open(path);
  bool failed = !stream;
  while (!failed) {
    const auto part = stream->next();
    failed = !part;
    if (!part || part->row_count() == 0) break;
    rows += part->row_count();
  }
  std::filesystem::remove(path);
  if (!whole) {
    NS_EXPECTS(failed && !whole.error().message.empty());
    return 0;
  }
  NS_EXPECTS(!failed && rows == whole->row_count());
  forecast_rows(*whole);
  return 0;
}
