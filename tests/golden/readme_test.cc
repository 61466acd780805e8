// Does what the README and docs/planning.md show still hold? Every line of its sh blocks that calls ns-dist runs; in
// its console blocks a line "$ command" is followed by exactly what the command prints. NS_DIST_UPDATE_GOLDEN=1 writes
// the output anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string_view>

#include "support/run_command.h"

namespace ns_dist {
namespace {

class Page : public ::testing::TestWithParam<const char*> {};

TEST_P(Page, WhatItShowsIsWhatHappens) {
  const std::filesystem::path path = std::filesystem::path(NS_DIST_SOURCE_DIR) / GetParam();
  const std::string text = read_text(path);
  ASSERT_FALSE(text.empty());
  const ScratchFolder folder;
  std::istringstream lines(text);
  std::string rewritten, fence;
  int ran = 0;
  bool in_output = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("```", 0) == 0) {
      fence = fence.empty() ? line.substr(3) : "";
      in_output = false;
      if (fence.empty() && line == "```") {
        rewritten += line + "\n";
        continue;
      }
    } else if (fence == "sh" && line.rfind("ns-dist ", 0) == 0) {
      const CommandResult result = run_command(line, folder.path());
      EXPECT_EQ(result.code, 0) << line << "\n" << result.err;
      ++ran;
    } else if (fence == "console" && line.rfind("$ ", 0) == 0) {
      const CommandResult result = run_command(line.substr(2), folder.path());
      EXPECT_EQ(result.code, 0) << line << "\n" << result.err;
      rewritten += line + "\n" + result.out;
      in_output = true;
      ++ran;
      continue;
    } else if (in_output) {
      continue;
    }
    rewritten += line + "\n";
  }
  EXPECT_GE(ran, std::string_view(GetParam()) == "README.md" ? 8 : 5);
  if (std::getenv("NS_DIST_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << rewritten;
  } else {
    EXPECT_EQ(rewritten, text) << "run with NS_DIST_UPDATE_GOLDEN=1 and review the difference";
  }
}
INSTANTIATE_TEST_SUITE_P(Pages, Page, ::testing::Values("README.md", "docs/planning.md"));

}  // namespace
}  // namespace ns_dist
