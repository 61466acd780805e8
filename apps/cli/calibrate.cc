#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/catalog.h"
#include "ns_dist/collective_table.h"
#include "ns_dist/kernel_calibration.h"
#include "ns_dist/kernel_table.h"
#include "ns_dist/network_fit.h"
#include "tables.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

struct Request {
  std::string gpu, cluster, collectives, kernels, mode = "sustained", output;
};

// What a flag names, with the flag as the place of an error that has none.
template <class T>
Result<T> named_by(const char* flag, Result<T> found) {
  if (!found && found.error().where.empty()) found.error().where = flag;
  return found;
}

Result<Cluster> cluster_of(const Request& request) {
  if (request.gpu.empty() && request.cluster.empty()) {
    return fail({ErrorCode::kUsage,
                 "the machine of the measurements is missing",
                 "--cluster, --gpu",
                 "a cluster, or a GPU for its usual one",
                 "add --cluster ID (ns-dist list clusters)",
                 {}});
  }
  const Catalog catalog = Catalog::standard();
  if (request.cluster.empty()) return named_by("--gpu", usual_clusters(catalog)(request.gpu));
  NS_TRY(Cluster cluster, named_by("--cluster", catalog.cluster(request.cluster)));
  if (!request.gpu.empty()) {
    NS_TRY(cluster.gpu, catalog.gpu(request.gpu));
  }
  return cluster;
}

// Mean error of the model with these options over the rows, as a share.
Result<double> mean_error(const std::vector<CollectiveRow>& rows, const Cluster& cluster, NetworkModelOptions options) {
  CollectiveForecaster forecaster([&](auto, auto) -> Result<Cluster> { return cluster; }, std::move(options));
  double sum = 0;
  for (const CollectiveRow& row : rows) {
    NS_TRY(const CollectiveAnswer answer, forecaster.forecast(row));
    sum += std::abs(answer.forecast.latency / (*row.latency_ms * units::ms) - 1);
  }
  return sum / static_cast<double>(rows.size());
}

Result<std::vector<CollectiveRow>> read_rows(const Request& request, const Cluster& cluster) {
  NS_TRY(const CsvTable table, CsvTable::read(request.collectives));
  NS_TRY(const CollectiveReader reader, CollectiveReader::of(table, "", cluster.id));
  const Catalog catalog = Catalog::standard();
  std::vector<CollectiveRow> rows;
  std::vector<Error> mistakes;
  for (std::size_t i = 0; i < table.row_count(); ++i) {
    auto row = reader.row(i);
    const auto refuse = [&](std::string message, std::string expected) {
      row = fail({ErrorCode::kInvalidInput, std::move(message), reader.where(i), std::move(expected), "", {}});
    };
    if (row && (!row->latency_ms || !(*row->latency_ms > 0))) {
      refuse("no latency_ms", "the measured time in milliseconds");
    } else if (row && !row->cluster.empty() && row->cluster != cluster.id) {
      refuse(fmt::format("measured on cluster \"{}\"", row->cluster), fmt::format("rows of \"{}\" only", cluster.id));
    } else if (row && !row->gpu.empty()) {
      const auto gpu = catalog.gpu(row->gpu);
      if (!gpu || gpu->id != cluster.gpu.id) {
        refuse(fmt::format("measured on GPU \"{}\"", row->gpu), fmt::format("rows of \"{}\" only", cluster.gpu.id));
      }
    }
    if (row) {
      rows.push_back(*std::move(row));
    } else {
      mistakes.push_back(std::move(row.error()));
    }
  }
  if (!mistakes.empty()) return fail(join(std::move(mistakes)));
  if (rows.empty()) {
    return fail({ErrorCode::kInvalidInput, "no rows", request.collectives, "at least one measured collective", "", {}});
  }
  return rows;
}

// Measurements that contradict each other, or hold work that one correction cannot describe, make a useless correction.
void warn_if_worse(std::string_view what, double before, double after) {
  if (!(after > before)) return;
  std::fputs(fmt::format("ns-dist: warning: the correction of {} makes its own rows worse: {:.1f} % before, {:.1f} % "
                         "after; do without it, or measure more rows\n",
                         what, 100 * before, 100 * after)
                 .c_str(),
             stderr);
}

