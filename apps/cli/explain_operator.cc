#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <span>

#include "arguments.h"
#include "explain_subjects.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/fields.h"
#include "ns_dist/internal/number_from.h"
#include "ns_dist/internal/split_at.h"
#include "ns_dist/precision.h"
#include "tables.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

// What the command line gives of an operator, by the names of columns.
class GivenFields final : public OperatorFields {
 public:
  std::string_view text(std::string_view name) const override {
    const auto found = values_.find(name);
    return found == values_.end() ? std::string_view() : std::string_view(found->second);
  }
  void set(std::string_view name, std::string value) { values_.insert_or_assign(std::string(name), std::move(value)); }

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

// The text of a column, from what its flag was given.
using ColumnText = Result<std::string> (*)(std::string_view given, std::string_view flag);

template <std::int64_t kLeast>
Result<std::string> count_text(std::string_view given, std::string_view flag) {
  NS_TRY(const std::int64_t count, read_count(given, flag, kLeast));
  return std::to_string(count);
}

template <class Enum>
Result<std::string> name_text(std::string_view given, std::string_view flag) {
  NS_TRY(const Enum named, of_flag(flag, read_enumerator<Enum>(given)));
  return std::string(name_of(named));
}

Result<std::string> streams_text(std::string_view given, std::string_view flag) {
  const auto streams = number_from<double>(given);
  if (streams && *streams >= 0 && *streams <= 1000) return std::string(given);
  return fail({ErrorCode::kUsage,
               streams ? fmt::format("{} is out of range", given) : fmt::format("\"{}\" cannot be read", given),
               std::string(flag), "a number from 0 to 1000"});
}

Result<std::string> sum_format_text(std::string_view given, std::string_view flag) {
  const auto format = read_format(given);
  const bool sums =
      format && (format->dtype == DType::kFp32 || format->dtype == DType::kBf16 || format->dtype == DType::kFp16);
  if (sums) return std::string(name_of(format->dtype));
  return fail({ErrorCode::kUsage, fmt::format("\"{}\" is not one of its values", given), std::string(flag),
               "one of fp32, bf16, fp16"});
}

Result<std::string> flops_text(std::string_view given, std::string_view flag) {
  NS_TRY(const Flops flops, of_flag(flag, parse_quantity<Flops>(given)));
  return fmt::format("{}", flops / units::FLOP);
}

Result<std::string> bytes_text_of(std::string_view given, std::string_view flag) {
  NS_TRY(const Bytes bytes, read_bytes(given, flag, Bytes()));
  return fmt::format("{}", bytes / units::B);
}

// A flag of some operators: of those whose form has its column among the options.
struct ColumnFlag {
  const char* flag;
  std::string_view column;
  const char* type = nullptr;  // null: a switch
  ColumnText text = nullptr;   // of a switch, what the column then holds
  std::string_view set = "";
  const char* help;
};
constexpr std::array<ColumnFlag, 16> kColumnFlags = {{
    {.flag = "--layout",
     .column = "layout",
     .type = "LAYOUT",
     .text = name_text<GemmLayout>,
     .help = "nn, nt, tn, tt of a gemm's operands [nt]"},
    {.flag = "--accumulate",
     .column = "out_dtype",
     .type = "TYPE",
     .text = sum_format_text,
     .help = "a product adds to what is there, as weight gradients do: fp32, bf16, fp16 [it does not]"},
    {.flag = "--one-kernel",
     .column = "one_kernel",
     .set = "1",
     .help = "a grouped product runs as one kernel, not as one of each expert"},
    {.flag = "--library",
     .column = "library",
     .type = "NAME",
     .text = name_text<Library>,
     .help = "whose attention (cudnn, flash-1, flash-2, flash-3, serving, compiled, eager), normalization (cudnn, "
             "serving, compiled, eager), softmax (eager) or cross-entropy (flash-2, liger) [default]"},
    {.flag = "--value-dim",
     .column = "d_v",
     .type = "N",
     .text = count_text<1>,
     .help = "of attention's values [as of its keys]"},
    {.flag = "--kv-heads",
     .column = "h_kv",
     .type = "N",
     .text = count_text<1>,
     .help = "heads of keys and values [as many as heads]"},
    {.flag = "--window",
     .column = "window",
     .type = "N",
     .text = count_text<0>,
     .help = "tokens that attention looks back [0: all]"},
    {.flag = "--no-causal", .column = "causal", .set = "0", .help = "attention to later tokens too"},
    {.flag = "--deterministic",
     .column = "deterministic",
     .set = "1",
     .help = "attention's backward pass adds in a fixed order"},
    {.flag = "--rms", .column = "rms", .set = "1", .help = "RMSNorm instead of LayerNorm"},
    {.flag = "--inputs",
     .column = "inputs",
     .type = "N",
     .text = streams_text,
     .help = "tensors that an elementwise operator reads [those of its name, else 2]"},
    {.flag = "--outputs", .column = "outputs", .type = "N", .text = streams_text, .help = "tensors that it writes [1]"},
    {.flag = "--by-element",
     .column = "by_element",
     .set = "1",
     .help = "its threads handle each element alone: views, broadcasts, casts"},
    {.flag = "--flops",
     .column = "flops",
     .type = "WORK",
     .text = flops_text,
     .help = "of an unknown operator, as in \"2 TFLOP\""},
    {.flag = "--read",
     .column = "read_bytes",
     .type = "BYTES",
     .text = bytes_text_of,
     .help = "that it reads, as in \"64 MiB\" [0 B]"},
    {.flag = "--written",
     .column = "written_bytes",
     .type = "BYTES",
     .text = bytes_text_of,
     .help = "that it writes [0 B]"},
}};

bool reads(const OperatorForm& form, std::string_view column) {
  const std::vector<std::string_view> options = words_of(form.options);
  return std::find(options.begin(), options.end(), column) != options.end();
}

// Reads "8192x4096" into the columns of its dimensions.
Result<void> read_shape(const OperatorForm& form, const std::string& shape, GivenFields& fields) {
  const std::string example = fmt::format("as in: explain {} {}", form.family, form.example);
  std::vector<std::string> given;
  const std::vector<std::string_view> sizes = split_at(shape, "x");
  for (const std::string_view size : sizes) {
    auto dimension = read_count(size, "SHAPE", 1, sizes.size() == 1 ? kLargestAlone : kLargestDimension);
    if (!dimension) {
      dimension.error().hint = fmt::format("write {}, {}", form.shape, example);
      return fail(dimension.error());
    }
    given.push_back(std::to_string(*dimension));
  }
  // Dimensions in brackets are all given, or left out and 1.
  std::vector<std::string_view> all = words_of(form.dimensions), required = all;
  std::erase_if(required, [](std::string_view name) { return name.starts_with('['); });
  const std::vector<std::string_view>& names = given.size() == required.size() ? required : all;
  if (given.size() != names.size()) {
    return fail({ErrorCode::kUsage, fmt::format("\"{}\" has {}", shape, counted(given.size(), "dimension")), "SHAPE",
                 std::string(form.shape), example});
  }
  for (const std::string_view name : all) {
    if (name.starts_with('[')) fields.set(name.substr(1, name.size() - 2), "1");
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string_view name = names[i];
    fields.set(name.starts_with('[') ? name.substr(1, name.size() - 2) : name, std::move(given[i]));
  }
  return {};
}

// The operator of the request: its shape, and the flags that were given, by the columns that they fill.
Result<OperatorKind> operator_of(const OperatorForm& form, const ExplainRequest& request) {
  const bool has_size = !form.dimensions.empty() || form.family == "copy";  // an unknown kernel has a name at most
  if (has_size && request.shape.empty()) {
    return without_shape(form.shape, fmt::format("{} {}", form.family, form.example));
  }
  GivenFields fields;
  fields.set("dtype", request.dtype);
  if (!form.dimensions.empty()) {
    NS_TRY_VOID(read_shape(form, request.shape, fields));
  } else if (form.family == "copy") {
    NS_TRY(const Bytes bytes, read_bytes(request.shape, "SHAPE", 1 * units::B));
    fields.set("bytes", fmt::format("{}", bytes / units::B));
  } else {
    fields.set("name", request.shape);
    fields.set("read_bytes", "0");
  }
  for (const ColumnFlag& each : kColumnFlags) {
    if (each.type == nullptr) {
      if (request.switches.at(each.flag)) fields.set(each.column, std::string(each.set));
    } else if (const std::string& given = request.texts.at(each.flag); !given.empty()) {
      NS_TRY(std::string text, each.text(given, each.flag));
      fields.set(each.column, std::move(text));
      if (each.column == "out_dtype") fields.set("accumulate", "1");
    }
  }
  if (reads(form, "flops") && !fields.has("flops")) {
    return fail({ErrorCode::kUsage, "the work of the kernel is missing", "--flops", "its work, and the bytes it moves",
                 "as in: explain unknown my_kernel --flops \"2 TFLOP\" --read \"1 GB\" --written \"1 GB\""});
  }
  OperatorKind kind = form.make(fields, request.subject);
  if (!fields.problem().empty()) {
    return fail({ErrorCode::kUsage, fields.problem(), "SHAPE", std::string(fields.expected())});
  }
  // Sizes that contradict each other: the members that an error names are the shape's and its flags'.
  if (auto valid = validate({kind, DType::kBf16}); !valid) {
    Error error = std::move(valid).error();
    error.code = ErrorCode::kUsage, error.where = "SHAPE";
    for (Error& more : error.also) more.where = "SHAPE";
    return fail(std::move(error));
  }
  return kind;
}

// --dtype: formats of tensors, and of products and attention also those with a scale for each block.
Result<DType> format_of(const OperatorForm& form, std::string_view text) {
  const std::span<const std::string_view> plain = names_of<DType>();
  std::vector<std::string_view> formats(plain.begin(), plain.end());
  const bool product = form.family == "gemm" || form.family == "grouped_gemm";
  const bool by_block = product || form.family == "attention";
  if (by_block) formats.insert(formats.end(), {"fp8-block", "mxfp8"});
  if (product) formats.emplace_back("nvfp4");
  const auto format = read_format(text);
  const bool fits = format && (!format->scaled_by_block || product || (by_block && format->dtype == DType::kFp8));
  if (!fits) {
    const std::string near = nearest_name(text, {formats.begin(), formats.end()});
    return fail({ErrorCode::kUsage, fmt::format("\"{}\" is not one of its values", text), "--dtype",
                 fmt::format("one of {}, or another name of one of them", fmt::join(formats, ", ")),
                 did_you_mean(near)});
  }
  return format->dtype;
}

// What people ask first, taken off the steps: "work 1.100 TFLOP, 686 of 989 TFLOP/s; least traffic 384 MiB, ...", in
// units that data sheets have. Features of the model, which they ask last, become the last steps.
std::string take_facts(Explanation& explanation, const Gpu& gpu, const Operator& op) {
  const Work work = work_of(op);
  const Forecast& forecast = explanation.forecast;
  const double teraflops = work.flops / units::TFLOP, seconds = forecast.latency / units::s;
  const Bytes traffic = work.read + work.written;
  const FlopsPerSecond peak = std::holds_alternative<Gemm>(op.kind) ? gpu.matrix_peak(op.dtype) : FlopsPerSecond();
  const auto rounded = [](double value) { return with_commas(std::llround(value)); };
  std::string text;
  if (teraflops > 0) {
    text += fmt::format(
        "work {}, {:.3g}{} TFLOP/s; ",
        teraflops >= 1 ? fmt::format("{:#.4g} TFLOP", teraflops) : fmt::format("{:#.4g} GFLOP", 1e3 * teraflops),
        teraflops / seconds,
        peak > FlopsPerSecond() ? fmt::format(" of {:.3g}", peak / (units::TFLOP / units::s)) : "");
  }
  text += fmt::format("least traffic {}, {} of {} GB/s; floor {}", bytes_text(traffic),
                      rounded(traffic / units::GB / seconds), rounded(gpu.memory_bandwidth / (units::GB / units::s)),
                      duration_text(forecast.floor));
  std::vector<ExplanationStep>& steps = explanation.steps;
  for (const ExplanationStep& step : steps) {
    if (step.name == "power_w") text += fmt::format("; power {:.0f} W", std::strtod(step.value.c_str(), nullptr));
  }
  std::erase_if(steps, [](const ExplanationStep& step) {
    return step.name == "flops" || step.name == "least_traffic_B" || step.name == "floor_s" || step.name == "power_w";
  });
  std::stable_partition(steps.begin(), steps.end(), [](const ExplanationStep& step) { return step.note != "feature"; });
  return text;
}

}  // namespace

