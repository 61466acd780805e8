// How far off are forecasts of training steps that others measured?
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/published_run.h"
#include "ns_dist/result.h"
#include "ns_dist/units.h"

namespace ns_dist {

struct RunCheck {
  std::string publication, id, gpu;
  Seconds measured, forecast, low, high;
  // What a constant utilisation would say: the step at the mean measured model FLOP/s utilisation of all runs checked
  // on the same GPU and number format (leaving none out, which favours it).
  Seconds baseline;
  std::string unsupported;  // why there is no forecast; empty when there is one
  double error() const { return forecast / measured - 1; }
  double baseline_error() const { return baseline / measured - 1; }
};

// Forecasts every run. Errors: a model or cluster that the catalog does not have. A run that cannot be planned is
// listed with the reason.
Result<std::vector<RunCheck>> check_runs(std::span<const PublishedRuns> publications, const Catalog& catalog);

// The checks as a table for people, worst first, with summaries of ours and of the baseline; Markdown.
std::string to_markdown(std::span<const RunCheck> checks);

}  // namespace ns_dist
