#include "ns_dist/version.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/internal/json_reader.h"
#include "terminal.h"

namespace ns_dist::cli {

int version_command(int argc, const char* const* argv) {
  CLI::App app{"Which build is this?", "version"};
  set_up(app);
  bool json = false;
  app.add_flag("--json", json, "print one JSON object");
  if (const auto done = parse(app, argc, argv)) return *done;
  if (json) {
    const nlohmann::ordered_json out = {
        {"schema", "ns-dist/version/1"}, {"version", version()}, {"revision", git_revision()}};
    std::fputs(dump_json(out, 1).c_str(), stdout);
    return kAnswered;
  }
  const std::string revision = git_revision().empty() ? "" : fmt::format(" ({})", git_revision());
  std::fputs(fmt::format("ns-dist {}{}\n", version(), revision).c_str(), stdout);
  return kAnswered;
}

}  // namespace ns_dist::cli
