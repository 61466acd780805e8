// Quantities with their dimension in the type. A number times a unit is a quantity; a quantity divided by a unit is a
// number. So the code names the unit at every conversion:
//
//   using namespace ns_dist::units;
//   const BytesPerSecond hbm = 3.35 * TB / s;
//   const Seconds load = 80 * GiB / hbm;      // 1 * B + 1 * s does not compile
//   const double micros = load / us;          // dimensionless is a plain double
//
// Text is read with its unit and its dimension is checked: parse_quantity<BytesPerSecond>("400 Gbit/s").
// GB is 10^9 bytes, GiB is 2^30 bytes, always.
#pragma once

#include <string>
#include <string_view>

#include "ns_dist/result.h"

namespace ns_dist {

// Exponents of time (s), data (byte), work (floating-point operation) and energy (J). Holds one double in base units.
template <int Time, int Data, int Work, int Energy>
class Quantity {
 public:
  constexpr Quantity() = default;

  // For the arithmetic below and for unit definitions only: `value` is in base units.
  static constexpr Quantity from_base(double value) { return Quantity(value); }
  constexpr double in_base() const { return value_; }

  constexpr Quantity& operator+=(Quantity other) { return value_ += other.value_, *this; }
  constexpr Quantity& operator-=(Quantity other) { return value_ -= other.value_, *this; }
  constexpr Quantity& operator*=(double factor) { return value_ *= factor, *this; }
  constexpr Quantity& operator/=(double divisor) { return value_ /= divisor, *this; }

  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.value_ + b.value_); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.value_ - b.value_); }
  friend constexpr Quantity operator-(Quantity a) { return Quantity(-a.value_); }
  friend constexpr Quantity operator*(double a, Quantity b) { return Quantity(a * b.value_); }
  friend constexpr Quantity operator*(Quantity a, double b) { return Quantity(a.value_ * b); }
  friend constexpr Quantity operator/(Quantity a, double b) { return Quantity(a.value_ / b); }

  // Spelled out: a defaulted <=> on a double costs two more branches.
  friend constexpr bool operator==(Quantity a, Quantity b) { return a.value_ == b.value_; }
  friend constexpr bool operator!=(Quantity a, Quantity b) { return a.value_ != b.value_; }
  friend constexpr bool operator<(Quantity a, Quantity b) { return a.value_ < b.value_; }
  friend constexpr bool operator>(Quantity a, Quantity b) { return a.value_ > b.value_; }
  friend constexpr bool operator<=(Quantity a, Quantity b) { return a.value_ <= b.value_; }
  friend constexpr bool operator>=(Quantity a, Quantity b) { return a.value_ >= b.value_; }

 private:
  explicit constexpr Quantity(double value) : value_(value) {}
  double value_ = 0;
};

template <int T, int D, int W, int E, int T2, int D2, int W2, int E2>
constexpr auto operator*(Quantity<T, D, W, E> a, Quantity<T2, D2, W2, E2> b) {
  if constexpr (T + T2 == 0 && D + D2 == 0 && W + W2 == 0 && E + E2 == 0) {
    return a.in_base() * b.in_base();
  } else {
    return Quantity<T + T2, D + D2, W + W2, E + E2>::from_base(a.in_base() * b.in_base());
  }
}

template <int T, int D, int W, int E, int T2, int D2, int W2, int E2>
constexpr auto operator/(Quantity<T, D, W, E> a, Quantity<T2, D2, W2, E2> b) {
  if constexpr (T == T2 && D == D2 && W == W2 && E == E2) {
    return a.in_base() / b.in_base();
  } else {
    return Quantity<T - T2, D - D2, W - W2, E - E2>::from_base(a.in_base() / b.in_base());
  }
}

template <int T, int D, int W, int E>
constexpr auto operator/(double a, Quantity<T, D, W, E> b) {
  return Quantity<-T, -D, -W, -E>::from_base(a / b.in_base());
}

