#include "ns_dist/version.h"

#include <fmt/format.h>

#include <cstdio>

#include "arguments.h"
#include "commands.h"
#include "terminal.h"

namespace ns_dist::cli {

int version_command(int argc, const char* const* argv) {
  CLI::App app{"Which build is this?", "version"};
  set_up(app);
  if (const auto done = parse(app, argc, argv)) return *done;
  const std::string revision = git_revision().empty() ? "" : fmt::format(" ({})", git_revision());
  std::fputs(fmt::format("ns-dist {}{}\n", version(), revision).c_str(), stdout);
  return kAnswered;
}

}  // namespace ns_dist::cli
