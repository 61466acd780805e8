// Did any prediction move? Structure exactly, numbers to 1e-9. NS_DIST_UPDATE_GOLDEN=1 rewrites what is expected; the
// difference is to be reviewed.
//
// A case is tests/golden/cases/NAME.command with NAME.json, or a folder of examples/: the commands of its README, of
// which the last one with --json on standard output answers expected.json. Of the inputs, the files keep what the case
// chose and the ids of what the catalog describes. Beside each lies the same answer as a person reads it (NAME.txt).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "support/run_command.h"

namespace ns_dist {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

const fs::path kSource = NS_DIST_SOURCE_DIR;

bool updating() {
  const char* value = std::getenv("NS_DIST_UPDATE_GOLDEN");
  return value != nullptr && std::string(value) == "1";
}

void expect_same(const ordered_json& expected, const ordered_json& actual, const std::string& where) {
  if (expected.is_number() && actual.is_number()) {
    const double e = expected.get<double>(), a = actual.get<double>();
    EXPECT_LE(std::fabs(a - e), 1e-9 * std::max(std::fabs(e), std::fabs(a))) << where << ": " << e << " became " << a;
    return;
  }
  ASSERT_EQ(expected.type(), actual.type()) << where;
  if (expected.is_object()) {
    for (const auto& [key, value] : expected.items()) {
      ASSERT_TRUE(actual.contains(key)) << where << "/" << key << " is gone";
      expect_same(value, actual[key], where + "/" + key);
    }
    for (const auto& [key, value] : actual.items()) {
      EXPECT_TRUE(expected.contains(key)) << where << "/" << key << " is new";
    }
  } else if (expected.is_array()) {
    ASSERT_EQ(expected.size(), actual.size()) << where;
    for (std::size_t i = 0; i < expected.size(); ++i)
      expect_same(expected[i], actual[i], where + "/" + std::to_string(i));
  } else {
    EXPECT_EQ(expected, actual) << where;
  }
}

// The answer without what echoes the catalog or the build.
ordered_json reduced(const std::string& answer) {
  ordered_json report = ordered_json::parse(answer);
  report.erase("provenance");
  report.erase("version");
  const ordered_json inputs = std::move(report["inputs"]);
  ordered_json kept = {
      {"model", inputs["model"]["id"]}, {"gpu", inputs["cluster"]["gpu"]["id"]}, {"cluster", inputs["cluster"]["id"]}};
  for (const char* group : {"plan", "training", "network", "stragglers", "settings"}) {
    if (inputs.contains(group)) kept[group] = inputs[group];
  }
  kept["network"].erase("calibration");
  report["inputs"] = std::move(kept);
  return report;
}

// `command` answered `answer`; without --json it prints the summary.
void expect_golden(const fs::path& path, const std::string& answer, std::string command, const fs::path& folder) {
  const ordered_json actual = reduced(answer);
  command.erase(command.rfind(" --json"), 7);
  const CommandResult summary = run_command("LC_ALL=C.UTF-8 " + command, folder);
  const fs::path summary_path = fs::path(path).replace_extension(".txt");
  EXPECT_EQ(summary.code, 0) << command;
  if (updating()) {
    std::ofstream(path) << actual.dump(1) << "\n";
    std::ofstream(summary_path) << summary.out;
    return;
  }
  EXPECT_EQ(read_text(summary_path), summary.out) << summary_path;
  ASSERT_TRUE(fs::exists(path)) << path << " is missing; NS_DIST_UPDATE_GOLDEN=1 writes it";
  expect_same(ordered_json::parse(read_text(path)), actual, path.filename().string() + "#");
}

// The lines `ns-dist ...` of the fenced blocks, in order.
std::vector<std::string> commands_of(const fs::path& markdown) {
  std::vector<std::string> commands;
  std::istringstream lines(read_text(markdown));
  bool fenced = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("```", 0) == 0) {
      fenced = !fenced;
    } else if (fenced && line.rfind("ns-dist", 0) == 0) {
      commands.push_back(line);
    }
  }
  return commands;
}

CommandResult answered(const std::string& command, const fs::path& folder) {
  CommandResult result = run_command(command, folder);
  EXPECT_EQ(result.code, 0) << command << "\n" << result.err;
  return result;
}

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

TEST(Golden, CasesAnswerAsBefore) {
  int cases = 0;
  for (const fs::path& path : sorted_entries(kSource / "tests/golden/cases")) {
    if (path.extension() != ".command") continue;
    std::string command = read_text(path);
    command.erase(command.find_last_not_of('\n') + 1);
    const CommandResult result = answered(command, kSource);
    if (result.code == 0) expect_golden(fs::path(path).replace_extension(".json"), result.out, command, kSource);
    ++cases;
  }
  EXPECT_GT(cases, 0);
}

std::vector<fs::path> examples() {
  std::vector<fs::path> folders = sorted_entries(kSource / "examples");
  std::erase_if(folders, [](const fs::path& entry) { return !fs::is_directory(entry); });
  return folders;
}

class Example : public ::testing::TestWithParam<fs::path> {};

TEST_P(Example, WorksAsItsReadmeSays) {
  const fs::path& example = GetParam();
  const ScratchFolder scratch;
  fs::copy(example, scratch.path(), fs::copy_options::recursive);
  std::string answer, asked;
  for (const std::string& command : commands_of(example / "README.md")) {
    const CommandResult result = answered(command, scratch.path());
    if (!command.ends_with("--json")) continue;
    answer = result.out;
    asked = command;
  }
  ASSERT_FALSE(answer.empty()) << example;
  expect_golden(example / "expected.json", answer, asked, scratch.path());
}
INSTANTIATE_TEST_SUITE_P(Examples, Example, ::testing::ValuesIn(examples()), [](const auto& example) {
  std::string name = example.param.filename();
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
});

}  // namespace
}  // namespace ns_dist
