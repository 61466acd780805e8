#include "ns_dist/time_to_train.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "host_work.h"
#include "ns_dist/catalog.h"
#include "ns_dist/energy.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/internal/number_from.h"
#include "ns_dist/parameters.h"
#include "ns_dist/session.h"
#include "ns_dist/simulator.h"
#include "ns_dist/training_clock.h"

namespace ns_dist {

Seconds checkpoint_interval(Seconds checkpoint, Seconds time_between_failures) {
  const double d = checkpoint / units::s, m = time_between_failures / units::s;
  if (d >= 2 * m) return time_between_failures;
  const double ratio = d / (2 * m);
  return (std::sqrt(2 * d * m) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - d) * units::s;
}

double goodput(Seconds interval, Seconds checkpoint, Seconds restart, Seconds time_between_failures) {
  const double m = time_between_failures / units::s;
  const double t = interval / units::s / m, d = checkpoint / units::s / m, r = restart / units::s / m;
  const double restarts = std::exp(-r);
  if (t <= 0) return d > 0 ? 0 : restarts;  // the limit of free checkpoints all the time
  return restarts * t / std::expm1(t + d);
}

Seconds time_between_failures(const Reliability& reliability, double gpus, double hosts, bool network) {
  if (reliability.gpu_time_between_failures) return *reliability.gpu_time_between_failures / gpus;
  double rate = gpus / (reliability.gpu_alone / units::s) + hosts / (reliability.node / units::s);
  if (network) rate += gpus / (reliability.network / units::s);
  return 1 / rate * units::s;
}

namespace {

// Erlang's recursion: the share of the time that all of so many servers are busy, by that of one server less.
double busy_share(double of_one_less, double away, std::int64_t servers) {
  return away * of_one_less / (static_cast<double>(servers) + away * of_one_less);
}

// The least that are enough kWhole of the time.
std::int64_t enough_spares(double away) {
  double busy = 1;
  for (std::int64_t spares = 0; spares < kMostSpares; ++spares) {
    busy = busy_share(busy, away, spares + 1);
    if (1 - busy >= kWhole) return spares;
  }
  return kMostSpares;
}

}  // namespace

double whole_share(std::int64_t spares, Seconds repair, Seconds time_between_failures) {
  const double away = repair / time_between_failures;
  if (!std::isfinite(away)) return 0;
  double busy = 1;
  for (std::int64_t servers = 1; servers <= spares + 1; ++servers) busy = busy_share(busy, away, servers);
  return 1 - busy;
}

Result<Seconds> step_of_unequal_gpus(const Scenario& scenario, double spread) {
  if (!(spread >= 0 && spread <= 0.1)) {
    return fail({ErrorCode::kInvalidInput, fmt::format("{:g} % as the spread of the GPUs' speeds", 100 * spread),
                 "--gpu-spread", "a percentage from 0 to 10", "write, for example, --gpu-spread 1"});
  }
  Scenario equal = scenario;
  equal.constants.deviation = 0;  // `spread` stands in its place
  NS_TRY(const Session session, Session::make(equal));
  NS_TRY(Seconds slowest, step_time(equal, session));
  NS_TRY(const std::int64_t ranks, rank_count(equal.plan));
  const double factor = 1 / (1 - spread * mean_of_largest(static_cast<double>(ranks)));
  if (factor == 1) return slowest;
  // The slow rank of the user, if any, may be the slowest GPU, too.
  const std::int64_t user = std::max<std::int64_t>(equal.stragglers.slow_stage, 0);
  for (const std::int64_t stage : {std::int64_t{0}, equal.plan.pp / 2, equal.plan.pp - 1, user}) {
    Scenario slow = equal;
    slow.stragglers.stage_speed.resize(static_cast<std::size_t>(slow.plan.pp), 1.0);
    slow.stragglers.stage_speed[static_cast<std::size_t>(stage)] /= factor;
    NS_TRY(const Seconds step, step_time(slow, session));
    slowest = std::max(slowest, step);
  }
  return slowest;
}

Bytes checkpoint_size(const Model& model, DType dtype, const ParallelPlan& plan, bool predictions) {
  const BytesPerParameter each = bytes_per_parameter(dtype, plan.optimizer_state, plan.weights);
  const ModelParameters all = model_parameters(model);
  const double saved = plan.lora_rank > 0 ? adapter_parameters(model, plan, predictions)
                                          : all.total() + (predictions ? all.prediction : 0);
  const std::int64_t layers = frozen_layers_of(plan);
  const double frozen = frozen_parameters(model, layers);
  const double matrices = plan.optimizer == OptimizerKind::kMuon ? matrix_parameters(model, plan, predictions) : 0;
  return (saved * (each.weight + each.optimizer) - frozen * each.optimizer - matrices * each.moment) * units::B;
}

Result<TrainingTime> time_to_train(const Report& report, double tokens, const Reliability& reliability,
                                   std::optional<Seconds> step) {
  if (!(tokens > 0) || !std::isfinite(tokens)) {
    return fail({ErrorCode::kInvalidInput, fmt::format("{} tokens", tokens), "--tokens", "a number above 0",
                 "write, for example, --tokens 15T"});
  }
  const Training& training = report.scenario.training;
  const auto gpus = static_cast<double>(report.ranks);
  TrainingTime time;
  time.tokens = tokens;
  time.steps = std::ceil(tokens / tokens_of_step(training));
  time.step = step.value_or(report.step);
  time.without_failures = time.steps * time.step;
  const Cluster& cluster = report.scenario.cluster;
  const auto node = static_cast<double>(std::max<std::int64_t>(1, cluster.gpus_per_node()));
  const double host = std::min(node, static_cast<double>(kGpusOfAHost));
  time.time_between_failures = time_between_failures(reliability, gpus, std::ceil(gpus / host), gpus > node);
  const BytesPerSecond storage = reliability.storage_bandwidth.value_or(gpus * kStorageBandwidthPerGpu);
  const Bytes size =
      checkpoint_size(report.scenario.model, storage_type(training.precision), report.scenario.plan, training.mtp);
  time.checkpoint = reliability.checkpoint.value_or(size / storage);
  time.standstill = time.checkpoint;
  Seconds restart = reliability.restart;
  if (reliability.asynchronous) {
    if (const BytesPerSecond link = host_link(cluster.gpu).reached(); link > BytesPerSecond()) {
      time.standstill = std::min(time.checkpoint, 1 / gpus * size / link);
    }
    restart += time.checkpoint;
  }
  // Checkpoints are written between steps, asynchronous ones one at a time.
  double steps = std::round(checkpoint_interval(time.standstill, time.time_between_failures) / time.step);
  if (reliability.asynchronous) steps = std::max(steps, std::ceil(time.checkpoint / time.step));
  time.interval = std::max(1.0, steps) * time.step;
  time.goodput = goodput(time.interval, time.standstill, restart, time.time_between_failures);
  if (reliability.repair) {
    const Seconds repair = *reliability.repair;
    time.spare_nodes =
        reliability.spare_nodes ? *reliability.spare_nodes : enough_spares(repair / time.time_between_failures);
    time.whole = whole_share(time.spare_nodes, repair, time.time_between_failures);
    time.goodput *= time.whole;
  }
  time.total = time.without_failures / time.goodput;
  if (!(time.total <= kNever)) time.total = std::numeric_limits<double>::infinity() * units::s;
  time.low = report.step_low / report.step * time.total;
  time.high = report.step_high / report.step * time.total;
  const double paid = gpus + node * static_cast<double>(time.spare_nodes);
  time.gpu_hours = paid * (time.total / units::s) / 3600;
  if (report.energy) time.energy = time.total * most_power(report.scenario, paid);
  return time;
}

namespace {

// YYYY-MM-DD (ISO 8601), of a day that there is.
bool is_date(std::string_view text) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return false;
  const auto year = number_from<unsigned>(text.substr(0, 4)), month = number_from<unsigned>(text.substr(5, 2)),
             day = number_from<unsigned>(text.substr(8, 2));
  if (!year || !month || !day) return false;
  const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(*year)), std::chrono::month(*month),
                                         std::chrono::day(*day)};
  return date.ok();
}

}  // namespace

