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

const Attention* attention_of(const BlockStep& step) {
  for (const Call& call : step.forward) {
    const auto* op = std::get_if<Operator>(&call.what);
    if (op == nullptr) continue;
    if (const auto* attention = std::get_if<Attention>(&op->kind)) return attention;
  }
  return nullptr;
}

// Counts the products of a layer.
class OperatorKeeper {
 public:
  explicit OperatorKeeper(const Shape& shape) : shape_(shape) {}

  // `until_kept`: of calls_until_kept.
  void set(BlockStep& step, std::size_t until_kept) {
    step.repeated.clear();
    step.kept_outputs = 0;
    if (const Attention* attention = attention_of(step)) {
      if (until_kept > 0) step.kept_outputs = kept_of(shape_, *attention);
      return;
    }
    const std::size_t count = step.forward.size();
    std::vector<Call> left(step.forward.begin(), step.forward.end());  // what of each call is not kept
    std::size_t behind = 0;                                            // the last one whose whole output is kept
    for (std::size_t i = 0; i < count; ++i) {
      const auto [kept, whole] = split(step, left[i]);
      if (i < until_kept) step.kept_outputs += kept;
      if (whole) behind = i + 1;
    }
    // Where a later call's output is kept, a call runs again only for what the step itself keeps.
    const bool keeps = step.kept_for_input_gradient + step.kept_for_weight_gradient > 0;
    const std::size_t own = keeps ? count - step.calls_after_kept : 0;
    for (std::size_t i = 0; i < until_kept; ++i) {
      if (i >= behind || (i < own && behind > own)) step.repeated.push_back(std::move(left[i]));
    }
  }

 private:
  struct Kept {
    double bytes = 0;
    bool whole = false;
  };
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
    for (const std::int64_t columns : step.products) kept += ++products_ % 2 == 1 ? columns : 0;
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
  for (std::size_t i = 0; i < layer.steps.size(); ++i) keeper.set(layer.steps[i], until_kept[i]);
}

}  // namespace ns_dist
