#include "sweep.h"

#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "ns_dist/csv_table.h"
#include "ns_dist/files.h"
#include "ns_dist/hash.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/internal/shared_work.h"
#include "ns_dist/search.h"
#include "ns_dist/simulator.h"
#include "ns_dist/version.h"
#include "tables.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kLargestInput = 16 * kMebibyte;
constexpr std::size_t kRowsAtOnce = 64;

// Forecasts of rows. Any number of threads may ask at once.
class Rows {
 public:
  Rows(std::vector<FieldValues> fields, ScenarioSpec fixed, std::optional<Scenario> base)
      : fields_(std::move(fields)), fixed_(std::move(fixed)), base_(std::move(base)), catalog_(Catalog::standard()) {}

  std::size_t count() const {
    std::size_t rows = 1;
    for (const FieldValues& each : fields_) rows *= each.values.size();
    return rows;
  }

  // The last field varies fastest.
  std::vector<Assignment> assignments(std::size_t row) const {
    std::vector<Assignment> set;
    for (std::size_t i = fields_.size(); i-- > 0;) {
      const std::size_t size = fields_[i].values.size();
      set.push_back({fields_[i].field, fields_[i].values[row % size]});
      row /= size;
    }
    std::reverse(set.begin(), set.end());
    return set;
  }

  // `sweep`: where the line is one of a CSV, what tells its sweep.
  std::string line(std::size_t row, const std::optional<std::string>& sweep) {
    const std::vector<Assignment> set = assignments(row);
    ordered_json json;
    json["row"] = row;
    json["set"] = ordered_json::object();
    for (const Assignment& each : set) json["set"][each.field] = each.text;
    const auto answer = forecast(set);
    if (!answer) {
      json["error"] = to_text(with_flags(answer.error()));
    } else {
      json["ranks"] = answer->ranks;
      json["step_time_s"] = answer->step / units::s;
      json["step_time_low_s"] = answer->step_low / units::s;
      json["step_time_high_s"] = answer->step_high / units::s;
      json["tokens_per_s"] = answer->tokens_per_second;
      json["mfu"] = answer->mfu;
      json["memory_peak_bytes"] = static_cast<std::int64_t>(answer->memory.peak() / units::B);
      json["fits"] = answer->fits;
    }
    if (sweep) return csv_line(json, *sweep);
    return dump_json(json);
  }

  // The files that rows are read from, with their hashes, and what is wrong with them.
  std::string files() const {
    std::map<std::string, std::string> hashes;
    std::string text;
    const auto read = [&](const std::vector<Assignment>& set) {
      ScenarioSpec spec = fixed_;
      spec.assignments.insert(spec.assignments.end(), set.begin(), set.end());
      const auto scenario = resolve(spec, catalog_, base_ ? &*base_ : nullptr);
      if (!scenario) text += to_text(scenario.error()) + "\n";
      for (const InputFile& file : scenario ? scenario->files : catalog_.inputs()) hashes[file.path] = file.hash;
    };
    std::vector<Assignment> set = assignments(0);
    read(set);
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      const std::string_view values = find_field(fields_[i].field)->values;
      if (!values.starts_with("ID") && !values.starts_with("FILE")) continue;
      for (const std::string& value : fields_[i].values) {
        set[i].text = value;
        read(set);
      }
      set[i].text = fields_[i].values.front();
    }
    for (const auto& [path, hash] : hashes) text += path + " " + hash + "\n";
    return text;
  }

  std::string csv_heading() const {
    std::string text = "row";
    for (const FieldValues& each : fields_) text += "," + csv_cell(each.field);
    for (const char* column : kColumns) text += fmt::format(",{}", column);
    return text + ",sweep\n";
  }

 private:
  static constexpr const char* kColumns[] = {"ranks",        "step_time_s", "step_time_low_s",   "step_time_high_s",
                                             "tokens_per_s", "mfu",         "memory_peak_bytes", "fits",
                                             "error"};

  static std::string csv_line(const ordered_json& json, const std::string& sweep) {
    std::string text = json["row"].dump();
    for (const auto& [field, value] : json["set"].items()) text += "," + csv_cell(value.get<std::string>());
    for (const char* column : kColumns) {
      text += ",";
      const auto value = json.find(column);
      if (value != json.end()) text += csv_cell(value->is_string() ? value->get<std::string>() : value->dump());
    }
    return text + "," + sweep + "\n";
  }

  Result<Report> forecast(const std::vector<Assignment>& set) {
    ScenarioSpec spec = fixed_;
    spec.assignments.insert(spec.assignments.end(), set.begin(), set.end());
    NS_TRY(const Scenario scenario, resolve(spec, catalog_, base_ ? &*base_ : nullptr));
    NS_TRY(const std::shared_ptr<const Session> session, sessions_.of(scenario));
    NS_TRY(const Prediction prediction, predict(scenario, *session));
    return report(scenario, prediction, {});
  }

  std::vector<FieldValues> fields_;
  ScenarioSpec fixed_;
  std::optional<Scenario> base_;
  Catalog catalog_;
  Sessions sessions_;
};