using Seconds = Quantity<1, 0, 0, 0>;
using Bytes = Quantity<0, 1, 0, 0>;
using Flops = Quantity<0, 0, 1, 0>;
using Joules = Quantity<0, 0, 0, 1>;
using Hertz = Quantity<-1, 0, 0, 0>;
using BytesPerSecond = Quantity<-1, 1, 0, 0>;
using FlopsPerSecond = Quantity<-1, 0, 1, 0>;
using FlopsPerByte = Quantity<0, -1, 1, 0>;
using Watts = Quantity<-1, 0, 0, 1>;

template <int T, int D, int W, int E>
constexpr auto min(Quantity<T, D, W, E> a, Quantity<T, D, W, E> b) {
  return b < a ? b : a;
}
template <int T, int D, int W, int E>
constexpr auto max(Quantity<T, D, W, E> a, Quantity<T, D, W, E> b) {
  return a < b ? b : a;
}

namespace units {

inline constexpr Seconds s = Seconds::from_base(1);
inline constexpr Seconds ms = 1e-3 * s;
inline constexpr Seconds us = 1e-6 * s;
inline constexpr Seconds ns = 1e-9 * s;
inline constexpr Bytes B = Bytes::from_base(1);
inline constexpr Bytes kB = 1e3 * B;
inline constexpr Bytes MB = 1e6 * B;
inline constexpr Bytes GB = 1e9 * B;
inline constexpr Bytes TB = 1e12 * B;
inline constexpr Bytes KiB = 1024.0 * B;
inline constexpr Bytes MiB = 1024.0 * KiB;
inline constexpr Bytes GiB = 1024.0 * MiB;
inline constexpr Bytes TiB = 1024.0 * GiB;
inline constexpr Bytes Gbit = 0.125 * GB;
inline constexpr Flops FLOP = Flops::from_base(1);
inline constexpr Flops GFLOP = 1e9 * FLOP;
inline constexpr Flops TFLOP = 1e12 * FLOP;
inline constexpr Flops PFLOP = 1e15 * FLOP;
inline constexpr Hertz Hz = Hertz::from_base(1);
inline constexpr Hertz MHz = 1e6 * Hz;
inline constexpr Hertz GHz = 1e9 * Hz;
inline constexpr Joules J = Joules::from_base(1);
inline constexpr Watts W = Watts::from_base(1);

}  // namespace units

namespace detail {

struct Dimension {
  int time = 0, data = 0, work = 0, energy = 0;
  friend bool operator==(const Dimension&, const Dimension&) = default;
};

// Reads `text` as number and unit; the value comes back in base units. Errors: no number, not finite, no unit, an
// unknown unit, another dimension than `expected`; each has a hint: what to write instead.
Result<double> parse_in_base(std::string_view text, Dimension expected);

// Text that parse_in_base reads back as exactly `value`: "3.35 TB/s".
std::string format_in_base(double value, Dimension dimension);

}  // namespace detail

// Reads "3.35 TB/s", "400 Gbit/s", "80 GiB", "1.5 us", "989.4 TFLOP/s", "1980 MHz", "700 W".
template <class Q>
Result<Q> parse_quantity(std::string_view text);

template <int T, int D, int W, int E>
Result<Quantity<T, D, W, E>> parse_quantity_as(std::string_view text, const Quantity<T, D, W, E>*) {
  return detail::parse_in_base(text, {T, D, W, E}).map([](double v) { return Quantity<T, D, W, E>::from_base(v); });
}

template <class Q>
Result<Q> parse_quantity(std::string_view text) {
  return parse_quantity_as(text, static_cast<const Q*>(nullptr));
}

// Text for people and files, in the largest unit that keeps the number at or above one; read back without loss.
template <int T, int D, int W, int E>
std::string to_text(Quantity<T, D, W, E> quantity) {
  return detail::format_in_base(quantity.in_base(), {T, D, W, E});
}

// "5.871 s", "12.40 ms", "3.100 us": four significant digits, since more would suggest an accuracy that forecasts do
// not have.
std::string duration_text(Seconds seconds);

}  // namespace ns_dist
