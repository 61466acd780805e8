// What is wrong with a plan.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ns_dist/planner.h"

namespace ns_dist {

// Collects all mistakes of a plan.
struct Checker {
  std::vector<Error> errors;

  // A mistake in the field `where`; `hint` says what to write.
  void fail_at(std::string where, std::string message, std::string expected = "", std::string hint = "") {
    errors.push_back(
        {ErrorCode::kInfeasible, std::move(message), std::move(where), std::move(expected), std::move(hint)});
  }
  // The error of `result`, if it is one.
  template <class T>
  void note(const Result<T>& result) {
    if (!result) errors.push_back(result.error());
  }
  // Error: all that were collected.
  Result<void> done() {
    if (errors.empty()) return {};
    return fail(join(std::move(errors)));
  }
  // `value` must be from 1 to `most`.
  void in_range(const char* where, std::int64_t value, std::int64_t most) {
    if (value >= 1 && value <= most) return;
    fail_at(where, fmt::format("{} is out of range", value), fmt::format("a whole number from 1 to {}", most));
  }
  // `part` must divide `whole`; says message(), and which values near `part` do, and divide `also`, too.
  template <class Message>
  void divides(const char* where, std::int64_t part, std::int64_t whole, const Message& message, std::int64_t also = 0,
               const std::string& otherwise = "") {
    if (part < 1 || whole < 1 || whole % part == 0) return;
    const std::int64_t both = std::gcd(whole, also);
    std::int64_t below = part, above = part;
    while (both % below != 0) --below;
    while (above < both && both % above != 0) ++above;
    const std::string choice = above <= both && above != below ? fmt::format("{0}={1} or {0}={2}", where, below, above)
                                                               : fmt::format("{}={}", where, below);
    fail_at(where, message(), fmt::format("a divisor of {}", whole), fmt::format("use {}{}", choice, otherwise));
  }
};

// Every part of the model that tensor parallelism divides suits plan.tp.
void check_tensor_parts(const Model& model, const ParallelPlan& plan, const Training& training, Checker& check);

}  // namespace ns_dist
