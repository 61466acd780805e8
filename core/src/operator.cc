#include "ns_dist/operator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <type_traits>

#include "ns_dist/forecast.h"
#include "ns_dist/hash.h"
#include "ns_dist/internal/operator_members.h"
#include "ns_dist/internal/overloaded.h"

namespace ns_dist {
namespace {

using namespace units;

double d(std::int64_t value) { return static_cast<double>(value); }

Bytes elements(double count, DType dtype) { return count * size_of(dtype); }

std::string_view suffix(Epilogue epilogue) {
  constexpr std::array<std::string_view, 5> kNames = {"", " +bias", " +bias+gelu", " +accumulate_fp32", " +accumulate"};
  return kNames[static_cast<std::size_t>(epilogue)];
}

std::string_view suffix(Pass pass) { return pass == Pass::kForward ? "" : " backward"; }

std::string suffix(Pass pass, Library library) {
  return fmt::format("{}{}{}", suffix(pass), library == Library::kDefault ? "" : " by ",
                     library == Library::kDefault ? "" : name_of(library));
}

// Keys that some query looks at.
double visible_keys(const Attention& op) {
  const double keys = d(op.key_length);
  return op.window > 0 && op.causal ? std::min(keys, d(op.window) + d(op.query_length) - 1) : keys;
}

double extent(const Convolution& op, std::int64_t input) {
  return std::floor((d(input) + 2 * d(op.padding) - d(op.kernel)) / d(op.stride)) + 1;
}

// Of a product's operands, with the factors that scale them.
Bytes operands(double count, DType dtype, Scaling scaling) {
  return elements(count, dtype) + scale_bytes(dtype, scaling) * count * B;
}

// Traffic and work of the epilogue beyond writing C(count elements of type `dtype`) once.
void add_epilogue(Work& work, Epilogue epilogue, double count, double columns, DType dtype) {
  switch (epilogue) {
    case Epilogue::kNone:
      break;
    case Epilogue::kBias:
      work.read += elements(columns, dtype);
      work.flops += count * FLOP;
      break;
    case Epilogue::kBiasGelu:
      work.read += elements(columns, dtype);
      work.flops += 9 * count * FLOP;  // bias, and GELU by its tanh form
      break;
    case Epilogue::kAccumulateFp32:
      work.read += elements(count, DType::kFp32);
      work.written += elements(count, DType::kFp32) - elements(count, dtype);
      work.flops += count * FLOP;
      break;
    case Epilogue::kAccumulate:
      work.read += elements(count, dtype);
      work.flops += count * FLOP;
      break;
  }
}

Work work_of(const Gemm& op, DType dtype) {
  const double b = d(op.batch), m = d(op.m), n = d(op.n), k = d(op.k);
  const DType out = product_of(dtype);
  Work work{2 * b * m * n * k * FLOP, operands(b * (m * k + k * n), dtype, op.scaling), elements(b * m * n, out)};
  add_epilogue(work, op.epilogue, b * m * n, n, out);
  return work;
}

// A weight gradient (kTN) reduces over an expert's rows: activations and output gradients come in, a matrix of
// weights for each expert goes out. Other products read the weights of experts that have a row.
Work work_of(const GroupedGemm& op, DType dtype) {
  const DType out = product_of(dtype);
  const double rows = d(op.rows), n = d(op.n), k = d(op.k), experts = d(op.experts);
  if (op.layout == GemmLayout::kTN) {
    Work work{2 * rows * n * k * FLOP, operands(rows * (n + k), dtype, op.scaling), elements(experts * n * k, out)};
    add_epilogue(work, op.epilogue, experts * n * k, k, out);
    return work;
  }
  const double read = rows * k + std::min(experts, rows) * k * n;
  Work work{2 * rows * n * k * FLOP, operands(read, dtype, op.scaling), elements(rows * n, out)};
  add_epilogue(work, op.epilogue, rows * n, n, out);
  return work;
}

// Backward recomputes the scores and makes four products more: 5 against 2 (Dao 2023, FlashAttention-2, s.3.1), three
// of them as wide as keys and two as wide as values.
Work work_of(const Attention& op, DType dtype) {
  const double batch = d(op.batch), heads = d(op.heads), kv_heads = d(op.kv_heads);
  const double width = d(op.head_dim), value_width = d(op.value_dim), queries = d(op.query_length);
  const double keys = visible_keys(op);
  const double pairs = batch * heads * attended_pairs(op);
  const Bytes q = elements(batch * heads * queries * width, dtype);
  const Bytes o = elements(batch * heads * queries * value_width, dtype);
  const Bytes kv = elements(batch * kv_heads * keys * (width + value_width), dtype);
  const Bytes logsumexp = elements(batch * heads * queries, DType::kFp32);
  if (op.pass == Pass::kForward) return {2 * pairs * (width + value_width) * FLOP, q + kv, o + logsumexp};
  return {2 * pairs * (3 * width + 2 * value_width) * FLOP, q + kv + 2 * o + logsumexp, q + kv};
}

// FLOPs of softmax and norms: operations of an element in the formulas. Memory bounds these kernels by far.
Work work_of(const Softmax& op, DType dtype) {
  const double count = d(op.rows) * d(op.columns);
  const bool forward = op.pass == Pass::kForward;  // scale, subtract the maximum, exp, sum, divide
  return {(forward ? 5 : 4) * count * FLOP, elements((forward ? 1 : 2) * count, dtype), elements(count, dtype)};
}

Work work_of(const Normalization& op, DType dtype) {
  const double count = d(op.rows) * d(op.columns);
  const bool forward = op.pass == Pass::kForward, layer = op.kind == NormalizationKind::kLayerNorm;
  const double weights = (layer ? 2 : 1) * d(op.columns);
  if (forward) return {(layer ? 7 : 5) * count * FLOP, elements(count + weights, dtype), elements(count, dtype)};
  return {(layer ? 14 : 11) * count * FLOP, elements(2 * count + weights, dtype), elements(count + weights, dtype)};
}

Work work_of(const Elementwise& op, DType dtype) {
  const double count = d(op.elements);
  return {op.flops_per_element * count * FLOP, elements(op.inputs * count, dtype), elements(op.outputs * count, dtype)};
}

Work work_of(const Embedding& op, DType dtype) {
  const double count = d(op.tokens) * d(op.hidden);
  const Bytes indices = 8 * d(op.tokens) * B;
  const double touched = d(std::min(op.tokens, op.vocabulary)) * d(op.hidden);  // table rows, at most
  if (op.pass == Pass::kForward) return {Flops(), elements(touched, dtype) + indices, elements(count, dtype)};
  return {count * FLOP, elements(count, dtype) + indices, elements(touched, dtype)};
}

Work work_of(const CrossEntropy& op, DType dtype) {
  const double rows = d(op.rows), count = rows * d(op.columns);
  if (op.pass == Pass::kForward) return {4 * count * FLOP, elements(count, dtype), elements(rows, DType::kFp32)};
  return {3 * count * FLOP, elements(count, dtype), elements(count, dtype)};
}

// Adam: gradient, master weight and two moments in fp32 come in; master weight, moments and the new weight go out. In
// fp32 the master weight is the weight.
Work work_of(const OptimizerStep& op, DType dtype) {
  const double n = d(op.parameters), copies = size_of(dtype) < size_of(DType::kFp32) ? n : 0;
  return {14 * n * FLOP, elements(4 * n, DType::kFp32), elements(3 * n, DType::kFp32) + elements(copies, dtype)};
}

// Experts that get a token. With a skewed router the i-th of them gets about pairs x i^-skew / H, with H the sum of
// i^-skew by Euler and Maclaurin: those that get less than half of one are idle.
double active_experts(const MixtureOfExperts& op) {
  const double experts = d(op.experts), pairs = d(op.tokens) * d(op.top_k), skew = op.skew;
  const double most = std::min(experts, pairs);
  if (!(skew > 0)) return most;
  const double integral =
      std::abs(skew - 1) < 1e-9 ? std::log(experts) : (std::pow(experts, 1 - skew) - 1) / (1 - skew);
  const double sum = integral + 0.5 * (1 + std::pow(experts, -skew)) + skew / 12;
  return std::clamp(std::floor(std::pow(std::max(1.0, 2 * pairs / sum), 1 / skew)), std::min(d(op.top_k), most), most);
}

// Three products of intermediate x hidden for each token and chosen expert; weights of the experts that are chosen at
// all.
Work work_of(const MixtureOfExperts& op, DType dtype) {
  const double pairs = d(op.tokens) * d(op.top_k), weights = 3 * d(op.hidden) * d(op.intermediate);
  const double tokens = d(op.tokens) * d(op.hidden);
  return {2 * pairs * weights * FLOP, elements(active_experts(op) * weights + tokens, dtype),
          elements(tokens, product_of(dtype))};
}

Work work_of(const Copy& op, DType) { return {Flops(), op.bytes, op.bytes}; }

Work work_of(const Convolution& op, DType dtype) {
  const double out = d(op.batch) * d(op.out_channels) * op.out_height() * op.out_width();
  const double in = d(op.batch) * d(op.in_channels) * d(op.in_height) * d(op.in_width);
  const double weights = d(op.in_channels) * d(op.out_channels) * d(op.kernel) * d(op.kernel);
  const Flops forward = 2 * out * d(op.in_channels) * d(op.kernel) * d(op.kernel) * FLOP;
  if (op.pass == Pass::kForward) return {forward, elements(in + weights, dtype), elements(out, dtype)};
  return {2 * forward, elements(out + in + weights, dtype), elements(in + weights, dtype)};
}

Work work_of(const UnknownOperator& op, DType) { return {op.flops, op.read, op.written}; }

// Whole numbers are at least 1, but for those that `may_be_zero` names; others are finite and not negative.
struct Check {
  std::vector<Error> errors;
  std::string_view may_be_zero;

