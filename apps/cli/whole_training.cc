#include "whole_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "arguments.h"
#include "ns_dist/files.h"
#include "ns_dist/internal/number_from.h"
#include "ns_dist/training_clock.h"

namespace ns_dist::cli {
namespace {

using Text = std::optional<std::string> TrainingFlags::*;

constexpr std::string_view kOn = "on";  // the text of a flag without a value

struct FlagOfTraining {
  std::string_view name;  // without dashes
  Text text;
  std::string_view type;  // empty: the flag has no value
  std::string help;
  // Whether it says when parts fail, which is a time of the whole or those of its parts.
  enum class Failures : std::uint8_t { kNo, kOfWhole, kOfPart } failures = Failures::kNo;
};
using Failures = FlagOfTraining::Failures;

// In the order of the help.
const std::vector<FlagOfTraining>& flags_of_training() {
  const auto hours = [](Seconds time) { return fmt::format(" [{:.0f} h]", time / (3600.0 * units::s)); };
  static const std::vector<FlagOfTraining> flags = {
      {"tokens", &TrainingFlags::tokens, "N", "tokens of the whole training, as in 15T: how long does it take?"},
      {"prices", &TrainingFlags::prices, "FILE",
       "what a GPU costs for an hour, JSON with its date: what does it cost?"},
      {"time-between-failures", &TrainingFlags::between_failures, "TIME",
       "of one GPU and its share of the rest, instead of the next three" + hours(kGpuTimeBetweenFailures),
       Failures::kOfWhole},
      {"gpu-time-between-failures", &TrainingFlags::gpu_failures, "TIME",
       "of one GPU alone" + hours(kGpuAloneTimeBetweenFailures), Failures::kOfPart},
      {"node-time-between-failures", &TrainingFlags::node_failures, "TIME",
       "of one host of up to 8 GPUs, without these" + hours(kNodeTimeBetweenFailures), Failures::kOfPart},
      {"network-time-between-failures", &TrainingFlags::network_failures, "TIME",
       "of the switches and cables that serve one GPU" + hours(kNetworkTimeBetweenFailures), Failures::kOfPart},
      {"storage-bandwidth", &TrainingFlags::storage, "RATE", "of the cluster, for checkpoints [122 MB/s for each GPU]"},
      {"checkpoint-time", &TrainingFlags::checkpoint, "TIME", "to write one [weights and optimizer / bandwidth]"},
      {"checkpoint-async", &TrainingFlags::asynchronous, "",
       "checkpoints are written beside training, which stands still only while they go to the host's memory"},
      {"restart-time", &TrainingFlags::restart, "TIME", "from a failure to the next step [10 min]"},
      {"repair-time", &TrainingFlags::repair, "TIME",
       "for which a node that failed is away: how many spare nodes does that take? [it is replaced at once]"},
      {"spare-nodes", &TrainingFlags::spares, "N",
       "nodes that wait to replace others, for --repair-time [enough 99 % of the time]"},
      {"gpu-spread", &TrainingFlags::spread, "PERCENT",
       fmt::format("standard deviation of the GPUs' speeds: all wait for the slowest [{:g} %, and only products become "
                   "slower]",
                   100 * TrainingConstants().deviation)}};
  return flags;
}

// Whether one is given that says more of a training than its length.
bool tells_of_training(const TrainingFlags& flags) {
  return std::ranges::any_of(flags_of_training(), [&](const FlagOfTraining& flag) {
    return flag.text != &TrainingFlags::tokens && flag.text != &TrainingFlags::prices && (flags.*flag.text).has_value();
  });
}

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
  reliability.asynchronous = flags.asynchronous.has_value();
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
  if (tells_of_training(flags) && !flags.tokens) return without_tokens();
  for (const FlagOfTraining& flag : flags_of_training()) {
    if (const auto& text = flags.*flag.text; text && flag.text != &TrainingFlags::prices) {
      training.asked.emplace(flag.name, *text);
    }
  }
  auto prices = flags.reported_prices;
  if (flags.prices) {
    NS_TRY(std::string text, read_text(*flags.prices, kMebibyte, "--prices", "a file of prices"));
    prices = {std::move(text), *flags.prices};
  }
  if (prices) {
    NS_TRY(training.prices, read_prices(prices->first, prices->second));
    training.asked.emplace("prices", prices->first);
  }
  return training;
}

void repeat(const std::map<std::string, std::string>& asked, const std::string& where, TrainingFlags& flags) {
  // Failures are those of the whole, or those of its parts.
  const auto given = [&](Failures failures) {
    return std::ranges::any_of(flags_of_training(), [&](const FlagOfTraining& flag) {
      return flag.failures == failures && (flags.*flag.text).has_value();
    });
  };
  const bool whole = given(Failures::kOfWhole), parts = given(Failures::kOfPart);
  for (const FlagOfTraining& flag : flags_of_training()) {
    const auto said = asked.find(std::string(flag.name));
    if (said == asked.end() || (flag.failures == Failures::kOfPart && whole) ||
        (flag.failures == Failures::kOfWhole && parts)) {
      continue;
    }
    if (flag.text == &TrainingFlags::prices) {
      flags.reported_prices = {said->second, where + "#/asked/prices"};
    } else if (!(flags.*flag.text)) {
      flags.*flag.text = said->second;
    }
  }
}

void add_training_flags(CLI::App& app, TrainingFlags& flags) {
  for (const FlagOfTraining& flag : flags_of_training()) {
    std::optional<std::string>& text = flags.*flag.text;
    const std::string name = fmt::format("--{}", flag.name);
    const auto on = [&text] { text = kOn; };
    CLI::Option* option = flag.type.empty() ? app.add_flag_callback(name, on, flag.help)
                                            : app.add_option(name, text, flag.help)->type_name(std::string(flag.type));
    option->group(kWholeTraining);
  }
}

}  // namespace ns_dist::cli
