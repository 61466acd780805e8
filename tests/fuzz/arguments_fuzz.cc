// Command lines: each line of the input is a field and, behind a blank, its text ("plan/tp 8"). They are refused with
// the field, or are a scenario whose step takes a finite time or is refused with a reason; as the values of a search
// they are refused or are few enough.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ns_dist/catalog.h"
#include "ns_dist/search.h"
#include "ns_dist/simulator.h"

namespace {

// Names of files are another target's.
bool names_a_file(std::string_view text) {
  return text == "-" || text.find('/') != std::string_view::npos || text.find('.') != std::string_view::npos;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ns_dist;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  ScenarioSpec spec;
  while (!rest.empty() && spec.assignments.size() < 64) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const std::size_t blank = line.find(' ');
    const std::string_view field = line.substr(0, blank);
    const std::string_view text = blank == std::string_view::npos ? std::string_view() : line.substr(blank + 1);
    const bool number = field.find("bandwidth") != std::string_view::npos;  // "12.5 GB/s"
    if (names_a_file(text) && !number) continue;
    spec.set(field, text);
    if (const auto values = read_values(field, text)) {
      NS_EXPECTS(!values->values.empty() && values->values.size() <= static_cast<std::size_t>(kMostValues));
    } else {
      NS_EXPECTS(!values.error().message.empty());
    }
  }
  if (const auto values = check_values(spec); !values) NS_EXPECTS(!values.error().message.empty());
  const auto scenario = resolve(spec, Catalog::built_in());
  if (!scenario) {
    NS_EXPECTS(!scenario.error().message.empty());
    return 0;
  }
  const auto ranks = rank_count(scenario->plan);
  if (!ranks || *ranks > 4096 || scenario->training.global_batch > 4096 || scenario->model.layers > 128) return 0;
  const auto session = Session::make(*scenario);
  if (!session) return 0;
  const auto step = step_time(*scenario, *session);
  NS_EXPECTS(step ? std::isfinite(*step / units::s) && *step > Seconds() : !step.error().message.empty());
  return 0;
}