// How the output begins, and how to know its rows.
struct Format {
  bool csv = false;
  std::string sweep;    // tells this sweep from others
  std::string heading;  // the first line

  std::optional<std::string> sweep_of_lines() const { return csv ? std::optional(sweep) : std::nullopt; }
  // Whether the line, without its end, is the row of this sweep.
  bool is_row(std::string_view line, std::size_t row) const {
    if (csv) return line.starts_with(fmt::format("{},", row)) && line.ends_with("," + sweep);
    return line.starts_with(fmt::format("{{\"row\":{},", row));
  }
};

Format format_of(const std::string& sweep, const ScenarioSpec& fixed, const std::optional<std::string>& base,
                 const Rows& rows, bool csv) {
  std::string all = sweep + "\n";
  for (const Assignment& each : fixed.assignments) all += each.field + "=" + each.text + "\n";
  if (base) all += *base;
  all += rows.files();
  all += git_revision();
  if (csv) return {csv, hash_text(all + std::string(version())), rows.csv_heading()};
  const ordered_json first = {
      {"schema", "ns-dist/sweep/1"}, {"version", version()}, {"sweep", hash_text(all)}, {"rows", rows.count()}};
  return {csv, hash_text(all), first.dump() + "\n"};
}

// How many rows of the sweep the file has; what follows its last whole line is cut off. Errors: another sweep's file.
Result<std::size_t> finished_rows(const std::string& path, const Format& format) {
  const auto refuse = [&](std::string message) {
    return fail({ErrorCode::kInvalidInput, std::move(message), path,
                 "a new file, or one of the same sweep, version and input files",
                 "write another --output, or remove the file"});
  };
  std::error_code status;
  if (!std::filesystem::exists(path, status)) return std::size_t{0};
  std::ifstream file(path, std::ios::binary);
  std::string line;
  std::uintmax_t whole = 0;
  std::size_t lines = 0;
  while (std::getline(file, line) && !file.eof()) {  // at the end of the file: without its end of line
    if (lines == 0 ? line + "\n" != format.heading : !format.is_row(line, lines - 1)) {
      return refuse(fmt::format("line {} is not of this sweep", lines + 1));
    }
    whole += line.size() + 1;
    ++lines;
  }
  if (lines == 0 && !format.heading.starts_with(line)) return refuse("line 1 is not of this sweep");
  file.close();
  std::filesystem::resize_file(path, whole, status);
  if (status) return refuse("the file cannot be written");
  return lines == 0 ? 0 : lines - 1;
}

// What the file `input` and the flags ask for.
Result<std::unique_ptr<Rows>> read_rows(const std::string& input, const WorkFlags& flags, bool csv, Format& format) {
  NS_TRY(const std::string text, read_text(input, kLargestInput, "--sweep", "a sweep, JSON"));
  NS_TRY(std::vector<FieldValues> fields, read_sweep(text, input));
  NS_TRY(ScenarioSpec fixed, read_spec(flags.texts));
  for (const FieldDescription& description : scenario_fields()) {
    if (!flags.texts.at(description.field.name)) continue;
    const auto same = std::find_if(fields.begin(), fields.end(), [&](const FieldValues& each) {
      return set_the_same(*find_field(each.field), description);
    });
    if (same == fields.end()) continue;
    return fail({ErrorCode::kUsage,
                 fmt::format("the file sets it, too, as \"{}\"", find_field(same->field)->flag.substr(2)),
                 description.flag, "one of the two", "leave one of them out"});
  }
  NS_TRY(std::optional<Scenario> base, read_base_of(flags));
  const std::optional<std::string> base_text = base ? std::optional(write_scenario(*base)) : std::nullopt;
  auto rows = std::make_unique<Rows>(std::move(fields), fixed, std::move(base));
  format = format_of(text, fixed, base_text, *rows, csv);
  return rows;
}

