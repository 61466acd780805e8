#include "kept_operators.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace ns_dist {
namespace {

double ranks_of(const Shape& shape, Axis axis) {
  return static_cast<double>(axis == Axis::kTensor ? shape.tp : axis == Axis::kExpertTensor ? shape.etp : shape.ep);
}

// Bytes of what a rank receives; 0 of a communication whose output is not kept.
double kept_of(const Shape& shape, const Communication& what) {
  if (what.kind == CollectiveKind::kReduceScatter) return what.size / units::B / ranks_of(shape, what.axis);
  return what.kind == CollectiveKind::kAllToAll ? what.size / units::B * what.imbalance : 0;
}

// The output, and the log-sum-exp of each row in fp32.
double kept_of(const Shape& shape, const Attention& what) {
  const auto rows = static_cast<double>(what.batch * what.heads) * static_cast<double>(what.query_length);
  return rows * (static_cast<double>(what.value_dim) * shape.element + 4);
}

// Calls of BlockStep::forward that run again, in their order.
struct Repeated {
  std::vector<std::pair<std::size_t, Call>> calls;  // with their places
  std::size_t own = 0;                              // calls from here on make nothing that the step itself keeps
  bool keeps_input = false;                         // as it comes
  bool reads_input() const { return keeps_input || (!calls.empty() && calls.front().first == 0); }
};

// Counts the products of a layer.
class OperatorKeeper {
 public:
  explicit OperatorKeeper(const Shape& shape) : shape_(shape) {}

  // Sets BlockStep::kept_outputs. `until_kept`: of calls_until_kept.
  Repeated repeated(BlockStep& step, std::size_t until_kept) {
    step.kept_outputs = 0;
    const std::size_t count = step.forward.size();
    const bool keeps = step.kept_for_input_gradient + step.kept_for_weight_gradient > 0;
    Repeated found;
    found.own = keeps ? count - step.calls_after_kept : 0;
    found.keeps_input = keeps && found.own == 0;
    if (keep_attention(step, until_kept)) return found;
    std::vector<Call> left(step.forward.begin(), step.forward.end());  // what of each call is not kept
    std::size_t behind = 0;                                            // the last one whose whole output is kept
    for (std::size_t i = 0; i < count; ++i) {
      const auto [kept, whole] = split(step, left[i]);
      if (i < until_kept) step.kept_outputs += kept;
      if (whole) behind = i + 1;
    }
    // Where a later call's output is kept, a call runs again only for what the step itself keeps.
    for (std::size_t i = 0; i < until_kept; ++i) {
      if (i >= behind || (i < found.own && behind > found.own)) found.calls.emplace_back(i, std::move(left[i]));
    }
    return found;
  }

 private:
  struct Kept {
    double bytes = 0;
    bool whole = false;
  };
  // The core as one operator, with what it exchanges: of a ring's parts the first has the size of their sum.
  bool keep_attention(BlockStep& step, std::size_t until_kept) const {
    const Attention* core = nullptr;
    double exchanged = 0;
    for (const Call& call : step.forward) {
      if (const auto* what = std::get_if<Communication>(&call.what)) {
        exchanged += kept_of(shape_, *what);
      } else if (const auto* one = std::get_if<Attention>(&std::get<Operator>(call.what).kind)) {
        if (core == nullptr) core = one;
      }
    }
    if (core != nullptr && until_kept > 0) step.kept_outputs = kept_of(shape_, *core) + exchanged;
    return core != nullptr;
  }
  // What is kept of the call's output. Takes the products off `call` whose outputs are.
  Kept split(const BlockStep& step, Call& call) {
    if (const auto* what = std::get_if<Communication>(&call.what)) {
      const double bytes = kept_of(shape_, *what);
      return {bytes, bytes > 0};
    }
    auto& op = std::get<Operator>(call.what);
    auto* product = std::get_if<Gemm>(&op.kind);
    const bool counts = product != nullptr && product->batch == 1 && op.dtype == shape_.dtype && call.name == step.name;
    if (!counts || step.products.empty()) return {};
    std::int64_t kept = 0;
    for (const std::int64_t columns : step.products) {
      ++products_;
      if (shape_.plan->recompute_products == KeptProducts::kAll || products_ % 2 == 1) kept += columns;
    }
    const bool whole = kept == product->n;
    const double bytes = static_cast<double>(product->m) * static_cast<double>(kept) * shape_.element;
    if (!whole) product->n -= kept;
    return {bytes, whole};
  }

  const Shape& shape_;
  std::int64_t products_ = 0;  // so far
};

}  // namespace

void keep_operators(const Shape& shape, Block& layer) {
  const std::vector<std::size_t> until_kept = calls_until_kept(layer);
  OperatorKeeper keeper(shape);
  std::vector<Repeated> repeated;
  repeated.reserve(layer.steps.size());
  for (std::size_t i = 0; i < layer.steps.size(); ++i) {
    repeated.push_back(keeper.repeated(layer.steps[i], until_kept[i]));
  }
  // Of a step whose output nothing reads, only what makes the values that it keeps.
  for (std::size_t i = layer.steps.size(); i-- > 0;) {
    BlockStep& step = layer.steps[i];
    Repeated& again = repeated[i];
    const std::size_t reader = i + step.reader;
    const bool is_read = reader < repeated.size() && repeated[reader].reads_input();
    if (!is_read) std::erase_if(again.calls, [&](const auto& call) { return call.first >= again.own; });
    step.repeated.clear();
    for (const auto& [place, call] : again.calls) step.repeated.push_back(call);
  }
}

}  // namespace ns_dist
