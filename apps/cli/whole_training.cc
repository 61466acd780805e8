#include "whole_training.h"

#include <fmt/format.h>

#include <cmath>
#include <tuple>

#include "arguments.h"
#include "ns_dist/files.h"
#include "ns_dist/internal/number_from.h"
#include "ns_dist/training_clock.h"

namespace ns_dist::cli {
namespace {

// A default in a help text.
std::string in_hours(Seconds time) { return fmt::format(" [{:.0f} h]", time / (3600.0 * units::s)); }

// The flags with a text.
struct TextFlag {
  std::string_view name;  // without dashes
  std::optional<std::string> TrainingFlags::*text;
};
constexpr std::string_view kPrices = "prices", kAsynchronous = "checkpoint-async", kOn = "on";
constexpr TextFlag kTextFlags[] = {{"tokens", &TrainingFlags::tokens},
                                   {"time-between-failures", &TrainingFlags::between_failures},
                                   {"gpu-time-between-failures", &TrainingFlags::gpu_failures},
                                   {"node-time-between-failures", &TrainingFlags::node_failures},
                                   {"network-time-between-failures", &TrainingFlags::network_failures},
                                   {"storage-bandwidth", &TrainingFlags::storage},
                                   {"checkpoint-time", &TrainingFlags::checkpoint},
                                   {"restart-time", &TrainingFlags::restart},
                                   {"repair-time", &TrainingFlags::repair},
                                   {"spare-nodes", &TrainingFlags::spares},
                                   {"gpu-spread", &TrainingFlags::spread}};

Result<void> read_failures(const TrainingFlags& flags, Reliability& reliability) {
  if (flags.between_failures) {
    NS_TRY(reliability.gpu_time_between_failures, read_duration(*flags.between_failures, "--time-between-failures"));
  }
  for (const auto& [text, flag, time] :
       {std::tuple{&flags.gpu_failures, "--gpu-time-between-failures", &reliability.gpu_alone},
        std::tuple{&flags.node_failures, "--node-time-between-failures", &reliability.node},
        std::tuple{&flags.network_failures, "--network-time-between-failures", &reliability.network}}) {
    if (!*text) continue;
    if (flags.between_failures) {
      return fail({ErrorCode::kUsage, "the time between failures is given twice",
                   fmt::format("--time-between-failures, {}", flag),
                   "one for a GPU with its share of the rest, or those of the parts",
                   "leave --time-between-failures out"});
    }
    NS_TRY(*time, read_duration(**text, flag));
  }
  if (flags.repair) {
    NS_TRY(reliability.repair, read_duration(*flags.repair, "--repair-time"));
  }
  if (flags.spares) {
    NS_TRY(reliability.spare_nodes, read_count(*flags.spares, "--spare-nodes", 0, kMostSpares));
    if (!flags.repair) {
      return fail({ErrorCode::kUsage, "how long a node that failed is away is not given", "--repair-time", "a duration",
                   "write, for example, --repair-time 1d"});
    }
  }
  if (flags.restart) {
    NS_TRY(reliability.restart, read_duration(*flags.restart, "--restart-time"));
  }
  return {};
}

Result<void> read_checkpoints(const TrainingFlags& flags, Reliability& reliability) {
  reliability.asynchronous = flags.asynchronous;
  if (flags.checkpoint) {
    NS_TRY(reliability.checkpoint, read_duration(*flags.checkpoint, "--checkpoint-time"));
  }
  if (!flags.storage) return {};
  const auto bandwidth = parse_quantity<BytesPerSecond>(*flags.storage);
  if (!bandwidth || !(*bandwidth > BytesPerSecond())) {
    return fail({ErrorCode::kUsage, fmt::format("\"{}\" is no bandwidth", *flags.storage), "--storage-bandwidth",
                 "above 0, with its unit", "write, for example, --storage-bandwidth \"2 TB/s\""});
  }
  reliability.storage_bandwidth = *bandwidth;
  return {};
}

}  // namespace

Result<double> read_amount(const std::string& text, std::string_view flag, std::string_view of) {
  constexpr std::string_view kLetters = "KMBT";
  double scale = 1;
  std::string digits = text;
  if (const std::size_t letter = text.empty() ? std::string::npos : kLetters.find(text.back());
      letter != std::string::npos) {
    scale = std::pow(1000.0, static_cast<double>(letter + 1));
    digits.pop_back();
  }
  constexpr double kMost = 1e18;
  const auto number = read_positive_number(digits, 1e300);
  if (number && *number * scale <= kMost) return *number * scale;
  if (number) {
    return fail({ErrorCode::kUsage, fmt::format("{} {} are out of range", text, of), std::string(flag),
                 "at most 1,000,000T", ""});
  }
  return fail({ErrorCode::kUsage, fmt::format("\"{}\" is no number of {}", text, of), std::string(flag),
               "a number above 0, with K, M, B or T behind it for thousands to trillions",
               fmt::format("write, for example, {} 15M", flag)});
}

Result<Seconds> read_duration(const std::string& text, std::string_view flag) {
  struct Unit {
    std::string_view name;
    double seconds;
  };
  constexpr Unit kUnits[] = {{"min", 60}, {"w", 7 * 86'400.0}, {"d", 86'400}, {"h", 3600}, {"s", 1}};
  for (const Unit& unit : kUnits) {
    if (!text.ends_with(unit.name)) continue;
    std::string digits = text.substr(0, text.size() - unit.name.size());
    while (digits.ends_with(' ')) digits.pop_back();
    const auto number = read_positive_number(digits, 1e12);
    if (number) return *number * unit.seconds * units::s;
    break;
  }
  return fail({ErrorCode::kUsage, fmt::format("\"{}\" is no duration", text), std::string(flag),
               "a number above 0 with its unit: s, min, h, d or w", fmt::format("write, for example, {} 30d", flag)});
}

tl::unexpected<Error> without_tokens() {
  return fail({ErrorCode::kUsage, "the length of the training is not given", "--tokens", "a number of tokens",
               "write, for example, --tokens 15T"});
}

Result<WholeTraining> read_training(const TrainingFlags& flags) {
  WholeTraining training;
  if (flags.tokens) {
    NS_TRY(training.tokens, read_amount(*flags.tokens, "--tokens", "tokens"));
  }
  NS_TRY_VOID(read_failures(flags, training.reliability));
  NS_TRY_VOID(read_checkpoints(flags, training.reliability));
  if (flags.spread) {
    const std::string_view text = *flags.spread;
    const auto percent = number_from<double>(text.ends_with('%') ? text.substr(0, text.size() - 1) : text);
    if (!percent || *percent < 0 || *percent > 10) {
      return fail({ErrorCode::kUsage, fmt::format("\"{}\" cannot be used", text), "--gpu-spread",
                   "a percentage from 0 to 10", "write, for example, --gpu-spread 1"});
    }
    training.gpu_spread = *percent / 100;
  }
  const auto given = [](const auto&... texts) { return (texts.has_value() || ...); };
  const bool trains = flags.asynchronous ||
                      given(flags.between_failures, flags.checkpoint, flags.restart, flags.storage, flags.gpu_failures,
                            flags.node_failures, flags.network_failures, flags.repair, flags.spares, flags.spread);
  if (trains && !flags.tokens) return without_tokens();
  for (const TextFlag& flag : kTextFlags) {
    if (const auto& text = flags.*flag.text) training.asked.emplace(flag.name, *text);
  }
  if (flags.asynchronous) training.asked.emplace(kAsynchronous, kOn);
  auto prices = flags.reported_prices;
  if (flags.prices) {
    NS_TRY(std::string text, read_text(*flags.prices, kMebibyte, "--prices", "a file of prices"));
    prices = {std::move(text), *flags.prices};
  }
  if (prices) {
    NS_TRY(training.prices, read_prices(prices->first, prices->second));
    training.asked.emplace(kPrices, prices->first);
  }
  return training;
}

void repeat(const std::map<std::string, std::string>& asked, const std::string& where, TrainingFlags& flags) {
  const auto said = [&](std::string_view name) {
    const auto found = asked.find(std::string(name));
    return found == asked.end() ? std::nullopt : std::optional(found->second);
  };
  // Failures are those of the whole, or those of its parts.
  const bool whole = flags.between_failures.has_value();
  const bool parts = flags.gpu_failures || flags.node_failures || flags.network_failures;
  for (const TextFlag& flag : kTextFlags) {
    const bool is_whole = flag.text == &TrainingFlags::between_failures;
    const bool is_part = !is_whole && flag.name.ends_with("time-between-failures");
    if (!(flags.*flag.text) && !(is_part && whole) && !(is_whole && parts)) flags.*flag.text = said(flag.name);
  }
  flags.asynchronous |= said(kAsynchronous).has_value();
  if (const auto prices = said(kPrices)) flags.reported_prices = {*prices, where + "#/asked/prices"};
}

void add_training_flags(CLI::App& app, TrainingFlags& flags) {
  const auto option = [&](const char* flag, std::optional<std::string>& text, const char* type,
                          const std::string& help) {
    app.add_option(flag, text, help)->type_name(type)->group(kWholeTraining);
  };
  option("--tokens", flags.tokens, "N", "tokens of the whole training, as in 15T: how long does it take?");
  option("--prices", flags.prices, "FILE", "what a GPU costs for an hour, JSON with its date: what does it cost?");
  option("--time-between-failures", flags.between_failures, "TIME",
         "of one GPU and its share of the rest, instead of the next three" + in_hours(kGpuTimeBetweenFailures));
  option("--gpu-time-between-failures", flags.gpu_failures, "TIME",
         "of one GPU alone" + in_hours(kGpuAloneTimeBetweenFailures));
  option("--node-time-between-failures", flags.node_failures, "TIME",
         "of one host of up to 8 GPUs, without these" + in_hours(kNodeTimeBetweenFailures));
  option("--network-time-between-failures", flags.network_failures, "TIME",
         "of the switches and cables that serve one GPU" + in_hours(kNetworkTimeBetweenFailures));
  option("--storage-bandwidth", flags.storage, "RATE", "of the cluster, for checkpoints [122 MB/s for each GPU]");
  option("--checkpoint-time", flags.checkpoint, "TIME", "to write one [weights and optimizer / bandwidth]");
  app.add_flag("--checkpoint-async", flags.asynchronous,
               "checkpoints are written beside training, which stands still only while they go to the host's memory")
      ->group(kWholeTraining);
  option("--restart-time", flags.restart, "TIME", "from a failure to the next step [10 min]");
  option("--repair-time", flags.repair, "TIME",
         "for which a node that failed is away: how many spare nodes does that take? [it is replaced at once]");
  option("--spare-nodes", flags.spares, "N",
         "nodes that wait to replace others, for --repair-time [enough 99 % of the time]");
  option(
      "--gpu-spread", flags.spread, "PERCENT",
      fmt::format(
          "standard deviation of the GPUs' speeds: all wait for the slowest [{:g} %, and only products become slower]",
          100 * TrainingConstants().deviation));
}

}  // namespace ns_dist::cli
