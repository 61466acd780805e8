// Runs the built binary as a user would: by its name, in a shell.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "support/files.h"

namespace ns_dist {

struct CommandResult {
  int code = -1;
  std::string out, err;
};

// `command` is a line for sh in which `ns-dist` is the binary under test.
inline CommandResult run_command(const std::string& command, const std::filesystem::path& folder) {
  const ScratchFolder output;
  const std::string out = (output.path() / "out").string(), err = (output.path() / "err").string();
  const std::string bin = std::filesystem::path(NS_DIST_BINARY).parent_path().string();
  const std::string line = "cd '" + folder.string() + "' && export PATH='" + bin + "':\"$PATH\" && { " + command +
                           "\n} >'" + out + "' 2>'" + err + "'";
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_text(out), read_text(err)};
}

inline CommandResult run_command(const std::string& command) {
  return run_command(command, std::filesystem::temp_directory_path());
}

}  // namespace ns_dist
