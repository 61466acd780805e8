#include "pytorch_operators.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ns_dist/internal/number_from.h"

namespace ns_dist::chakra {
namespace {

using Shape = std::vector<std::int64_t>;
constexpr std::size_t kMostInputs = 64;

// The elements of "[a, [b, c], 'd, e']" as they are written.
std::vector<std::string_view> elements_of(std::string_view list) {
  std::vector<std::string_view> out;
  if (list.size() < 2 || list.front() != '[' || list.back() != ']') return out;
  list = list.substr(1, list.size() - 2);
  const auto add = [&out](std::string_view text) {
    const std::size_t begin = text.find_first_not_of(' ');
    if (begin == std::string_view::npos) return;
    out.push_back(text.substr(begin, text.find_last_not_of(' ') - begin + 1));
  };
  int depth = 0;
  bool quoted = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < list.size() && out.size() < kMostInputs; ++i) {
    const char c = list[i];
    if (c == '\'') quoted = !quoted;
    if (quoted) continue;
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (c == ',' && depth == 0) {
      add(list.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  add(list.substr(begin));
  return out;
}

// Empty where it is no list of whole numbers.
Shape numbers_of(std::string_view list) {
  Shape out;
  for (const std::string_view text : elements_of(list)) {
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    const auto value = number_from<std::int64_t>(text);
    if (!value || *value < 0 || *value > kMost) return {};
    out.push_back(*value);
  }
  return out;
}

std::optional<DType> dtype_of(std::string_view type) {
  if (type == "'Tensor(float)'") return DType::kFp32;
  if (type == "'Tensor(c10::Half)'") return DType::kFp16;
  if (type == "'Tensor(c10::BFloat16)'") return DType::kBf16;
  if (type == "'Tensor(double)'") return DType::kFp64;
  return std::nullopt;
}

// 0 where it has no element or too many.
std::int64_t elements(const Shape& shape) {
  std::int64_t count = shape.empty() ? 0 : 1;
  for (const std::int64_t n : shape) {
    if (n <= 0 || count > (std::int64_t{1} << 50) / n) return 0;
    count *= n;
  }
  return count;
}

struct Inputs {
  std::vector<Shape> shapes;
  std::vector<std::string_view> types, values;

  const Shape& shape(std::size_t i) const {
    static const Shape kNone;
    return i < shapes.size() ? shapes[i] : kNone;
  }
  // A list of one or two equal numbers: stride, padding.
  std::optional<std::int64_t> both(std::size_t i) const {
    if (i >= values.size()) return std::nullopt;
    const Shape list = numbers_of(values[i]);
    if (list.empty() || list.size() > 2 || list.front() != list.back()) return std::nullopt;
    return list.front();
  }
};

std::optional<OperatorKind> product(const Shape& a, const Shape& b, GemmLayout layout) {
  if (a.size() != 2 || b.size() != 2 || a[1] != b[0]) return std::nullopt;
  return Gemm{.m = a[0], .n = b[1], .k = a[1], .layout = layout};
}

std::optional<OperatorKind> batched(const Shape& a, const Shape& b) {
  if (a.size() != 3 || b.size() != 3 || a[0] != b[0] || a[2] != b[1]) return std::nullopt;
  return Gemm{.batch = a[0], .m = a[1], .n = b[2], .k = a[2], .layout = GemmLayout::kNN};
}

std::optional<OperatorKind> linear(const Shape& input, const Shape& weight) {
  if (input.empty() || weight.size() != 2 || input.back() != weight[1] || input.back() <= 0) return std::nullopt;
  return Gemm{.m = elements(input) / input.back(), .n = weight[0], .k = weight[1], .layout = GemmLayout::kNT};
}

// Where PyTorch's convolutions have what (aten/src/ATen/native/native_functions.yaml): places among their inputs.
struct ConvolutionInputs {
  std::string_view name;
  std::size_t input, weight, stride, padding, dilation;
  std::size_t transposed = kMostInputs;  // none: never
  Pass pass = Pass::kForward;
};
constexpr ConvolutionInputs kConvolutions[] = {{"conv2d", 0, 1, 3, 4, 5},
                                               {"convolution", 0, 1, 3, 4, 5, 6},
                                               {"_convolution", 0, 1, 3, 4, 5, 6},
                                               {"cudnn_convolution", 0, 1, 3, 2, 4},
                                               {"convolution_backward", 1, 2, 4, 5, 6, 7, Pass::kBackward}};

// No dilated and no transposed one: those that are not told are neither.
std::optional<OperatorKind> convolution(const Inputs& in, const ConvolutionInputs& at) {
  const Shape &input = in.shape(at.input), &weight = in.shape(at.weight);
  const auto stride = in.both(at.stride), padding = in.both(at.padding);
  if (at.dilation < in.values.size() && in.both(at.dilation) != 1) return std::nullopt;
  if (at.transposed < in.values.size() && in.values[at.transposed] != "False" && in.values[at.transposed] != "0") {
    return std::nullopt;
  }
  if (input.size() != 4 || weight.size() != 4 || input[1] != weight[1] || weight[2] != weight[3] || !stride ||
      !padding) {
    return std::nullopt;
  }
  return Convolution{.batch = input[0],
                     .in_channels = input[1],
                     .in_height = input[2],
                     .in_width = input[3],
                     .out_channels = weight[0],
                     .kernel = weight[2],
                     .stride = *stride,
                     .padding = *padding,
                     .pass = at.pass};
}

struct Pointwise {
  std::string_view name;
  double inputs = 1, outputs = 1;  // inputs 0: as many tensors of the full size as are given
  double flops = Elementwise::flops_of(name);
};
constexpr Pointwise kPointwise[] = {{"add", 0},
                                    {"sub", 0},
                                    {"mul", 0},
                                    {"div", 0},
                                    {"relu"},
                                    {"gelu"},
                                    {"silu"},
                                    {"sigmoid"},
                                    {"tanh"},
                                    {"dropout", 1, 1.5, 2},
                                    {"native_dropout", 1, 1.5, 2},
                                    {"clone"},
                                    {"copy"},
                                    {"threshold_backward", 2},
                                    {"gelu_backward", 2, 1, 15},
                                    {"silu_backward", 2, 1, 8},
                                    {"sigmoid_backward", 2, 1, 3},
                                    {"tanh_backward", 2, 1, 3},
                                    // Statistics first, then the elements again.
                                    {"batch_norm", 2, 1, 8},
                                    {"cudnn_batch_norm", 2, 1, 8},
                                    {"native_batch_norm", 2, 1, 8},
                                    {"cudnn_batch_norm_backward", 4, 1, 12},
                                    {"native_batch_norm_backward", 4, 1, 12}};

std::optional<OperatorKind> pointwise(std::string_view name, const Inputs& in) {
  if (name.ends_with('_')) name.remove_suffix(1);  // in place
  const auto found =
      std::find_if(std::begin(kPointwise), std::end(kPointwise), [&](const Pointwise& p) { return p.name == name; });
  if (found == std::end(kPointwise)) return std::nullopt;
  std::int64_t most = 0;
  for (const Shape& shape : in.shapes) most = std::max(most, elements(shape));
  if (most == 0) return std::nullopt;
  double given = 0;
  for (const Shape& shape : in.shapes) given += elements(shape) == most ? 1 : 0;
  return Elementwise{std::string(name), most, found->inputs > 0 ? found->inputs : given, found->outputs, found->flops};
}

std::optional<OperatorKind> kind_of(std::string_view name, const Inputs& in) {
  if (name == "mm") return product(in.shape(0), in.shape(1), GemmLayout::kNN);
  if (name == "addmm") return product(in.shape(1), in.shape(2), GemmLayout::kNT);
  if (name == "bmm") return batched(in.shape(0), in.shape(1));
  if (name == "baddbmm") return batched(in.shape(1), in.shape(2));
  if (name == "linear") return linear(in.shape(0), in.shape(1));
  if (name == "matmul") {
    return in.shape(0).size() == 3 ? batched(in.shape(0), in.shape(1))
                                   : product(in.shape(0), in.shape(1), GemmLayout::kNN);
  }
  for (const ConvolutionInputs& each : kConvolutions) {
    if (each.name == name) return convolution(in, each);
  }
  const Shape& first = in.shape(0);
  const bool rows = !first.empty() && elements(first) > 0;
  if (name == "native_layer_norm" || name == "layer_norm") {
    if (!rows) return std::nullopt;
    return Normalization{.rows = elements(first) / first.back(), .columns = first.back()};
  }
  if (name == "_softmax" || name == "softmax") {
    if (!rows) return std::nullopt;
    return Softmax{.rows = elements(first) / first.back(), .columns = first.back(), .library = Library::kEager};
  }
  return pointwise(name, in);
}

}  // namespace

std::optional<Operator> pytorch_operator(std::string_view name, const TraceTensors& inputs) {
  constexpr std::string_view kAten = "aten::";
  if (!name.starts_with(kAten)) return std::nullopt;
  Inputs in;
  for (const std::string_view shape : elements_of(inputs.shapes)) in.shapes.push_back(numbers_of(shape));
  in.types = elements_of(inputs.types);
  in.values = elements_of(inputs.values);
  std::optional<DType> dtype;  // of the first tensor
  for (const std::string_view type : in.types) {
    if (!dtype) dtype = dtype_of(type);
  }
  if (!dtype) return std::nullopt;
  std::optional<OperatorKind> kind = kind_of(name.substr(kAten.size()), in);
  if (!kind) return std::nullopt;
  Operator op{*std::move(kind), *dtype};
  if (!validate(op)) return std::nullopt;
  return op;
}

}  // namespace ns_dist::chakra
