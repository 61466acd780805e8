// What one chunk of a collective takes in one dimension of ASTRA-Sim's network, by each of its algorithms.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ns_dist/astra_formulas.h"

namespace ns_dist::astra {

using Int = std::int64_t;

// Nine years in ns. What is as long, or as many bytes, is refused; sums of a few such terms do not overflow.
constexpr Int kNineYears = kMostAstraBytes + 1;

// At most kNineYears, of what is not negative.
inline Int times(Int a, Int b) { return b > 0 && a > kNineYears / b ? kNineYears : a * b; }
inline Int ceil_div(Int a, Int b) { return (a + b - 1) / b; }

// `key`: of the system json, where another value of it would have a form.
tl::unexpected<Error> no_form(const std::string& what, const std::string& key = "", const std::string& expected = "");
tl::unexpected<Error> too_long();
// Error: it takes nine years or more.
Result<Int> checked(Int nanoseconds);
// The key of the algorithms of a collective.
std::string key_of(CollectiveKind kind);

// Steps of a ring: messages that follow each other, and how many of them are reduced.
struct RingSteps {
  Int steps = 0, reductions = 0;
};
RingSteps ring_steps(CollectiveKind kind, Int n);

// Of each message of a chunk of `c` bytes among `n` ranks.
inline Int message_size(CollectiveKind kind, Int c, Int n) { return kind == CollectiveKind::kAllGather ? c : c / n; }

// The window of "direct<window>", 0 for "direct" itself; nothing for other texts.
std::optional<Int> window_of(const std::string& algorithm);

// One dimension with everything that its formulas need. It points into its system.
struct Dimension {
  const AstraDimension* d;
  const AstraSystem* system;
  Int delay;             // endpoint delay, ns
  CollectiveKind whole;  // of whose phases this is one: it names the algorithm

  Int n() const { return d->npus; }
  const std::string& algorithm() const { return d->algorithm.of(whole); }

  // A message of `m` bytes, ns. Unaware: latency of the hops and one serialization; aware: store and forward on every
  // hop.
  Int message(Int m, Int distance = 1) const;
  // Three passes over local memory, two reads and a write, ns.
  Int reduction(Int m) const;

  // What one chunk of `c` bytes takes in this dimension by `algorithm`, ns.
  Result<Int> chunk(CollectiveKind kind, const std::string& algorithm, Int c) const;

  // Its two phases overlap.
  tl::unexpected<Error> no_direct_all_reduce() const;

  double beta() const;  // B/ns
  Int hops(Int distance) const;
  Int ring(CollectiveKind kind, Int c) const;
  Result<Int> direct(CollectiveKind kind, Int c, Int window) const;
  Result<Int> halving_doubling(CollectiveKind kind, Int c) const;
};

}  // namespace ns_dist::astra
