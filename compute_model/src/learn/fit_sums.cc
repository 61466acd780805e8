#include "learn/fit_sums.h"

#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <cmath>

namespace ns_dist {
namespace {

using Matrix = Eigen::Matrix<double, kMostTerms, kMostTerms>;
using Vector = Eigen::Matrix<double, kMostTerms, 1>;
constexpr int kSize = static_cast<int>(kMostTerms);

// argmin x'Ax / 2 - b'x for x >= 0 (Lawson and Hanson 1974, chapter 23). `A` is positive definite.
Vector non_negative_least_squares(const Matrix& a, const Vector& b) {
  Vector x = Vector::Zero();
  std::array<bool, kMostTerms> free{};
  const auto solve = [&] {  // with all others at zero
    Matrix held = a;
    Vector target = b;
    for (int i = 0; i < kSize; ++i) {
      if (free[static_cast<std::size_t>(i)]) continue;
      held.row(i).setZero(), held.col(i).setZero();
      held(i, i) = 1, target(i) = 0;
    }
    return Vector(held.ldlt().solve(target));
  };
  for (int round = 0; round < 3 * kSize; ++round) {
    const Vector slope = b - a * x;
    int best = -1;
    for (int i = 0; i < kSize; ++i) {
      if (free[static_cast<std::size_t>(i)] || slope(i) <= 1e-9) continue;
      if (best < 0 || slope(i) > slope(best)) best = i;
    }
    if (best < 0) break;
    free[static_cast<std::size_t>(best)] = true;
    for (;;) {
      const Vector wanted = solve();
      double share = 1;
      for (int i = 0; i < kSize; ++i) {
        if (free[static_cast<std::size_t>(i)] && wanted(i) <= 0) share = std::min(share, x(i) / (x(i) - wanted(i)));
      }
      x += share * (wanted - x);
      if (share == 1) break;
      for (int i = 0; i < kSize; ++i) {
        if (x(i) > 1e-12) continue;
        x(i) = 0, free[static_cast<std::size_t>(i)] = false;
      }
    }
  }
  return x;
}

// Of rows `shares` of their measured time (a row's terms over it): coefficients near `center`.
Terms fit_class(const std::vector<Vector>& shares, const Terms& center, const Vector& pull) {
  constexpr double kDamped = 0.05;  // errors beyond it count by their amount, not by its square
  constexpr int kRounds = 15;
  const Vector start = Eigen::Map<const Vector>(center.data());
  Vector x = start;
  std::vector<double> weights(shares.size(), 1.0);
  for (int round = 0; round < kRounds; ++round) {
    Matrix a = pull.asDiagonal();
    Vector b = pull.cwiseProduct(start);
    for (std::size_t r = 0; r < shares.size(); ++r) {
      a += weights[r] * shares[r] * shares[r].transpose();
      b += weights[r] * shares[r];
    }
    const Vector scale = a.diagonal().cwiseSqrt().cwiseInverse();  // terms differ by orders of magnitude
    x = scale.cwiseProduct(
        non_negative_least_squares(scale.asDiagonal() * a * scale.asDiagonal(), scale.cwiseProduct(b)));
    for (std::size_t r = 0; r < shares.size(); ++r) {
      weights[r] = kDamped / std::max(kDamped, std::abs(shares[r].dot(x) - 1));
    }
  }
  Terms coefficients;
  // As the file of the weights has them.
  for (std::size_t t = 0; t < kMostTerms; ++t) {
    coefficients[t] = static_cast<double>(static_cast<float>(x(static_cast<int>(t))));
  }
  return coefficients;
}

}  // namespace

Sums fit_sums(const SumKind& kind, const std::vector<MeasuredSum>& rows) {
  struct Class {
    const TermSum* example = nullptr;
    std::vector<Vector> shares;
  };
  // By number of classes above, so that the wider one is fitted first.
  std::map<std::pair<std::size_t, std::string>, Class> classes;
  for (const MeasuredSum& row : rows) {
    if (row.sum.kernel.empty()) continue;
    const Vector share = Eigen::Map<const Vector>(row.sum.terms.data()) / row.seconds;
    std::size_t above = 0, end = 0;
    do {
      end = std::min(row.sum.kernel.find('/', end + 1), row.sum.kernel.size());
      Class& one = classes[{above++, row.sum.kernel.substr(0, end)}];
      one.example = &row.sum, one.shares.push_back(share);
    } while (end < row.sum.kernel.size());
  }
  const Vector reach = Eigen::Map<const Vector>(kind.reach.data());
  Sums sums;
  for (const auto& [key, one] : classes) {
    const auto& [above, name] = key;
    const bool narrowest = name == one.example->kernel;
    const double cost = above == 0 ? kind.prior : narrowest ? kind.gpu : kind.wider;
    TermSum wider = *one.example;
    wider.kernel = above == 0 ? "" : name.substr(0, name.rfind('/'));
    sums[name] = fit_class(one.shares, coefficients_of(sums, wider), cost * reach.cwiseAbs2().cwiseInverse());
  }
  return sums;
}

}  // namespace ns_dist
