// Does what the README and docs/planning.md show still hold? Every line of its sh blocks that calls ns-dist runs; in
// its console blocks a line "$ command" is followed by exactly what the command prints. NS_DIST_UPDATE_GOLDEN=1 writes
// the output anew.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <vector>

#include "support/run_command.h"

namespace ns_dist {
namespace {

// From a heading to the next one of two hashes, or what stands before the first. Sections are tests of their own, so
// that several processes share them.
struct Section {
  const char* page;
  std::size_t number;
};
std::ostream& operator<<(std::ostream& out, const Section& section) {
  return out << section.page << ", section " << section.number;
}

std::filesystem::path path_of(const char* page) { return std::filesystem::path(NS_DIST_SOURCE_DIR) / page; }

std::vector<std::string> sections_of(const char* page) {
  std::vector<std::string> sections(1);
  std::istringstream lines(read_text(path_of(page)));
  bool fenced = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) fenced = !fenced;
    if (!fenced && line.starts_with("## ")) sections.emplace_back();
    sections.back() += line + "\n";
  }
  return sections;
}

std::vector<Section> all_sections() {
  std::vector<Section> all;
  for (const char* page : {"README.md", "docs/planning.md"}) {
    for (std::size_t i = 0; i < sections_of(page).size(); ++i) all.push_back({page, i});
  }
  return all;
}

// A section as it is now: with the output of its commands.
struct Shown {
  std::string text;
  int commands = 0;
};
Shown shown(const std::string& section) {
  const ScratchFolder folder;
  std::istringstream lines(section);
  Shown now;
  std::string fence;
  bool in_output = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) {
      fence = fence.empty() ? line.substr(3) : "";
      in_output = false;
    } else if (fence == "sh" && line.starts_with("ns-dist ")) {
      const CommandResult result = run_command(line, folder.path());
      EXPECT_EQ(result.code, 0) << line << "\n" << result.err;
      ++now.commands;
    } else if (fence == "console" && line.starts_with("$ ")) {
      const CommandResult result = run_command(line.substr(2), folder.path());
      EXPECT_EQ(result.code, 0) << line << "\n" << result.err;
      now.text += line + "\n" + result.out;
      in_output = true;
      ++now.commands;
      continue;
    } else if (in_output) {
      continue;
    }
    now.text += line + "\n";
  }
  return now;
}

// Other processes write other sections of the page at the same time.
void write_section(const Section& which, const std::string& text) {
  const std::filesystem::path path = path_of(which.page);
  const int folder = open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(folder, 0) << path;
  EXPECT_EQ(flock(folder, LOCK_EX), 0);
  std::string all;
  const std::vector<std::string> sections = sections_of(which.page);
  for (std::size_t i = 0; i < sections.size(); ++i) all += i == which.number ? text : sections[i];
  // Readers see the old page or the new one.
  const std::filesystem::path next = path.string() + ".new";
  std::ofstream(next) << all;
  std::filesystem::rename(next, path);
  close(folder);
}

class Page : public ::testing::TestWithParam<Section> {};

TEST_P(Page, WhatItShowsIsWhatHappens) {
  const std::string section = sections_of(GetParam().page).at(GetParam().number);
  const Shown now = shown(section);
  if (std::getenv("NS_DIST_UPDATE_GOLDEN") != nullptr) {
    write_section(GetParam(), now.text);
  } else {
    EXPECT_EQ(now.text, section) << "run with NS_DIST_UPDATE_GOLDEN=1 and review the difference";
  }
}
INSTANTIATE_TEST_SUITE_P(Pages, Page, ::testing::ValuesIn(all_sections()));

// The pages show commands at all: in blocks that the test above runs.
TEST(Pages, ShowCommands) {
  for (const auto& [page, least] : {std::pair{"README.md", 8}, std::pair{"docs/planning.md", 5}}) {
    const std::string text = read_text(path_of(page));
    int commands = 0;
    for (const char* start : {"\nns-dist ", "\n$ ns-dist "}) {
      for (std::size_t at = text.find(start); at != std::string::npos; at = text.find(start, at + 1)) ++commands;
    }
    EXPECT_GE(commands, least) << page;
  }
}

}  // namespace
}  // namespace ns_dist
