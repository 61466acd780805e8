#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/catalog.h"
#include "ns_dist/kernel_table.h"
#include "ns_dist/operator_forms.h"
#include "tables.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

struct KernelsRequest {
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

Result<int> answer(const KernelsRequest& request) {
  KernelTableOptions options;
  NS_TRY(options.model, read_kernel_options(request.mode, request.calibration));
  options.default_gpu = request.gpu;
  NS_TRY(options.threads, read_threads(request.threads));
  NS_TRY_VOID(check_outputs({{"--output", request.output}}, {request.input, request.calibration}));
  const Catalog catalog = Catalog::standard();
  if (!request.gpu.empty()) NS_TRY_VOID(named_by("--gpu", catalog.gpu(request.gpu)));
  NS_TRY_VOID(check_not_read({{"--output", request.output}}, catalog.inputs()));
  NS_TRY(CsvStream input, CsvStream::open(request.input));
  const CsvTable& header = input.header();
  NS_TRY_VOID(check_kernel_columns(header, request.gpu));
  tell_replaced(request.input, AnsweredCsv(header, kernel_answer_columns()));
  KernelForecaster forecaster(options, [&](std::string_view id) { return catalog.gpu(id); });
  NS_TRY(OutputFile output, OutputFile::open(request.output));
  output.write(csv_header(header));
  Progress progress("forecasting", 1);
  RowMistakes mistakes;
  while (true) {
    NS_TRY(const CsvTable piece, input.next());
    if (piece.row_count() == 0) break;
    NS_TRY(KernelForecasts forecasts, forecaster.forecast(piece));
    output.write(csv_rows(piece, forecasts));
    NS_TRY_VOID(output.check());
    mistakes.add(std::move(forecasts.errors), std::move(forecasts.unmeasured), piece.row_count());
    progress.share(input.share());
  }
  progress.done();
  NS_TRY_VOID(output.finish());
  if (!is_standard_output(request.output)) std::fputs(errors_text(forecaster.errors()).c_str(), stdout);
  return mistakes.report(request.input);
}

// Two lines an operator at most: its names, then its columns.
std::string operators_text() {
  constexpr std::size_t kNames = 42;
  std::string text =
      "Operators and the columns of their dimensions; [ ]: may be left out. Forward attention and normalization of\n"
      "a table without a column library or backend are those of inference frameworks: serving\n";
  for (const OperatorForm& form : operator_forms()) {
    const std::string names = fmt::format("{}{}{}", form.family, form.aliases.empty() ? "" : " ", form.aliases);
    const bool short_names = names.size() <= kNames;
    text += fmt::format("  {}{}{:{}}  {}\n", names, short_names ? "" : "\n  ", "",
                        kNames - (short_names ? names.size() : 0), form.columns);
  }
  return text;
}

}  // namespace

int kernels_command(int argc, const char* const* argv) {
  // One operator instead of a table.
  if (argc > 0 && argv[0][0] != '-') {
    std::vector<const char*> one(argv, argv + argc);
    const bool has_mode = std::any_of(one.begin(), one.end(), [](std::string_view argument) {
      return argument == "--mode" || argument.starts_with("--mode=");
    });
    if (!has_mode && find_operator_form(argv[0]) != nullptr) one.insert(one.end(), {"--mode", "burst"});
    return explain_command(static_cast<int>(one.size()), one.data());
  }
  CLI::App app{
      "How long do these kernels take?\n"
      "  ns-dist kernels --input FILE.csv [FLAGS]        a table, plain or gzipped: its rows with forecasts\n"
      "  ns-dist kernels gemm 8192x8192x8192             one operator, with the flags of `ns-dist explain`",
      "kernels"};
  set_up(app);
  KernelsRequest request;
  app.add_option("--input", request.input,
                 "columns gpu, op, dtype [bf16] and the operator's dimensions; optional latency_ms, measured")
      ->type_name("CSV");
  app.add_option("--output", request.output, "where the rows go, gzipped with .gz [standard output]")->type_name("CSV");
  app.add_option("--gpu", request.gpu, "where the table names none: ns-dist list gpus")->type_name("ID|FILE");
  app.add_option("--mode", request.mode, "burst: one kernel alone; sustained: as in a step [burst]")
      ->type_name("WHICH");
  app.add_option("--kernel-calibration", request.calibration,
                 "corrections measured on this GPU, as ns-dist calibrate writes them")
      ->type_name("FILE");
  app.add_option("--threads", request.threads, "threads [one a core]")->type_name("N");
  app.footer(operators_text());
  if (const auto done = parse(app, argc, argv)) return *done;
  if (request.input.empty()) {
    return report_error({ErrorCode::kUsage, "no table and no operator is given", "--input",
                         "a CSV file; or an operator with its shape, as in: kernels gemm 8192x8192x8192"});
  }
  const auto answered = answer(request);
  return answered ? *answered : report_error(answered.error());
}

}  // namespace ns_dist::cli
