#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/validation.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

Result<std::string> answer(const std::vector<std::string>& references) {
  const Catalog catalog = Catalog::standard();
  std::vector<PublishedRuns> publications;
  std::vector<std::string> wanted = references;
  if (wanted.empty()) {
    for (const CatalogEntry& entry : catalog.list(CatalogKind::kRuns)) wanted.push_back(entry.id);
  }
  for (const std::string& reference : wanted) {
    NS_TRY(PublishedRuns runs, catalog.runs(reference));
    publications.push_back(std::move(runs));
  }
  NS_TRY(const std::vector<RunCheck> checks, check_runs(publications, catalog));
  std::string text;
  for (const PublishedRuns& publication : publications) {
    text += fmt::format("{}\n  measured: {}\n", publication.name, publication.source);
  }
  return text + "\n" + to_markdown(checks);
}

}  // namespace

int validate_command(int argc, const char* const* argv) {
  CLI::App app{"How far off are forecasts of training steps that others measured and published?", "validate"};
  set_up(app);
  std::vector<std::string> references;
  app.add_option("--runs", references, "publications: ids of `ns-dist list runs` or JSON files (all built-in ones)")
      ->type_name("ID|FILE");
  if (const auto done = parse(app, argc, argv)) return *done;
  const auto text = answer(references);
  if (!text) return report_error(text.error());
  std::fputs(text->c_str(), stdout);
  return kAnswered;
}

}  // namespace ns_dist::cli