// A correction of collectives: what the measurements add to the curves that are compiled in.
Result<std::string> calibrate_collectives(const Request& request) {
  NS_TRY(const Cluster cluster, cluster_of(request));
  NS_TRY_VOID(check_outputs({{"--output", request.output}}, {request.collectives}));
  NS_TRY(const std::vector<CollectiveRow> rows, read_rows(request, cluster));
  std::vector<CollectiveMeasurement> measurements;
  for (const CollectiveRow& row : rows) {
    measurements.push_back({0, row.kind, row.ranks, row.gpus_per_node > 0 ? row.gpus_per_node : row.ranks, row.size,
                            *row.latency_ms * units::ms, row.integer});
  }
  NetworkFitOptions options;
  options.source = fmt::format("{} measured collectives on {}", rows.size(), cluster.id);
  options.for_one_cluster = true;
  options.base = &builtin_network_calibration();
  auto fitted = fit_network(std::vector{cluster}, measurements, options);
  if (!fitted) {
    fitted.error().where = request.collectives + (fitted.error().where.empty() ? "" : ", " + fitted.error().where);
    return fail(fitted.error());
  }
  const std::string text = to_json(*fitted);
  NetworkModelOptions with;
  with.calibration = std::make_shared<const NetworkCalibration>(before_builtin(*fitted));
  NS_TRY(const double before, mean_error(rows, cluster, {}));
  NS_TRY(const double after, mean_error(rows, cluster, with));
  NS_TRY_VOID(write_text(request.output, text));
  warn_if_worse(cluster.id, before, after);
  return fmt::format(
      "{} rows, {} curves for cluster {} in {}\n  mean error on these rows: {:.1f} % before, {:.1f} % "
      "after (the rows of the fit, none is held out)\n",
      rows.size(), fitted->curves.size(), cluster.id, request.output, 100 * before, 100 * after);
}

// A correction of kernels: what the measurements of one GPU add to the forecast for it.
Result<std::string> calibrate_gpu(const Request& request) {
  if (request.gpu.empty()) {
    return fail({ErrorCode::kUsage,
                 "the GPU of the measurements is missing",
                 "--gpu",
                 "a GPU",
                 "add --gpu ID (ns-dist list gpus)",
                 {}});
  }
  ComputeModelOptions options;
  NS_TRY(options.mode, read_mode(request.mode));
  NS_TRY(const Gpu gpu, named_by("--gpu", Catalog::standard().gpu(request.gpu)));
  NS_TRY_VOID(check_outputs({{"--output", request.output}}, {request.kernels}));
  NS_TRY(const CsvTable table, CsvTable::read(request.kernels));
  NS_TRY_VOID(check_kernel_columns(table, gpu.id));
  NS_TRY(const KernelCalibration calibration, calibrate_kernels(gpu, table, options));
  NS_TRY_VOID(write_text(request.output, to_json(calibration)));
  std::string text = fmt::format("{} on {}, in {}\n", request.mode, gpu.id, request.output);
  if (options.mode == Mode::kSustained)
    text.insert(text.size() - 1, "; ns-dist kernels takes it with --mode sustained");
  for (const FamilyCalibration& family : calibration.families) {
    text += fmt::format(
        "  {:<16} {:<5} {:>5} rows: mean error {:.1f} % before, {:.1f} % after, each row by the others\n",
        family.family, name_of(family.dtype), family.points.size(), 100 * family.before, 100 * family.after);
    warn_if_worse(fmt::format("{} {}", family.family, name_of(family.dtype)), family.before, family.after);
  }
  return text;
}

}  // namespace

int calibrate_command(int argc, const char* const* argv) {
  CLI::App app{
      "A correction from a few measurements of one's own: of a GPU's kernels, for --kernel-calibration, or of a "
      "cluster's collectives, for --calibration.",
      "calibrate"};
  set_up(app);
  Request request;
  app.add_option("--cluster", request.cluster, "where they were measured: ns-dist list clusters, or JSON")
      ->type_name("ID|FILE");
  app.add_option("--gpu", request.gpu, "or the GPU, for its usual cluster: ns-dist list gpus, or JSON")
      ->type_name("ID|FILE");
  app.add_option("--collectives", request.collectives,
                 "columns collective, ranks, bytes, latency_ms; optional gpus_per_node, dtype")
      ->type_name("CSV");
  app.add_option("--kernels", request.kernels,
                 "or columns op, dtype, the operator's dimensions and latency_ms, as ns-dist kernels reads them")
      ->type_name("CSV");
  app.add_option("--mode", request.mode, "how the kernels ran: burst, one alone; sustained, back to back [sustained]")
      ->type_name("WHICH");
  app.add_option("--output", request.output, "the correction")->type_name("FILE")->required();
  if (const auto done = parse(app, argc, argv)) return *done;
  if (request.collectives.empty() == request.kernels.empty()) {
    return report_error(
        {ErrorCode::kUsage,
         request.kernels.empty() ? "no measurements are given" : "kernels and collectives are two corrections",
         "--kernels, --collectives",
         "one of them",
         "",
         {}});
  }
  const auto answered = request.kernels.empty() ? calibrate_collectives(request) : calibrate_gpu(request);
  if (!answered) return report_error(answered.error());
  std::fputs(answered->c_str(), stdout);
  return kAnswered;
}

}  // namespace ns_dist::cli
