// Command lines: strict values, flags that describe the work, and parsing with our own errors.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/dtype.h"
#include "ns_dist/scenario.h"
#include "whole_training.h"

namespace ns_dist::cli {

inline constexpr std::int64_t kMostOfAnything = 1'000'000'000;

// A whole number: digits and nothing else ("8", not "8x", "1e3", "+8" or "8.0"). Errors name `flag` and the range.
Result<std::int64_t> read_count(std::string_view text, std::string_view flag, std::int64_t least = 1,
                                std::int64_t most = kMostOfAnything);
Result<unsigned> read_threads(const std::string& text);  // of --threads: empty for as many as there are cores
Result<Mode> read_mode(std::string_view text);           // of --mode: burst or sustained
// Of --mode and --kernel-calibration (empty: none). Errors also: kernels that were measured in another mode.
Result<ComputeModelOptions> read_kernel_options(std::string_view mode, const std::string& calibration);

// What a flag was given, read. A mistake in it is one of usage, and its place is the flag.
template <class T>
Result<T> of_flag(std::string_view flag, Result<T> read) {
  if (!read) read.error().code = ErrorCode::kUsage, read.error().where = flag;
  return read;
}

// What a flag names, with the flag as the place of an error that has none.
template <class T>
Result<T> named_by(const char* flag, Result<T> found) {
  if (!found && found.error().where.empty()) found.error().where = flag;
  return found;
}

// Texts of the flags of scenario_fields(), by field, where they were given.
using FieldTexts = std::map<std::string_view, std::optional<std::string>>;

// Texts of the flags that describe the work: one flag for each of scenario_fields(), and --from.
struct WorkFlags {
  FieldTexts texts;
  std::optional<std::string> from;
  mutable std::optional<std::string> report = {};  // its text, once read: a pipe is read once
};

void add_work_flags(CLI::App& app, WorkFlags& flags, std::string_view but = "");  // all but the field `but`
// The flags of those fields that say how one collective is forecast.
void add_collective_model_flags(CLI::App& app, FieldTexts& texts, const char* heading);

// What the flags may name files with: an output must be none of them.
std::vector<std::string> inputs_of(const WorkFlags& flags, const TrainingFlags& training);

// `spec`, if its values can be read. Errors, of usage: every value that cannot be read, all at once.
Result<ScenarioSpec> readable(ScenarioSpec spec);
// What the flags set. Errors: those of `readable`.
Result<ScenarioSpec> read_spec(const FieldTexts& texts);

// The work of the report that --from names; of "FILE#2" the second plan of a search's answer. Nothing where it was not
// given. Errors: a file that cannot be read, or that is no report.
Result<std::optional<Scenario>> read_base_of(const WorkFlags& flags);

// What was asked beside the work of that report (Report::asked).
Result<std::map<std::string, std::string>> read_asked_of(const WorkFlags& flags);

// The work that the flags describe: read, looked up, sized.
Result<Scenario> read_scenario_of(const WorkFlags& flags);

// "--tp", "--micro-batch", ...: the long flags of an app.
std::vector<std::string> flags_of(const CLI::App& app);
// Those that `add` adds.
template <class Flags>
std::vector<std::string> flags_of(void (*add)(CLI::App&, Flags&)) {
  CLI::App app;
  Flags flags;
  add(app, flags);
  return flags_of(app);
}

// Prints a line on standard error.
void warn(const std::string& text);
// Prints on standard error what should be doubted of the model and the machine. Reports have it among their warnings.
void warn_of(const Scenario& scenario);
void warn_of(const Cluster& cluster);
// The same of a calibration that was measured on none of these clusters (ids).
void warn_of_others(const NetworkSettings& network, const std::set<std::string>& clusters);

// Parses, or returns the exit code after having printed help (0) or what is wrong with the command line (2).
std::optional<int> parse(CLI::App& app, int argc, const char* const* argv);

// What was typed, for a shell, without these flags and those of `group`, and their values.
std::string command_line(std::string_view program, int argc, const char* const* argv, const CLI::App& app,
                         std::initializer_list<std::string_view> without, std::string_view group = "");

// A command's app: name, description, one column of help that fits 100 columns.
void set_up(CLI::App& app);

}  // namespace ns_dist::cli
