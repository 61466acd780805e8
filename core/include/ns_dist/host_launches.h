// How long a GPU waits for the host that launches its kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace ns_dist {

// Name of the works in which the GPU waits for launches.
inline constexpr std::string_view kHostLaunches = "host.launches";

// The host launches `parts` one after the other, and looks at a result before each but the first. A part takes it
// part(p).all; the GPU runs the kernels of the part for ended(p + 1) - ended(p), which hides as much of it. Behind a
// result the GPU has nothing to do until the first launch, part(p).one. All in one unit of time. `ended(p)`: when all
// that the first kernel of part p waits for has ended; 0 of the first part; of the end, when all has ended that comes
// behind the last result. What runs beside it (a gather of the next layer's weights) keeps no host waiting; where it
// ends later, by `beside`, it hides as much of the waits.
template <class Part, class Ended>
double wait_for_launches(std::size_t parts, const Part& part, const Ended& ended, double beside) {
  double wait = -beside;
  for (std::size_t p = 0; p < parts; ++p) {
    const double hidden = ended(p + 1) - ended(p);
    wait += std::max(p == 0 ? 0 : part(p).one, part(p).all - hidden);
  }
  return std::max(0.0, wait);
}

}  // namespace ns_dist
