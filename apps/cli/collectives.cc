#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/catalog.h"
#include "ns_dist/collective_table.h"
#include "ns_dist/kernel_table.h"
#include "ns_dist/simulator.h"
#include "tables.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

struct CollectivesRequest {
  std::string input, output, gpu, cluster;
  FieldTexts network;
};

std::string errors_text(const CollectiveErrorTable& table) {
  std::string text;
  for (const CollectiveErrorTable::Line& line : table.lines()) {
    if (text.empty()) {
      text = fmt::format("{:<24} {:<16} {:<14} {:>7} {:>8} {:>8} {:>8} {:>8} {:>9}\n", "system", "collective", "sizes",
                         "rows", "MAPE %", "median %", "p90 %", "bias %", "inside %");
    }
    text += fmt::format("{:<24} {:<16} {:<14} {:>7} {:>8.1f} {:>8.1f} {:>8.1f} {:>+8.1f} {:>9.0f}\n", line.system,
                        line.collective, line.sizes, line.rows, 100 * line.mean, 100 * line.median, 100 * line.p90,
                        100 * line.bias, 100 * line.inside);
  }
  return text;
}

Result<int> answer(const CollectivesRequest& request) {
  NS_TRY_VOID(check_outputs({{"--output", request.output}},
                            {request.input, request.network.at("network/calibration").value_or("")}));
  NS_TRY(CsvStream input, CsvStream::open(request.input));
  // A table about one machine need not repeat it in every row.
  const auto reader_of = [&](const CsvTable& table) {
    return CollectiveReader::of(table, request.gpu, request.cluster);
  };
  NS_TRY_VOID(reader_of(input.header()));

  const Catalog catalog = Catalog::standard();
  NS_TRY(const ScenarioSpec spec, read_spec(request.network));
  NS_TRY(const Scenario scenario, resolve(spec, catalog));
  NetworkModelOptions options = network_options(scenario.network);
  options.strict = true;
  NS_TRY_VOID(make_network_model(scenario.cluster, options));  // its errors in the options hold for every row
  std::set<std::string> clusters;                              // of the rows, as a calibration names them
  CollectiveForecaster forecaster(
      [&](std::string_view gpu, std::string_view cluster) -> Result<Cluster> {
        if (!cluster.empty() && cluster == request.cluster) NS_TRY_VOID(catalog.cluster(cluster));
        NS_TRY(Cluster machine, catalog.measured_machine(gpu, cluster));
        if (!gpu.empty() && !cluster.empty()) warn_of(machine);
        clusters.insert(machine.id);
        return machine;
      },
      options);

  const AnsweredCsv answered_csv(input.header(), collective_answer_columns());
  tell_replaced(request.input, answered_csv);
  NS_TRY(OutputFile output, OutputFile::open(request.output));
  output.write(answered_csv.header());
  const std::string empty(collective_answer_columns().size() - 1, ',');
  CollectiveErrorTable errors;
  RowMistakes mistakes;
  Progress progress("forecasting", 1);
  while (true) {
    NS_TRY(const CsvTable piece, input.next());
    if (piece.row_count() == 0) break;
    NS_TRY(const CollectiveReader reader, reader_of(piece));
    std::vector<Error> refused, unmeasured;
    std::string rows;
    for (std::size_t i = 0; i < piece.row_count(); ++i) {
      const auto row = reader.row(i);
      answered_csv.append_row(piece, i, rows);
      auto answered = row ? forecaster.forecast(*row) : Result<CollectiveAnswer>(fail(row.error()));
      if (answered) {
        if (!row->gpu.empty() && !row->cluster.empty()) clusters.insert(row->cluster);
        errors.add(*row, *answered);
        if (!row->bad_latency.empty()) unmeasured.push_back(bad_latency(row->bad_latency, reader.where(i)));
        rows += fmt::format("{}\n", fmt::join(to_fields(*answered), ","));
      } else {
        // What a flag makes wrong of this row alone is at the row, too.
        std::string& where = answered.error().where;
        if (where.empty()) where = reader.where(i);
        if (!where.starts_with(request.input)) where = fmt::format("{}, {}", reader.where(i), where);
        refused.push_back(std::move(answered.error()));
        rows += empty + "\n";
      }
    }
    output.write(rows);
    NS_TRY_VOID(output.check());
    mistakes.add(std::move(refused), std::move(unmeasured), piece.row_count());
    progress.share(input.share());
  }
  progress.done();
  NS_TRY_VOID(output.finish());
  warn_of_others(scenario.network, clusters);
  if (!is_standard_output(request.output)) std::fputs(errors_text(errors).c_str(), stdout);
  return mistakes.report(request.input);
}

}  // namespace

int collectives_command(int argc, const char* const* argv) {
  if (argc > 0 && argv[0][0] != '-') return explain_command(argc, argv);  // one collective instead of a table
  CLI::App app{
      "How long do these collectives take?\n"
      "  ns-dist collectives --input FILE.csv [FLAGS]          a table, plain or gzipped: its rows with forecasts\n"
      "  ns-dist collectives all_reduce 64MiB --ranks 16       one collective, with the flags of `ns-dist explain`",
      "collectives"};
  set_up(app);
  CollectivesRequest request;
  app.add_option("--input", request.input,
                 "columns gpu or cluster, collective, ranks, bytes; optional gpus_per_node (full nodes), dtype, "
                 "imbalance, latency_ms")
      ->type_name("CSV");
  app.add_option("--output", request.output, "where the rows go [standard output]")->type_name("CSV");
  app.add_option("--gpu", request.gpu, "where the table names none: ns-dist list gpus")->type_name("ID|FILE");
  app.add_option("--cluster", request.cluster, "where the table names none: ns-dist list clusters")
      ->type_name("ID|FILE");
  add_collective_model_flags(app, request.network, "How collectives are forecast");
  if (const auto done = parse(app, argc, argv)) return *done;
  if (request.input.empty()) {
    return report_error({ErrorCode::kUsage, "no table and no collective is given", "--input",
                         "a CSV file; or a collective with its size, as in: collectives all_reduce 64MiB --ranks 16"});
  }
  const auto answered = answer(request);
  return answered ? *answered : report_error(answered.error());
}

}  // namespace ns_dist::cli