std::vector<std::string_view> families_with(std::string_view flag) {
  std::vector<std::string_view> families;
  for (const ColumnFlag& each : kColumnFlags) {
    if (flag != each.flag) continue;
    for (const OperatorForm& form : operator_forms()) {
      if (reads(form, each.column)) families.push_back(form.family);
    }
  }
  return families;
}

void add_operator_flags(CLI::App& app, ExplainRequest& request) {
  const auto add = [&](CLI::Option* option, const char* type) { option->type_name(type)->group(kOperatorFlags); };
  add(app.add_option("--dtype", request.dtype,
                     "fp64, fp32, tf32, fp16, bf16, fp8, fp4; of products and attention, fp8-block and mxfp8; of "
                     "products, nvfp4; or PyTorch's names [bf16]"),
      "TYPE");
  add(app.add_option("--mode", request.mode,
                     "burst: one kernel alone; sustained: back to back, as steps run them [sustained]"),
      "WHICH");
  add(app.add_option("--pass", request.pass, "forward, backward [forward]"), "WHICH");
  for (const ColumnFlag& each : kColumnFlags) {
    if (each.type == nullptr) {
      app.add_flag(each.flag, request.switches[each.flag], each.help)->group(kOperatorFlags);
    } else {
      add(app.add_option(each.flag, request.texts[each.flag], each.help), each.type);
    }
  }
  add(app.add_option("--kernel-calibration", request.kernel_calibration, "corrections measured on this GPU [none]"),
      "FILE");
}

