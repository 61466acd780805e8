#include "ns_dist/time_to_train.h"

#include <fmt/format.h>

#include <cmath>

#include "ns_dist/energy.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/parameters.h"

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

Bytes checkpoint_size(const Model& model, DType dtype, MomentType moments) {
  const BytesPerParameter each = bytes_per_parameter(dtype, moments);
  return model_parameters(model).total() * (each.weight + each.optimizer) * units::B;
}

Result<TrainingTime> time_to_train(const Report& report, double tokens, const Reliability& reliability) {
  if (!(tokens > 0) || !std::isfinite(tokens)) {
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("{} tokens", tokens),
                 "--tokens",
                 "a number above 0",
                 "write, for example, --tokens 15T",
                 {}});
  }
  const Training& training = report.scenario.training;
  const auto gpus = static_cast<double>(report.ranks);
  TrainingTime time;
  time.tokens = tokens;
  time.steps =
      std::ceil(tokens / (static_cast<double>(training.global_batch) * static_cast<double>(training.sequence)));
  time.without_failures = time.steps * report.step;
  time.time_between_failures = reliability.gpu_time_between_failures / gpus;
  const BytesPerSecond storage = reliability.storage_bandwidth.value_or(gpus * kStorageBandwidthPerGpu);
  time.checkpoint = reliability.checkpoint.value_or(
      checkpoint_size(report.scenario.model, storage_type(training.precision), report.scenario.plan.optimizer_state) /
      storage);
  time.interval = checkpoint_interval(time.checkpoint, time.time_between_failures);
  time.goodput = goodput(time.interval, time.checkpoint, reliability.restart, time.time_between_failures);
  time.total = time.without_failures / time.goodput;
  time.low = time.steps * report.step_low / time.goodput;
  time.high = time.steps * report.step_high / time.goodput;
  time.gpu_hours = gpus * (time.total / units::s) / 3600;
  if (report.energy) time.energy = time.total * most_power(report.scenario, gpus);
  return time;
}

Result<Prices> read_prices(std::string_view json, const std::string& where) {
  NS_TRY(const nlohmann::ordered_json root, parse_json(json, where));
  Prices prices;
  std::vector<Error> errors;
  JsonReader reader(root, where, errors);
  prices.currency = reader.text("currency");
  reader.ignore("note");
  prices.date = reader.text("date", Presence::kOptional);
  reader.ignore("gpu_hour");
  reader.reject_unknown_keys();
  const auto wrong = [&](std::string message, const std::string& place) {
    errors.push_back({ErrorCode::kInvalidInput,
                      std::move(message),
                      where + "#/gpu_hour" + place,
                      "the price of a GPU for an hour, a number above 0, by the id of the GPU",
                      "write, for example, \"gpu_hour\": {\"h100-sxm-80gb\": 2.5}",
                      {}});
  };
  if (!root.is_object() || !root.contains("gpu_hour") || !root["gpu_hour"].is_object()) {
    wrong("there are no prices", "");
  } else {
    for (const auto& [gpu, price] : root["gpu_hour"].items()) {
      if (!price.is_number() || !(price.get<double>() > 0) || price.get<double>() > 1e9) {
        wrong(fmt::format("{} is no price", json_excerpt(price)), "/" + gpu);
      } else {
        prices.gpu_hour[gpu] = price.get<double>();
      }
    }
  }
  if (!errors.empty()) return fail(join(std::move(errors)));
  return prices;
}

}  // namespace ns_dist
