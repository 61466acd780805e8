// Sweep files: any text is refused with a place, or lists fields with values that a scenario takes; the first and the
// last row are a scenario whose step takes a finite time, or are refused with a reason.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ns_dist/catalog.h"
#include "ns_dist/search.h"
#include "ns_dist/simulator.h"

namespace {

using namespace ns_dist;

void forecast(const ScenarioSpec& row) {
  const auto scenario = resolve(row, Catalog::built_in());
  if (!scenario) {
    NS_EXPECTS(!scenario.error().message.empty());
    return;
  }
  const auto ranks = rank_count(scenario->plan);
  if (!ranks || *ranks > 4096 || scenario->training.global_batch > 4096 || scenario->model.layers > 128) return;
  const auto session = Session::make(*scenario);
  if (!session) return;
  const auto step = step_time(*scenario, *session);
  NS_EXPECTS(step ? std::isfinite(*step / units::s) && *step > Seconds() : !step.error().message.empty());
}

// Names of files are another target's.
bool names_a_file(std::string_view text) {
  return text == "-" || text.find('/') != std::string_view::npos || text.find('.') != std::string_view::npos;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto fields = read_sweep(std::string_view(reinterpret_cast<const char*>(data), size), "input.json");
  if (!fields) {
    NS_EXPECTS(!fields.error().message.empty() && fields.error().where.starts_with("input.json"));
    return 0;
  }
  NS_EXPECTS(!fields->empty());
  ScenarioSpec first, last;
  for (const FieldValues& each : *fields) {
    NS_EXPECTS(!each.values.empty());
    if (names_a_file(each.values.front()) || names_a_file(each.values.back())) return 0;
    first.set(each.field, std::string_view(each.values.front()));
    last.set(each.field, std::string_view(each.values.back()));
  }
  forecast(first);
  forecast(last);
  return 0;
}
