#include "term_sums.h"

#include <numeric>

namespace ns_dist {

const Terms& coefficients_of(const Sums& sums, const TermSum& sum) {
  for (std::string_view kernel = sum.kernel; !sums.empty() && !kernel.empty();) {
    if (const auto found = sums.find(kernel); found != sums.end()) return found->second;
    const std::size_t wider = kernel.rfind('/');
    kernel = kernel.substr(0, wider == std::string_view::npos ? 0 : wider);
  }
  return sum.prior;
}

Terms parts_of(const Sums& sums, const TermSum& sum) {
  Terms parts = coefficients_of(sums, sum);
  for (std::size_t t = 0; t < kMostTerms; ++t) parts[t] *= sum.terms[t];
  return parts;
}

double seconds_of(const Terms& parts) { return std::accumulate(parts.begin(), parts.end(), 0.0); }

}  // namespace ns_dist
