#include "ns_dist/cached_cost.h"

#include <bit>
#include <utility>

#include "ns_dist/hash.h"
#include "ns_dist/internal/set_cache.h"

namespace ns_dist {
namespace {

// Fields in turn; equal operators have equal numbers. Fields that hardly differ within a program (library,
// deterministic, quantizes, attention's scaling) are left out: operators that differ in them alone share a number, and
// are told apart by comparison.
struct FieldHash {
  std::uint64_t value;
  void add(std::uint64_t next) { value = mix_hash(value, next); }
  void add(std::int64_t next) { add(static_cast<std::uint64_t>(next)); }
  void add(bool next) { add(static_cast<std::uint64_t>(next)); }
  void add(double next) { add(std::bit_cast<std::uint64_t>(next + 0.0)); }  // -0 is 0
  void add(const std::string& next) { add(fnv1a(next)); }
  template <class E>
  requires std::is_enum_v<E>
  void add(E next) { add(static_cast<std::uint64_t>(next)); }
  template <class... Fields>
  void all(const Fields&... fields) {
    (add(fields), ...);
  }

  void operator()(const Gemm& o) { all(o.batch, o.m, o.n, o.k, o.layout, o.epilogue, o.scaling); }
  void operator()(const Attention& o) {
    all(o.batch, o.heads, o.kv_heads, o.query_length, o.key_length, o.head_dim, o.value_dim, o.causal, o.window,
        o.pass);
  }
  void operator()(const Softmax& o) { all(o.rows, o.columns, o.pass); }
  void operator()(const Normalization& o) { all(o.kind, o.rows, o.columns, o.pass); }
  void operator()(const Elementwise& o) {
    all(o.name, o.elements, o.inputs, o.outputs, o.flops_per_element, o.by_element);
  }
  void operator()(const Embedding& o) { all(o.tokens, o.hidden, o.vocabulary, o.pass); }
  void operator()(const CrossEntropy& o) { all(o.rows, o.columns, o.pass); }
  void operator()(const OptimizerStep& o) { all(o.parameters); }
  void operator()(const GroupedGemm& o) {
    all(o.experts, o.rows, o.n, o.k, o.layout, o.epilogue, o.one_kernel, o.scaling);
  }
  void operator()(const MixtureOfExperts& o) { all(o.tokens, o.hidden, o.intermediate, o.experts, o.top_k, o.skew); }
  void operator()(const Copy& o) { all(o.bytes / units::B); }
  void operator()(const Convolution& o) {
    all(o.batch, o.in_channels, o.in_height, o.in_width, o.out_channels, o.kernel, o.stride, o.padding, o.pass);
  }
  void operator()(const UnknownOperator& o) {
    all(o.name, o.flops / units::FLOP, o.read / units::B, o.written / units::B);
  }
};

std::uint64_t hash_of(const Operator& op) {
  FieldHash hash{op.kind.index() + 1};
  hash.add(op.dtype);
  std::visit([&](const auto& kind) { hash(kind); }, op.kind);
  return hash.value;
}

class CachedCost final : public ComputeCost {
 public:
  CachedCost(std::unique_ptr<ComputeCost> cost, std::size_t slots) : cost_(std::move(cost)), forecasts_(slots) {}

  Result<Forecast> forecast(const Operator& op) const override {
    return forecasts_.find_or_make(op, hash_of(op), [&] { return cost_->forecast(op); });
  }

  Result<Explanation> explain(const Operator& op) const override { return cost_->explain(op); }

 private:
  std::unique_ptr<ComputeCost> cost_;
  SetCache<Operator, Forecast> forecasts_;
};

}  // namespace

std::unique_ptr<ComputeCost> make_cached_cost(std::unique_ptr<ComputeCost> cost, std::size_t slots) {
  return std::make_unique<CachedCost>(std::move(cost), slots);
}

}  // namespace ns_dist
