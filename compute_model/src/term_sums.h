// Kernels whose time is a sum: a family says what each term takes with a coefficient of one, `fit` finds the
// coefficients of each class of kernels, and the weights have them.
#pragma once

#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "machine.h"

namespace ns_dist {

inline constexpr std::size_t kMostTerms = 8;
using Terms = std::array<double, kMostTerms>;

// The sum of one kernel.
struct TermSum {
  // The kernel's class and those within it, the narrowest last: "cudnn forward hopper/h200-sxm". Empty: its
  // coefficients are those of `prior`, which nothing is fitted to.
  std::string kernel;
  Terms terms{};  // s, with a coefficient of one; zero where the kernel has no such part
  Terms prior{};  // coefficients before any row is seen
};

// Coefficients by class: "cudnn forward hopper", "cudnn forward hopper/h200-sxm".
using Sums = std::map<std::string, Terms, std::less<>>;

// Those of the narrowest class that was fitted; else the prior.
const Terms& coefficients_of(const Sums& sums, const TermSum& sum);

// Each term with its coefficient, in s.
Terms parts_of(const Sums& sums, const TermSum& sum);

double seconds_of(const Terms& parts);

// How the sums of a predictor are made and fitted.
struct SumKind {
  std::span<const std::string_view> terms;  // names
  // How far a coefficient may lie from that of the wider class, or from the prior.
  Terms reach{};
  // What leaving the prior, that of the wider class, and that of the class for one GPU costs, by the square of the
  // share of `reach`, where one row that is missed by its whole time costs one.
  double prior = 0, wider = 0, gpu = 0;
  TermSum (*of)(const Machine& machine, const Operator& op) = nullptr;
  // What the sum is of a kernel that takes `seconds`; null: as long.
  double (*sum_of)(const Operator& op, double seconds) = nullptr;
};

}  // namespace ns_dist
