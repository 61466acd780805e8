#include "ns_dist/units.h"

#include <gtest/gtest.h>

#include <type_traits>

namespace ns_dist {
namespace {

using namespace units;

TEST(Units, QuantitiesEnterByMultiplyingAndLeaveByDividing) {
  const BytesPerSecond hbm = 3.35 * TB / s;
  const Seconds load = 80 * GB / hbm;
  EXPECT_DOUBLE_EQ(load / ms, 80.0 / 3.35);
  static_assert(std::is_same_v<decltype(load / us), double>);
  static_assert(std::is_same_v<decltype(hbm * s), Bytes>);
  static_assert(sizeof(Seconds) == sizeof(double));
}

TEST(Units, DecimalAndBinaryPrefixesDiffer) {
  EXPECT_EQ(1 * GiB / B, 1024.0 * 1024 * 1024);
  EXPECT_EQ(1 * GB / B, 1e9);
}

struct Reading {
  const char* text;
  double bytes_per_second;
};

TEST(Units, BandwidthsAreRead) {
  const Reading readings[] = {
      {"3.35 TB/s", 3.35e12}, {"400 Gbit/s", 50e9}, {"1GiB/s", 1073741824.0}, {"  25 GB / s ", 25e9},
      {"1 MB/ms", 1e9},       {"1e3 B/s", 1e3},     {"0.5 kB/us", 0.5e9},     {"12.5 Mbit/s", 12.5e6 / 8},
      {"400 Gbps", 50e9},     {"450 GBps", 450e9}};
  for (const Reading& reading : readings) {
    const auto parsed = parse_quantity<BytesPerSecond>(reading.text);
    ASSERT_TRUE(parsed) << reading.text << ": " << to_text(parsed.error());
    EXPECT_DOUBLE_EQ(*parsed / (B / s), reading.bytes_per_second) << reading.text;
  }
}

TEST(Units, WhatIsNoBandwidthIsRefusedWithAnExample) {
  for (const char* text : {"", "fast", "50", "3 TB", "700 W", "3 TB/s/s", "nan GB/s", "inf GB/s", "1e999 GB/s",
                           "1e308 TB/s", "50 Gb/s", "50 GB/parsec", "0x10 GB/s", "--5 GB/s"}) {
    const auto parsed = parse_quantity<BytesPerSecond>(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_NE(to_text(parsed.error()).find("3.35 TB/s"), std::string::npos) << to_text(parsed.error());
  }
  EXPECT_EQ(parse_quantity<BytesPerSecond>("50").error().message, "\"50\" has no unit");
  EXPECT_EQ(parse_quantity<BytesPerSecond>("3 TB").error().message, "\"3 TB\" is an amount of data");
}

TEST(Units, BitsAreNamedWhereTheirShortFormsAreUsed) {
  const auto parsed = parse_quantity<BytesPerSecond>("200 Gb/s");
  ASSERT_FALSE(parsed);
  EXPECT_NE(parsed.error().message.find("200 Gbit/s"), std::string::npos) << parsed.error().message;
}

TEST(Units, RatesAreReadAsDataSheetsWriteThem) {
  EXPECT_EQ(*parse_quantity<FlopsPerSecond>("989.4 TFLOPS"), *parse_quantity<FlopsPerSecond>("989.4 TFLOP/s"));
  EXPECT_EQ(to_text(*parse_quantity<FlopsPerSecond>("2 PFLOPS")), "2 PFLOP/s");
  EXPECT_FALSE(parse_quantity<FlopsPerSecond>("989.4 TFLOPS/s"));
  EXPECT_FALSE(parse_quantity<Flops>("989.4 TFLOPS"));
}

TEST(Units, TextIsReadBackWithoutLoss) {
  for (const double value : {0.0, 1.0, 0.1, 3.35e12, 1.0 / 3.0, 6.02e23, 1e-12, 123456789.123}) {
    const BytesPerSecond rate = value * B / s;
    EXPECT_EQ(*parse_quantity<BytesPerSecond>(to_text(rate)), rate) << to_text(rate);
    const Seconds duration = value * s;
    EXPECT_EQ(*parse_quantity<Seconds>(to_text(duration)), duration) << to_text(duration);
  }
  EXPECT_EQ(to_text(3.35 * TB / s), "3.35 TB/s");
  EXPECT_EQ(to_text(700 * W), "700 W");
  EXPECT_EQ(to_text(1.5 * us), "1.5 us");
}

// 600 x 1e-9 and 0.6 x 1e-6 are two doubles; each is written as it was read, and neither as 599.9999999999999 ns.
TEST(Units, TextHasNoMoreDigitsThanWasTyped) {
  for (const char* text : {"600 ns", "0.6 us", "5.5 us", "900 GB/s", "1.2 ms", "0 s"}) {
    const auto duration = parse_quantity<Seconds>(text);
    EXPECT_EQ(duration ? to_text(*duration) : to_text(*parse_quantity<BytesPerSecond>(text)), text);
  }
  for (const char* unit : {"ns", "us", "ms", "s"}) {
    for (int tenths = 1; tenths < 20'000; ++tenths) {
      const std::string typed = std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " " + unit;
      const Seconds duration = *parse_quantity<Seconds>(typed);
      const std::string text = to_text(duration);
      ASSERT_EQ(*parse_quantity<Seconds>(text), duration) << typed;
      ASSERT_LE(text.size(), typed.size() + 3) << typed << " became " << text;
    }
  }
}

TEST(Units, DurationsHaveFourDigitsAndNoPowerOfTen) {
  for (const auto& [seconds, text] :
       {std::pair(3.14159e-6, "3.142 us"), std::pair(0.0124, "12.40 ms"), std::pair(0.591, "591.0 ms"),
        std::pair(2.0, "2.000 s"), std::pair(999.96e-3, "1000 ms"), std::pair(99.996, "100.0 s"),
        std::pair(5.87123, "5.871 s"), std::pair(9999.4, "9999 s"), std::pair(9999.9, "10000 s"),
        std::pair(15342.0, "15340 s"), std::pair(1234567.0, "1235000 s")}) {
    EXPECT_EQ(duration_text(seconds * units::s), text);
  }
}

}  // namespace
}  // namespace ns_dist
