#include <array>

#include "readers.h"

namespace ns_dist {
namespace {

constexpr std::int64_t kMost = 1'000'000'000;

// Whatever a run says for itself or its publication says for all of its runs.
void read_common(JsonReader& reader, PublishedRun& run) {
  if (const std::string cluster = reader.text("cluster", Presence::kOptional); !cluster.empty()) run.cluster = cluster;
  const auto degree = [&](std::string_view key, std::int64_t& value) {
    value = reader.integer(key, 1, kMost, Presence::kOptional, value);
  };
  degree("tp", run.plan.tp);
  degree("pp", run.plan.pp);
  degree("dp", run.plan.dp);
  degree("cp", run.plan.cp);
  degree("ep", run.plan.ep);
  degree("vpp", run.plan.vpp);
  degree("micro_batch", run.training.micro_batch);
  degree("global_batch", run.training.global_batch);
  degree("sequence", run.training.sequence);
  if (const std::string name = reader.text("dtype", Presence::kOptional); !name.empty()) {
    const auto dtype = dtype_from_name(name);
    if (dtype) {
      run.training.dtype = *dtype;
    } else {
      reader.note("dtype", "\"" + name + "\" is not a number format", "fp32, tf32, fp16, bf16 or fp8");
    }
  }
  run.plan.zero = static_cast<ZeroStage>(
      reader.integer("zero", 0, 3, Presence::kOptional, static_cast<std::int64_t>(run.plan.zero)));
  static constexpr std::array kRecompute = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  run.plan.recompute = kRecompute[reader.choice("recompute", {"none", "selective", "full"}, Presence::kOptional,
                                                static_cast<std::size_t>(run.plan.recompute))];
  static constexpr std::array kAccumulation = {GradAccumulation::kFused, GradAccumulation::kFp32,
                                               GradAccumulation::kLow};
  run.plan.grad_accumulation =
      kAccumulation[reader.choice("grad_accumulation", {"fused", "fp32", "low"}, Presence::kOptional,
                                  static_cast<std::size_t>(run.plan.grad_accumulation))];
  run.plan.sequence_parallel = reader.boolean("sequence_parallel", run.plan.sequence_parallel);
  run.plan.flash_attention = reader.boolean("flash_attention", run.plan.flash_attention);
  run.plan.blocking_tp = reader.boolean("blocking_tp", run.plan.blocking_tp);
  run.plan.overlap_grad_reduce = reader.boolean("overlap_grad_reduce", run.plan.overlap_grad_reduce);
  run.plan.overlap_param_gather = reader.boolean("overlap_param_gather", run.plan.overlap_param_gather);
  if (const std::string schedule = reader.text("schedule", Presence::kOptional); !schedule.empty()) {
    run.plan.schedule = schedule;
  } else if (run.plan.vpp > 1) {
    run.plan.schedule = "interleaved";
  }
  run.plan.overlap_p2p = run.plan.schedule == "interleaved";
}

}  // namespace

Result<PublishedRuns> read_runs(std::string_view json, const std::string& where) {
  NS_TRY(const nlohmann::ordered_json root, parse_json(json, where));
  std::vector<Error> errors;
  JsonReader reader(root, where, errors);
  read_schema(reader, "ns-dist/runs/1");
  PublishedRuns published;
  published.id = reader.text("id");
  published.name = reader.text("name");
  PublishedRun common;
  read_common(reader, common);
  reader.objects("runs", [&](JsonReader& inner) {
    PublishedRun run = common;
    run.id = inner.text("id");
    run.table = inner.text("table", Presence::kOptional);
    run.model = inner.text("model");
    read_common(inner, run);
    run.step = inner.quantity<Seconds>("step_time");
    if (run.cluster.empty()) inner.note("", "key \"cluster\" is missing");
    published.runs.push_back(std::move(run));
  });
  if (root.contains("sources") && root["sources"].contains("/runs") && root["sources"]["/runs"].is_string()) {
    published.source = root["sources"]["/runs"].get<std::string>();
  }
  check_sources(root, reader);
  reader.reject_unknown_keys();
  if (!errors.empty()) return fail(join(std::move(errors)));
  return published;
}

}  // namespace ns_dist