// The output, to which one process at a time adds lines.
class RowFile {
 public:
  static Result<RowFile> open(const std::string& path, const Format& format) {
    NS_TRY_VOID(check_is_file({"--output", path}, "a file: the same command goes on with its rows",
                              "write --output FILE.jsonl, or FILE.csv"));
    if (std::error_code none; std::filesystem::exists(path, none) && !std::filesystem::is_regular_file(path, none)) {
      return fail({ErrorCode::kUsage, fmt::format("\"{}\" is no file to go on with", path), "--output",
                   "a file, or a name that is free"});
    }
    RowFile opened(path);
    if (!opened.file_) return fail(opened.cannot());
    if (::flock(::fileno(opened.file_.get()), LOCK_EX | LOCK_NB) != 0) {
      return fail({ErrorCode::kInvalidInput, fmt::format("another sweep writes into \"{}\"", path), "--output",
                   "a file for each sweep", "wait for the other one, or write another --output"});
    }
    NS_TRY(opened.finished_, finished_rows(path, format));
    std::error_code status;
    const bool is_new = !std::filesystem::exists(path, status) || std::filesystem::file_size(path, status) == 0;
    NS_TRY_VOID(opened.append(is_new ? format.heading : ""));
    return opened;
  }
  Result<void> append(const std::string& lines) {
    if (std::fwrite(lines.data(), 1, lines.size(), file_.get()) == lines.size() && std::fflush(file_.get()) == 0) {
      return {};
    }
    return fail(cannot());
  }
  std::size_t finished() const { return finished_; }

 private:
  explicit RowFile(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "ab")) {}
  Error cannot() const {
    return {ErrorCode::kInvalidInput, fmt::format("\"{}\" cannot be written", path_), "--output", "a writable path",
            std::strerror(errno)};
  }
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::size_t finished_ = 0;
};

}  // namespace

int sweep(const std::string& input, const std::string& output, const WorkFlags& flags, unsigned threads,
          const std::atomic<bool>& stop, MpiTeam* team) {
  const bool leads = team == nullptr || team->member() == 0;
  Format format;
  const auto rows = read_rows(input, flags, output.ends_with(".csv"), format);
  auto file = [&]() -> Result<std::optional<RowFile>> {
    if (!rows || !leads) return std::nullopt;
    return RowFile::open(output, format);
  }();
  if (!rows || !file) report_error(rows ? file.error() : rows.error());
  if (!all_ready(team, rows && file)) {
    return !rows || !file ? exit_code(rows ? file.error() : rows.error()) : kInputAtFault;
  }

  const std::size_t count = (*rows)->count();
  std::size_t done = leads ? (*file)->finished() : 0;
  if (team != nullptr) done = std::stoull(team->exchange(std::to_string(done)).front());
  const std::size_t at_once = kRowsAtOnce * static_cast<std::size_t>(team != nullptr ? team->size() : 1);
  Progress progress("rows", count);
  for (bool stopped = !all_ready(team, !stop); done < count && !stopped;) {
    const std::size_t end = std::min(count, done + at_once);
    std::string all;
    const auto sweep = format.sweep_of_lines();
    const auto line_of = [&](std::size_t i) { return (*rows)->line(done + i, sweep); };
    for (const std::string& line : shared_work<std::string>(end - done, threads, team, &stop, stopped, line_of)) {
      all += line;
    }
    if (leads) {
      if (auto written = (*file)->append(all); !written) {
        const int code = report_error(written.error());
        if (team != nullptr) team->leave(code);
        return code;
      }
    }
    done = end;
    progress.at(done);
  }
  progress.done();
  std::fputs(fmt::format("{} of {} rows in {}{}\n", with_commas(done), with_commas(count), output,
                         done < count ? "; the same command goes on from here" : "")
                 .c_str(),
             stdout);
  return kAnswered;
}

}  // namespace ns_dist::cli