Result<Prices> read_prices(std::string_view json, const std::string& where) {
  NS_TRY(const nlohmann::ordered_json root, parse_json(json, where));
  Prices prices;
  std::vector<Error> errors;
  JsonReader reader(root, where, errors);
  prices.currency = reader.text("currency");
  reader.ignore("note");
  prices.date = reader.text("date", Presence::kOptional);
  if (reader.is_text("date") && !is_date(prices.date)) {
    reader.note("date", fmt::format("\"{}\" is no date", shortened(prices.date)), "the day as YYYY-MM-DD",
                "write, for example, \"date\": \"2026-11-22\"");
  }
  reader.ignore("gpu_hour");
  reader.reject_unknown_keys();
  const auto wrong = [&](std::string message, const std::string& place) {
    errors.push_back({ErrorCode::kInvalidInput, std::move(message), where + "#/gpu_hour" + place,
                      "the price of a GPU for an hour, a number above 0, by the id of the GPU",
                      "write, for example, \"gpu_hour\": {\"h100-sxm-80gb\": 2.5}"});
  };
  if (!root.is_object() || !root.contains("gpu_hour") || !root["gpu_hour"].is_object()) {
    wrong("there are no prices", "");
  } else {
    const Catalog catalog = Catalog::standard();
    for (const auto& [gpu, price] : root["gpu_hour"].items()) {
      const std::string place = "/" + pointer_step(gpu);
      if (!price.is_number() || !(price.get<double>() > 0) || price.get<double>() > 1e9) {
        wrong(fmt::format("{} is no price", json_excerpt(price)), place);
        continue;
      }
      const auto known = catalog.gpu(gpu);
      const std::string id = known ? known->id : gpu;
      if (!prices.gpu_hour.emplace(id, price.get<double>()).second) {
        wrong(fmt::format("the price of {} is given twice", id), place);
      }
      if (known) continue;
      std::string text = fmt::format("{}#/gpu_hour{}: no GPU of `ns-dist list gpus` is called so", where, place);
      if (!known.error().hint.empty()) text += "; " + known.error().hint;
      prices.unknown.emplace(gpu, std::move(text));
    }
  }
  if (!errors.empty()) return fail(join(std::move(errors)));
  return prices;
}

}  // namespace ns_dist
