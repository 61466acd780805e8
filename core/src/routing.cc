#include "ns_dist/routing.h"

#include <algorithm>
#include <cmath>

#include "ns_dist/result.h"

namespace ns_dist {
namespace {

double real(std::int64_t value) { return static_cast<double>(value); }

// Logarithm of n!. std::lgamma writes the sign to a global variable, and searches ask from several threads.
double log_factorial(std::int64_t n) {
  int sign = 1;
  return ::lgamma_r(real(n + 1), &sign);
}

// Logarithm of C(n, k), 0 <= k <= n.
double log_choices(std::int64_t n, std::int64_t k) {
  return log_factorial(n) - log_factorial(k) - log_factorial(n - k);
}

// Probability that none of `here` experts is among the k that are drawn from `open` experts.
double missed(const Routing& routing, std::int64_t open, std::int64_t here) {
  double probability = 1;
  for (std::int64_t i = 0; i < routing.top_k; ++i) probability *= std::max(0.0, real(open - here - i) / real(open - i));
  return probability;
}

// Probability that a token goes to experts [first, end): these are some whole groups and parts of those at both ends.
double reached(const Routing& routing, std::int64_t first, std::int64_t end) {
  const std::int64_t in_group = routing.experts / routing.groups, open = routing.top_groups * in_group;
  const std::int64_t head = std::min(end, (first / in_group + 1) * in_group) - first;
  const std::int64_t whole = (end - first - head) / in_group, tail = end - first - head - whole * in_group;
  const std::int64_t others = routing.groups - whole - (tail > 0 ? 2 : 1);
  double none = 0;  // probability
  for (const std::int64_t at_head : {std::int64_t{0}, std::int64_t{1}}) {
    for (std::int64_t at_tail = 0; at_tail <= (tail > 0 ? 1 : 0); ++at_tail) {
      for (std::int64_t between = 0; between <= whole; ++between) {
        const std::int64_t elsewhere = routing.top_groups - at_head - at_tail - between;
        if (elsewhere < 0 || elsewhere > others) continue;
        const double chosen = std::exp(log_choices(whole, between) + log_choices(others, elsewhere) -
                                       log_choices(routing.groups, routing.top_groups));
        none += chosen * missed(routing, open, at_head * head + at_tail * tail + between * in_group);
      }
    }
  }
  return 1 - none;
}

}  // namespace

bool is_possible(const Routing& routing) {
  return routing.experts >= 1 && routing.groups >= 1 && routing.experts % routing.groups == 0 && routing.top_k >= 1 &&
         routing.top_groups >= 1 && routing.top_groups <= routing.groups &&
         routing.top_groups * (routing.experts / routing.groups) >= routing.top_k;
}

double parts_reached(const Routing& routing, std::int64_t parts) {
  NS_EXPECTS(parts >= 1 && is_possible(routing));
  Routing limited = routing;
  if (routing.top_groups == routing.groups) limited.groups = limited.top_groups = 1;
  double sum = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t first = routing.experts * part / parts, end = routing.experts * (part + 1) / parts;
    if (end > first) sum += reached(limited, first, end);
  }
  return sum;
}

}  // namespace ns_dist