Result<Explained> explain_operator(const OperatorForm& form, const ExplainRequest& request) {
  NS_TRY(OperatorKind kind, operator_of(form, request));
  NS_TRY(const DType dtype, format_of(form, request.dtype));
  NS_TRY(const Pass pass, of_flag("--pass", read_enumerator<Pass>(request.pass)));
  NS_TRY_VOID(of_flag("--pass", set_pass(kind, pass)));
  NS_TRY(const Gpu gpu, named_by("--gpu", Catalog::standard().gpu(request.gpu.value_or("h100-sxm-80gb"))));
  if (const auto named = read_enumerator<Precision>(request.dtype)) {
    const std::string_view reason = reason_against(gpu, *named);
    if (!reason.empty()) warn(fmt::format("{} does not run on {}: {}", name_of(*named), gpu.name, reason));
  }
  NS_TRY(const ComputeModelOptions options, read_kernel_options(request.mode, request.kernel_calibration.value_or("")));
  NS_TRY(const auto model, make_compute_model(gpu, options));
  const Operator op{kind, dtype};
  NS_TRY(Explanation explanation, model->explain(op));
  std::string facts = request.json ? "" : take_facts(explanation, gpu, op);
  return Explained{std::move(explanation), std::move(facts)};
}

}  // namespace ns_dist::cli
