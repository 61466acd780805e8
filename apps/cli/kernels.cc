#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/catalog.h"
#include "ns_dist/kernel_calibration.h"
#include "ns_dist/kernel_table.h"
#include "tables.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

struct Request {
  std::string input, output, gpu, mode = "burst", threads, calibration;
};

std::string errors_text(const std::vector<KernelErrors>& table) {
  std::string text;
  for (const KernelErrors& line : table) {
    if (text.empty()) {
      text = fmt::format("{:<18} {:<16} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9}\n", "GPU", "operator", "rows", "MAPE %",
                         "median %", "p90 %", "bias %", "inside %");
    }
    text += fmt::format("{:<18} {:<16} {:>8} {:>8.1f} {:>8.1f} {:>8.1f} {:>+8.1f} {:>9.0f}\n",
                        line.gpu.empty() ? "all" : line.gpu, line.op.empty() ? "all" : line.op, line.rows,
                        100 * line.mean, 100 * line.median, 100 * line.p90, 100 * line.bias, 100 * line.inside);
  }
  return text;
}

Result<int> answer(const Request& request) {
  KernelTableOptions options;
  NS_TRY(options.model.mode, read_mode(request.mode));
  if (!request.calibration.empty()) {
    NS_TRY(KernelCalibration calibration, load_kernel_calibration(request.calibration));
    options.model.calibration = std::make_shared<const KernelCalibration>(std::move(calibration));
  }
  options.default_gpu = request.gpu;
  NS_TRY(options.threads, read_threads(request.threads));
  NS_TRY(const CsvTable table, CsvTable::read(request.input));
  const Catalog catalog = Catalog::standard();
  Progress progress("forecasting", table.row_count());
  NS_TRY(const KernelForecasts forecasts, forecast_kernels(
                                              table, options, [&](std::string_view id) { return catalog.gpu(id); },
                                              [&](double share) { progress.share(share); }));
  progress.done();
  if (request.output.empty()) {
    std::fputs(to_csv(table, forecasts).c_str(), stdout);
  } else {
    if (auto written = write_text(request.output, to_csv(table, forecasts)); !written) return fail(written.error());
    std::fputs(errors_text(forecasts.table).c_str(), stdout);
  }
  return report_rows(forecasts.errors, table.row_count());
}

}  // namespace

int kernels_command(int argc, const char* const* argv) {
  CLI::App app{"How long do these kernels take? A CSV, plain or gzipped, in; the same with forecasts out.", "kernels"};
  set_up(app);
  Request request;
  app.add_option("--input", request.input, "columns gpu, op, dtype and the operator's dimensions; optional latency_ms")
      ->type_name("CSV")
      ->required();
  app.add_option("--output", request.output, "where the rows go [standard output]")->type_name("CSV");
  app.add_option("--gpu", request.gpu, "where the table names none: ns-dist list gpus")->type_name("ID|FILE");
  app.add_option("--mode", request.mode, "burst: one kernel alone; sustained: as in a step [burst]")
      ->type_name("WHICH");
  app.add_option("--kernel-calibration", request.calibration,
                 "corrections measured on this GPU, as ns-dist calibrate writes them")
      ->type_name("FILE");
  app.add_option("--threads", request.threads, "[as many as there are cores]")->type_name("N");
  if (const auto done = parse(app, argc, argv)) return *done;
  const auto answered = answer(request);
  return answered ? *answered : report_error(answered.error());
}

}  // namespace ns_dist::cli
