// Commands that must answer, and commands that must be refused.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "support/run_command.h"

namespace ns_dist {

// `arguments` of the binary under test: exit code 0 and nothing on standard error.
inline CommandResult answered(const std::string& arguments,
                              const std::filesystem::path& folder = std::filesystem::temp_directory_path()) {
  CommandResult result = run_command("ns-dist " + arguments, folder);
  EXPECT_EQ(result.code, 0) << arguments << "\n" << result.err;
  EXPECT_THAT(result.err, ::testing::IsEmpty()) << arguments;
  return result;
}

// Nothing on standard output, the exit code, and a message that contains the regular expression.
inline void refused(const std::string& arguments, const std::filesystem::path& folder, int code, const char* message) {
  const CommandResult result = run_command("ns-dist " + arguments, folder);
  EXPECT_EQ(result.code, code) << arguments << "\n" << result.err;
  EXPECT_THAT(result.err, ::testing::ContainsRegex(message)) << arguments;
  EXPECT_THAT(result.out, ::testing::IsEmpty()) << arguments;
}

}  // namespace ns_dist
