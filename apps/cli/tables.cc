#include "tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>

#include "ns_dist/internal/number_from.h"
#include "terminal.h"

namespace ns_dist::cli {
Progress::Progress(std::string_view what, std::size_t steps, Clock::time_point since)
    : what_(what), steps_(steps), terminal_(isatty(STDERR_FILENO) == 1), next_(since + std::chrono::seconds(1)) {}

void Progress::at(std::size_t step) {
  if (steps_ > 0) share(static_cast<double>(step) / static_cast<double>(steps_));
}

bool Progress::is_due() { return terminal_ && Clock::now() >= next_; }

void Progress::show(const std::string& line) {
  constexpr auto kPause = std::chrono::milliseconds(200);
  next_ = Clock::now() + kPause;
  shown_ = true;
  std::fputs(fmt::format("\r\033[K{} {}", what_, line).c_str(), stderr);
}

void Progress::share(double done, std::string_view note) {
  if (!is_due()) return;
  constexpr int kWidth = 30;
  const int percent = static_cast<int>(100 * std::clamp(done, 0.0, 1.0));
  const auto filled = static_cast<std::size_t>(kWidth * percent / 100);
  show(fmt::format("{}{} {:3} %{}", std::string(filled, '#'), std::string(kWidth - filled, '.'), percent, note));
}

void Progress::note(std::string_view text) {
  if (is_due()) show(std::string(text));
}

void Progress::done() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

Result<void> check_outputs(const std::vector<Output>& outputs, const std::vector<std::string>& inputs) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const auto is_same = [&](const std::string& a, const std::string& b) {
    if (a == "-" || b == "-") return false;
    return fs::equivalent(a, b, ignored) || fs::weakly_canonical(a, ignored) == fs::weakly_canonical(b, ignored);
  };
  const auto refuse = [](const Output& output, std::string message, std::string hint) {
    return fail({ErrorCode::kUsage, std::move(message), output.flag, "another file", std::move(hint)});
  };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& [flag, path] = outputs[i];
    if (path.empty()) continue;
    for (std::size_t j = 0; j < i && is_standard_output(path); ++j) {
      if (outputs[j].path.empty() || !is_standard_output(outputs[j].path)) continue;
      return refuse(outputs[i], fmt::format("\"{}\" is standard output, which {} takes", path, outputs[j].flag),
                    "one would stand in the middle of the other");
    }
    if (is_standard_output(path)) continue;  // what it refuses, the command's end tells
    const auto status = fs::status(path, ignored);
    if (fs::is_character_file(status)) continue;
    for (const std::string& input : inputs) {
      if (fs::exists(status) && is_same(path, input)) {
        return refuse(outputs[i], fmt::format("\"{}\" is the file that is read", path), "it would be overwritten");
      }
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (outputs[j].path.empty() || !is_same(path, outputs[j].path)) continue;
      return refuse(outputs[i], fmt::format("\"{}\" is the file of {}, too", path, outputs[j].flag),
                    "one would overwrite the other");
    }
    if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status)) continue;
    if (auto opened = OutputFile::open(path); !opened) {
      Error error = std::move(opened.error());
      error.hint = error.message.substr(error.message.find(": ") + 2);
      error.message = fmt::format("\"{}\" cannot be written", path);
      error.where = flag;
      return fail(std::move(error));
    }
  }
  return {};
}

Result<void> check_not_read(const std::vector<Output>& outputs, const std::vector<InputFile>& inputs) {
  std::vector<std::string> paths;
  paths.reserve(inputs.size());
  for (const InputFile& input : inputs) paths.push_back(input.path);
  return check_outputs(outputs, paths);
}

Result<void> check_is_file(const Output& output, const char* expected, const char* hint) {
  if (!is_standard_output(output.path)) return {};
  return fail({ErrorCode::kUsage, fmt::format("\"{}\" is standard output", output.path), output.flag, expected, hint});
}

std::FILE* stream_of_answer(bool json, const std::vector<Output>& outputs) {
  const auto takes = [](const Output& output) { return !output.path.empty() && is_standard_output(output.path); };
  return !json && std::any_of(outputs.begin(), outputs.end(), takes) ? stderr : stdout;
}

void tell_replaced(const std::string& input, const AnsweredCsv& answered) {
  const std::vector<std::string> replaced = answered.replaced();
  if (replaced.empty()) return;
  std::fputs(
      fmt::format("ns-dist: {}:1: new forecasts take the place of columns {}\n", input, fmt::join(replaced, ", "))
          .c_str(),
      stderr);
}

namespace {

constexpr std::size_t kShownMistakes = 20;

constexpr std::string_view kUnanswered = "could not be forecast",
                           kUnmeasured =
                               "have no usable latency_ms: they are forecast, and count in no table of errors";

// The line in "table.csv:12" or "table.csv:12, --gpu".
std::optional<std::int64_t> line_of(std::string_view where) {
  where = where.substr(0, where.rfind(", --"));
  const std::size_t colon = where.rfind(':');
  return colon == std::string_view::npos ? std::nullopt : number_from<std::int64_t>(where.substr(colon + 1));
}

// "; the first 20 are above, the others in lines 24, 26-40".
std::string others_text(std::span<const std::pair<std::int64_t, std::int64_t>> lines) {
  constexpr std::size_t kShownRanges = 100;
  std::string text = fmt::format("; the first {} are above", kShownMistakes);
  for (std::size_t i = 0; i < std::min(lines.size(), kShownRanges); ++i) {
    const auto [begin, end] = lines[i];
    text += fmt::format("{}{}", i == 0 ? ", the others in lines " : ", ",
                        begin == end ? fmt::format("{}", begin) : fmt::format("{}-{}", begin, end));
  }
  if (lines.size() > kShownRanges) text += fmt::format(", ... {}", lines.back().second);
  return text;
}

}  // namespace

void RowMistakes::Kind::add(std::vector<Error> mistakes) {
  count += mistakes.size();
  for (Error& mistake : mistakes) {
    if (first.size() < kShownMistakes) {
      first.push_back(std::move(mistake));
    } else if (const auto line = line_of(mistake.where)) {
      const bool goes_on = !more.empty() && more.back().second + 1 == *line;
      if (goes_on) {
        more.back().second = *line;
      } else {
        more.emplace_back(*line, *line);
      }
    }
  }
}

int RowMistakes::Kind::report(std::size_t rows, std::string_view what) const {
  if (count == 0) return kAnswered;
  for (const Error& mistake : first) {
    std::fputs(fmt::format("ns-dist: {}\n", to_text(with_flags(mistake))).c_str(), stderr);
  }
  std::fputs(
      fmt::format("ns-dist: {} of {} rows {}{}\n", count, rows, what, count > kShownMistakes ? others_text(more) : "")
          .c_str(),
      stderr);
  return kInputAtFault;
}

void RowMistakes::add(std::vector<Error> mistakes, std::vector<Error> unmeasured, std::size_t rows) {
  rows_ += rows;
  unanswered_.add(std::move(mistakes));
  unmeasured_.add(std::move(unmeasured));
}

int RowMistakes::report(const std::string& input) const {
  if (rows_ == 0) std::fputs(fmt::format("ns-dist: {}: no rows\n", input).c_str(), stderr);
  return std::max(unanswered_.report(rows_, kUnanswered), unmeasured_.report(rows_, kUnmeasured));
}

int report_rows(const std::vector<Error>& mistakes, std::size_t rows) {
  if (mistakes.empty()) return kAnswered;
  RowMistakes all;
  all.add(mistakes, {}, rows);
  return all.report("");
}

}  // namespace ns_dist::cli
