// The flags of a whole training with a plan: how many tokens, what fails, what a GPU costs.
#pragma once

#include <CLI/App.hpp>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ns_dist/time_to_train.h"

namespace ns_dist::cli {

// As they were written.
struct TrainingFlags {
  std::optional<std::string> tokens, between_failures, checkpoint, storage, restart, prices;
  std::optional<std::string> gpu_failures, node_failures, network_failures, repair, spares, spread, asynchronous;
  // Of a report that is repeated: the text of its file of prices, and the place of this text in errors.
  std::optional<std::pair<std::string, std::string>> reported_prices;
};

// Takes what a report asked (Report::asked) where no flag says it. `where` names the report.
void repeat(const std::map<std::string, std::string>& asked, const std::string& where, TrainingFlags& flags);

struct WholeTraining {
  std::optional<double> tokens;
  Reliability reliability;
  std::optional<double> gpu_spread;  // standard deviation of the GPUs' speeds
  std::optional<Prices> prices;
  std::map<std::string, std::string> asked;  // as Report::asked; of the prices the text of their file
};

inline constexpr const char* kWholeTraining = "The whole training";  // the heading of these flags

void add_training_flags(CLI::App& app, TrainingFlags& flags);
// Errors: texts that cannot be read, or that contradict each other; a part of the training without --tokens.
Result<WholeTraining> read_training(const TrainingFlags& flags);

// "15T", "300B", "2.5e11": a number of `of`, such as tokens or money.
Result<double> read_amount(const std::string& text, std::string_view flag, std::string_view of);
// "30d", "12 h", "90 min", "600 s".
Result<Seconds> read_duration(const std::string& text, std::string_view flag);
// The error of flags that mean nothing without a number of tokens.
tl::unexpected<Error> without_tokens();

}  // namespace ns_dist::cli
