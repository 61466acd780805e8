// The members of each kind of operator, in one list, from which its text (operator_text.h) and its hash follow.
//
//   visit_members(gemm, [](std::string_view name, auto& value) { ... });   // "batch", gemm.batch, then "m", gemm.m,
//   ...
#pragma once

#include <cstddef>
#include <string_view>
#include <type_traits>

#include "ns_dist/fields.h"
#include "ns_dist/operator.h"

namespace ns_dist {

template <OrConst<Gemm> Kind, class Visit>
constexpr void list_members(Kind& o, Visit&& v) {
  v("batch", o.batch), v("m", o.m), v("n", o.n), v("k", o.k), v("layout", o.layout), v("epilogue", o.epilogue);
  v("scaling", o.scaling), v("quantizes", o.quantizes);
}
template <OrConst<Attention> Kind, class Visit>
constexpr void list_members(Kind& o, Visit&& v) {
  v("batch", o.batch), v("heads", o.heads), v("kv_heads", o.kv_heads), v("query_length", o.query_length);
  v("key_length", o.key_length), v("head_dim", o.head_dim), v("value_dim", o.value_dim), v("causal", o.causal);
  v("window", o.window), v("pass", o.pass), v("library", o.library), v("deterministic", o.deterministic);
  v("scaling", o.scaling), v("in_a_row", o.in_a_row);
}
template <OrConst<Softmax> Kind, class Visit>
constexpr void list_members(Kind& o, Visit&& v) {
  v("rows", o.rows), v("columns", o.columns), v("pass", o.pass), v("library", o.library);
}
template <OrConst<Normalization> Kind, class Visit>
constexpr void list_members(Kind& o, Visit&& v) {
  v("kind", o.kind), v("rows", o.rows), v("columns", o.columns), v("pass", o.pass), v("library", o.library);
}
template <OrConst<Elementwise> Kind, class Visit>
constexpr void list_members(Kind& o, Visit&& v) {
  v("name", o.name), v("elements", o.elements), v("inputs", o.inputs), v("outputs", o.outputs);
  v("flops_per_element", o.flops_per_element), v("by_element", o.by_element);
}
template <OrConst<Embedding> Kind, class Visit>
constexpr void list_members(Kind& o, Visit&& v) {
  v("tokens", o.tokens), v("hidden", o.hidden), v("vocabulary", o.vocabulary), v("pass", o.pass);
}
template <OrConst<CrossEntropy> Kind, class Visit>
constexpr void list_members(Kind& o, Visit&& v) {
  v("rows", o.rows), v("columns", o.columns), v("pass", o.pass), v("library", o.library);
}
template <OrConst<OptimizerStep> Kind, class Visit>
constexpr void list_members(Kind& o, Visit&& v) {
  v("parameters", o.parameters);
}
template <OrConst<GroupedGemm> Kind, class Visit>
constexpr void list_members(Kind& o, Visit&& v) {
  v("experts", o.experts), v("rows", o.rows), v("n", o.n), v("k", o.k), v("layout", o.layout);
  v("epilogue", o.epilogue), v("one_kernel", o.one_kernel), v("scaling", o.scaling);
}
template <OrConst<MixtureOfExperts> Kind, class Visit>
constexpr void list_members(Kind& o, Visit&& v) {
  v("tokens", o.tokens), v("hidden", o.hidden), v("intermediate", o.intermediate), v("experts", o.experts);
  v("top_k", o.top_k), v("skew", o.skew);
}
template <OrConst<Copy> Kind, class Visit>
constexpr void list_members(Kind& o, Visit&& v) {
  v("bytes", o.bytes);
}
template <OrConst<Convolution> Kind, class Visit>
constexpr void list_members(Kind& o, Visit&& v) {
  v("batch", o.batch), v("in_channels", o.in_channels), v("in_height", o.in_height), v("in_width", o.in_width);
  v("out_channels", o.out_channels), v("kernel", o.kernel), v("stride", o.stride), v("padding", o.padding);
  v("pass", o.pass);
}
template <OrConst<UnknownOperator> Kind, class Visit>
constexpr void list_members(Kind& o, Visit&& v) {
  v("name", o.name), v("flops", o.flops), v("read", o.read), v("written", o.written);
}

// How many members an aggregate has: as many values as its initializer takes (the method of Boost.PFR).
struct AnyValue {
  template <class Value>
  operator Value() const;  // NOLINT(google-explicit-constructor): an initializer converts it
};
template <class Kind, class... Given>
consteval std::size_t count_of_members() {
  if constexpr (requires { Kind{Given()..., AnyValue()}; }) {
    return count_of_members<Kind, Given..., AnyValue>();
  } else {
    return sizeof...(Given);
  }
}

template <class Kind>
consteval std::size_t count_of_listed_members() {
  std::size_t count = 0;
  Kind usual{};
  list_members(usual, [&](std::string_view, const auto&) { ++count; });
  return count;
}

template <class Kind, class Visit>
constexpr void visit_members(Kind& op, Visit&& visit) {
  using Op = std::remove_const_t<Kind>;
  static_assert(count_of_listed_members<Op>() == count_of_members<Op>(),
                "list_members lacks a member of this operator");
  list_members(op, visit);
}

}  // namespace ns_dist