  void member(std::string_view name, std::int64_t value) {
    if (name == may_be_zero) return member(name, d(value));
    if (value <= 0) add(name, std::to_string(value), "a whole number of at least 1");
  }
  void member(std::string_view name, double value) {
    if (!(value >= 0) || !std::isfinite(value))
      add(name, fmt::format("{:.6g}", value), "a finite number of at least 0");
  }
  void member(std::string_view name, Bytes value) { member(name, value / B); }
  void member(std::string_view name, Flops value) { member(name, value / FLOP); }
  template <class Other>
  void member(std::string_view, const Other&) {}
  void add(std::string_view name, const std::string& value, std::string expected) {
    Error error;
    error.message = std::string(name) + " is " + value;
    error.where = std::string(name);
    error.expected = std::move(expected);
    errors.push_back(std::move(error));
  }
};

template <class Kind>
void check(Check& c, const Kind& op) {
  if constexpr (std::is_same_v<Kind, Attention>) c.may_be_zero = "window";
  if constexpr (std::is_same_v<Kind, Convolution>) c.may_be_zero = "padding";
  visit_members(op, [&](std::string_view name, const auto& value) { c.member(name, value); });
  if constexpr (std::is_same_v<Kind, Attention>) {
    if (op.heads > 0 && op.kv_heads > 0 && op.heads % op.kv_heads != 0) {
      c.add("heads", std::to_string(op.heads), "a multiple of kv_heads (" + std::to_string(op.kv_heads) + ")");
    }
  }
  if constexpr (std::is_same_v<Kind, MixtureOfExperts>) {
    if (op.top_k > op.experts)
      c.add("top_k", std::to_string(op.top_k), "at most experts (" + std::to_string(op.experts) + ")");
  }
  if constexpr (std::is_same_v<Kind, Convolution>) {
    if (c.errors.empty() && (op.out_height() < 1 || op.out_width() < 1)) {
      c.add("kernel", std::to_string(op.kernel), "at most the padded input");
    }
  }
}

}  // namespace

double attended_pairs(const Attention& op) {
  const double queries = d(op.query_length), keys = d(op.key_length);
  const double window = op.window > 0 ? d(op.window) : keys;
  if (!op.causal) return queries * std::min(window, keys);
  // Query i (1-based) sees keys - queries + i keys, at least 0 and at most `window`.
  const double seeing = std::min(queries, keys);                   // queries that see a key at all
  const double first = keys - seeing + 1;                          // keys that the first of them sees
  const double growing = std::clamp(window - first, 0.0, seeing);  // queries before the window is full
  return growing * first + growing * (growing - 1) / 2 + (seeing - growing) * std::min(window, keys);
}

double Convolution::out_height() const { return extent(*this, in_height); }
double Convolution::out_width() const { return extent(*this, in_width); }

namespace {

struct MemberHash {
  std::uint64_t value;
  void add(std::int64_t next) { mix(static_cast<std::uint64_t>(next)); }
  void add(bool next) { mix(static_cast<std::uint64_t>(next)); }
  void add(double next) { mix(std::bit_cast<std::uint64_t>(next + 0.0)); }  // -0 equals 0
  void add(const std::string& next) { mix(fnv1a(next)); }
  void add(Bytes next) { add(next / B); }
  void add(Flops next) { add(next / FLOP); }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void add(Enum next) { mix(static_cast<std::uint64_t>(next)); }

