#include "ns_dist/cached_cost.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "ns_dist/compute_model.h"
#include "support/gpus.h"

namespace ns_dist {
namespace {

// Counts how often it is asked; answers with the rows of a product.
class Counting final : public ComputeCost {
 public:
  explicit Counting(std::atomic<int>& asked) : asked_(asked) {}
  Result<Forecast> forecast(const Operator& op) const override {
    ++asked_;
    const auto* gemm = std::get_if<Gemm>(&op.kind);
    if (gemm == nullptr) return fail({ErrorCode::kInvalidInput, "no product", ""});
    Forecast forecast;
    forecast.latency = static_cast<double>(gemm->m) * units::us;
    return forecast;
  }
  Result<Explanation> explain(const Operator&) const override { return Explanation{}; }

 private:
  std::atomic<int>& asked_;
};

TEST(CachedCost, AsksOnce) {
  std::atomic<int> asked = 0;
  const auto cost = make_cached_cost(std::make_unique<Counting>(asked));
  for (int i = 0; i < 10; ++i) {
    for (std::int64_t m = 1; m <= 3; ++m) {
      EXPECT_DOUBLE_EQ(cost->forecast({Gemm{.m = m}, DType::kBf16})->latency / units::us, static_cast<double>(m));
    }
  }
  EXPECT_EQ(asked, 3);
}

TEST(CachedCost, OperatorsThatDifferInAnyFieldAreDistinct) {
  const auto plain = make_compute_model(h100());
  const auto cached = make_cached_cost(*make_compute_model(h100()), 64);
  const std::vector<Operator> ops = {
      {Gemm{.m = 64, .n = 128, .k = 256}, DType::kBf16},
      {Gemm{.m = 128, .n = 64, .k = 256}, DType::kBf16},
      {Gemm{.m = 64, .n = 128, .k = 256}, DType::kFp8},
      {Gemm{.m = 64, .n = 128, .k = 256, .epilogue = Epilogue::kBias}, DType::kBf16},
      {Softmax{.rows = 64, .columns = 128}},
      {Softmax{.rows = 64, .columns = 128, .pass = Pass::kBackward}},
      {Elementwise{.name = "add", .elements = 4096}},
      {Elementwise{.name = "add", .elements = 4096, .inputs = 1.5}},
      {Copy{4096 * units::B}},
      {UnknownOperator{"a", 1 * units::GFLOP, 4096 * units::B, 0 * units::B}},
      {UnknownOperator{"a", 1 * units::GFLOP, 0 * units::B, 4096 * units::B}},
  };
  for (int round = 0; round < 3; ++round) {
    for (const Operator& op : ops) {
      EXPECT_EQ(cached->forecast(op)->latency, (*plain)->forecast(op)->latency) << to_text(op);
    }
  }
}

// Answers each question with how many it was asked before.
class Numbering final : public NetworkCost {
 public:
  Result<Forecast> forecast(const Collective&) const override {
    Forecast forecast;
    forecast.latency = static_cast<double>(++asked_) * units::us;
    return forecast;
  }
  Result<Explanation> explain(const Collective&) const override { return Explanation{}; }

 private:
  mutable std::atomic<int> asked_ = 0;
};

TEST(CachedCost, CollectivesThatDifferInAnyFieldAreDistinct) {
  const Collective plain{CollectiveKind::kAllToAll, 1 * units::MiB, {0, {{8, 1}}}};
  const std::function<void(Collective&)> changes[] = {
      [](Collective& call) { call.kind = CollectiveKind::kAllReduce; },
      [](Collective& call) { call.size = 2 * units::MiB; },
      [](Collective& call) {
        call.group = {0, {{8, 2}}};
      },
      [](Collective& call) {
        call.group = {8, {{8, 1}}};
      },
      [](Collective& call) { call.integer = true; },
      [](Collective& call) { call.imbalance = 1.5; },
      [](Collective& call) {
        call.ring = {4, 1};
      },
      [](Collective& call) {
        call.stages = {4, 1};
      },
  };
  for (const auto& change : changes) {
    Collective changed = plain;
    change(changed);
    const auto cost = make_cached_cost(std::make_unique<Numbering>());
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(cost->forecast(plain)->latency, 1 * units::us) << &change - changes;
      EXPECT_EQ(cost->forecast(changed)->latency, 2 * units::us) << &change - changes;
    }
  }
}

TEST(CachedCost, ErrorsAreNotRemembered) {
  std::atomic<int> asked = 0;
  const auto cost = make_cached_cost(std::make_unique<Counting>(asked));
  EXPECT_FALSE(cost->forecast({Copy{}}));
  EXPECT_FALSE(cost->forecast({Copy{}}));
  EXPECT_EQ(asked, 2);
}

TEST(CachedCost, ThreadsAgree) {
  std::atomic<int> asked = 0;
  const auto cost = make_cached_cost(std::make_unique<Counting>(asked), 16);  // much fewer than operators
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::int64_t m = 1; m <= 2000; ++m) {
        if (cost->forecast({Gemm{.m = m}, DType::kBf16})->latency != static_cast<double>(m) * units::us) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace ns_dist