 private:
  void mix(std::uint64_t next) { value = mix_hash(value, next); }
};

}  // namespace

std::uint64_t hash_of(const Operator& op) {
  MemberHash hash{op.kind.index() + 1};
  hash.add(op.dtype);
  std::visit(
      [&](const auto& kind) { visit_members(kind, [&](std::string_view, const auto& each) { hash.add(each); }); },
      op.kind);
  return hash.value;
}

std::string to_text(const Operator& op) {
  const auto other = [](std::string_view before, std::int64_t value, std::int64_t usual) {
    return value == usual ? "" : fmt::format("{}{}", before, value);
  };
  const std::string text = std::visit(
      Overloaded{
          [](const Gemm& o) {
            return fmt::format("gemm {}{}x{}x{} {}{}{}{}", o.batch == 1 ? "" : fmt::format("{}x", o.batch), o.m, o.n,
                               o.k, name_of(o.layout), suffix(o.epilogue),
                               o.scaling == Scaling::kBlock ? " block-scaled" : "",
                               o.quantizes ? " with quantization" : "");
          },
          [&](const Attention& o) {
            return fmt::format(
                "attention batch {} heads {}{} length {}{} dim {}{}{}{}{}{}{}{}", o.batch, o.heads,
                other("/", o.kv_heads, o.heads), o.query_length, other("/", o.key_length, o.query_length), o.head_dim,
                other("/", o.value_dim, o.head_dim), o.causal ? " causal" : "", other(" window ", o.window, 0),
                o.scaling == Scaling::kBlock ? " block-scaled" : "", suffix(o.pass),
                o.deterministic ? " deterministic" : "", suffix(Pass::kForward, o.library));
          },
          [](const Softmax& o) { return fmt::format("softmax {}x{}{}", o.rows, o.columns, suffix(o.pass, o.library)); },
          [](const Normalization& o) {
            return fmt::format("{} {}x{}{}", name_of(o.kind), o.rows, o.columns, suffix(o.pass, o.library));
          },
          [](const Elementwise& o) {
            return fmt::format("{} {} elements, {:.6g} in, {:.6g} out{}", o.name, o.elements, o.inputs, o.outputs,
                               o.by_element ? ", one by one" : "");
          },
          [](const Embedding& o) {
            return fmt::format("embedding {}x{} of {}{}", o.tokens, o.hidden, o.vocabulary, suffix(o.pass));
          },
          [](const CrossEntropy& o) {
            return fmt::format("cross_entropy {}x{}{}", o.rows, o.columns, suffix(o.pass, o.library));
          },
          [](const OptimizerStep& o) { return fmt::format("optimizer {} parameters", o.parameters); },
          [](const GroupedGemm& o) {
            return fmt::format("grouped_gemm {} experts {}x{}x{} {}{}{}{}", o.experts, o.rows, o.n, o.k,
                               name_of(o.layout), suffix(o.epilogue),
                               o.scaling == Scaling::kBlock ? " block-scaled" : "",
                               o.one_kernel ? " in one kernel" : "");
          },
          [](const MixtureOfExperts& o) {
            return fmt::format("moe {} tokens, {}x{}, top {} of {}{}", o.tokens, o.hidden, o.intermediate, o.top_k,
                               o.experts, o.skew > 0 ? fmt::format(", skew {:.6g}", o.skew) : "");
          },
          [](const Copy& o) { return "copy " + to_text(o.bytes); },
          [](const Convolution& o) {
            return fmt::format("convolution {}x{}x{}x{} to {} kernel {} stride {} padding {}{}", o.batch, o.in_channels,
                               o.in_height, o.in_width, o.out_channels, o.kernel, o.stride, o.padding, suffix(o.pass));
          },
          [](const UnknownOperator& o) {
            return fmt::format("{} {}, read {}, written {}", o.name.empty() ? "unknown" : o.name, to_text(o.flops),
                               to_text(o.read), to_text(o.written));
          },
      },
      op.kind);
  return text + " " + std::string(name_of(op.dtype));
}

Work work_of(const Operator& op) {
  return std::visit([&](const auto& kind) { return work_of(kind, op.dtype); }, op.kind);
}

Result<void> validate(const Operator& op) {
  Check c;
  std::visit([&](const auto& kind) { check(c, kind); }, op.kind);
  if (c.errors.empty()) {
    const Work work = work_of(op);
    if (!std::isfinite(work.flops / FLOP) || !std::isfinite((work.read + work.written) / B)) {
      c.add("size", to_text(op), "work that is finite in a double");
    }
  }
  if (!c.errors.empty()) {
    for (Error& error : c.errors) error.message = std::string(family_of(op)) + ": " + error.message;
    return fail(join(std::move(c.errors)));
  }
  return {};
}

}  // namespace ns_dist
